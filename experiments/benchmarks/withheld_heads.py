"""Labels that a withheld head does not hide: `nearest_public` by what is shared, images in an update and training.

python -m experiments.benchmarks.withheld_heads --cifar10 DIR --out DIR

`vit_nano` (width 64, 2 blocks) on scikit-learn's digits and on CIFAR-10 at 32 px in patches of 4, trained by SGD on
batches of 32 of all private images; attacked batches are drawn at random from these, and public images are of no
client. Beside each cell stand labels that are drawn like the public images'.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.studies.harness.options import parsed
from experiments.studies.harness.tables import markdown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedsim.data import Digits, ImageFolder

SIZES = (1, 2, 4, 8)
STEPS = (0, 400, 1000)
SHARED = {
    "all but the head": ["head.*"],
    "LayerNorms alone": ["patch_embed.*", "pos_embed", "cls_token", "blocks.*.attn.*", "blocks.*.mlp.*", "head.*"],
    "biases but the head's": ["*weight", "pos_embed", "cls_token", "head.*"],
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="folder with train/ and val/ of ten class folders; none: digits")
    parser.add_argument("--batches", type=int, default=40, help="updates for each cell")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="of training")
    parser.add_argument("--out", type=Path, default=Path("runs/withheld_heads"), help="folder of withheld_heads.md")
    return parsed(parser)


def main() -> None:
    """Measure every cell; the page is written anew after each model."""
    options = _arguments()

    import torch

    from experiments.studies.harness.study import code_and_machine
    from fedsim.data import Digits, ImageFolder

    torch.set_num_threads(1)
    sources: dict[str, Digits | ImageFolder] = {"digits": Digits()}
    if options.cifar10 is not None:
        sources["CIFAR-10"] = ImageFolder(str(options.cifar10), auxiliary_fraction=0.1, test_fraction=0.01)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    head = ["images", "steps of training", "shared", *(f"{size} image{'s' * (size > 1)}" for size in SIZES), "seconds"]
    for name, source in sources.items():
        for steps, cells in measure(source, tuple(options.steps), options.batches):
            rows += [[name, str(steps), shared, *values] for shared, values in cells.items()]
            about = f"{options.batches} updates a cell, {code_and_machine('cpu')}"
            (options.out / "withheld_heads.md").write_text(f"{about}\n\n{markdown(head, rows)}", encoding="utf-8")
            print(f"{name} after {steps} steps", flush=True)
    print(f"\n{markdown(head, rows)}")


def measure(
    source: "Digits | ImageFolder", steps: tuple[int, ...], batches: int
) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """After each number of steps, by what is shared: a cell for each size, and seconds an update."""
    import torch

    from experiments.benchmarks.heads import train
    from fedsim.data import FederatedData, ImageFolder
    from fedsim.models import ModelSpec

    side, patch = (32, 4) if isinstance(source, ImageFolder) else (8, 2)
    data = FederatedData(source, None, side)
    images, labels = data.train.images(range(len(data.train))), torch.as_tensor(data.train.labels)
    count = min(len(data.auxiliary), 1024)
    public = data.auxiliary.images(range(count)), torch.as_tensor(data.auxiliary.labels)[:count]
    model, done = ModelSpec("vit_nano_patch2_8", 10, side, patch).build(0).train(), 0
    for target in steps:
        train(model, images, labels, target - done, 0.05)
        done = target
        yield target, {name: _row(model, hidden, (images, labels), public, batches) for name, hidden in SHARED.items()}


def _row(
    model: "nn.Module",
    hidden: list[str],
    private: tuple["Tensor", "Tensor"],
    public: tuple["Tensor", "Tensor"],
    batches: int,
) -> list[str]:
    """Per cent of updates whose whole multiset is right / mean share of labels; in brackets of drawn labels."""
    import time
    from statistics import fmean

    import torch

    import fedsim
    from defenses import Withhold
    from fedsim.determinism import torch_generator
    from fedsim.metrics.labels import label_share

    row, seconds = list[str](), list[float]()
    for size in SIZES:
        rng = torch_generator(0, "withheld heads", size)
        found, drawn = list[float](), list[float]()
        for _ in range(batches):
            chosen = torch.randperm(len(private[1]), generator=rng)[:size]
            truth = private[1][chosen]
            seen = fedsim.observe(model, private[0][chosen], truth, defense=Withhold(hidden))
            begin = time.perf_counter()
            result: Any = fedsim.attack("labels_nearest_public", seen.with_public_images(*public))
            seconds.append(time.perf_counter() - begin)
            found.append(label_share(truth, result.labels))
            guess = public[1][torch.randint(len(public[1]), (size,), generator=rng)]
            drawn.append(label_share(truth, guess))
        whole, by_chance = ([part == 1.0 for part in parts] for parts in (found, drawn))
        row.append(
            f"{100 * fmean(whole):.0f} / {100 * fmean(found):.0f} ({100 * fmean(by_chance):.0f} / "
            f"{100 * fmean(drawn):.0f})"
        )
    return [*row, f"{fmean(seconds):.1f}"]


if __name__ == "__main__":
    main()
