"""What label rules recover: rules × batch sizes, distinct and repeated labels, on a ViT's and a ResNet's head.

python -m experiments.benchmarks.labels --cifar10 DIR --imagenet DIR --batches 100

Features are computed once for many pictures; the head's gradient of a batch follows from them in closed form, in
float32 as it would be shared. Trained means `--steps` of SGD on the same pictures. CIFAR-10 has C = 10 at 32 px;
ImageNet's folders are joined in their order to C = 100 groups of related classes, at 64 px.
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.studies.harness.tables import markdown, write_csv

if TYPE_CHECKING:
    from torch import nn

    from experiments.benchmarks.heads import GroupedImages

SIZES = (1, 2, 4, 8, 16, 32, 64)
LEAST_IMAGES = 8
"""Public ones of each class, for its moments."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="folder with train/ and val/ of ten class folders")
    parser.add_argument("--imagenet", type=Path, help="folder of class folders, at least a hundred")
    parser.add_argument("--batches", type=int, default=20, help="batches for each cell")
    parser.add_argument("--pictures", type=int, default=720, help="private pictures")
    parser.add_argument("--depth", type=int, default=4, help="blocks of the ViT")
    parser.add_argument("--steps", type=int, default=100, help="of training, batches of 32")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/labels"), help="folder of labels.csv and labels.md")
    options = parser.parse_args()
    if options.cifar10 is None and options.imagenet is None:
        parser.error("give --cifar10 DIR, --imagenet DIR or both")
    return options


def main() -> None:
    """Measure every setting and write one row for each cell of its tables."""
    options = _options()

    import torch

    from experiments.benchmarks.heads import GroupedImages, train
    from fedsim.models import ModelSpec

    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    start = time.process_time()
    for data, folder, side, patch, classes in (
        ("cifar10", options.cifar10, 32, 4, 10),
        ("imagenet", options.imagenet, 64, 8, 100),
    ):
        if folder is None:
            continue
        images = GroupedImages(folder, side, classes, options.pictures)
        vit = ModelSpec("vit_tiny_patch16_224", classes, side, patch, kwargs={"depth": options.depth})
        for name, spec in (("vit_tiny", vit), ("resnet18", ModelSpec("resnet18", classes))):
            model = spec.build(0).train()
            for state in ("initial", "trained"):
                if state == "trained":
                    train(model, images.images, images.labels, options.steps, options.lr)
                setting = f"{name}, {data}, C = {classes}, {state}"
                rows += measure(setting, model, images, options.batches)
                write(rows, options.out)
                print(f"{setting}: {time.process_time() - start:.0f} s of CPU", flush=True)
    print("\n" + "\n\n".join(tables(rows)))


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    """labels.md and labels.csv of what has been measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.md").write_text("\n\n".join(tables(rows)) + "\n", encoding="utf-8")
    write_csv(folder / "labels.csv", list(rows[0]), ([*row.values()] for row in rows))


def measure(setting: str, model: "nn.Module", pictures: "GroupedImages", batches: int) -> list[dict[str, Any]]:
    """All rules on the same batches."""
    import torch
    import torch.nn.functional as F

    from attacks.label.public_images.moments import class_moments
    from experiments.benchmarks import label_rules
    from experiments.benchmarks.heads import REFERENCE, head_inputs
    from fedsim.models import Normaliser

    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    weight, bias = head.weight.detach(), head.bias.detach()
    normalise = Normaliser(model)
    rng = torch.Generator().manual_seed(1)
    noise = torch.rand((REFERENCE, *pictures.images.shape[1:]), generator=rng)
    features, public, random = (
        head_inputs(model, head, normalise(images)) for images in (pictures.images, pictures.public, noise)
    )
    mean_probs = F.linear(public[: len(pictures.auxiliary)], weight, bias).softmax(dim=1).mean(dim=0)
    truth = F.one_hot(pictures.public_labels, pictures.classes).double()
    enough = int(truth.sum(dim=0).min()) >= LEAST_IMAGES
    moments = class_moments(weight, bias, public, truth) if enough else None
    known = label_rules.KnownHead(
        weight, bias, features, pictures.labels, pictures.classes, mean_probs, random, moments
    )
    return [
        {"setting": setting, "labels": kind, **row}
        for kind in ("distinct", "repeated")
        for row in label_rules.measure(known, kind, SIZES, batches, rng, label_rules.RULES)
    ]


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: per cent of batches with the exact labels, the labels' overlap after the stroke."""
    by_table: dict[tuple[object, object], dict[object, dict[object, dict[str, Any]]]] = {}
    for row in rows:
        table = by_table.setdefault((row["setting"], row["labels"]), {})
        table.setdefault(row["rule"], {})[row["batch_size"]] = row
    result = []
    for (setting, kind), rules in by_table.items():
        lines = [[str(rule), *(_cell(cells.get(size)) for size in SIZES)] for rule, cells in rules.items()]
        certified = rules.get("certified", {})
        shares = [f"{100 * certified[s]['certified']:.0f}" if s in certified else "-" for s in SIZES]
        shown = markdown(["B", *map(str, SIZES)], [*lines, ["*certified share*", *shares]])
        result.append(f"{setting}, {kind} labels: exact batches / overlap, %\n\n{shown}".rstrip())
    return result


def _cell(row: dict[str, Any] | None) -> str:
    return "-" if row is None else f"{100 * row['exact']:.0f} / {100 * row['overlap']:.0f}"


if __name__ == "__main__":
    main()
