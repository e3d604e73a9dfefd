"""R-GAP's two linear systems: the input of a layer from its weights and gradients (Zhu & Blaschko 2021, section 3)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

RARE = 3.0
"""How many times more consistent a reading must be that has a confident model overshoot its smoothed target: noise
makes such readings too."""

RANK_TOLERANCE = 1e-6
"""Smallest over largest singular value of a layer's system; below it a direction drowns in a float32 gradient."""


@dataclass(frozen=True)
class HeadInput:
    """A reading of the classifier's gradient.

    Attributes:
        error: ∂L/∂logits = softmax - target.
        input: what the classifier reads.
        residual: ‖softmax(W h + b) - target - error‖: 0 where the reading is consistent.
    """

    error: Float[Tensor, "classes"]
    input: Float[Tensor, "features"]
    label: int
    residual: float


@dataclass(frozen=True)
class LayerInput:
    """The least-squares solution of a layer's two systems.

    Attributes:
        missing: directions of the input that neither system sees.
        residual: relative, of both systems together.
        mse: expected squared error of an entry of the input, from the scatter of the equations.
    """

    input: Float[Tensor, "..."]
    missing: int
    residual: float
    mse: float


def read_head(
    weight: Float[Tensor, "classes features"],
    bias: Float[Tensor, "classes"],
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"] | None,
    label_smoothing: float = 0.0,
) -> list[HeadInput]:
    """All (p - y, h) with (p - y) hᵀ = ∂L/∂W and p = softmax(W h + b), the most likely first; one example.

    With the bias's gradient p - y is known. Without it, or where it is zero, ∂L/∂W = σ u vᵀ leaves its scale s:
    p - y = s·u, h = (σ/s)·v, and the softmax of the logits that follow must agree. Two classes may leave several
    solutions (the "twins" of the paper), more classes seldom do. The label is where p - y is smallest; with smoothed
    labels a confident model overshoots its target, and the label is where p - (p - y) is largest.
    """
    weight, bias, weight_grad = weight.double(), bias.double(), weight_grad.double()
    if bias_grad is not None and bool(bias_grad.any()):
        error = bias_grad.double()
        features = error @ weight_grad / error.square().sum()
        target = (weight @ features + bias).softmax(dim=0) - error
        label = int(target.argmax() if label_smoothing else error.argmin())
        residual = float((target - _smoothed(torch.tensor(label, device=error.device), target, label_smoothing)).norm())
        return [HeadInput(error, features, label, residual)]
    left, singular, right = torch.linalg.svd(weight_grad, full_matrices=False)
    found = []
    for sign in (1.0, -1.0):
        direction, features = sign * left[:, 0], sign * singular[0] * right[0]
        logits = weight @ features
        for scale in _consistent_scales(direction, logits, bias, label_smoothing):
            target = _implied_target(scale, direction, logits, bias)
            chosen = target.argmax()
            rest = target - _smoothed(chosen, target, label_smoothing)
            found.append(HeadInput(scale * direction, features / scale, int(chosen), float(rest.norm())))
    return sorted(found, key=lambda head: head.residual * (1.0 if head.label == int(head.error.argmin()) else RARE))


def _smoothed(
    label: Int[Tensor, "*grid"], like: Float[Tensor, "*grid classes"], smoothing: float
) -> Float[Tensor, "*grid classes"]:
    classes = like.shape[-1]
    return F.one_hot(label, classes).to(like) * (1.0 - smoothing) + smoothing / classes


def _implied_target(
    scale: Float[Tensor, ""] | Float[Tensor, "grid 1"],
    direction: Float[Tensor, "classes"],
    logits: Float[Tensor, "classes"],
    bias: Float[Tensor, "classes"],
) -> Float[Tensor, "classes"] | Float[Tensor, "grid classes"]:
    """softmax(logits/s + b) - s·u: a one-hot vector, smoothed, where the scale is right."""
    return (logits / scale + bias).softmax(dim=-1) - scale * direction


def _consistent_scales(
    direction: Float[Tensor, "classes"],
    logits: Float[Tensor, "classes"],
    bias: Float[Tensor, "classes"],
    smoothing: float,
) -> list[Float[Tensor, ""]]:
    """The local minima of ‖softmax(logits/s + b) - s·u - target‖ over 0 < s·max|u| < 1, by grids and Newton.

    Twins may be so near each other that a grid shows one minimum for both: each is looked at again on two finer ones.
    """

    def mismatch(scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        target = _implied_target(scale, direction, logits, bias)
        return target - _smoothed(target.argmax(dim=-1), target, smoothing)

    brackets = [torch.linspace(-16.0, 16.0, 4001, dtype=logits.dtype, device=logits.device)]
    for points in (257, 257, 5):
        steps = torch.linspace(0.0, 1.0, points, dtype=logits.dtype, device=logits.device)
        brackets = [
            low + (high - low) * steps
            for grid in brackets
            for low, high in _around_minima(mismatch(_scale(grid[:, None], direction)).norm(dim=1), grid)
        ]
    scales: list[Float[Tensor, ""]] = []
    for bracket in brackets:
        low, scale, high = _scale(bracket[[0, 2, 4]], direction)
        for _ in range(30):
            probs = (logits / scale + bias).softmax(dim=0)
            change = -logits / scale.square()
            slope = probs * (change - probs @ change) - direction
            scale = (scale - slope @ mismatch(scale) / slope.square().sum()).clamp(low, high)
        if not any(torch.isclose(scale, other, rtol=1e-5, atol=0.0) for other in scales):
            scales.append(scale)
    return scales


def _scale(logit: Float[Tensor, "*grid"], direction: Float[Tensor, "classes"]) -> Float[Tensor, "*grid"]:
    """No entry of p - y is above 1."""
    return logit.sigmoid() / direction.abs().max()


def _around_minima(
    values: Float[Tensor, "grid"], grid: Float[Tensor, "grid"]
) -> list[tuple[Float[Tensor, ""], Float[Tensor, ""]]]:
    """Two steps to both sides of each local minimum: a twin may lie beyond the next point."""
    lowest = ((values[1:-1] <= values[:-2]) & (values[1:-1] <= values[2:])).nonzero().flatten() + 1
    last = len(grid) - 1
    return [(grid[max(0, at - 2)], grid[min(last, at + 2)]) for at in lowest.tolist()]


def largest_matrix(layer: nn.Conv2d, shape: tuple[int, ...], output_shape: tuple[int, ...]) -> int:
    """How many numbers `solve_conv` keeps in one matrix, at most."""
    inputs, outputs = math.prod(shape), math.prod(output_shape)
    windows = math.prod((*layer.kernel_size, *shape[1:], *output_shape[1:]))
    gradients = layer.weight[:, 0].numel() * math.prod(shape[1:])
    return max(inputs * inputs, inputs * outputs, windows, gradients)


def conv_matrix(layer: nn.Conv2d, shape: tuple[int, ...]) -> Float[Tensor, "outputs inputs"]:
    """The convolution without its bias as a matrix, float64."""
    weight = layer.weight.detach().double()
    size = shape[0] * shape[1] * shape[2]
    columns = []
    for part in torch.eye(size, dtype=weight.dtype, device=weight.device).split(512):
        columns.append(
            F.conv2d(part.reshape(-1, *shape), weight, None, layer.stride, layer.padding, layer.dilation).flatten(1)
        )
    return torch.cat(columns).T


def gradient_matrix(
    layer: nn.Conv2d, output_grad: Float[Tensor, "outputs rows columns"], sides: tuple[int, int]
) -> Float[Tensor, "weights pixels"]:
    """K of ∂L/∂W[o, c, u, v] = Σ_ij K[(o, u, v), (i, j)] x[c, i, j]: the same for every input channel c."""
    pixels = sides[0] * sides[1]
    identity = torch.eye(pixels, dtype=output_grad.dtype, device=output_grad.device).reshape(pixels, 1, *sides)
    windows = F.unfold(identity, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    found: Tensor = torch.einsum("xwp,op->owx", windows, output_grad.flatten(1))
    return found.reshape(-1, pixels)


def solve_linear(output_grad: Float[Tensor, "outputs"], weight_grad: Float[Tensor, "outputs inputs"]) -> LayerInput:
    """∂L/∂W = k xᵀ has all of x in every row with a gradient: x = kᵀ ∂L/∂W / ‖k‖²."""
    k, g = output_grad.double(), weight_grad.double()
    total = k.square().sum()
    if float(total) == 0.0:
        return LayerInput(torch.zeros_like(g[0]), len(g[0]), 0.0, math.nan)
    x = k @ g / total
    rest = g - torch.outer(k, x)
    mse = float((k.square() @ rest.square()).mean() / total.square())
    return LayerInput(x, 0, float(rest.norm() / g.norm().clamp(min=1e-300)), mse)


def solve_conv(
    layer: nn.Conv2d,
    shape: tuple[int, ...],
    output: Float[Tensor, "outputs rows columns"],
    output_grad: Float[Tensor, "outputs rows columns"],
    weight_grad: Float[Tensor, "outputs channels height width"],
    precision: Float[Tensor, "outputs rows columns"],
    rounds: int = 3,
) -> LayerInput:
    """Solve W x = z and K x = ∂L/∂W together for the input x, by least squares in float64.

    The weight system has outputs·rows·columns equations, the gradient system outputs·kernel for each channel. Their
    noise is not alike: the former carries the errors of all layers behind, the latter those of the shared gradient.
    Both variances are estimated from the residuals, and the equations weighed by them (Helmert's variance components).

    Args:
        precision: 1 / relative deviation of each entry of z.
    """
    channels, pixels = shape[0], shape[1] * shape[2]
    W, z = conv_matrix(layer, shape), output.double().flatten()
    if layer.bias is not None:
        z = z - layer.bias.detach().double().repeat_interleave(output[0].numel())
    W, z = W * precision.flatten()[:, None], z * precision.flatten()
    K = gradient_matrix(layer, output_grad.double(), (shape[1], shape[2]))
    g = weight_grad.double().transpose(0, 1).reshape(channels, -1)  # [c, (o, u, v)]
    gram_w, gram_g = W.T @ W, K.T @ K
    size_w, size_g = (float(right.square().mean().clamp(min=1e-300)) for right in (z, g))
    missing = _missing(_normal(gram_w / size_w, gram_g / size_g, channels))
    noise_w, noise_g = size_w, 1e-2 * size_g
    # Signs of a fixed pattern: the traces need no more than to be about right, and the same every time.
    probes = torch.randint(0, 2, (len(gram_w), 8), generator=torch.Generator().manual_seed(0)).to(W) * 2.0 - 1.0
    x, mse = torch.zeros_like(W[0]), math.nan
    for _ in range(rounds):
        factor = _cholesky(_normal(gram_w / noise_w, gram_g / noise_g, channels))
        # Normal equations lose half of the digits; refining against the systems themselves brings them back.
        for _ in range(4):
            rest_z, rest_g = z - W @ x, g - x.reshape(channels, pixels) @ K.T
            descent = W.T @ rest_z / noise_w + (rest_g @ K).flatten() / noise_g
            x = x + torch.cholesky_solve(descent[:, None], factor)[:, 0]
        rest_z, rest_g = z - W @ x, g - x.reshape(channels, pixels) @ K.T
        spread = torch.cholesky_solve(probes, factor)
        mse = float((probes * spread).mean())
        used_w = float((probes * (gram_w @ spread)).sum()) / probes.shape[1] / noise_w
        noise_w = _variance(rest_z, used_w, noise_w, size_w)
        noise_g = _variance(rest_g, len(x) - used_w, noise_g, size_g)
    rest = rest_z.square().mean() / size_w + rest_g.square().mean() / size_g
    return LayerInput(x.reshape(shape), missing, float((rest / 2.0).sqrt()), mse)


def _variance(rest: Float[Tensor, "..."], used: float, before: float, size: float) -> float:
    """Σ r² over the equations that the solution did not use up; as before where there are next to none.

    Never below what float64 can tell, or a noiseless system would divide by zero.
    """
    spare = rest.numel() - used
    if spare < 0.01 * rest.numel():
        return before
    return max(float(rest.square().sum()) / spare, 1e-24 * size)


def _normal(
    by_weights: Float[Tensor, "n n"], by_gradient: Float[Tensor, "pixels pixels"], channels: int
) -> Float[Tensor, "n n"]:
    """The two systems' normal matrix; the gradient system is the same block for every channel."""
    normal, pixels = by_weights.clone(), len(by_gradient)
    for channel in range(channels):
        block = slice(channel * pixels, (channel + 1) * pixels)
        normal[block, block] += by_gradient
    return normal


def _cholesky(normal: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """With a ridge far below every direction that counts: a direction that nothing sees becomes 0."""
    ridge = 1e-15 * float(normal.diagonal().max())
    while True:
        normal.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(normal)
        if not int(failed):
            found: Tensor = factor
            return found
        ridge *= 10.0


def _missing(normal: Float[Tensor, "n n"]) -> int:
    """Directions with a singular value below `RANK_TOLERANCE` of the largest; counted only where there are any."""
    size = len(normal)
    vector = torch.ones(size, 1, dtype=normal.dtype, device=normal.device)
    for _ in range(10):
        vector = normal @ (vector / vector.norm())
    least = RANK_TOLERANCE**2 * float(vector.norm())
    shifted = normal.clone()
    shifted.diagonal().sub_(least)
    if not int(torch.linalg.cholesky_ex(shifted).info):  # positive definite: every eigenvalue is above
        return 0
    return int((torch.linalg.eigvalsh(normal) <= least).sum())
