"""APRIL's claim as curves: does aligning the position embedding's gradient make gradient matching converge faster?

python -m experiments.benchmarks.alignment data=imagefolder data.path=DIR audit.num_images=20

One attack, the same but for the alignment: none, over the whole tensor (as published), over the patch rows, and row by
row; without the position embedding's gradient (twin data), and from a random gradient. Other settings are those of
fedsim-audit; --steps, --out, --alpha stand before them.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.studies.harness.tables import write_csv

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.observation import Observation

ARMS = {
    "no alignment": (None, "shared", "observed"),
    "whole tensor (published)": ("all", "shared", "observed"),
    "patch rows": ("patch", "shared", "observed"),
    "row by row": ("row", "shared", "observed"),
    "position gradient withheld": (None, "withheld", "observed"),
    "random gradient": ("row", "shared", "random"),
}
"""Name: what is aligned, the position embedding's gradient, the gradient that is matched."""
RECOGNISED = 20.0
"""dB, a mean squared error of 0.01: a picture that can be recognised."""


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--alpha", type=float, default=10.0, help="weight of the alignment")
    parser.add_argument("--tv", type=float, default=0.01, help="weight of total variation")
    parser.add_argument("--victims", type=int, default=10, help="pictures attacked together")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/alignment", help="folder for curves.csv and curves.png")
    return parser.parse_known_args()


def main() -> None:
    """Run all arms on the same pictures, write curves.csv and curves.png, print a table."""
    arguments, overrides = _arguments()

    import torch
    from rich.progress import track

    torch.set_num_threads(arguments.threads)
    observations, truths = observe(overrides)
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for arm in track(ARMS, description="arms"):
        curves[arm] = []
        for start in range(0, len(observations), arguments.victims):
            part = slice(start, start + arguments.victims)
            curves[arm] += attack(arm, observations[part], truths[part], arguments)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    numbered = ((arm, number, curve) for arm, images in curves.items() for number, curve in enumerate(images))
    rows = ((arm, number, step, f"{value:.3f}") for arm, number, curve in numbered for step, value in curve)
    write_csv(out / "curves.csv", ["arm", "picture", "step", "psnr"], rows)
    draw(curves, out / "curves.png")
    print(f"{len(observations)} pictures, {arguments.steps} steps, alpha {arguments.alpha:g}; PSNR in dB")
    print(f"{'':<28}{'mean':>7}{'min':>7}{'max':>7}{'least gain':>12}{'reached 20 dB':>15}{'median steps':>14}")
    plain = [curve[-1][1] for curve in curves["no alignment"]]
    for arm, images in curves.items():
        final = [curve[-1][1] for curve in images]
        least = min(value - base for value, base in zip(final, plain, strict=True))
        reached = [min(s for s, v in c if v >= RECOGNISED) for c in images if any(v >= RECOGNISED for _, v in c)]
        median = f"{statistics.median(reached):.0f}" if reached else "-"
        print(
            f"{arm:<28}{statistics.mean(final):>7.2f}{min(final):>7.2f}{max(final):>7.2f}{least:>12.2f}"
            f"{f'{len(reached)} of {len(final)}':>15}{median:>14}"
        )
    print(f"curves: {out / 'curves.csv'}, {out / 'curves.png'}")


def attack(
    arm: str, observations: "list[Observation]", truths: "list[Tensor]", arguments: argparse.Namespace
) -> list[list[tuple[int, float]]]:
    """(step, PSNR) of each victim's best candidate on the way."""
    import torch

    from attacks.base import NotApplicable
    from attacks.optimization import (
        Budget,
        Descent,
        GradientMatching,
        Matching,
        OptimiserSettings,
        Pixels,
        PositionAlignment,
        Schedule,
        SquaredL2,
    )
    from attacks.optimization.priors import TotalVariation
    from fedsim.determinism import torch_generator
    from fedsim.metrics.image import psnr

    align, position, target = ARMS[arm]
    if position == "withheld":
        observations = [_without_position_gradient(observation) for observation in observations]
    objective = SquaredL2(relative=True) if align is None else PositionAlignment(arguments.alpha, align)
    matching = GradientMatching(
        Matching(objective, {"total_variation": TotalVariation(arguments.tv)}, target=target),
        Descent(OptimiserSettings("signed_adam", 0.1), Schedule("cosine"), arguments.steps),
        Budget(frames=25, save_every=0),
        Pixels(boxed=True),
    )
    rngs = [torch_generator(arguments.seed, "alignment", o.client) for o in observations]
    found = matching.run_many(observations, rngs, torch.device("cpu"))
    curves = []
    for outcome, truth in zip(found, truths, strict=True):
        if isinstance(outcome, NotApplicable):
            raise outcome
        curves.append([(frame.step, float(psnr(frame.images, truth)[0])) for frame in outcome.frames])
    return curves


def _without_position_gradient(observation: "Observation") -> "Observation":
    """As if the client had withheld it; the attack matches the other tensors."""
    name = observation.roles.pos_embed
    tensors = {key: tensor for key, tensor in observation.update.tensors.items() if key != name}
    return replace(observation, update=replace(observation.update, tensors=tensors))


def observe(overrides: list[str]) -> "tuple[list[Observation], list[Tensor]]":
    """One update for each picture, all against the same model."""
    from clients.app import ClientRuntime
    from experiments.engine.setup import prepare
    from experiments.python.load_config import load_config
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    fixed = ["simulation=inline", "model=vit_tiny_4_32", "+model.kwargs.depth=2"]
    config = load_config("audit", *fixed, *overrides)
    setup = prepare(config)
    runtime = ClientRuntime(config, setup.data)
    state = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    observations, truths = [], []
    for client in range(config["audit"]["num_images"]):
        runtime.load(state)
        result = runtime.train(setup.data.train.subset([client]), client, 0, audit=True)
        update = runtime.share(result, state, 1, client, 0)
        observations.append(setup.factory().make(0, client, state, update, result.protocol, None))
        assert result.truth is not None
        truths.append(result.truth.images)
    return observations, truths


def draw(curves: dict[str, list[list[tuple[int, float]]]], path: Path) -> None:
    """Mean over pictures, with the range from the 10th to the 90th percentile."""
    import matplotlib
    import torch

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for arm, images in curves.items():
        steps = [step for step, _ in images[0]]
        values = torch.tensor([[value for _, value in curve] for curve in images])
        (line,) = axes.plot(steps, values.mean(dim=0), label=arm)
        low, high = values.quantile(torch.tensor([0.1, 0.9]), dim=0)
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.12)
    axes.set(xlabel="step", ylabel="PSNR of the best candidate (dB)")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
