"""R-GAP: the picture by recursion from the last layer to the first (Zhu & Blaschko 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from attacks.analytic.linear.certificate import MIN_EXPECTED_PSNR, finite
from attacks.analytic.rgap.chain import Link, layer_chain
from attacks.analytic.rgap.inversion import HeadInput, LayerInput, largest_matrix, read_head, solve_conv, solve_linear
from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.result import psnr_of
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation
from fedsim.update import State

MAX_MISMATCH = 1e-3
"""Relative error of the result's own gradient, for a certificate. Measured on CNN6: 1e-7 at the true picture."""

CONSISTENT = 2e-3
"""Residual of a reading of the classifier up to which its image may give the shared gradient; others cannot."""

MOST_NUMBERS = 2 * 10**8
"""In one matrix of a layer's system, 1.6 GB; up to six of them are held at once."""

TWIN = 100.0
"""A second reading of the classifier is followed too where it is at most so many times less consistent."""


@dataclass(frozen=True)
class ReadImage:
    """A picture in [0, 1] with the reading of the classifier that it came from.

    Attributes:
        mismatch: ‖∇L(x) - g‖ / ‖g‖ of its own gradient against the shared one.
        whole: its pixels were rounded to levels.
    """

    image: Float[Tensor, "channels height width"]
    head: HeadInput
    solutions: dict[str, LayerInput]
    mismatch: float
    mse: float
    whole: bool = False

    @property
    def missing(self) -> int:
        return sum(solution.missing for solution in self.solutions.values())


class RGap(Attack):
    """Solve for each layer's input in turn, by its weights (W x = z) and its gradient (k xᵀ = ∂L/∂W) together.

    For one picture and a chain of convolutions and fully connected layers with invertible activations: no pooling, no
    norm, no residual, no ReLU. Errors grow from layer to layer; a layer with too few equations leaves its input open.
    One forward and backward pass of the result tells how good it is.

    Args:
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits): the result is
            rounded to them where its gradient then fits better; None: never.
    """

    needs = Needs(max_batch_size=1)

    def __init__(self, levels: int | None = 255) -> None:
        require("attack.rgap.levels", levels, levels is None or levels >= 1, "1 or more, or null")
        self.levels = levels

    def check(self, observation: Observation) -> None:
        super().check(observation)
        links = layer_chain(observation.build_model(), observation.image_shape)
        _gradients(observation, links, torch.device("cpu"))
        for link in links:
            conv = link.layer if isinstance(link.layer, nn.Conv2d) else None
            size = largest_matrix(conv, link.shape, link.output_shape) if conv else 0
            if size > MOST_NUMBERS:
                most = f"{8e-9 * MOST_NUMBERS:.1f} GB at most can be solved"
                raise NotApplicable(f"{link.name}'s equations are a matrix of {8e-9 * size:.1f} GB: {most}")

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for networks that are no chain of invertible layers, large images, and batches."""
        self.check(observation)
        model = observation.build_model().double().to(device)
        links = layer_chain(model, observation.image_shape)
        gradient = _gradients(observation, links, device)
        heads = _read(links[-1], gradient, observation.protocol.label_smoothing)
        followed = [head for head in heads if head.residual <= TWIN * heads[0].residual][:2]
        candidates = [self._candidate(observation, model, links, gradient, head) for head in followed]
        best = min(candidates, key=lambda candidate: candidate.mismatch)
        return Reconstruction(
            images=best.image[None].clamp(0.0, 1.0),
            labels=torch.tensor([best.head.label]),
            certificate=_certificate(best, _twins(links[-1], gradient, heads)),
            trace=tuple(
                {"step": float(step), "residual": solution.residual, "missing": float(solution.missing)}
                for step, solution in enumerate(best.solutions.values())
            ),
        )

    def _candidate(
        self, observation: Observation, model: nn.Module, links: Sequence[Link], gradient: State, head: HeadInput
    ) -> ReadImage:
        solutions = recurse(links, gradient, head)
        first = next(reversed(solutions.values())) if solutions else None
        seen = (head.input if first is None else first.input).reshape(1, *observation.image_shape)
        smoothing = observation.protocol.label_smoothing
        # A picture is in [0, 1]: what lies outside is error.
        image = observation.to_unit_range(seen)[0].clamp(0.0, 1.0)
        mismatch = gradient_mismatch(
            model, gradient, observation.from_unit_range(image[None])[0], head.label, smoothing
        )
        mse = math.nan if first is None else first.mse * float(seen.new_tensor(observation.std).square().mean())
        if self.levels is None:
            return ReadImage(image, head, solutions, mismatch, mse)
        whole = (image * self.levels).round() / self.levels
        rounded = gradient_mismatch(model, gradient, observation.from_unit_range(whole[None])[0], head.label, smoothing)
        # Errors of a level and more are as large after rounding; at a float32 gradient's own rounding all fit alike.
        if rounded <= 0.5 * mismatch or (rounded <= 2.0 * mismatch and mse < (0.1 / self.levels) ** 2):
            return ReadImage(whole, head, solutions, rounded, mse, whole=True)
        return ReadImage(image, head, solutions, mismatch, mse)


def recurse(links: Sequence[Link], gradient: State, head: HeadInput) -> dict[str, LayerInput]:
    """The input of every layer but the classifier, from the last to the first, by the layer's name."""
    inputs, solutions = head.input, {}
    back = links[-1].layer.weight.detach().double().T @ head.error
    for link in reversed(links[:-1]):
        output, layer = inputs.reshape(link.output_shape), link.layer
        before = link.activation.inverse(output)
        slope = link.activation.slope(before)
        error = back.reshape(link.output_shape) * slope
        weight, weight_grad = layer.weight.detach().double(), gradient[f"{link.name}.weight"]
        if isinstance(layer, nn.Conv2d):
            solution = solve_conv(layer, link.shape, before, error, weight_grad, slope)
            back = conv2d_input((1, *link.shape), weight, error[None], layer.stride, layer.padding, layer.dilation)[0]
        else:
            solution = solve_linear(error.flatten(), weight_grad)
            back = weight.T @ error.flatten()
        solutions[link.name] = solution
        inputs = solution.input
    return solutions


def gradient_mismatch(
    model: nn.Module,
    gradient: State,
    image: Float[Tensor, "channels height width"],
    label: int,
    label_smoothing: float = 0.0,
) -> float:
    """‖∇L(image) - g‖ / ‖g‖ over all tensors that were shared; `image` is normalised."""
    shared = {name: parameter for name, parameter in model.named_parameters() if name in gradient}
    target = torch.tensor([label], device=image.device)
    with torch.enable_grad():
        loss = F.cross_entropy(model(image[None]), target, label_smoothing=label_smoothing)
        own = torch.autograd.grad(loss, list(shared.values()), allow_unused=True, materialize_grads=True)
    pairs = [(mine, gradient[name]) for name, mine in zip(shared, own, strict=True)]
    off = torch.stack([(mine - theirs).square().sum() for mine, theirs in pairs]).sum().sqrt()
    return float(off / torch.stack([theirs.square().sum() for _, theirs in pairs]).sum().sqrt().clamp(min=1e-300))


def _read(head: Link, gradient: State, label_smoothing: float) -> list[HeadInput]:
    """Raises NotApplicable where no softmax agrees with the classifier's gradient."""
    weight = head.layer.weight.detach().double()
    bias = head.layer.bias
    offset = weight.new_zeros(len(weight)) if bias is None else bias.detach().double()
    found = read_head(
        weight, offset, gradient[f"{head.name}.weight"], gradient.get(f"{head.name}.bias"), label_smoothing
    )
    if not found:
        raise NotApplicable(f"no softmax agrees with {head.name}'s gradient")
    return found


def _gradients(observation: Observation, links: Sequence[Link], device: torch.device) -> State:
    """The gradient of every tensor that was shared and is finite; the weights of all links must be among them.

    A classifier's bias of gradient zero was not trained: p - y is not zero where the weight's gradient is not.

    Raises:
        NotApplicable: one of these was withheld or is not finite, or the classifier's is zero.
    """
    weights = [observation.gradient_named(f"{link.name}.weight") for link in links]
    if not bool(weights[-1].any()):
        raise NotApplicable(f"{links[-1].name}.weight's gradient is zero: the classifier did not learn")
    found = {name: tensor.to(device) for name, tensor in observation.gradient.items() if bool(tensor.isfinite().all())}
    bias = f"{links[-1].name}.bias"
    return {name: tensor for name, tensor in found.items() if name != bias or bool(tensor.any())}


def _twins(head: Link, gradient: State, found: Sequence[HeadInput]) -> str:
    """Why another image may give the same gradient; empty where the classifier can be read in one way alone."""
    if f"{head.name}.bias" in gradient:
        return ""
    if len(head.layer.weight) == 2:
        return "two classes without a gradient of the bias: a twin of this image may give the same gradient"
    readings = sum(one.residual <= CONSISTENT for one in found)
    return f"the classifier can be read in {readings} ways: a twin of this image may fit too" if readings > 1 else ""


def _certificate(found: ReadImage, twins: str) -> Certificate:
    values = {"mismatch": found.mismatch, "missing": float(found.missing), "head_residual": found.head.residual}
    expected = psnr_of(found.mse)
    if math.isfinite(expected):
        values["expected_psnr"] = expected
    values = finite(values)
    lacking = {name: solution.missing for name, solution in found.solutions.items() if solution.missing}
    if lacking:
        named = ", ".join(f"{count} of {name}'s input" for name, count in lacking.items())
        return Certificate("uncertified", f"rank-deficient: neither weights nor gradients see {named}", values)
    if not found.mismatch <= MAX_MISMATCH:
        return Certificate("uncertified", f"its own gradient is off by {found.mismatch:.2g}", values)
    if not found.whole and expected < MIN_EXPECTED_PSNR:
        return Certificate("uncertified", f"{expected:.0f} dB expected, not exact pixels", values)
    if twins:
        return Certificate("uncertified", twins, values)
    how = "whole pixel levels" if found.whole else f"{expected:.0f} dB expected"
    return Certificate("certified", f"its own gradient is the shared one up to {found.mismatch:.1g}, {how}", values)
