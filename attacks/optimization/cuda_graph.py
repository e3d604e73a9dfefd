"""A function of tensors as one CUDA graph: a small model's kernels else take as long as Python needs to launch them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from logging import getLogger

import torch
from torch import Tensor

Function = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]

logger = getLogger(__name__)


@contextmanager
def capturable(device: torch.device) -> Iterator[None]:
    """On CUDA, on a stream of its own, in order with the current one: a derivative runs where its function has run.

    The default stream can't be captured.
    """
    if device.type != "cuda":
        yield
        return
    current, own = torch.cuda.current_stream(device), _stream(device)
    own.wait_stream(current)
    with torch.cuda.stream(own):
        yield
    current.wait_stream(own)


def replayed(function: Function, given: Sequence[Tensor]) -> Function:
    """The same function, launched at once; as it is without CUDA, and where Python waits for what the GPU computes.

    Args:
        function: the same kernels whatever it is given.
        given: an example.
    """
    device = given[0].device
    if device.type != "cuda":
        return function
    held, graph = [tensor.clone() for tensor in given], torch.cuda.CUDAGraph()
    with capturable(device):
        if _waits(function, held):
            return function
        try:
            with torch.cuda.graph(graph, stream=_stream(device)):
                found = function(held)
        except RuntimeError as error:
            logger.warning("not launched as one CUDA graph: %s", error)
            return function

    def replay(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for place, tensor in zip(held, given, strict=True):
            place.copy_(tensor)
        graph.replay()
        return tuple(tensor.clone() for tensor in found)

    return replay


def _waits(function: Function, given: Sequence[Tensor]) -> bool:
    """Whether Python waits for the GPU in it: a graph could not be captured, and a try would spoil what comes after."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            function(given)
        except RuntimeError as error:
            logger.info("not launched as one CUDA graph: %s", error)
            return True
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return False


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
