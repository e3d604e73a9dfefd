"""APRIL's closed form: the tokens from the first attention's gradients (Lu et al. 2022, section 3.2)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.certificate import finite, judge, relative_error, solution_values
from attacks.analytic.linear.least_squares import PatchSolution, solve_patches
from attacks.analytic.linear.patches import patchify, unpatchify
from attacks.analytic.patch_gradient import (
    check_embedding,
    embedding_rows,
    known_embedding,
    known_prefix,
    patch_layer,
)
from attacks.analytic.row_space.first_norm import first_block_layers
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import LinearSystem, linear_error, own_equations
from fedsim.errors import NotApplicable
from fedsim.observation import Observation


def solve_tokens(
    token_grads: Float[Tensor, "tokens width"],
    qkv_weight: Float[Tensor, "inner width"],
    qkv_weight_grad: Float[Tensor, "inner width"],
    rcond: float | None = None,
    equilibrate: bool = True,
) -> PatchSolution:
    """Solve Gᵀ Z = W_Qᵀ ∂L/∂W_Q + W_Kᵀ ∂L/∂W_K + W_Vᵀ ∂L/∂W_V for the tokens Z, prefix tokens included.

    Exact for one image when the attention is the only reader of z, without a norm before it, and
    `tokens <= width`. The fused projection stacks Q, K and V, so the right-hand side is one product.
    """
    right_hand_side = qkv_weight.double().T @ qkv_weight_grad.double()
    return solve_patches(token_grads, right_hand_side, rcond, equilibrate, weigh=False)


def patches_of_tokens(
    embedded: Float[Tensor, "tokens width"], patch_weight: Float[Tensor, "width pixels"]
) -> tuple[Float[Tensor, "tokens pixels"], float]:
    """Solve W_p p_n = z_n - e_n - b_p in float64: the patches, and by how much errors grow on the way.

    The growth is ‖W_p⁺‖²_F / pixels, the ratio of mean squared errors. With `pixels > width` the patches are
    the minimum-norm ones only.
    """
    inverse = torch.linalg.pinv(patch_weight.double())
    return embedded.double() @ inverse.T, float(inverse.square().sum() / inverse.shape[0])


class April(Attack):
    """The closed form as published, for the architecture that it was published for.

    The first block's attention must read the embedding itself (`model.variant=april`); on a pre-norm ViT the
    formula returns noise, and the attack refuses. Badly conditioned: float32 gradients give 30 to 41 dB,
    float64 gradients the exact picture (docs/results/april.md).

    Args:
        rcond: singular values below rcond·largest are dropped; None chooses by generalised cross-validation.
        equilibrate: scale the token gradients to unit norm before the decomposition.
    """

    needs = Needs(roles=("pos_embed", "qkv_weight"), sizes=True)

    def __init__(self, rcond: float | None = None, equilibrate: bool = True) -> None:
        self.rcond = rcond
        self.equilibrate = equilibrate

    def check(self, observation: Observation) -> None:
        self._check_architecture(observation)
        super().check(observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for pre-norm models, and where a gradient that the formula reads is withheld."""
        self._check_architecture(observation)
        roles, state = observation.roles, observation.global_state
        assert roles.grid is not None
        assert roles.patch is not None
        assert roles.qkv_weight is not None
        assert roles.patch_weight is not None
        token_grads = _all_token_grads(observation).to(device)
        qkv_weight = state[roles.qkv_weight].double().to(device)
        only_reader = _only_reader_error(observation, token_grads, qkv_weight)
        tokens = solve_tokens(
            token_grads, qkv_weight, observation.gradient_of("qkv_weight").to(device), self.rcond, self.equilibrate
        )
        embedding = known_embedding(observation).to(device)
        embedded = tokens.patches[roles.prefix_tokens :] - embedding[roles.embedded_prefix_tokens :]
        if roles.patch_bias is not None:
            embedded = embedded - state[roles.patch_bias].double().to(device)
        weight = state[roles.patch_weight].double().to(device).flatten(1)
        patches, growth = patches_of_tokens(embedded, weight)
        image = unpatchify(patches, roles.grid, roles.patch)
        return Reconstruction(
            images=observation.to_unit_range(image).clamp(0.0, 1.0),
            certificate=_certificate(observation, tokens, growth, only_reader, weight),
        )

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        assert result.images is not None
        roles, state = observation.roles, observation.global_state
        assert roles.patch is not None
        assert roles.patch_weight is not None
        assert roles.qkv_weight is not None
        require_image(observation, result.images, patch_layer(observation), *first_block_layers(observation))
        qkv_weight = state[roles.qkv_weight].double()
        shared, found = (
            LinearSystem(_all_token_grads(one), qkv_weight.T @ one.gradient_of("qkv_weight"))
            for one in (observation, again)
        )
        patches = patchify(observation.normalised(result.images.cpu()), roles.patch)
        errors = linear_error(shared, found, _tokens_of(observation, patches), observation.eps)
        least = torch.linalg.svdvals(state[roles.patch_weight].double().flatten(1))
        width, pixels = len(qkv_weight.T), patches.shape[1]
        if errors is None or pixels > width:
            return None
        # At worst all of a token's error lies where the patch projection is weakest.
        growth = math.sqrt(width / pixels) / float(least[-1].clamp(min=1e-300))
        return own_equations(errors[roles.prefix_tokens :] * growth, observation.std)

    def _check_architecture(self, observation: Observation) -> None:
        check_embedding(observation)
        if not observation.roles.direct_attention:
            raise NotApplicable(
                "the first attention does not read the embedding directly (a norm before it, a residual around it): "
                "the formula needs model.variant=april"
            )


def _tokens_of(observation: Observation, patches: Float[Tensor, "patches pixels"]) -> Float[Tensor, "tokens width"]:
    """What the first attention reads of these patches, prefix tokens first, float64."""
    roles, state = observation.roles, observation.global_state
    assert roles.patch_weight is not None
    embedding = known_embedding(observation)
    tokens = patches @ state[roles.patch_weight].double().flatten(1).T
    if roles.patch_bias is not None:
        tokens = tokens + state[roles.patch_bias].double()
    return torch.cat([known_prefix(observation), tokens + embedding[roles.embedded_prefix_tokens :]])


def _all_token_grads(observation: Observation) -> Float[Tensor, "tokens width"]:
    """G with a row for each token that the first attention sees, prefix tokens first.

    Raises:
        NotApplicable: the gradient of a position embedding or of a prefix token was not shared.
    """
    roles = observation.roles
    rows = embedding_rows(observation)
    if roles.embedded_prefix_tokens == roles.prefix_tokens:
        return rows
    prefix = []
    for name in roles.prefix_names:
        gradient = observation.gradient_named(name)
        prefix.append(gradient.reshape(-1, gradient.shape[-1]))
    found = torch.cat([*prefix, rows])
    assert roles.grid is not None
    expected = roles.prefix_tokens + roles.grid[0] * roles.grid[1]
    if len(found) != expected:
        raise NotApplicable(f"gradients of {len(found)} tokens for {expected} tokens")
    return found


def _only_reader_error(
    observation: Observation, token_grads: Float[Tensor, "tokens width"], qkv_weight: Float[Tensor, "inner width"]
) -> float | None:
    """Relative error of W_qkvᵀ ∂L/∂b_qkv = Σ_t G_t, None without a shared bias.

    1e-7 in float32 where the first attention alone reads the embedding, 0.9 to 1 where something else does too. Large
    also where that bias's gradient was spoilt, which the formula does not read: no refusal, and no certificate.
    """
    name = observation.roles.qkv_bias
    bias_grad = observation.gradient.get(name) if name else None
    if bias_grad is None:
        return None
    return relative_error(token_grads.sum(dim=0), qkv_weight.T @ bias_grad.to(qkv_weight.device))


def _certificate(
    observation: Observation,
    tokens: PatchSolution,
    growth: float,
    only_reader: float | None,
    patch_weight: Float[Tensor, "width pixels"],
) -> Certificate:
    width, pixels = patch_weight.shape
    variance = sum(std**2 for std in observation.std) / len(observation.std)
    values = solution_values(tokens, width, growth * variance)
    if only_reader is not None:
        values["identity"] = only_reader
    if pixels > width:
        reason = f"{pixels} pixels of a patch > width {width}: the minimum-norm patches"
        return Certificate("uncertified", reason, finite(values))
    return judge(values, observation.num_images, "W_qkvᵀ ∂L/∂b_qkv = Σ_t G_t")
