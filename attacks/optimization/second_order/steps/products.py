"""Gauss-Newton steps without J: conjugate gradients on exact products, preconditioned by a sketch."""

import math
from collections.abc import Callable, Sequence
from copy import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.conjugate_gradients import conjugate_gradients
from attacks.optimization.cuda_graph import Function, capturable, replayed
from attacks.optimization.second_order.steps.sketch import Pieces, Sketch, sketch

TOLERANCE, BEND_TOLERANCE = 1e-2, 3e-2
"""Of the preconditioned right-hand side, at which a step's system counts as solved, and that of what bends it."""
SLACK = 2.0
"""Times the tolerance, within which what is left of a system solved in float32 must be in float64."""
MOST = 300
"""Iterations of one step; where they do not do, the sketch is of too far away."""
WORTH = 0.3
"""Iterations that a sketch costs for each of its coordinates, about: when it has taken more, another is made."""


class MatrixFree:
    """Linear models of one residual, which share a sketch as long as it serves.

    Args:
        coarse: the same residual in less precision, for the sketch, and for products as long as they do.
        active: the first coordinates, which are varied.
        first: of them, that the sketch covers.
        together: directions that are pushed forward at once.

    Attributes:
        anchor: where the sketch in use was made; None where the next point makes one.
        ridge: curvature that rows of the residual have which are not in `coarse`: alike along all coordinates.
        rough: whether products of `coarse` have solved every system since the sketch in use was made.
        spent: iterations since then.
    """

    def __init__(
        self,
        residual: Pieces,
        coarse: Pieces,
        active: int,
        first: int,
        together: int,
        tolerance: float = TOLERANCE,
        most: int = MOST,
    ) -> None:
        self.residual, self.coarse = residual, coarse
        self.active, self.first, self.together = active, min(active, first), together
        self.tolerance, self.most = tolerance, most
        self.anchor: Tensor | None = None
        self.ridge = 0.0
        self.rough = True
        self.spent = 0
        self._sketch: Sketch | None = None

    def __call__(self, x: Float[Tensor, " unknowns"]) -> "Products":
        return Products(self, x)

    def held(self, residual: Pieces, weight: float) -> "MatrixFree":
        """By the same sketch, with rows √weight·x besides."""
        self.residual, self.ridge = residual, weight
        return self

    def again(self) -> "MatrixFree":
        """One of its own that begins with the sketch in use."""
        system = copy(self)
        system.rough, system.spent = True, 0
        return system

    def sketch(self, x: Float[Tensor, " unknowns"]) -> Sketch:
        if self.anchor is None:
            self.anchor, self._sketch, self.rough, self.spent = x, None, True, 0
        if self._sketch is None:
            self._sketch = sketch(self.coarse, self.anchor.float(), self.active, self.first, self.together)
        return self._sketch


class Products:
    """(JᵀJ + λ)Δ = -Jᵀr over the active coordinates, λ in units of their mean curvature."""

    def __init__(self, system: MatrixFree, x: Float[Tensor, " unknowns"]) -> None:
        self._system, self._x, self._ridge = system, x, system.ridge
        self._sketch = system.sketch(x)
        self._kept = KeptProducts(system.residual, x, system.active)
        self._inverse: tuple[float, Callable[[Tensor], Tensor]] | None = None
        self._normal: Function | None = None
        self._coarse: KeptProducts | None = None
        self.cost = float(self._kept.value.square().sum())
        self._slope = self._kept.transposed(self._kept.value)

    def step(self, damping: float) -> tuple[Float[Tensor, " unknowns"], float]:
        shift = damping * (self._sketch.scale + self._ridge)
        step, left, iterations = self._solve(shift, -self._slope, self._system.tolerance)
        system = self._system
        if iterations >= system.most or system.spent > max(system.most, WORTH * system.first):
            system.anchor = None
        curved = -self._slope - shift * step - left
        return padded(step, len(self._x)), -float(2.0 * self._slope @ step + step @ curved)

    def bend(
        self, damping: float, step: Float[Tensor, " unknowns"], second: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " unknowns"], float]:
        """As `GeodesicAcceleration` says; lengths are those of coordinates."""
        shift = damping * (self._sketch.scale + self._ridge)
        bent = padded(self._solve(shift, -0.5 * self._kept.transposed(second), BEND_TOLERANCE)[0], len(self._x))
        return bent, float(bent.norm() / step.norm())

    def _solve(
        self, shift: float, right: Float[Tensor, " active"], tolerance: float
    ) -> tuple[Float[Tensor, " active"], Float[Tensor, " active"], int]:
        found, left, iterations = self._solved(shift, right, tolerance)
        self._system.spent += iterations
        return found, left, iterations

    def _solved(
        self, shift: float, right: Float[Tensor, " active"], tolerance: float
    ) -> tuple[Float[Tensor, " active"], Float[Tensor, " active"], int]:
        """In float32 first on a CPU, which takes half the time, and from there in float64 if that has not done."""
        if self._normal is None:
            kept = self._kept  # not of self: a cycle would keep graph and sketch until Python looks for cycles
            self._normal = replayed(lambda v: (kept.normal(*v),), [right])
        normal, better = self._normal, self._preconditioner(shift + self._ridge)

        def product(v: Tensor) -> Tensor:
            return normal([v])[0] + shift * v

        if not self._system.rough or right.device.type != "cpu":
            return conjugate_gradients(product, right, better, tolerance, self._system.most)
        found, _, rough = conjugate_gradients(
            lambda v: self._rough(v) + shift * v, right, better, tolerance, self._system.most
        )
        left = right - product(found)
        size, whole = float(left @ better(left)), float(right @ better(right))
        if size <= (SLACK * tolerance) ** 2 * whole or (rough >= self._system.most and size < whole):
            return found, left, rough
        self._system.rough = False
        if not size < whole:
            found, left, size = torch.zeros_like(right), right, whole
        more, left, exact = conjugate_gradients(
            product, left, better, tolerance * math.sqrt(whole / size), self._system.most
        )
        return found + more, left, max(rough, exact)

    def _rough(self, v: Float[Tensor, " active"]) -> Float[Tensor, " active"]:
        """JᵀJ·v without the rows that only the residual has in float64: those of the ridge are alike."""
        if self._coarse is None:
            self._coarse = KeptProducts(self._system.coarse, self._x.float(), self._system.active)
        return self._coarse.normal(v.float()).double() + self._ridge * v

    def _preconditioner(self, damping: float) -> Callable[[Tensor], Tensor]:
        """One for a step and what bends it."""
        if self._inverse is None or self._inverse[0] != damping:
            self._inverse = damping, self._sketch.inverse(damping)
        return self._inverse[1]


def padded(v: Float[Tensor, " active"], unknowns: int) -> Float[Tensor, " {unknowns}"]:
    """With zeros for the coordinates that stay."""
    return F.pad(v, (0, unknowns - len(v)))


class KeptProducts:
    """f(x), v -> J·v, w -> Jᵀ·w and v -> JᵀJ·v over the first coordinates, by one graph of J at x that is kept.

    J·v is the derivative of Jᵀ·u along v, which is linear in u: forward mode would compute the function anew each time.
    Each tensor has a u of its own: parts of one would each be as long as the whole where they are differentiated.

    Attributes:
        value: f(x).
    """

    def __init__(self, function: Pieces, x: Float[Tensor, " unknowns"], active: int) -> None:
        self._active = active
        with capturable(x.device), torch.enable_grad():
            self._point = x.detach().requires_grad_()
            self._tensors = function.tensors(self._point)
            self._sizes = [tensor.numel() for tensor in self._tensors]
            self._u = [torch.zeros_like(tensor, requires_grad=True) for tensor in self._tensors]
            self._varying = [place for place, tensor in enumerate(self._tensors) if tensor.requires_grad]
            varying, u = ([of[place] for place in self._varying] for of in (self._tensors, self._u))
            (self._back,) = torch.autograd.grad(varying, self._point, u, create_graph=True)
        weights = F.pad(function.weights, (0, sum(self._sizes) - len(function.weights)), value=1.0)
        self._weights = self._split(weights)
        self._squares = self._split(weights.square())
        self.value = function.rows([tensor.detach() for tensor in self._tensors])

    def forward(self, v: Float[Tensor, " active"]) -> Float[Tensor, " rows"]:
        return torch.cat([(w * change).flatten() for w, change in zip(self._weights, self._changes(v), strict=True)])

    def transposed(self, w: Float[Tensor, " rows"]) -> Float[Tensor, " active"]:
        return self._together([own * weight for own, weight in zip(self._split(w), self._weights, strict=True)])

    def normal(self, v: Float[Tensor, " active"]) -> Float[Tensor, " active"]:
        """JᵀJ·v, without J·v in a row."""
        return self._together([w * change for w, change in zip(self._squares, self._changes(v), strict=True)])

    def _changes(self, v: Float[Tensor, " active"]) -> tuple[Tensor, ...]:
        """Of each tensor along v, not weighed."""
        along = padded(v, len(self._point))
        with capturable(v.device):
            return torch.autograd.grad(self._back, self._u, along, retain_graph=True, materialize_grads=True)

    def _together(self, of_tensors: Sequence[Tensor]) -> Float[Tensor, " active"]:
        """The gradient of what the tensors are when each is multiplied by its own."""
        varying, own = ([of[place] for place in self._varying] for of in (self._tensors, of_tensors))
        with capturable(self._point.device):
            return torch.autograd.grad(varying, self._point, own, retain_graph=True)[0][: self._active]

    def _split(self, rows: Float[Tensor, " rows"]) -> list[Tensor]:
        parts = zip(rows.split(self._sizes), self._tensors, strict=True)
        return [part.view(tensor.shape) for part, tensor in parts]
