"""When a closed form may claim that its result is the image, and in which words it says that it may not."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.least_squares import PatchSolution
from attacks.certificate.confirm import MIN_PSNR
from attacks.result import Certificate, psnr_of

MAX_RESIDUAL = 1e-3
"""Measured at random initialisation, relative residual of one picture: 1e-7 (float32 gradient), 2e-6…2e-4 (delta
of SGD at lr 0.1…0.001), 6e-4 (noise of 1e-4 of the gradient's norm). Two different pictures leave 1e-2…0.7, but as
little as 4e-4 at one block and 2e-5 in APRIL's architecture, and two nearly alike ones next to nothing: a small
residual is no proof of a single picture."""

MAX_IDENTITY = 1e-3
"""The same settings leave the identity Σ_n G_n = ∂L/∂b_p at 1e-7, 3e-7…5e-5 and 1e-4."""

MIN_EXPECTED_PSNR = MIN_PSNR
"""dB that an attack's own estimate must reach for a claim, as the bound must for a certificate. The estimate was within
4 dB of the truth for single pictures above 40 dB. It says nothing about the mean of several pictures."""


def relative_error(found: Float[Tensor, "*shape"], expected: Float[Tensor, "*shape"]) -> float:
    """‖found - expected‖ relative to the larger of the two: 0 to 2, NaN where one is not finite."""
    size = float(torch.maximum(found.norm(), expected.norm()))
    return 0.0 if size == 0 else float((found - expected).norm()) / size


def solution_values(solution: PatchSolution, width: int, variance: float) -> dict[str, float]:
    """The solver's figures by name; only finite ones, so that they are valid JSON.

    Args:
        variance: turns a squared error of the solution into one of [0, 1] pixels.
    """
    values = {
        "tokens": float(len(solution.patches)),
        "width": float(width),
        "rank": float(solution.rank),
        "rcond": solution.rcond,
        "condition": solution.condition,
        "residual": solution.residual,
        "expected_psnr": psnr_of(solution.expected_mse * variance),
    }
    return finite(values)


def finite(values: dict[str, float]) -> dict[str, float]:
    """Those that JSON can hold."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def judge(values: dict[str, float], batch: int, identity: str) -> Certificate:
    """The claim that this is what the model saw, up to rounding to 8 bits, or the reason why there is none.

    `Attack.confirm` grants it or takes it back.

    It rests on the shared tensors and on there being one picture behind them. More equations than unknowns, all
    satisfied, by a matrix of full rank: then noise or a changed update would show in the residual, and the conditioning
    says how far the rest carries. Several pictures are never certified, however small the residual: of two that differ
    by δ it is (G_1 - G_2)ᵀ(X_1 - X_2)/2, of second order in δ, while their mean is off by δ/2. Whole pixel levels prove
    no more there, since the mean of pictures that are an even number of levels apart is on whole levels too.

    Args:
        values: those of `solution_values`, and `identity` and `class_token` where they could be tested.
        batch: examples behind the update. The expected error holds for one alone, and is left out of the values of
            several.
        identity: what `identity` is the relative error of, in symbols.
    """
    tokens, width, rank = int(values["tokens"]), int(values["width"]), int(values["rank"])
    mixed = f"{batch} images behind the update, of which this is one mixture; " if batch > 1 else ""
    several = f"one mixture of the {batch} images behind the update, or " if batch > 1 else ""
    if batch > 1:
        values = {name: value for name, value in values.items() if name != "expected_psnr"}
    condition = f"condition {values.get('condition', math.inf):.1g}"
    expected = values.get("expected_psnr", -math.inf)
    reason = ""
    if tokens > width:
        reason = f"{mixed}{tokens} patch tokens > width {width}: one solution of many"
    elif tokens == width:
        reason = f"{mixed}{tokens} patch tokens = width {width}: no equation is left to test the solution by"
    elif values["residual"] > MAX_RESIDUAL:
        reason = f"residual {values['residual']:.2g}: {several}a perturbed gradient"
    elif not values.get("identity", 0.0) <= MAX_IDENTITY:
        reason = f"{identity} is off by {values['identity']:.2g}: token gradients are missing or perturbed"
    elif not values.get("class_token", 0.0) <= MAX_IDENTITY:
        reason = f"the class token's row of ∂L/∂pos_embed is off by {values['class_token']:.2g}: a perturbed gradient"
    elif rank < tokens:
        reason = f"rank {rank} of {tokens} ({condition}): {several}the remaining directions are below the noise"
    elif batch > 1:
        reason = f"{batch} images behind the update: the mean of nearly alike ones satisfies every equation too"
    elif expected < MIN_EXPECTED_PSNR:
        reason = f"{condition}, residual {values['residual']:.2g}: {expected:.0f} dB expected, not exact pixels"
    if reason:
        return Certificate("uncertified", reason, finite(values))
    accepted = f"rank {rank} of {tokens}, residual {values['residual']:.1g}, {expected:.0f} dB expected"
    return Certificate("certified", accepted, values)
