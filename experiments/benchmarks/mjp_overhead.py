"""What Masked Jigsaw Puzzle adds to a training step: pairs of steps, without and with it, in turn.

python -m experiments.benchmarks.mjp_overhead                             ViT-Ti/4 at 32 px, all of MJP
python -m experiments.benchmarks.mjp_overhead --model deit_small --batch 8 --pairs 20 --defense mjp mjp_jp_unk
"""

import argparse
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from experiments.benchmarks.steps import Step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_4_32", help="name of conf/model")
    parser.add_argument("--defense", nargs="+", default=["mjp"], help="names of conf/defense")
    parser.add_argument("--batch", type=int, default=16, help="pictures of a step")
    parser.add_argument("--pairs", type=int, default=60, help="of steps")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()

    import torch

    from experiments.benchmarks.steps import time_pairs

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


def training_step(model: str, defense: str, batch_size: int, device: "torch.device") -> "Step":
    """A training step as the configuration of an audit has it."""
    from defenses.compose import build_chain
    from experiments.benchmarks.steps import local_step
    from experiments.python.load_config import load_config
    from fedsim.models import ModelSpec
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    config = load_config("audit", f"model={model}", f"defense=[{defense}]")
    spec = ModelSpec(**{**config["model"], "num_classes": 10})
    return local_step(spec, build_chain(config["defense"]), batch_size, device)


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % confidence interval of the median, by a bootstrap of 2,000 draws."""
    import torch

    data = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(len(values), (2000, len(values)), generator=torch.Generator().manual_seed(0))
    medians = data[draws].median(dim=1).values.sort().values
    return float(medians[50]), float(medians[1949])


if __name__ == "__main__":
    main()
