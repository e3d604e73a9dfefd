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
    function: Callable[[Tensor], tuple[Tensor, ...]],
    point: Float[Tensor, " inputs"],
    together: int = CHUNK,
    weights: Float[Tensor, " weighed"] | None = None,
) -> Float[Tensor, "inputs outputs"]:
    """J(point) whole of all tensors' numbers one after the other, its columns as rows.

    Each chunk is weighed as it is written where it stays: to flatten, weigh and join tensors takes as long as products.

    Args:
        weights: that rows of J are multiplied by, of the first tensors; those of the others are 1.
    """
    found, begin = None, 0
    for tensors in jacobian_rows(function, point, len(point), together):
        sizes = [tensor[0].numel() for tensor in tensors]
        if found is None:
            found = tensors[0].new_empty(len(point), sum(sizes))
        places = found[begin : begin + len(tensors[0])].split(sizes, dim=1)
        begin, left = begin + len(tensors[0]), weights
        for tensor, place, size in zip(tensors, places, sizes, strict=True):
            if left is None or not len(left):
                place.view(tensor.shape).copy_(tensor.detach())
            else:
                torch.mul(tensor.detach(), left[:size].view(tensor.shape[1:]), out=place.view(tensor.shape))
                left = left[size:]
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
