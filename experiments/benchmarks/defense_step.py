"""What a defense adds to a training step: pairs of steps, without and with it, in turn.

python -m experiments.benchmarks.defense_step                             mjp and dp_sgd on ViT-Ti/4 at 32 px
python -m experiments.benchmarks.defense_step --model deit_small --defense mjp --batch 1 8
python -m experiments.benchmarks.defense_step --defense dp_sgd --pairs 60 defense.dp_sgd.chunk=1

A step is the gradient of one batch as a client takes it and the optimiser's step; images are noise, whose values cost
nothing. Further words are settings of fedsim-audit. Which step of a pair goes first alternates, so that neither gets
the warmer caches. One thread on a CPU is measured in seconds of that CPU, which other processes do not lengthen.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Step = Callable[[], None]


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_4_32", help="name of conf/model")
    parser.add_argument("--defense", nargs="+", default=["mjp", "dp_sgd"], help="names of conf/defense")
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="images of a step")
    parser.add_argument("--pairs", type=int, default=60, help="of steps")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_known_args()


def main() -> None:
    """One row for each defense and batch size; the first of each size holds the plain step against itself."""
    arguments, overrides = _arguments()

    import torch

    from experiments.python.load_config import load_config
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    chosen = load_config("audit", f"model={arguments.model}", f"defense=[{','.join(arguments.defense)}]", *overrides)
    print(f"{arguments.model}, {arguments.threads} threads, {device}, {arguments.pairs} pairs")
    print("| defense | batch | ms plain | ms with | ratio | quartiles | 95 % of the median |")
    print(f"|{' --- |' * 7}", flush=True)
    for size in arguments.batch:
        for name in ["", *arguments.defense]:
            defense = {name: chosen["defense"][name]} if name else {}
            plain, defended = (training_step(chosen["model"], one, size, device) for one in ({}, defense))
            before, after = time_pairs(plain, defended, arguments.pairs, device)
            ratios = [b / a for a, b in zip(before, after, strict=True)]
            ms = " | ".join(f"{1e3 * statistics.median(seconds):.2f}" for seconds in (before, after))
            quartiles, sure = statistics.quantiles(ratios, n=4), median_interval(ratios)
            spread = f"{quartiles[0]:.3f} to {quartiles[2]:.3f} | {sure[0]:.3f} to {sure[1]:.3f}"
            print(
                f"| {name or 'none again'} | {size} | {ms} | {statistics.median(ratios):.3f} | {spread} |", flush=True
            )


def training_step(model_config: Mapping[str, Any], defense: dict[str, Any], size: int, device: "torch.device") -> Step:
    """A whole local step as a client takes it: the defenses' batch, the gradient, SGD. Each time on the same noise."""
    import torch

    from clients.training import LossGradient
    from defenses.base import Batch, ClientRound
    from defenses.compose import build_chain
    from fedsim.models import Architecture, ModelSpec, input_size

    chain = build_chain(defense)
    model = Architecture(ModelSpec(**{**model_config, "num_classes": 10}), (chain,)).build().to(device).train()
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


def time_pairs(first: Step, second: Step, pairs: int, device: "torch.device") -> tuple[list[float], list[float]]:
    """Seconds of each, taken in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for step in (first, second, first, second):  # warm-up
        _seconds(step, device)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            times[which].append(_seconds((first, second)[which], device))
    return times


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by a bootstrap of 2,000 draws."""
    import torch

    data = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    medians = data[draws].median(dim=1).values.sort().values
    return float(medians[50]), float(medians[1949])


def _seconds(step: Step, device: "torch.device") -> float:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


if __name__ == "__main__":
    main()
