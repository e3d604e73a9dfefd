"""What Masked Jigsaw Puzzle leaves of a picture, from an attacker who knows of it (the defense: Ren et al. 2023)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attacks.analytic.linear.certificate import finite, relative_error
from attacks.analytic.linear.least_squares import solve_patches
from attacks.analytic.linear.patches import PatchPixels
from attacks.analytic.patch_gradient import PatchGradient, check_embedding, embedding_rows, pixels_of
from attacks.analytic.row_space.attack import gradient_spaces, make_readers, to_image
from attacks.analytic.row_space.completion import complete
from attacks.analytic.row_space.later_norms import Readers
from attacks.analytic.row_space.solution import solve
from attacks.analytic.row_space.subspace import Subspace, row_space
from attacks.analytic.row_space.system import patch_system
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.positions import masked_rows
from fedsim.effects import MasksPositions
from fedsim.errors import ConfigError, NotApplicable, require
from fedsim.observation import Observation

ZERO = 1e-9
"""Share of the median row's norm: a masked position's embedding was not read, so its gradient is zero exactly."""


@dataclass(frozen=True)
class MaskedPatches:
    """∂L/∂W_p = G_uᵀ X_u + G_mᵀ X_m with only G_u known, taken apart.

    Attributes:
        base: the known part of every patch, orthogonal to the span; zero at masked positions.
        span: the row space of X_m, of dimension |M|: what is open of every patch.
    """

    base: Float[Tensor, "tokens pixels"]
    span: Subspace


def masked_positions(token_grads: Float[Tensor, "tokens width"]) -> Bool[Tensor, " tokens"]:
    """Which positions took the shared embedding in place of their own; without any gradient all of them."""
    norms = token_grads.norm(dim=1)
    read = norms[norms > 0]
    masked: Tensor = norms <= ZERO * read.median() if len(read) else torch.ones_like(norms, dtype=torch.bool)
    return masked


def take_apart(
    token_grads: Float[Tensor, "tokens width"],
    patch_weight_grad: Float[Tensor, "width pixels"],
    masked: Bool[Tensor, " tokens"],
) -> MaskedPatches:
    """Off the span of the known rows of G only G_mᵀ X_m is left, of rank |M|; modulo its rows X_u is exact.

    Needs tokens <= width and a full rank of G.
    """
    G, A = token_grads.double(), patch_weight_grad.double()
    known = G[~masked]
    basis = torch.linalg.qr((known / known.norm(dim=1, keepdim=True)).T)[0]
    rest = A - basis @ (basis.T @ A)
    span = row_space(rest, int(masked.sum()), complete=False)
    unmasked = solve_patches(known, A - (A @ span.basis.T) @ span.basis, weigh=False).patches
    base = torch.zeros(len(G), A.shape[1], dtype=torch.float64, device=G.device)
    base[~masked] = unmasked - (unmasked @ span.basis.T) @ span.basis
    return MaskedPatches(base, span)


class MJPAdaptive(Attack):
    """The masked positions show in the gradient, and each unmasked patch is exact but for |M| directions.

    Those are settled by the row space of the first attention, where shared, and by smoothness; the seams of masked
    patches count for nothing, since their neighbours are not their own. Within the mask the model cannot tell
    positions apart: no gradient holds the order of the shuffled patches. An unmasked picture is `patch_gradient`'s.

    Args:
        later: row spaces of so many later projections refine the solution; 0: none.
        levels: the largest pixel value of pictures whose pixels are whole numbers; None: never round.
    """

    needs = Needs(roles=("pos_embed", "patch_weight"), max_batch_size=1, sizes=True, auxiliary=True)
    shrinks_to_mean = True

    def __init__(self, later: int = 0, levels: int | None = 255) -> None:
        require("attack.mjp_adaptive.later", later, later >= 0, "0 or more")
        if levels is not None and levels < 1:
            raise ConfigError("attack.mjp_adaptive.levels", levels, "the largest pixel value, such as 255, or null")
        self.later = later
        self.levels = levels
        self._unmasked = PatchGradient(levels=levels)

    def check(self, observation: Observation) -> None:
        check_embedding(observation)
        shared_embedding(observation)
        super().check(observation)

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        """Of an unmasked image; no other is certified."""
        return self._unmasked.bound(observation, result, again)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for withheld gradients, full masks, and more patches than the model is wide."""
        _refuse_full_mask(observation)
        rows = embedding_rows(observation).to(device)
        token_grads = rows[observation.roles.embedded_prefix_tokens :]
        shown = masked_rows(observation)  # behind weight decay no gradient is zero exactly
        masked = masked_positions(token_grads) if shown is None else shown[-len(token_grads) :].to(device)
        if not bool(masked.any()):
            return self._unmasked.run(observation, rng, device)
        if len(token_grads) >= token_grads.shape[1]:
            raise NotApplicable(f"{len(token_grads)} patches >= width {token_grads.shape[1]}: masked ones do not show")
        weight_grad = observation.gradient_of("patch_weight").to(device).flatten(1)
        parts = take_apart(token_grads, weight_grad, masked)
        try:
            spaces = gradient_spaces(observation, device)
        except NotApplicable:
            spaces = None
        if spaces is None:
            pixels = pixels_of(observation, weight_grad)
            patches = _smoothest(parts, masked, pixels)
        else:
            pixels = pixels_of(observation, spaces.norm.patch_weight)
            system = patch_system(spaces.norm, parts.span.basis, spaces.tokens, parts.base)

            def readers(short: bool) -> Readers | None:
                return make_readers(observation, spaces, self.later)

            torn = masked.double()
            solution = solve(system, spaces.norm, spaces.image, spaces.tokens, pixels, readers, self.levels, torn)
            patches = solution.patches
        return Reconstruction(
            images=to_image(observation, patches, pixels),
            certificate=_certificate(observation, token_grads, masked, parts, spaces is not None),
        )


def shared_embedding(observation: Observation) -> str:
    """The name of the embedding that masked positions take.

    Raises:
        NotApplicable: the client masks none.
    """
    effect = observation.effect(MasksPositions)
    if effect is None:
        raise NotApplicable("the model has no unknown_embed: the client does not run mjp")
    return effect.embedding


def _refuse_full_mask(observation: Observation) -> None:
    """Raises NotApplicable where every patch took the shared embedding: no position's gradient is left to start from.

    An embedding that was not trained looks alike but for the shared one, whose gradient is zero then too.
    """
    shared, unknown = observation.gradient_of("pos_embed"), observation.gradient.get(shared_embedding(observation))
    rows = shared.reshape(-1, shared.shape[-1])
    trained = bool(rows.any()) or (unknown is not None and bool(unknown.any()))
    patches = rows[observation.roles.embedded_prefix_tokens :]
    if trained and not bool(patches.any()):
        raise NotApplicable(f"all {len(patches)} patches are masked: no gradient tells one position from another")


def _smoothest(
    parts: MaskedPatches, masked: Bool[Tensor, " tokens"], pixels: PatchPixels
) -> Float[Tensor, "tokens pixels"]:
    """By smoothness alone."""
    span = parts.span.basis
    unknown = span.new_full((len(span),), math.inf)
    return complete(parts.base, span, unknown, pixels.std, pixels.grid, pixels.patch, masked.double())


def _certificate(
    observation: Observation,
    token_grads: Float[Tensor, "tokens width"],
    masked: Bool[Tensor, " tokens"],
    parts: MaskedPatches,
    intersected: bool,
) -> Certificate:
    """Never certified: the order of masked patches is not in the gradient, and the rest is completed."""
    count = int(masked.sum())
    values = {"masked": float(count), "span_gap": parts.span.gap, "intersected": float(intersected)}
    roles, gradient = observation.roles, observation.gradient
    unknown = gradient.get(shared_embedding(observation))
    bias = gradient.get(roles.patch_bias) if roles.patch_bias else None
    if unknown is not None and bias is not None:
        values["identity"] = relative_error((token_grads.sum(dim=0).cpu() + unknown.cpu()), bias.cpu())
    reason = (
        f"{count} masked patches: each patch is exact but for {count} directions, which are completed by smoothness"
    )
    if (steps := observation.protocol.steps) > 1:
        reason = f"{count} patches are masked in each of {steps} local steps, whose masks differ: no patch is exact"
    return Certificate("uncertified", reason, finite(values))
