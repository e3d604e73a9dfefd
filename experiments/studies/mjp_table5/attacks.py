"""APRIL for MJP's Table 5: by who is told of the defense, or is not."""

import torch
from jaxtyping import Bool
from torch import Tensor

from attacks.analytic.april import patches_of_tokens, solve_tokens
from attacks.analytic.linear.patches import unpatchify
from attacks.analytic.mjp.attack import masked_positions
from attacks.analytic.patch_gradient import check_embedding, embedding_rows, known_embedding, shared_rows
from attacks.base import Attack, Needs, Reconstruction
from fedsim.effects import MasksPositions
from fedsim.errors import NotApplicable
from fedsim.observation import Observation


class PublishedApril(Attack):
    """APRIL's closed form without certificates, by an attacker who knows of MJP's masks or knows nothing of MJP.

    The same pictures as `attacks.analytic.April`, which knows of both, for one who is told, and where there is neither.
    The rows of masked positions are zero in ∂L/∂pos_embed, so their tokens get the least-norm solution 0.

    Args:
        told: of the defense: masked positions took the unknown embedding instead of their own, and the localisation's
            term is taken out of the gradient. Untold, it solves with the gradient as it was shared.
    """

    needs = Needs(roles=("pos_embed", "qkv_weight"))

    def __init__(self, told: bool = False) -> None:
        self.told = told

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for other architectures than APRIL's, and where a gradient is withheld."""
        check_embedding(observation)
        roles, state = observation.roles, observation.global_state
        if not roles.direct_attention:
            raise NotApplicable("the first attention does not read the embedding directly: model.variant=april")
        if roles.embedded_prefix_tokens != roles.prefix_tokens:
            raise NotApplicable("class tokens without a row in the position embedding")
        assert roles.grid is not None
        assert roles.patch is not None
        rows = (embedding_rows if self.told else shared_rows)(observation).to(device)
        weight = state[str(roles.qkv_weight)].to(device)
        tokens = solve_tokens(rows, weight, observation.gradient_of("qkv_weight").to(device)).patches
        own = state[str(roles.pos_embed)].double().flatten(0, -2)
        embedding = (known_embedding(observation) if self.told else own).to(device)
        embedded = (tokens - embedding)[roles.prefix_tokens :]
        if roles.patch_bias is not None:
            embedded = embedded - state[roles.patch_bias].double().to(device)
        patches, _ = patches_of_tokens(embedded, state[str(roles.patch_weight)].to(device).flatten(1))
        image = observation.to_unit_range(unpatchify(patches, roles.grid, roles.patch))
        return Reconstruction(images=image.clamp(0.0, 1.0))


def visible_mask(observation: Observation) -> Bool[Tensor, " tokens"] | None:
    """Which positions share the unknown embedding; None where no position can."""
    if observation.effect(MasksPositions) is None:
        return None
    return masked_positions(shared_rows(observation)[observation.roles.embedded_prefix_tokens :])
