"""The picture without the position embedding's gradient, by intersection of two row spaces."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attacks.analytic.linear.certificate import MIN_EXPECTED_PSNR, finite
from attacks.analytic.linear.patches import PatchPixels, patchify, unpatchify
from attacks.analytic.patch_gradient import known_prefix, patch_layer, pixels_of
from attacks.analytic.row_space.completion import complete
from attacks.analytic.row_space.first_norm import (
    FirstNorm,
    first_block_layers,
    first_norm,
    plain_blocks,
    reads,
    spanned_gradients,
)
from attacks.analytic.row_space.later_norms import Readers
from attacks.analytic.row_space.solution import (
    OPEN,
    RowSpaceSolution,
    expected_psnr,
    open_directions,
    solve,
)
from attacks.analytic.row_space.subspace import Subspace, row_space
from attacks.analytic.row_space.system import PatchSystem, Uncertainty, patch_system, uncertainty
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import MARGIN, own_equations
from fedsim.effects import MixesImages
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation

MIN_GAP = 2.0
"""Smallest kept over largest dropped singular value of ∂L/∂W_qkv: batches and random gradients show 1.0 to 1.1."""


class RowSpace(Attack):
    """Rebuild a picture from ∂L/∂W_p and the first block's ∂L/∂W_qkv alone.

    A frozen or withheld position embedding protects nothing: its values are known; a sin-cos one leaves directions
    open. Exact, where well conditioned, for one image and a pre-norm first block, where width - tokens exceeds the
    patches; where equations are short the smoothest picture is taken, and where the gradients of the next projections
    are shared, those settle the rest. Several pictures, in a batch or one local step after the other, give one mixture,
    never certified.

    Args:
        later: row spaces of so many later projections refine the solution (first MLP, second attention, …); 0: none.
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits); None: never round.
    """

    needs = Needs(roles=("patch_weight", "qkv_weights"), sizes=True, auxiliary=True)
    shrinks_to_mean = True

    def __init__(self, later: int = 2, levels: int | None = 255) -> None:
        require("attack.row_space.later", later, later >= 0, "0 or more")
        require("attack.row_space.levels", levels, levels is None or levels >= 1, "1 or more, or null")
        self.later = later
        self.levels = levels
        self.cost = 20.0 * later

    def check(self, observation: Observation) -> None:
        first_norm(observation, torch.device("cpu"))
        super().check(observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for models without a pre-norm first block, withheld gradients, and too many tokens."""
        spaces = gradient_spaces(observation, device)
        pixels = pixels_of(observation, spaces.norm.patch_weight)
        system = patch_system(spaces.norm, spaces.image.basis, spaces.tokens)
        if observation.num_images > 1:
            if observation.effect(MixesImages) is not None:
                raise NotApplicable("a batch of mixtures: a mixture of these is no image of the client's")
            return _mixture(observation, spaces, system, pixels)

        def later(short: bool) -> Readers | None:
            return make_readers(observation, spaces, self.later if short else min(1, self.later))

        solution = solve(system, spaces.norm, spaces.image, spaces.tokens, pixels, later, self.levels)
        return Reconstruction(
            images=to_image(observation, solution.patches, pixels),
            certificate=_certificate(observation, spaces, system, solution, pixels),
        )

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        """By the linear system alone: what its singular values make of the noise, and what they made of it once more.

        Its solution for the update that the result gives is off the result by errors of the size that the first one
        has. Where equations are short nothing bounds the directions that smoothness or later blocks settled.
        """
        assert result.images is not None
        assert observation.roles.patch is not None
        require_image(observation, result.images, patch_layer(observation), *first_block_layers(observation))
        image = patchify(observation.normalised(result.images.cpu()), observation.roles.patch)
        errors = []
        for one in (observation, again):
            spaces = gradient_spaces(one, torch.device("cpu"))
            system = patch_system(spaces.norm, spaces.image.basis, spaces.tokens)
            doubt, pixels = uncertainty(system, spaces.norm, spaces.tokens), pixels_of(one, spaces.norm.patch_weight)
            if system.equations.shape[0] <= system.equations.shape[1] or not bool(doubt.deviation.isfinite().all()):
                return None
            expected = 10 ** (-expected_psnr(system, doubt, pixels) / 20) / max(one.std)
            errors.append((float((system.patches(system.estimate) - image).square().mean().sqrt()), expected))
        (off, expected), (off_again, expected_again) = errors
        length = off + MARGIN * max(off_again, expected, expected_again)
        return own_equations(torch.tensor([length]), observation.std)


@dataclass(frozen=True)
class Spaces:
    """What the two gradients span: `picture` the patches, `tokens` what the first attention reads."""

    norm: FirstNorm
    image: Subspace
    tokens: Subspace


def gradient_spaces(observation: Observation, device: torch.device) -> Spaces:
    """Raises NotApplicable where a gradient is missing, zero or not finite, or the tokens fill the whole width."""
    norm = first_norm(observation, device)
    patch_grad, qkv_grad = spanned_gradients(observation, device)
    batch, width = observation.num_images, norm.patch_weight.shape[0]
    tokens = batch * len(norm.known) + norm.prefix_tokens  # prefix tokens are the same for all pictures
    counts = reads(observation)
    times = max(1, *(counts[name] for name in observation.roles.qkv_weights))  # those of each block that shares it
    tokens *= times
    if tokens >= width:
        of = f" of {batch} images" if batch > 1 else ""
        of += f" in {times} blocks that share their projection" if times > 1 else ""
        raise NotApplicable(f"{tokens} tokens{of} >= width {width}: their row space is everything, no equation is left")
    return Spaces(
        norm,
        row_space(patch_grad, min(batch * len(norm.known), *patch_grad.shape), complete=False),
        row_space(qkv_grad, tokens),
    )


def batch_subspace(
    observation: Observation, device: torch.device
) -> tuple[Float[Tensor, "tokens pixels"], Float[Tensor, "pixels free"]]:
    """base and F of p_{b,n} = base_n + F c_{b,n}: where patch n of every picture b behind the update must lie.

    Float64, patches in row-major order, normalised pixels in `unpatchify`'s order, F orthonormal. For B pictures F
    has min(unknowns, N(B - 1)) columns, the span of {p_{b,m} - p_{b',m}}; more where equations are short or noisy.
    """
    spaces = gradient_spaces(observation, device)
    system = patch_system(spaces.norm, spaces.image.basis, spaces.tokens)
    free = _free_directions(observation, spaces, system)
    estimate = torch.where(free, 0.0, system.estimate)
    return system.patches(estimate), (system.directions @ system.span)[free].T


def make_readers(observation: Observation, spaces: Spaces, later: int) -> Readers | None:
    """The first attention and up to `later` further projections whose gradients were shared; None without any."""
    model = plain_blocks(observation)
    stem, dot, rest = (observation.roles.qkv_weight or "").rpartition("0.attn.qkv.weight")
    if model is None or later == 0 or not dot or rest:
        return None
    device, counts = spaces.norm.known.device, reads(observation)
    tokens = observation.num_images * len(spaces.norm.known) + spaces.norm.prefix_tokens
    found = [spaces.tokens]
    for number in range(1, later + 1):
        part = "mlp.fc1" if number % 2 else "attn.qkv"
        name = f"{stem}{number // 2}.{part}.weight"
        gradient = observation.gradient.get(name)
        if gradient is None or not bool(gradient.any()) or not bool(gradient.isfinite().all()) or counts[name] > 1:
            break
        found.append(row_space(gradient.to(device), tokens))
    if len(found) == 1:
        return None
    model = model.to(device)
    return Readers(spaces.norm, found, model, known_prefix(observation).to(device))


def to_image(
    observation: Observation, patches: Float[Tensor, "tokens pixels"], pixels: PatchPixels
) -> Float[Tensor, "1 c h w"]:
    """In [0, 1]."""
    return observation.to_unit_range(unpatchify(patches, pixels.grid, pixels.patch)).clamp(0.0, 1.0)


def _free_directions(observation: Observation, spaces: Spaces, system: PatchSystem) -> Bool[Tensor, " unknowns"]:
    """Which directions the equations leave open: N(B - 1) weakest, or more under noise."""
    mixed = len(spaces.norm.known) * (observation.num_images - 1)
    open_ = uncertainty(system, spaces.norm, spaces.tokens).deviation > OPEN
    open_[len(open_) - min(mixed, len(open_)) :] = True
    return open_


def _mixture(observation: Observation, spaces: Spaces, system: PatchSystem, pixels: PatchPixels) -> Reconstruction:
    """One picture for several: each patch up to the differences of their patches, the smoothest of them."""
    free = _free_directions(observation, spaces, system)
    start = system.patches(torch.where(free, 0.0, system.estimate))
    unknown = torch.full((int(free.sum()),), math.inf, dtype=torch.float64, device=start.device)
    directions = (system.directions @ system.span)[free]
    patches = complete(start, directions, unknown, pixels.std, pixels.grid, pixels.patch)
    values = _values(spaces, system, uncertainty(system, spaces.norm, spaces.tokens), pixels)
    known = f"each patch is known up to {int(free.sum())} of {len(free)} directions"
    reason = f"{observation.num_images} images behind the update: {known}"
    return Reconstruction(
        images=to_image(observation, patches, pixels), certificate=Certificate("uncertified", reason, values)
    )


def _values(spaces: Spaces, system: PatchSystem, doubt: Uncertainty, pixels: PatchPixels) -> dict[str, float]:
    values = {
        "equations": float(system.equations.shape[0]),
        "unknowns": float(system.equations.shape[1]),
        "residual": doubt.residual,
        "picture_rank": float(len(spaces.image.basis)),
        "picture_gap": spaces.image.gap,
        "tokens_rank": float(len(spaces.tokens.basis)),
        "tokens_gap": spaces.tokens.gap,
        "open_directions": float(open_directions(doubt)),
        "expected_psnr": expected_psnr(system, doubt, pixels),
    }
    return finite(values)


def _certificate(
    observation: Observation, spaces: Spaces, system: PatchSystem, solution: RowSpaceSolution, pixels: PatchPixels
) -> Certificate:
    """The claim that this is what the model saw, up to rounding to 8 bits, or why not; for one picture alone.

    It rests on equations beyond those that the solution was chosen by: pixels that come out as whole levels, inside
    every row space at the level of the noise, where one wrong pixel would stand out; or more equations than unknowns
    whose residual bounds the error.
    """
    doubt, whole = solution.doubt, solution.whole
    values = _values(spaces, system, doubt, pixels)
    if solution.refined is not None:
        values["later_misfit"] = solution.refined.misfit
    if whole is not None:
        values |= {"grid_excess": whole.excess, "grid_power": whole.power}
    equations, unknowns = system.equations.shape
    gap, expected = spaces.tokens.gap, values["expected_psnr"]
    if solution.levels_hold:
        assert whole is not None
        accepted = f"whole pixel levels satisfy every equation ({whole.excess:.2g} times the noise)"
        return Certificate("certified", f"{accepted}; one wrong pixel would be {whole.power:.0f} times it", values)
    embedded = int(torch.linalg.matrix_rank(spaces.norm.known))
    if observation.protocol.steps > 1 and not observation.keeps("images"):
        values = {name: value for name, value in values.items() if name != "expected_psnr"}  # of one image
        reason = f"each of {observation.protocol.steps} local steps may have seen another image: no equation is of one"
    elif embedded < len(spaces.norm.known):
        open_ = len(spaces.norm.known) - embedded
        reason = (
            f"the position embeddings span {embedded} dimensions for {len(spaces.norm.known)} patches: "
            f"up to {open_} directions of each patch are left open"
        )
    elif gap < MIN_GAP:
        reason = f"no gap in the singular values ({gap:.2g}): tokens below the noise, or a perturbed gradient"
    elif equations <= unknowns:
        reason = f"{equations} equations for {unknowns} unknowns: completed"
    elif expected < MIN_EXPECTED_PSNR:
        reason = f"residual {doubt.residual:.1g}: {expected:.0f} dB expected, not exact pixels"
    else:
        accepted = (
            f"{equations - unknowns} equations to spare, residual {doubt.residual:.1g}, {expected:.0f} dB expected"
        )
        return Certificate("certified", accepted, values)
    return Certificate("uncertified", reason, values)
