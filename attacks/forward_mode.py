"""Jacobian-vector products without the warning that torch's own first use of them prints."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vmap

CHUNK = 192
"""Directions that are pushed forward together."""


def jacobian_product(
    function: Callable[[Tensor], Tensor], point: Float[Tensor, "*shape"], direction: Float[Tensor, "*shape"]
) -> Tensor:
    """J(point)·direction of one function of one tensor."""
    with _without_warning():
        change: Tensor = jvp(function, (point,), (direction,))[1]
    return change


def jacobian(function: Callable[[Tensor], Tensor], point: Float[Tensor, " inputs"]) -> Float[Tensor, "outputs inputs"]:
    """J(point) whole, column by column: as many products as there are inputs."""
    return jacobian_transposed(lambda x: (function(x),), point).T


def jacobian_transposed(
    function: Callable[[Tensor], tuple[Tensor, ...]], point: Float[Tensor, " inputs"], together: int = CHUNK
) -> Float[Tensor, "inputs outputs"]:
    """J(point) whole of all tensors' numbers one after the other, its columns as rows.

    Each chunk is written where it stays: to join all of them at the end takes as long as the products.
    """
    found, begin = None, 0
    for tensors in jacobian_rows(function, point, len(point), together):
        rows = [tensor.detach().flatten(1) for tensor in tensors]
        if found is None:
            found = rows[0].new_empty(len(point), sum(row.shape[1] for row in rows))
        torch.cat(rows, dim=1, out=found[begin : begin + len(rows[0])])
        begin += len(rows[0])
    assert found is not None, "a function of no number"
    return found


Output = TypeVar("Output", Tensor, tuple[Tensor, ...])


def jacobian_rows(
    function: Callable[[Tensor], Output], point: Float[Tensor, " inputs"], first: int, together: int = CHUNK
) -> Iterator[Output]:
    """The first columns of J(point), as rows, `together` at a time; of each tensor of a tuple its own."""
    for begin in range(0, first, together):
        basis = point.new_zeros(min(together, first - begin), len(point))
        basis.diagonal(begin).fill_(1.0)
        with _without_warning():
            rows: Output = vmap(lambda one: jvp(function, (point,), (one,))[1])(basis)
        yield rows


@contextmanager
def _without_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        # torch compiles its forward-mode rules with its own deprecated torch.jit.script.
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
        yield
