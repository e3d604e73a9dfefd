"""Pictures from the first fully connected layer: its weight's gradient over its bias's (Phong et al. 2018)."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attacks.analytic.linear.certificate import MIN_EXPECTED_PSNR, relative_error
from attacks.analytic.linear.rank_one import LinearInput, parallel_units, solve_input
from attacks.base import Attack, Certificate, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import LinearSystem, linear_error, own_equations
from attacks.label.one_example.label import single_label
from attacks.result import psnr_of
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation

MAX_RESIDUAL = 1e-2
"""Of the rank-one fit, for a certificate. Two pictures leave 0.1 to 0.7; noise that leaves more hides the pixels."""

MAX_WRONG = 0.01
"""Expected number of wrong pixels up to which rounding to whole levels counts as exact."""

MAX_MISMATCH = 0.05
"""How far the bias gradients of a group's units may be from those of its picture alone, relative. Measured: 1e-7 to
2e-5 for true pictures, 0.08 to 0.6 after three steps of SGD at 0.01 and 0.1, 0.4 to 0.5 for mixtures of two pictures,
which move their units twice as far as one does."""


class FullyConnectedBias(Attack):
    """x = ∂L/∂W[i] / ∂L/∂b[i] for any unit i of a layer that reads the picture itself.

    Exact for one picture, after any number of local steps on it. In a batch, a unit that one picture alone activates
    (ReLUs do that) gives that picture; two or more units that agree tell which, but units that pictures of one label
    share agree as well where the model scores those alike. Sigmoids mix all pictures in all units.

    Args:
        tolerance: largest sine of the angle at which two units agree in a batch.
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits): a solution is
            rounded to them where its error is surely smaller than half a level; None: never.
    """

    def __init__(self, tolerance: float = 1e-4, levels: int | None = 255) -> None:
        require("attack.fc_bias.tolerance", tolerance, 0 < tolerance < 1, "a sine above 0 and below 1")
        require("attack.fc_bias.levels", levels, levels is None or levels >= 1, "1 or more, or null")
        self.tolerance = tolerance
        self.levels = levels

    def check(self, observation: Observation) -> None:
        super().check(observation)
        _gradients(observation, image_layer(observation))

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where no fully connected layer with a bias reads the picture, or it was withheld."""
        layer = image_layer(observation)
        weight_grad, bias_grad = (g.to(device) for g in _gradients(observation, layer))
        pictures = observation.num_images
        if pictures == 1:
            found = [self._read(observation, solve_input(weight_grad, bias_grad))]
            certificate = _certificate_of_one(found[0])
        else:
            groups = parallel_units(weight_grad, bias_grad, self.tolerance)[:pictures]
            found = [self._read(observation, solve_input(weight_grad[rows], bias_grad[rows])) for rows in groups]
            for number, (candidate, rows) in enumerate(zip(found, groups, strict=True)):
                alone = bias_gradients(observation, layer, candidate.image)[:, rows] / pictures
                mismatch = min(relative_error(bias_grad[rows], expected) for expected in alone)
                found[number] = replace(candidate, mismatch=mismatch)
            certificate = _certificate_of_batch(found, pictures, observation.num_classes)
            if not found:
                found = [self._read(observation, solve_input(weight_grad, bias_grad))]
        images = torch.stack([candidate.image for candidate in found]).clamp(0.0, 1.0)
        return Reconstruction(images, single_label(observation) if pictures == 1 else None, certificate)

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        assert result.images is not None
        layer = image_layer(observation)
        require_image(observation, result.images, layer)
        inputs = observation.normalised(result.images.cpu()).flatten(1)
        shared, found = (_gradients(one, layer) for one in (observation, again))
        if len(inputs) > 1:
            return _bound_of_batch(observation, result, layer, inputs, shared, found)
        every = torch.ones(len(shared[1]), dtype=torch.bool)
        errors = linear_error(_system(shared, every), _system(found, every), inputs, observation.eps)
        return own_equations(errors, observation.std)

    def _read(self, observation: Observation, solution: LinearInput) -> "Candidate":
        image = observation.to_unit_range(solution.input.reshape(1, *observation.image_shape))[0]
        std = image.new_tensor(observation.std).view(-1, 1, 1)
        deviation = solution.variance.sqrt().reshape(image.shape) * std
        mse = float(deviation.square().mean())
        if self.levels is None or not math.isfinite(mse):
            return Candidate(image, solution, mse, whole=False)
        whole = (image * self.levels).round() / self.levels
        # Few units know the error of a single pixel badly, and that of all together well.
        deviation = deviation.clamp(min=math.sqrt(mse))
        wrong = torch.special.erfc(0.5 / (self.levels * deviation * math.sqrt(2.0)).clamp(min=1e-12)).sum()
        # A picture between the levels is off them by 0.29 of one, more than twice any error that is let through here.
        off = float((image - whole).square().mean().sqrt())
        on_grid = off <= max(2.0 * math.sqrt(mse), 0.01 / self.levels)
        if float(wrong) <= MAX_WRONG and on_grid:
            return Candidate(whole, solution, mse, whole=True)
        return Candidate(image, solution, mse, whole=False)


@dataclass(frozen=True)
class Candidate:
    """A picture in [0, 1], up to errors, with the expected squared one.

    Attributes:
        whole: its pixels were rounded to levels.
        mismatch: relative error of its units' bias gradients against those of this picture alone, in a batch.
    """

    image: Float[Tensor, "channels height width"]
    solution: LinearInput
    mse: float
    whole: bool
    mismatch: float = math.nan

    @property
    def expected_psnr(self) -> float:
        return psnr_of(self.mse)

    @property
    def exact(self) -> bool:
        """Of one picture alone: three units agree on every pixel, or two and the pixels are whole levels."""
        agreed = self.whole or (self.solution.units >= 3 and self.expected_psnr >= MIN_EXPECTED_PSNR)
        return agreed and self.solution.residual <= MAX_RESIDUAL

    @property
    def exact_in_batch(self) -> bool:
        """The pixels are whole levels, and the model moves the units as far for this picture alone.

        Agreement tells nothing in a batch: pictures of one label and nearly the same softmax have parallel errors, so
        that every unit that they share holds the same mixture. Whole levels alone tell nothing either, where the
        pictures differ by even numbers of them.
        """
        return self.whole and self.exact and self.mismatch <= MAX_MISMATCH


def _bound_of_batch(
    observation: Observation,
    result: Reconstruction,
    layer: str,
    inputs: Float[Tensor, "batch pixels"],
    shared: tuple[Tensor, Tensor],
    again: tuple[Tensor, Tensor],
) -> PsnrBound | None:
    """Each image by the units that it alone moves, as long as no other can come to move them over the error bounded.

    For one step; units that do nothing where they are inactive (ReLUs) stay so up to where their input turns positive.
    """
    assert result.labels is not None
    if observation.protocol.steps > 1:
        return None
    before, moved = _moved_units(observation, layer, inputs, result.labels)
    weight = observation.global_state[f"{layer}.weight"].double().norm(dim=1)
    distances = before.abs() / weight.clamp(min=1e-300)
    worst, radii, alone_of = [], [], []
    for number, image in enumerate(inputs):
        alone = (moved[number] != 0) & (moved != 0).sum(dim=0).eq(1)
        if int(alone.sum()) < 2:
            return None
        errors = linear_error(_system(shared, alone), _system(again, alone), image[None], observation.eps)
        if errors is None:
            return None
        worst.append(errors)
        radii.append(float(errors) * math.sqrt(len(image)))
        alone_of.append(alone)
    for number, alone in enumerate(alone_of):
        others = [other for other in range(len(inputs)) if other != number]
        if any(bool((distances[other, alone] <= radii[other]).any()) for other in others):
            return None
    return own_equations(torch.stack(worst).max()[None], observation.std)


def _system(gradients: tuple[Tensor, Tensor], units: Bool[Tensor, " all_units"]) -> LinearSystem:
    """∂L/∂W[i] = ∂L/∂b[i] x over the units chosen."""
    weight, bias = gradients
    return LinearSystem(bias[None, units], weight[units])


def _moved_units(
    observation: Observation, layer: str, inputs: Float[Tensor, "batch pixels"], labels: Tensor
) -> tuple[Float[Tensor, "batch units"], Float[Tensor, "batch units"]]:
    """What each unit reads before its activation, and the gradient of its bias by each image alone; float64."""
    model = observation.build_model().double().eval()
    read: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> Tensor:
        read.append(output)
        return output.clone()  # an activation in place writes into what it is given

    hook = model.get_submodule(layer).register_forward_hook(keep)
    with torch.enable_grad():
        scores = model(inputs.reshape(len(inputs), *observation.image_shape))
        smoothing = observation.protocol.label_smoothing
        loss = F.cross_entropy(scores, labels.cpu(), label_smoothing=smoothing, reduction="sum")
        (moved,) = torch.autograd.grad(loss, read[0])
    hook.remove()
    return read[0].detach(), moved


def bias_gradients(
    observation: Observation, layer: str, image: Float[Tensor, "channels height width"]
) -> Float[Tensor, "classes units"]:
    """∂L/∂b of the layer for one picture in [0, 1] with each label in turn, in evaluation mode at the global weights.

    Float64.
    """
    model = observation.build_model().double().eval().to(image.device)
    with torch.enable_grad():
        scores = model(observation.from_unit_range(image[None]))[0]
        each = torch.eye(len(scores), dtype=scores.dtype, device=scores.device)
        slopes = torch.autograd.grad(scores, model.get_parameter(f"{layer}.bias"), each, is_grads_batched=True)[0]
    smoothing = observation.protocol.label_smoothing
    errors = scores.detach().softmax(dim=0) - (1.0 - smoothing) * each - smoothing / len(scores)
    found: Tensor = errors @ slopes
    return found


def image_layer(observation: Observation) -> str:
    """The name of the fully connected layer that runs first, which must read the picture and nothing else.

    Raises:
        NotApplicable: there is none, or it reads features or tokens.
    """
    model = observation.build_model().eval()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if not layers:
        raise NotApplicable("the model has no fully connected layer")
    parameter = next(model.parameters())
    size = math.prod(observation.image_shape)
    # No two alike values, so that equal means the same pixels in the same order.
    probe = torch.linspace(-1.0, 1.0, size, dtype=parameter.dtype).reshape(1, *observation.image_shape)
    read: list[tuple[str, Tensor]] = []
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, inputs, name=name: read.append((name, inputs[0].detach().clone())))
    with torch.no_grad():
        model(probe)
    if not read:
        raise NotApplicable("no fully connected layer takes part in the forward pass")
    name, seen = read[0]
    if seen.numel() != seen.shape[-1]:
        tokens = seen.numel() // seen.shape[-1]
        raise NotApplicable(
            f"the first fully connected layer, {name}, reads {tokens} tokens, not the picture as a whole"
        )
    if seen.numel() != size or not torch.equal(seen.flatten(), probe.flatten()):
        raise NotApplicable(
            f"the first fully connected layer, {name}, reads {seen.numel()} features, not the {size} pixels: "
            "its gradients would give features"
        )
    return name


def _gradients(observation: Observation, layer: str) -> tuple[Tensor, Tensor]:
    """∂L/∂W and ∂L/∂b of the layer.

    Raises:
        NotApplicable: it has no bias, or one was withheld, is not finite, or zero.
    """
    found = []
    for part in ("weight", "bias"):
        name = f"{layer}.{part}"
        if name not in observation.global_state:
            raise NotApplicable(f"{layer} has no {part}")
        found.append(observation.gradient_named(name))
    if not bool(found[1].any()):
        raise NotApplicable(f"{layer}.bias's gradient is zero: no unit was active, or it was not trained")
    return found[0], found[1]


def _certificate_of_one(candidate: Candidate) -> Certificate:
    solution = candidate.solution
    values = {"residual": solution.residual, "units": float(solution.units)}
    if math.isfinite(candidate.mse):
        values["expected_psnr"] = candidate.expected_psnr
    if candidate.exact:
        how = "whole pixel levels" if candidate.whole else f"{candidate.expected_psnr:.0f} dB expected"
        reason = f"{solution.units} units agree on one input, residual {solution.residual:.1g}, {how}"
        return Certificate("certified", reason, values)
    if solution.units < 3:
        return Certificate("uncertified", f"{solution.units} active unit(s): no other to test the input by", values)
    if solution.residual > MAX_RESIDUAL:
        reason = f"residual {solution.residual:.2g}: several different inputs, or a perturbed gradient"
        return Certificate("uncertified", reason, values)
    return Certificate("uncertified", f"{candidate.expected_psnr:.0f} dB expected, not exact pixels", values)


def _certificate_of_batch(found: list[Candidate], pictures: int, classes: int) -> Certificate:
    exact = sum(candidate.exact_in_batch for candidate in found)
    values = {"pictures": float(pictures), "found": float(len(found)), "exact": float(exact)}
    if not found:
        reason = f"no two units agree: {pictures} pictures are mixed in every unit, in one mean picture here"
        return Certificate("uncertified", reason, values)
    values["smallest_group"] = float(min(candidate.solution.units for candidate in found))
    values["mismatch"] = max(candidate.mismatch for candidate in found)
    if classes <= 2:
        reason = "two classes: units whose rows are parallel can hold the same mixture of pictures"
        return Certificate("uncertified", reason, values)
    if exact == len(found) < pictures:
        reason = f"{exact} of {pictures} pictures were found; the others could be mixed into them"
        return Certificate("uncertified", reason, values)
    if exact == len(found):
        how = f"whole pixel levels that {int(values['smallest_group'])} or more units agree on"
        reason = f"{exact} of {pictures} pictures, each of {how}, and they alone move those units as far"
        return Certificate("certified", reason, values)
    whole = f"{exact} of the {len(found)} pictures found are whole pixel levels that alone move their units as far"
    reason = f"{whole}: the others can be mixtures of alike pictures of one label"
    return Certificate("uncertified", reason, values)
