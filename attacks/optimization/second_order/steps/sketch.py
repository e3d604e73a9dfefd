"""JᵀJ over the first coordinates, about: from a count-sketch of J, whose rows are far fewer (Clarkson, Woodruff)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attacks.forward_mode import jacobian_product, jacobian_rows

ROWS = 2.5
"""Of the sketch, for each coordinate: the exact system is then within a factor of about twenty of it."""
BLOCK = 512


@dataclass(frozen=True)
class Pieces:
    """A function tensor by tensor: to copy them all into one takes as long as their derivative.

    Attributes:
        weights: of the first numbers, all tensors' one after the other; those of the others are 1.
        target: what is taken off the first numbers before they are weighed; None: nothing.
    """

    tensors: Callable[[Tensor], tuple[Tensor, ...]]
    weights: Float[Tensor, " weighed"]
    target: Float[Tensor, " weighed"] | None = None

    def __call__(self, x: Float[Tensor, " unknowns"]) -> Float[Tensor, " rows"]:
        return self.rows(self.tensors(x))

    def rows(self, tensors: Sequence[Tensor]) -> Float[Tensor, " rows"]:
        """All numbers in a row, from the tensors of a point."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        first, others = flat[: len(self.weights)], flat[len(self.weights) :]
        first = self.weights * (first if self.target is None else first - self.target)
        return torch.cat([first, others]) if len(others) else first


@dataclass(frozen=True)
class Sketch:
    """What JᵀJ is about, as a preconditioner: never a step's own matrix.

    Attributes:
        normal: over the first coordinates.
        rest: the mean of the diagonal over all others.
    """

    normal: Float[Tensor, "first first"]
    rest: float

    @property
    def scale(self) -> float:
        """A coordinate's mean curvature, in whose units steps are damped."""
        return float(self.normal.diagonal().mean())

    def inverse(self, damping: float) -> Callable[[Float[Tensor, " active"]], Float[Tensor, " active"]]:
        """v -> (G + λ)⁻¹v: to solve by a factor takes longer for each v.

        On a CPU by the spectrum, which takes as long as six inverses, once; a GPU inverts faster.
        """
        first = len(self.normal)
        solve = self.by_spectrum(damping) if self.normal.device.type == "cpu" else self.by_inverse(damping)

        def apply(v: Float[Tensor, " active"]) -> Float[Tensor, " active"]:
            return torch.cat([solve(v[:first]), v[first:] / (self.rest + damping)])

        return apply

    def by_spectrum(self, damping: float) -> Callable[[Tensor], Tensor]:
        """Over the first coordinates: whatever the damping, by the same spectrum."""
        values, vectors = self._spectrum
        inverse = 1.0 / (values.clamp(min=0.0) + damping)
        return lambda v: vectors @ (inverse * (v @ vectors))

    @cached_property
    def _spectrum(self) -> tuple[Float[Tensor, " first"], Float[Tensor, "first first"]]:
        values, vectors = torch.linalg.eigh(self.normal)
        return values, vectors

    def by_inverse(self, damping: float) -> Callable[[Tensor], Tensor]:
        """The same by an inverse, for this damping alone; where rounding leaves none, for what rounding is more."""
        damped = self.normal.clone()
        damped.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            damped.diagonal().add_(len(damped) * torch.finfo(damped.dtype).eps * damped.diagonal().sum())
            factor = torch.linalg.cholesky(damped)
        inverse = torch.cholesky_inverse(factor)
        return lambda v: inverse @ v


def sketch(
    function: Pieces,
    x: Float[Tensor, " unknowns"],
    active: int,
    first: int,
    together: int,
    rows_each: float = ROWS,
) -> Sketch:
    """Of a function's J at x.

    Args:
        function: in any precision: rounding in a preconditioner costs iterations, no digits.
        active: coordinates that are varied; the others stay.
        first: of them, whose curvature is wanted whole.
        together: directions that are pushed forward at once.
        rows_each: of the sketch, for each of the first coordinates.
    """
    rng, rows = torch.Generator().manual_seed(0), sketch_rows(first, rows_each)
    found, factors = [], None
    for pieces in jacobian_rows(function.tensors, x, first, together):
        flat = [piece.flatten(1) for piece in pieces]
        if factors is None:
            count = sum(piece.shape[1] for piece in flat)
            signs = (2.0 * torch.randint(2, (count,), generator=rng) - 1.0).to(x)
            factors = signs * F.pad(function.weights, (0, count - len(function.weights)), value=1.0)
        found.append(folded(flat, factors, rows).double())
    columns = torch.cat(found)
    rest = 1.0
    if active > first:
        probe = torch.zeros_like(x)
        probe[first:active] = (2.0 * torch.randint(2, (active - first,), generator=rng) - 1.0).to(x)
        rest = float(jacobian_product(function, x, probe).double().square().sum()) / (active - first)
    return Sketch(gram(columns), rest)


def sketch_rows(first: int, rows_each: float) -> int:
    """Odd: see `folded`."""
    return int(rows_each * first) | 1


def folded(
    pieces: list[Float[Tensor, "directions _"]], factors: Float[Tensor, " numbers"], rows: int
) -> Float[Tensor, "directions {rows}"]:
    """Numbers that are an odd number of rows apart share a row: no multiple of a layer's width."""
    found, begin = pieces[0].new_zeros(len(pieces[0]), rows), 0
    for piece in pieces:
        end = begin + piece.shape[1]
        padded = F.pad(piece * factors[begin:end], (begin % rows, -end % rows))
        found += padded.unflatten(1, (-1, rows)).sum(dim=1)
        begin = end
    return found


def gram(rows: Float[Tensor, "n m"]) -> Float[Tensor, "n n"]:
    """rows·rowsᵀ, of which little more than half is computed."""
    found = rows.new_zeros(len(rows), len(rows))
    size = min(BLOCK, -(-len(rows) // 4))
    for begin in range(0, len(rows), size):
        block = rows[begin : begin + size] @ rows[begin:].T
        found[begin : begin + size, begin:] = block
        found[begin:, begin : begin + size] = block.T
    return found
