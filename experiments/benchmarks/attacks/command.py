"""Iterations of the engine and of a plain loop in turn, in one run."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from attacks.optimization import (
    Budget,
    Cosine,
    Descent,
    GradientMatching,
    Matching,
    OptimiserSettings,
    Pixels,
    Schedule,
)
from attacks.optimization.priors import TotalVariation
from attacks.victim import set_fused_attention
from experiments.benchmarks.attacks.plain_loop import invert
from experiments.python.load_config import load_config
from experiments.studies.harness.client import Client
from fedsim.observation import Observation
from fedsim.simulation.ray_cluster import quiet_environment


def run(arguments: argparse.Namespace) -> None:
    """Print a table for each model; `--peak` prints one case's peak memory and is called by the table itself."""
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.peak:
        observation = observe(arguments.models[0])
        matching(3, restarts=arguments.restarts, memory_gib=arguments.memory_gib).run(observation, _rng(), device)
        print(json.dumps({"gib": _high_water()}))
        return
    for model in arguments.models:
        compare(model, arguments, device)


def compare(model: str, arguments: argparse.Namespace, device: torch.device) -> None:
    """Plain loop and engine in turn, so that a machine that slows down slows both."""
    observation = observe(model)
    steps, restarts = arguments.iterations, arguments.restarts
    label = int(observation.gradient[observation.roles.head_biases[0]].argmin())

    def engine(count: int, restarts: int = 1, derivative: str = "finite_difference") -> Callable[[], object]:
        return lambda: matching(count, restarts, derivative).run(observation, _rng(), device)

    calls: dict[str, tuple[Callable[[int], Callable[[], object]], int]] = {
        "plain loop, double backward": (lambda n: lambda: invert(observation, label, n, device), 1),
        "engine, finite difference": (lambda n: engine(n), 1),
        "engine, central difference": (lambda n: engine(n, derivative="central_difference"), 1),
        "engine, double backward": (lambda n: engine(n, derivative="double_backward"), 1),
        f"engine, {restarts} restarts together": (lambda n: engine(n, restarts), restarts),
    }
    whole: dict[str, list[float]] = {name: [] for name in calls}
    each: dict[str, list[float]] = {name: [] for name in calls}
    step_seconds: list[float] = []
    for repeat in range(arguments.repeats + 1):
        round_step = _training_step(observation, label, steps, device)
        for name, (make, count) in calls.items():
            short, long = _timed(make(steps), device), _timed(make(3 * steps), device)
            if repeat:  # the first is a warm-up
                whole[name].append(long / count)
                each[name].append((long - short) / (2 * steps * count))
        if repeat:
            step_seconds.append(round_step)
    floor, flops = _flops(observation, label, device)
    print(f"\n{model}, {arguments.threads} threads, {device}, medians of {arguments.repeats} rounds")
    step_ms = 1e3 * statistics.median(step_seconds)
    print(f"training step {step_ms:.1f} ms, {flops / 1e9:.2f} GFLOP; double backward: {floor:.2f} steps' FLOPs")
    print(f"{'':<34}{'ms / iteration':>15}{'training steps':>16}{'times faster':>14}{'whole process':>15}")
    base = "plain loop, double backward"
    for name in calls:
        iteration = statistics.median(each[name])
        in_steps = statistics.median(a / b for a, b in zip(each[name], step_seconds, strict=True))
        faster = statistics.median(a / b for a, b in zip(each[base], each[name], strict=True))
        overall = statistics.median(a / b for a, b in zip(whole[base], whole[name], strict=True))
        print(f"{name:<34}{1e3 * iteration:>15.1f}{in_steps:>16.2f}{faster:>14.2f}{overall:>15.2f}")
    if device.type == "cpu":
        print(f"peak memory, 1 candidate: {_peak(model, 1, arguments):.2f} GiB")
        print(f"peak memory, {restarts} within 1 GiB: {_peak(model, restarts, arguments, 1.0):.2f} GiB")


def matching(
    steps: int, restarts: int = 1, derivative: str = "finite_difference", memory_gib: float | None = None
) -> GradientMatching:
    """The settings of `plain_loop.invert`."""
    return GradientMatching(
        Matching(Cosine(), {"total_variation": TotalVariation(0.2)}),
        Descent(OptimiserSettings("signed_adam", 0.1), Schedule("step"), steps, restarts, derivative),
        Budget(memory_gib, frames=0, save_every=0),
        Pixels(boxed=True),
    )


def observe(model: str) -> Observation:
    """The gradient of one photograph."""
    quiet_environment()
    client = Client(load_config("audit", "simulation=inline", f"model={model}", "audit.num_images=1"))
    return client.shares([0], 0)[0]


def _training_step(observation: Observation, label: int, repeats: int, device: torch.device) -> float:
    """Seconds of one forward and backward pass over the parameters, fused attention on."""
    model = observation.build_model().to(device)
    image, labels = torch.randn(1, *observation.image_shape, device=device), torch.tensor([label], device=device)

    def steps() -> None:
        for _ in range(repeats):
            model.zero_grad()
            F.cross_entropy(model(image), labels).backward()

    steps()
    return _timed(steps, device) / repeats


def _flops(observation: Observation, label: int, device: torch.device) -> tuple[float, float]:
    """FLOPs of a double-backward iteration in training steps, and of a training step."""
    model = observation.build_model().to(device)
    set_fused_attention(model, False)
    labels = torch.tensor([label], device=device)
    counts = []
    for second in (False, True):
        image = torch.randn(1, *observation.image_shape, device=device).requires_grad_(second)
        with FlopCounterMode(display=False) as counter:
            loss = F.cross_entropy(model(image), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=second)
            if second:
                torch.stack([g.square().sum() for g in gradients]).sum().backward(inputs=[image])
        counts.append(counter.get_total_flops())
    return counts[1] / counts[0], counts[0]


def _peak(model: str, restarts: int, arguments: argparse.Namespace, memory_gib: float | None = None) -> float:
    """GiB of a fresh process that runs three steps."""
    command = [sys.executable, "-m", "experiments.benchmarks.attacks", "--peak", "--models", model]
    command += ["--restarts", str(restarts), "--threads", str(arguments.threads)]
    command += [] if memory_gib is None else ["--memory-gib", str(memory_gib)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own module
    return float(json.loads(out.splitlines()[-1])["gib"])


def _high_water() -> float:
    """Peak resident memory in GiB; getrusage would count that of the process that started this one."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024**2


def _timed(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
