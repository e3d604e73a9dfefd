"""A client's local step beside the same without its defense, timed in pairs."""

import time
from collections.abc import Callable

import torch

from clients.training import LossGradient
from defenses.base import Batch, ClientRound, DefenseChain
from fedsim.models import Architecture, ModelSpec, input_size

Step = Callable[[], None]


def local_step(spec: ModelSpec, chain: DefenseChain, size: int, device: torch.device) -> Step:
    """A whole local step as a client takes it: the defenses' batch, the gradient, SGD. Each time on the same noise."""
    model = Architecture(spec, (chain,)).build().to(device).train()
    rng, side = torch.Generator().manual_seed(0), input_size(model)
    images = torch.randn(size, 3, side, side, generator=rng).to(device)
    batch = Batch(images, torch.randint(10, (size,), generator=rng))
    gradient_of = LossGradient(model, chain, label_smoothing=0.0)
    parameters = dict(model.named_parameters())
    optimiser = torch.optim.SGD(parameters.values(), lr=1e-4)
    chain.begin(ClientRound(1, size))

    def step() -> None:
        seen = chain.transform_batch(batch, rng)
        gradients = chain.gradient(model, seen, gradient_of, rng)
        for name, parameter in parameters.items():
            parameter.grad = gradients.get(name)
        optimiser.step()

    return step


def time_pairs(first: Step, second: Step, pairs: int, device: torch.device) -> tuple[list[float], list[float]]:
    """Seconds of each, taken in turn; which one goes first alternates, so that neither gets the warmer caches."""
    times: tuple[list[float], list[float]] = ([], [])
    for step in (first, second, first, second):  # warm-up
        _seconds(step, device)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            times[which].append(_seconds((first, second)[which], device))
    return times


def _seconds(step: Step, device: torch.device) -> float:
    """One thread on a CPU: its own time, which other processes on the machine do not lengthen."""
    if device.type == "cpu":
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        step()
        return clock() - start
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start
