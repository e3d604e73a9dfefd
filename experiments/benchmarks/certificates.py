"""How often label counts are certified, and whether wrong ones ever are, as training goes on.

python -m experiments.benchmarks.certificates --pictures DIR --batches 20

Batches on the head of an MLP and of a small ViT, from initialisation to a training accuracy of 1.0, with and without
label noise, the head's weights as they are and times 4; labels as in training, drawn at random, all of one class, and
bursts of one image. Then the true counts are withheld, and all others that are possible are put to the same test: one
that certifies would be a false certificate.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.benchmarks.heads import MeasuredHead

EPS = 2.0**-23


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True, help="folder with train/ and val/ of ten class folders")
    parser.add_argument("--batches", type=int, default=20, help="for each line")
    parser.add_argument("--batch", type=int, nargs="+", default=[2, 4, 8], help="batch sizes; at most classes - 1")
    parser.add_argument("--heads", nargs="+", default=["mlp", "vit"], choices=["mlp", "vit"])
    parser.add_argument("--limit", type=int, default=200, help="private images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/certificates.json"))
    return parser.parse_args()


@dataclass(frozen=True)
class CountedRow:
    """What became of the batches of one head and kind.

    Attributes:
        withheld, false: certificates asked for without the true counts, and those of them that were given.
        error: median and worst relative error of the certified features.
        uncertified_for: the commonest reason.
    """

    head: str
    accuracy: float
    labels: str
    batch_size: int
    right: int
    wrong: int
    uncertified: int
    withheld: int
    false: int
    error: str
    uncertified_for: str


def main() -> None:
    """One line for each head, kind of batch and batch size, the sums, and a JSON file of all."""
    options = _options()

    import torch

    torch.set_num_threads(options.threads)
    rows = []
    names = list(CountedRow.__dataclass_fields__)
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for row in label_cases(options.pictures, options.batches, options.batch, options.limit, options.heads):
        rows.append(row)
        print("| " + " | ".join(str(value) for value in asdict(row).values()) + " |", flush=True)
    total = {name: sum(getattr(row, name) for row in rows) for name in ("right", "wrong", "uncertified", "false")}
    print(f"\n{total}: of {total['right'] + total['wrong']} certificates {total['wrong']} wrong")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


def label_cases(
    folder: Path,
    batches: int,
    sizes: Sequence[int] = (2, 4, 8),
    limit: int = 200,
    heads: Sequence[str] = ("mlp", "vit"),
) -> Iterator[CountedRow]:
    """Every head of `heads`, kind of batch and batch size, for a folder with train/ and val/ of ten class folders."""
    from experiments.benchmarks.heads import CLASSES, KINDS, MLP, GroupedImages, adam, sgd, trained
    from fedsim.models import ModelSpec

    images = GroupedImages(folder, 32, CLASSES, limit)
    vit = ModelSpec("vit_tiny_patch16_224", CLASSES, 32, 4, kwargs={"depth": 4})
    for name in heads:
        for head in trained(name, MLP if name == "mlp" else vit, images, adam if name == "mlp" else sgd):
            for scaled in (head, head.times(4.0)):
                for kind in KINDS:
                    for size in sizes:
                        yield measure(scaled, kind, size, batches)


def measure(head: "MeasuredHead", kind: str, size: int, batches: int) -> CountedRow:
    """The figures of one kind of batch; draws are the same for all heads."""
    import torch

    from attacks.label.residual import certify_counts
    from attacks.label.rules import prior_counts
    from experiments.benchmarks.heads import CLASSES, KINDS, head_gradients
    from experiments.benchmarks.label_rules import HeadBatch, feature_error

    rng = torch.Generator().manual_seed(size)
    weight, bias = head.weight, head.bias
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    errors: list[float] = []
    for _ in range(batches):
        chosen, labels = KINDS[kind](head, size, rng)
        order = labels.argsort()
        h, labels = head.features[chosen[order]], labels[order]
        gradients = head_gradients(h, weight, bias, labels)
        start = prior_counts(gradients[1], head.mean_probs, size)
        found = certify_counts(weight, bias, *gradients, start, size, eps=EPS, rng=rng)
        truth = torch.bincount(labels, minlength=CLASSES)
        right = torch.equal(found.counts, truth)
        outcomes["uncertified" if not found.certified else "right" if right else "wrong"] += 1
        if not found.certified:
            reasons["".join(c for c in found.reason if not c.isdigit())] += 1
        elif right:
            batch = HeadBatch(labels, weight, bias, *gradients, head.mean_probs, head.features[:0], h)
            errors.append(feature_error(found, batch))
        around = certify_counts(weight, bias, *gradients, truth, size, eps=EPS, rng=rng, excluded=truth)
        outcomes["withheld"] += around.possible > 0
        outcomes["false"] += around.certified
    return CountedRow(
        head=head.name,
        accuracy=head.accuracy,
        labels=kind,
        batch_size=size,
        **{name: outcomes[name] for name in ("right", "wrong", "uncertified", "withheld", "false")},
        error=f"{median(errors):.1g} / {max(errors):.1g}" if errors else "-",
        uncertified_for=reasons.most_common(1)[0][0] if reasons else "-",
    )


if __name__ == "__main__":
    main()
