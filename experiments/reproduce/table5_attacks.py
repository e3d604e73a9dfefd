"""Attackers of MJP's Table 5: APRIL on masked pictures too, and one who knows the defense whole."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from attacks.analytic import MJPAdaptive
from attacks.analytic.april import patches_of_tokens, solve_tokens
from attacks.analytic.mjp_adaptive import UNKNOWN, masked_positions
from attacks.analytic.patch_gradient import check_embedding, embedding_rows
from attacks.analytic.patches import unpatchify
from attacks.base import Attack, Needs, Reconstruction
from defenses.mjp import MaskedJigsawPuzzle
from defenses.mjp.localisation import LOCALISER, unmasked_share
from fedsim.errors import NotApplicable
from fedsim.observation import Observation


class PublishedApril(Attack):
    """APRIL's closed form without its tests: it answers where tokens share an embedding, however wrong.

    The same pictures as `attacks.analytic.April` where that one does not refuse. The rows of masked positions are zero
    in ∂L/∂pos_embed, so their tokens get the least-norm solution 0.

    Args:
        told: of the defense: masked positions took the unknown embedding instead of their own, and the localisation's
            term is taken out of the gradient.
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
        if self.told:
            observation = without_localisation(observation)
        assert roles.grid is not None
        assert roles.patch is not None
        rows = embedding_rows(observation).to(device)
        weight = state[str(roles.qkv_weight)].to(device)
        tokens = solve_tokens(rows, weight, observation.gradient_of("qkv_weight").to(device)).patches
        embedding = state[str(roles.pos_embed)].double().flatten(0, -2).to(device).clone()
        hidden = visible_mask(observation) if self.told else None
        if hidden is not None:
            embedding[roles.embedded_prefix_tokens :][hidden.to(device)] = state[UNKNOWN].double().to(device)
        embedded = (tokens - embedding)[roles.prefix_tokens :]
        if roles.patch_bias is not None:
            embedded = embedded - state[roles.patch_bias].double().to(device)
        patches, _ = patches_of_tokens(embedded, state[str(roles.patch_weight)].to(device).flatten(1))
        picture = observation.to_unit_range(unpatchify(patches, roles.grid, roles.patch))
        return Reconstruction(images=picture.clamp(0.0, 1.0))


class InformedAdaptive(Attack):
    """`mjp_adaptive` by a server that first takes the localisation regression out of the gradient.

    Masks show, and the server sent the embeddings and the regressor: it knows that part of the gradient exactly.

    Args:
        settings: those of `attacks.analytic.MJPAdaptive`.
    """

    needs = MJPAdaptive.needs

    def __init__(self, **settings: Any) -> None:
        self._adaptive = MJPAdaptive(**settings)

    def check(self, observation: Observation) -> None:
        self._adaptive.check(observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        return self._adaptive.run(without_localisation(observation), rng, device)


def without_localisation(observation: Observation) -> Observation:
    """The observation with ∂L/∂pos_embed less the localisation's term (Ren et al. 2023, section 3.3)."""
    puzzle = puzzle_of(observation)
    name = str(observation.roles.pos_embed)
    if puzzle is None or puzzle.dal == "none" or name not in observation.update.tensors:
        return observation
    hidden = _masked(observation)
    if bool(hidden.all()):
        return observation
    model = observation.build_model()
    embedding = model.get_parameter(name)
    loss: Tensor = model.get_submodule(LOCALISER)(embedding[0, -len(hidden) :], unmasked_share(hidden[None]))
    weighed = puzzle.dal_weight.at(observation.server_round) * loss
    (known,) = torch.autograd.grad(weighed, embedding)
    shared = observation.update.tensors[name]
    rest = (shared.double() - known.double()).to(shared.dtype)
    update = replace(
        observation.update,
        tensors={
            **{n: t for n, t in observation.update.tensors.items() if not n.startswith(f"{LOCALISER}.")},
            name: rest,
        },
    )
    return replace(observation, update=update)


def puzzle_of(observation: Observation) -> MaskedJigsawPuzzle | None:
    """The masked jigsaw that the client runs, as the server knows it."""
    for wrapper in observation.architecture.wrappers:
        for defense in getattr(wrapper, "defenses", {}).values():
            if isinstance(defense, MaskedJigsawPuzzle):
                return defense
    return None


def visible_mask(observation: Observation) -> Bool[Tensor, " tokens"] | None:
    """Which positions share the unknown embedding; None where no position can."""
    return _masked(observation) if UNKNOWN in observation.global_state else None


def _masked(observation: Observation) -> Bool[Tensor, " tokens"]:
    return masked_positions(embedding_rows(observation)[observation.roles.embedded_prefix_tokens :])
