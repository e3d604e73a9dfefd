"""How far an image may be off, by the whole Jacobian of a shared gradient in its pixels: for small images."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.certificate.twins import twins
from attacks.forward_mode import jacobian
from attacks.result import PsnrBound, Reconstruction, psnr_of
from fedsim.determinism import torch_generator
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

MAX_NUMBERS = 2_000
"""Numbers of all images together, three to a colour pixel, up to which J is computed whole."""

MAX_ROWS = 20_000
"""Numbers of the gradient that are used: fewer equations give no better conditioning."""

MIN_SHARE = 1e-4
"""Of the whole gradient's norm, below which a tensor's gradient is rounding alone and is left out."""

MIN_SINGULAR = 1e-13
"""Of the largest singular value, below which the smallest is rounding in float64: nothing is bounded."""

ROUNDINGS = 32.0
"""Of the client's precision, that its gradient is taken to be off at least."""

MAX_SHARE = 0.25
"""Of that distance's effect, by which f may bend over it: more, and nothing near says where a solution lies."""

MAX_BEND = 0.5
"""Share by which a step may move an update otherwise than J says."""

STEP = 4.0
"""Times that distance, of each pixel's step across the edge of a clamp: the result may be inside it by once as far."""


def jacobian_bound(observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
    """‖x̂ - x‖ <= 2 L/(1 + √(1 - 4 β)), L = (‖W r(x̂)‖ + ‖W δ‖) / σ_min(W J), W each tensor's 1/‖f*‖, δ the client's
    rounding (float64).

    β is the share by which f bends over L in the weakest direction: quadratic, it leaves t - β t²/L <= L.

    σ_min is the weakest of all images together, so that one of them may be off by all of that length.

    For one gradient that no defense changed; None otherwise, for more than `MAX_NUMBERS` numbers, for fewer shared
    than these, and where J bends too much over that distance.

    Raises:
        NotApplicable: a twin far away explains what was shared as well, or the model or the
            client's own precision does not see what J says.
    """
    changed = not observation.keeps("gradient")
    if observation.update.kind != "gradient" or changed or result.images is None or result.labels is None:
        return None
    if result.images.numel() > MAX_NUMBERS:
        return None
    strides = _strides(observation.gradient)
    shared = _sampled(observation.gradient, strides)
    gradient_of = _gradient(observation, result.labels, shared, strides)
    x = observation.normalised(result.images.cpu()).flatten()
    if sum(tensor.numel() for tensor in shared.values()) < len(x):
        return None
    target = torch.cat([tensor.cpu() / _norm(tensor) for tensor in shared.values()])
    with sdpa_kernel(SDPBackend.MATH):
        J = jacobian(gradient_of, x)
        residual = float((gradient_of(x) - target).norm())
        left, singular, right = torch.linalg.svd(J, full_matrices=False)
        if float(singular[-1]) <= float(singular[0]) * MIN_SINGULAR:
            return None
        allowed = residual + _rounding(observation, _sampled(again.gradient, strides), shared)
        length = allowed / float(singular[-1])
        weakest = right[-1]
        moved = gradient_of(x + length * weakest) - gradient_of(x)
        bent = float((moved - length * (J @ weakest)).norm())
        share = bent / (length * float(singular[-1]))
        if not share <= MAX_SHARE:
            return None
        length *= 2.0 / (1.0 + math.sqrt(1.0 - 4.0 * share))
        for sign in (1.0, -1.0):
            pixels = observation.to_unit_range(
                x.view_as(result.images) + sign * STEP * length * _signs(x).view_as(result.images)
            )
            taken = observation.normalised(pixels.clamp(0.0, 1.0)).flatten() - x
            lost = gradient_of(x + taken) - gradient_of(x) - J @ taken
            still = _not_moved(lost, right.T @ ((left.T @ lost) / singular), taken, J)
            if still:
                raise NotApplicable(f"the model misses {still} of {len(x)} numbers that move to one side: a clamp, say")
        _seen_by_client(observation, result, strides, gradient_of, length, weakest, allowed)
        for how, twin in twins(observation, x.reshape(result.images.shape)):
            if float((twin - x).norm()) > length and float((gradient_of(twin) - target).norm()) <= allowed:
                raise NotApplicable(f"the image {how} gives the same update: which of them it is, nothing tells")
    mse = length**2 / (len(x) // len(result.images)) * max(observation.std) ** 2
    condition = float(singular[0] / singular[-1])
    return PsnrBound(psnr_of(mse), f"the whole Jacobian of {len(x)} numbers, condition {condition:.0e}")


def _signs(x: Float[Tensor, " pixels"]) -> Float[Tensor, " pixels"]:
    return torch.randint(0, 2, x.shape, generator=torch_generator(0, "steps")).to(x) * 2 - 1


def _not_moved(
    lost: Float[Tensor, " numbers"],
    back: Float[Tensor, " pixels"],
    taken: Float[Tensor, " pixels"],
    J: Float[Tensor, "numbers pixels"],
) -> int:
    """How many pixels' steps a gradient does not show, as where the result lies at the edge of a clamp.

    What it lost against J is then -J s of their steps s alone; a bend, or a unit that turns on, is no such sum.

    Args:
        back: J⁺ `lost`.
    """
    still = back * taken < -(1.0 - MAX_BEND) * taken.square()
    left = lost + J @ torch.where(still, taken, 0.0)
    return int(still.sum()) if float(left.norm()) <= MAX_BEND * float(lost.norm()) else 0


def _seen_by_client(
    observation: Observation,
    result: Reconstruction,
    strides: dict[str, int],
    gradient_of: Callable[[Tensor], Tensor],
    length: float,
    weakest: Float[Tensor, " pixels"],
    allowed: float,
) -> None:
    """Steps to both sides move the client's own gradient as they move that of the model in float64, whose J it is.

    By `length` in the weakest direction, which moves it by about `allowed`, and in every pixel at once with random
    signs, so that whatever pixels a client does not see move it by no less. A model that rounds its input in the
    client's precision answers otherwise there, and there alone.

    Raises:
        NotApplicable: they do not, or the computation cannot be done once more.
    """
    assert result.images is not None
    assert result.labels is not None
    shared = _sampled(observation.gradient, strides)
    images, labels = result.images.detach().cpu().double(), result.labels.cpu()
    std = images.new_tensor(observation.std).view(1, -1, 1, 1)
    precision = next(iter(observation.update.tensors.values())).dtype
    for how, direction in (("the weakest", weakest), ("a random", _signs(weakest))):
        step = length * direction.view_as(images) * std
        sides = [(images + sign * step).to(precision) for sign in (1.0, -1.0)]  # as the client's numbers can hold it
        moved = []
        for side in sides:
            update = observation.replay(side, labels)
            if update is None:
                raise NotApplicable("the client's computation cannot be done once more near the result")
            again = _sampled(replace(observation, update=update).gradient, strides)
            client = torch.cat([again[name].cpu() / _norm(shared[name]) for name in shared])
            moved.append(client - gradient_of(observation.normalised(side).flatten()))
        off = float((moved[0] - moved[1]).norm()) / 2.0
        if not off <= MAX_BEND * allowed:
            raise NotApplicable(
                f"in the client's own precision a step in {how} direction does not move the update as the Jacobian "
                f"says: off by {off / allowed:.1g} times what the bound allows for rounding"
            )


def _strides(gradient: State) -> dict[str, int]:
    """By name, every how many-th number is used: all, or no more than half of what is left of `MAX_ROWS`.

    Without tensors whose gradient is rounding alone.
    """
    whole = math.sqrt(math.fsum(float(tensor.square().sum()) for tensor in gradient.values()))
    strides: dict[str, int] = {}
    left = MAX_ROWS
    for name, tensor in gradient.items():
        if float(tensor.norm()) > MIN_SHARE * whole and left > 1:
            strides[name] = -(-tensor.numel() // (left // 2))
            left -= -(-tensor.numel() // strides[name])
    return strides


def _sampled(gradient: State, strides: dict[str, int]) -> State:
    return {name: gradient[name].flatten()[::stride] for name, stride in strides.items()}


def _gradient(
    observation: Observation, labels: Tensor, shared: State, strides: dict[str, int]
) -> Callable[[Tensor], Tensor]:
    """The weighed gradient as a function of normalised pixels, float64."""
    model: nn.Module = observation.build_model().double().cpu()
    if model.training:  # running statistics have no part in the gradient
        replace_all_batch_norm_modules_(model)
    buffers = dict(model.named_buffers())
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    norms = {name: _norm(tensor) for name, tensor in shared.items()}
    shape = (len(labels), *observation.image_shape)
    smoothing = observation.protocol.label_smoothing

    def loss(chosen: State, x: Tensor) -> Tensor:
        written = {name: buffer.clone() for name, buffer in buffers.items()}  # a counter of steps, say
        scores = functional_call(model, {**parameters, **written, **chosen}, (x.reshape(shape),))
        return F.cross_entropy(scores, labels.cpu(), label_smoothing=smoothing)

    def weighed(x: Tensor) -> Tensor:
        found = torch.func.grad(loss)({name: parameters[name] for name in shared}, x)
        return torch.cat([found[name].flatten()[:: strides[name]] / norms[name] for name in shared])

    return weighed


def _rounding(observation: Observation, again: State, shared: State) -> float:
    """‖W δ‖: what the client's own precision leaves between its gradient and the exact one.

    Measured by what the client's own precision makes of the result, less what was shared: the largest of any tensor,
    in all of them. `ROUNDINGS` is the least: a result that is right to the last bit leaves nothing.
    """
    off = max(float((again[name] - shared[name]).norm()) / _norm(shared[name]) for name in shared)
    return math.sqrt(len(shared)) * max(off, ROUNDINGS * observation.eps)


def _norm(tensor: Tensor) -> float:
    return max(float(tensor.norm()), 1e-300)
