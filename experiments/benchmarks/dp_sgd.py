"""What a DP-SGD step costs: the ratio to a plain step, in pairs of neighbouring measurements.

python -m experiments.benchmarks.dp_sgd --batch-sizes 8 32 --chunks 1 8 --pairs 7

A step is the gradient of one batch as a client takes it (ViT-Ti/4 at 32 px, or as told) and the optimiser's step;
pictures are noise, whose values cost nothing. Within a pair the order alternates, so that a machine that slows down
meanwhile favours neither. One thread on a CPU is measured in seconds of that CPU, anything else by the clock.
"""

# ruff: noqa: E402 - the options are read before anything heavy is imported
import argparse


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--img-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--chunks", type=int, nargs="+", default=[8], help="pictures at once; 0: the whole batch")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    _options()

import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from clients.training import LossGradient
from defenses import DPSGD, Batch, ClientRound, Defense
from fedsim.models import ModelSpec


def main() -> None:
    """Measure each batch size and chunk, and print a Markdown table."""
    options = _options()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.device == "cpu" and options.threads == 1 else time.perf_counter
    spec = ModelSpec(options.model, 10, options.img_size, options.patch_size, kwargs={"depth": options.depth})
    print("| batch | chunk | plain step, ms | DP-SGD step, ms | ratio: median (lowest to highest) | peak MiB so far |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for size in options.batch_sizes:
        for chunk in options.chunks:
            plain = step_of(spec, Defense(), size, options.device)
            private = step_of(spec, DPSGD(chunk=chunk or None), size, options.device)
            pairs = paired_seconds(plain, private, options.pairs, clock)
            ratios = [second / first for first, second in pairs]
            first, second = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"| {size} | {chunk or size} | {first:.0f} | {second:.0f} | {spread} | {peak:.0f} |", flush=True)


def step_of(spec: ModelSpec, defense: Defense, size: int, device: str) -> Callable[[], None]:
    """One local step of a client that has `defense`, on the same batch each time."""
    model = spec.build(0).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compute = LossGradient(model, defense, 0.0)
    rng = torch.Generator().manual_seed(0)
    side = spec.img_size or 224
    images = torch.randn(size, 3, side, side, generator=rng).to(device)
    batch = Batch(images, torch.arange(size) % 10)
    defense.begin(ClientRound(0, size))

    def step() -> None:
        gradients = defense.gradient(model, batch, compute, rng)
        _take(model, optimizer, gradients)

    return step


def paired_seconds(
    first: Callable[[], None], second: Callable[[], None], pairs: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of both, measured one after the other, after one run of each that counts for nothing."""
    for warm_up in (first, second):
        warm_up()
    found = []
    for pair in range(pairs):
        order = (first, second) if pair % 2 == 0 else (second, first)
        seconds = {step: _seconds(step, clock) for step in order}
        found.append((seconds[first], seconds[second]))
    return found


def _take(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients.get(name)
    optimizer.step()


def _seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    _synchronise()
    start = clock()
    step()
    _synchronise()
    return clock() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
