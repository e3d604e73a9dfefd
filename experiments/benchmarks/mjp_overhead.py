"""What Masked Jigsaw Puzzle adds to a training step: pairs of steps, without and with it, in turn.

python -m experiments.benchmarks.mjp_overhead                             ViT-Ti/4 at 32 px, all of MJP
python -m experiments.benchmarks.mjp_overhead --model deit_small --batch 8 --pairs 20 --defense mjp mjp_jp_unk
"""

# ruff: noqa: E402 - the options are read before anything heavy is imported
import argparse


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_4_32", help="name of conf/model")
    parser.add_argument("--defense", nargs="+", default=["mjp"], help="names of conf/defense")
    parser.add_argument("--batch", type=int, default=16, help="pictures of a step")
    parser.add_argument("--pairs", type=int, default=60, help="of steps")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_args()


if __name__ == "__main__":
    _arguments()

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from clients.training import LossGradient
from defenses.base import Batch, ClientRound, DefenseChain
from defenses.compose import build_chain
from experiments.python.load_config import load_config
from fedsim.models import Architecture, ModelSpec, input_size
from fedsim.settings.composition import Config
from fedsim.simulation.ray_cluster import quiet_environment

Step = Callable[[], None]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    print(f"{arguments.model}, batch {arguments.batch}, {arguments.threads} threads, {device}, {arguments.pairs} pairs")
    print(f"{'':<14}{'ms plain':>10}{'ms with':>10}{'overhead':>10}{'quartiles':>20}{'95 % of the median':>22}")
    for name in ["", *arguments.defense]:
        plain = training_step(arguments.model, "", arguments.batch, device)
        defended = training_step(arguments.model, name, arguments.batch, device)
        before, after = time_pairs(plain, defended, arguments.pairs, device)
        ratios = [b / a - 1.0 for a, b in zip(before, after, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        sure = median_interval(ratios)
        ms = [1e3 * statistics.median(seconds) for seconds in (before, after)]
        print(
            f"{name or '(plain again)':<14}{ms[0]:>10.2f}{ms[1]:>10.2f}{statistics.median(ratios):>+10.2%}"
            f"{low:>+11.2%}{high:>+9.2%}{sure[0]:>+13.2%}{sure[1]:>+9.2%}"
        )


def training_step(model_name: str, defense: str, batch_size: int, device: torch.device) -> Step:
    """A whole local step as a client takes it: the defense's batch, the gradient, SGD."""
    config = composed(model_name, defense)
    chain: DefenseChain = build_chain(config["defense"])
    spec = ModelSpec(**{**config["model"], "num_classes": 10})
    model = Architecture(spec, (chain,)).build().to(device).train()
    rng, side = torch.Generator().manual_seed(0), input_size(model)
    images = torch.randn(batch_size, 3, side, side, generator=rng).to(device)
    batch = Batch(images, torch.randint(10, (batch_size,), generator=rng))
    gradient_of = LossGradient(model, chain, label_smoothing=0.0)
    parameters = dict(model.named_parameters())
    optimiser = torch.optim.SGD(parameters.values(), lr=1e-4)
    chain.begin(ClientRound(1, batch_size))

    def step() -> None:
        seen = chain.transform_batch(batch, rng)
        gradients = chain.gradient(model, seen, gradient_of, rng)
        for name, parameter in parameters.items():
            parameter.grad = gradients.get(name)
        optimiser.step()

    return step


def composed(model_name: str, defense: str) -> Config:
    quiet_environment()
    return load_config("audit", f"model={model_name}", f"defense=[{defense}]")


def time_pairs(first: Step, second: Step, pairs: int, device: torch.device) -> tuple[list[float], list[float]]:
    """Seconds of each, taken in turn; which one goes first alternates, so that neither gets the warmer caches."""
    times: tuple[list[float], list[float]] = ([], [])
    for step in (first, second, first, second):  # warm-up
        _seconds(step, device)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            times[which].append(_seconds((first, second)[which], device))
    return times


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by a bootstrap of 2,000 draws."""
    data = torch.tensor(values, dtype=torch.float64)
    draws: Tensor = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    medians = data[draws].median(dim=1).values.sort().values
    return float(medians[50]), float(medians[1949])


def _seconds(step: Step, device: torch.device) -> float:
    """On a CPU its own time, which other processes on the machine do not lengthen."""
    if device.type == "cpu":
        start = time.process_time()
        step()
        return time.process_time() - start
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
