"""Every picture of a batch from the gradients of the patch embedding and the first block."""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attacks.analytic.first_block.block import PlainBlock, gradients, plain_block
from attacks.analytic.first_block.completion import SEEDS, Attention
from attacks.analytic.first_block.grouping import group
from attacks.analytic.first_block.residual import HiddenSystem
from attacks.analytic.first_block.search import find_solutions
from attacks.analytic.first_block.solutions import Solutions
from attacks.analytic.first_block.subspaces import AffineSet, AffineTokens, TokenFit, affine_patches, affine_tokens
from attacks.analytic.linear.patches import PatchPixels, patchify, unpatchify
from attacks.analytic.linear.pixel_grid import whole_levels
from attacks.analytic.patch_gradient import patch_layer, pixels_of
from attacks.analytic.row_space.first_norm import (
    FirstNorm,
    embedded_rank,
    first_block_layers,
    first_norm,
    require_read_once,
    spanned_gradients,
)
from attacks.analytic.row_space.subspace import numerical_rank, row_space
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import own_equations
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation

NOISE_FACTOR = 20.0
"""How many times the leak of ∂L/∂W_fc2's noise a residual may be: the affine sets of the tokens are noisy as well."""

TOLERANCE = (1e-9, 1e-2)
"""Least and largest tolerance of a relative residual; wrong solutions were seen at 3e-2 and above."""

OUTSIDE = 0.2
"""How far a pixel of a solution may be out of [0, 1]."""


class FirstBlock(Attack):
    """Solve block 0 for the tokens of every picture of a batch, without labels or position gradients.

    Row spaces leave an affine set for each position (`subspaces`); the first MLP's activations leave B points of it
    (`residual`), found position by position; attention says which of them make up one picture (`grouping`), and what
    few missing tokens of it are (`completion`).

    For plain pre-norm blocks and B·T < width. Exact from float64 gradients where every token is found.

    Args:
        starts: at most so many random starts a position; the search ends when every position has B solutions, or when
            many starts found nothing more.
        steps: Levenberg-Marquardt steps of a start.
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits): rounded to them
            where all are near; None: never.
    """

    needs = Needs(roles=("patch_weight", "qkv_weight"), sizes=True, auxiliary=True)
    shrinks_to_mean = True

    def __init__(self, starts: int = 400, steps: int = 30, levels: int | None = 255) -> None:
        for key, value in (("starts", starts), ("steps", steps)):
            require(f"attack.first_block.{key}", value, value >= 1, "1 or more")
        require("attack.first_block.levels", levels, levels is None or levels >= 1, "1 or more, or null")
        self.starts = starts
        self.steps = steps
        self.levels = levels

    def check(self, observation: Observation) -> None:
        super().check(observation)
        first_norm(observation, torch.device("cpu"))

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for other blocks, withheld gradients, several local steps, and too many tokens."""
        if observation.protocol.steps > 1:
            raise NotApplicable(f"{observation.protocol.steps} local steps: the row spaces are those of one")
        problem = _problem(observation, device)
        batch = observation.num_images
        found = find_solutions(
            problem.system,
            problem.tokens.outputs_of_x,
            batch,
            problem.tolerance,
            self.starts,
            self.steps,
            rng,
            partial(_possible, problem, pixels_of(observation, problem.norm.patch_weight)),
            _attention(problem).missing,
            self.session,
        )
        patches, attention_error, forward = _grouped(problem, found)
        images, rounded = self._pictures(observation, patches)
        values = problem.values | {
            "tokens_found": float(found.counts.sum()) / found.residual.numel(),
            "attention_error": attention_error,
            "forward_residual": max(forward),
            "rounded_to_levels": float(rounded),
        }
        if bool(found.residual.isfinite().any()):
            values["residual"] = float(found.residual[found.residual.isfinite()].max())
        return Reconstruction(
            images=images,
            certificate=_judge(values, found, problem.tolerance),
            trace=tuple(found.trace),
            solves_equations=batch > 1 and min(forward) <= problem.tolerance,
        )

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        """Token by token: what the first MLP's equations make of their noise, and how far the sets are off."""
        assert result.images is not None
        assert observation.roles.patch is not None
        require_image(observation, result.images, patch_layer(observation), *first_block_layers(observation))
        first, second = (_problem(one, torch.device("cpu")) for one in (observation, again))
        errors = []
        for image in observation.normalised(result.images.cpu()):
            patches = patchify(image[None], observation.roles.patch)
            off = _fit(first, patches).errors(_fit(second, patches), first.values["noise"])
            if off is None:
                return None
            errors.append(off)
        pixels = first.norm.patch_weight.shape[1]
        return own_equations(torch.stack(errors).square().mean(dim=1).max().sqrt()[None] / pixels**0.5, observation.std)

    def _pictures(
        self, observation: Observation, patches: Float[Tensor, "batch tokens pixels"]
    ) -> tuple[Float[Tensor, "batch c h w"], bool]:
        """In [0, 1], and whether they were rounded to whole levels."""
        grid, patch = observation.roles.grid, observation.roles.patch
        assert grid is not None
        assert patch is not None
        images = torch.cat([unpatchify(image, grid, patch) for image in patches])
        return whole_levels(observation.to_unit_range(images), self.levels)


@dataclass(frozen=True)
class _Problem:
    norm: FirstNorm
    block: PlainBlock
    tokens: AffineTokens
    system: HiddenSystem
    tolerance: float
    values: dict[str, float]

    def behind_attention(self, patches: Float[Tensor, "tokens pixels"]) -> Float[Tensor, "tokens width"]:
        weight, bias = self.block.projection()
        z = patches @ self.norm.patch_weight.T + self.norm.known
        return z + self.block.attend(z, z) @ weight.T + bias


def _problem(observation: Observation, device: torch.device) -> _Problem:
    norm, block = first_norm(observation, device), plain_block(observation, device)
    batch, width = observation.num_images, norm.patch_weight.shape[0]
    count = len(norm.known)
    total = batch * (count + norm.prefix_tokens)
    if total >= width:
        raise NotApplicable(f"{total} tokens of {batch} images >= width {width}: their row space is everything")
    require_read_once(observation, *(f"{layer}.weight" for layer in first_block_layers(observation)))
    output_grad, fc1_grad, fc2_grad = gradients(observation, block)
    patch_grad, qkv_grad = spanned_gradients(observation, device)
    image = row_space(patch_grad, min(batch * count, numerical_rank(patch_grad, observation.eps)), complete=False)
    embedded = embedded_rank(norm, observation.eps)
    # The prefix tokens enter the first block alike in every picture: they count once here.
    read = min(batch * count + norm.prefix_tokens, len(image.basis) + embedded + bool(norm.shift.any()))
    # Of a batch, less what is known of the tokens: Σ α p_m where Σ α (b_p + e_m) = 0.
    free = batch * count + norm.prefix_tokens - embedded
    patches = affine_patches(norm, image, row_space(qkv_grad, read), free)
    second, mlp = block.module.norm2, block.module.mlp
    hidden = row_space(fc2_grad, total, complete=False)
    tokens = affine_tokens(
        norm,
        patches,
        row_space(output_grad, total, complete=False),
        block.projection(),
        (second.weight, second.bias),
        row_space(fc1_grad, total),
        total - embedded,
    )
    bias = mlp.fc1.bias if mlp.fc1.bias is not None else mlp.fc1.weight.new_zeros(len(mlp.fc1.weight))
    system = HiddenSystem(
        tokens.tokens, second.weight, second.bias, second.eps, mlp.fc1.weight, bias, mlp.act, hidden.basis
    )
    equations, unknowns = mlp.fc1.out_features - total, tokens.tokens.directions.shape[1]
    if equations <= unknowns:
        raise NotApplicable(f"{equations} equations for {unknowns} unknowns of each token")
    activations = mlp.act(mlp.fc1(second(tokens.tokens.base)))
    leak = (hidden.leak(activations) * equations**0.5 / activations.norm(dim=1)).median()
    tolerance = min(max(NOISE_FACTOR * float(leak), TOLERANCE[0]), TOLERANCE[1])
    values = {
        "equations": float(equations),
        "unknowns": float(unknowns),
        "noise": float(leak),
        "tolerance": tolerance,
        "patches_gap": patches.gap,
        "tokens_gap": tokens.joint.gap,
        "hidden_gap": hidden.gap,
    }
    return _Problem(norm, block, tokens, system, tolerance, values)


def _attention(problem: _Problem) -> Attention:
    norm = problem.norm
    return Attention(
        problem.tokens, lambda patches, rows: patches @ norm.patch_weight.T + norm.known[rows], problem.block
    )


def _possible(
    problem: _Problem, pixels: PatchPixels, x: Float[Tensor, "rows free"], rows: Tensor
) -> Bool[Tensor, " rows"]:
    """Pixels in [0, 1], about, and no output of the attention larger than a value can be."""
    patches, outputs = problem.tokens.at(rows, x)
    inside = ((patches * pixels.std + pixels.mean - 0.5).abs() < 0.5 + OUTSIDE).all(dim=1)
    return inside & (outputs.abs() <= problem.block.largest_value()).all(dim=1)


def _fit(problem: _Problem, patches: Float[Tensor, "tokens pixels"]) -> TokenFit:
    z = problem.behind_attention(patches)
    rows, x = torch.arange(len(z)), (z - problem.tokens.tokens.base) @ problem.tokens.tokens.directions
    at = problem.system.at(rows, x)
    return problem.tokens.fit(rows, x, patches, at.values, at.size, lambda: at.jacobian)


def _grouped(problem: _Problem, found: Solutions) -> tuple[Float[Tensor, "batch tokens pixels"], float, list[float]]:
    """Images, the attention's relative error, and each image's forward residual.

    What is missing may be missing, or like another image's token there: the grouping is taken whose images are nearer
    to the block's equations.
    """
    patches, outputs = problem.tokens.split(found.alike())
    embedded = patches @ problem.norm.patch_weight.T + problem.norm.known[:, None]
    partly = bool(found.counts.any()) and not found.complete
    results = []
    for known in (None, found.known) if partly else (None,):
        order, error = group(embedded, outputs, problem.block.attend, SEEDS, known)
        images = patches.gather(1, order[..., None].expand_as(patches)).transpose(0, 1)
        results.append((images, error, _forward_residuals(problem, images)))
    return min(results, key=lambda result: sum(result[2]))


def _forward_residuals(problem: _Problem, patches: Float[Tensor, "batch tokens pixels"]) -> list[float]:
    """Each image's largest relative residual when it goes through the block itself: no unknown is left in it."""
    largest = []
    for image in patches:
        z = problem.behind_attention(image)
        free = AffineSet(z, problem.system.tokens.directions[:, :0], 1.0)
        system = HiddenSystem(**{**vars(problem.system), "tokens": free})
        at = system.at(torch.arange(len(z), device=z.device), z[:, :0])
        largest.append(float((at.values.norm(dim=1) / at.size).max()))
    return largest


def _judge(values: dict[str, float], found: Solutions, tolerance: float) -> Certificate:
    if not found.complete:
        share = values["tokens_found"]
        return Certificate("uncertified", f"{share:.0%} of the tokens were found within the starts", values)
    forward = values["forward_residual"]
    if forward > tolerance:
        return Certificate("uncertified", f"the pictures leave the first MLP's row space by {forward:.1e}", values)
    if not values["rounded_to_levels"]:
        return Certificate("uncertified", f"residual {forward:.1e}, but the pixels are no whole levels", values)
    equations = f"{values['equations']:.0f} equations for {values['unknowns']:.0f} unknowns of each token"
    return Certificate("certified", f"residual {forward:.1e} through the whole first block, {equations}", values)
