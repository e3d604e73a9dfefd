"""How often label counts are certified, and whether wrong ones ever are, as training goes on.

python -m experiments.benchmarks.certificates --pictures DIR --batches 20

Batches on the head of an MLP and of a small ViT, from initialisation to a training accuracy of 1.0, with and without
label noise, the head's weights as they are and times 4; labels as in training, drawn at random, all of one class, and
bursts of one image. Then the true counts are withheld, and all others that are possible are put to the same test: one
that certifies would be a false certificate.
"""

# ruff: noqa: E402 - the options are read before anything heavy is imported
import argparse
from pathlib import Path


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


if __name__ == "__main__":
    _options()

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attacks.label.residual import certify_counts
from attacks.label.rules import prior_counts
from experiments.benchmarks.labels import CHUNK, GroupedImages, head_gradients, train
from experiments.studies.gradinversion.label_rules import HeadBatch, feature_error
from fedsim.models import ModelSpec, Normaliser

CLASSES = 10
EPS = 2.0**-23
MLP = ModelSpec("mlp_32", CLASSES, kwargs={"hidden": [256, 64]})


@dataclass(frozen=True)
class Head:
    """A classifier in some state, with what it reads of each private image.

    Attributes:
        labels: those that it was trained on.
        mean_probs: over auxiliary images.
    """

    name: str
    accuracy: float
    weight: Float[Tensor, "classes features"]
    bias: Float[Tensor, "classes"]
    features: Float[Tensor, "images features"]
    labels: Int[Tensor, "images"]
    mean_probs: Float[Tensor, "classes"]

    def times(self, factor: float) -> "Head":
        """The same, surer of everything."""
        probs = self.mean_probs.log().mul(factor).softmax(dim=0)
        name = f"{self.name}, head × {factor:g}"
        return replace(self, name=name, weight=factor * self.weight, bias=factor * self.bias, mean_probs=probs)


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
    pictures = GroupedImages(folder, 32, CLASSES, limit)
    vit = ModelSpec("vit_tiny_patch16_224", CLASSES, 32, 4, kwargs={"depth": 4})
    for name in heads:
        for head in trained(name, MLP if name == "mlp" else vit, pictures, adam if name == "mlp" else sgd):
            for scaled in (head, head.times(4.0)):
                for kind in KINDS:
                    for size in sizes:
                        yield measure(scaled, kind, size, batches)


def trained(
    name: str, spec: ModelSpec, pictures: GroupedImages, fit: "Fit", steps: Sequence[int] = (0, 10, 30, 100, 300)
) -> Iterator[Head]:
    """The head after more and more training, on the images' labels and on random ones."""
    noise = torch.randint(CLASSES, pictures.labels.shape, generator=torch.Generator().manual_seed(7))
    for labels, said in ((pictures.labels, ""), (noise, ", label noise")):
        model = spec.build(0).train()
        done = 0
        for target in steps:
            if target == 0 and said:
                continue
            fit(model, pictures.images, labels, target - done)
            done = target
            yield head_of(f"{name}, {target} steps{said}", model, pictures, labels)


def head_of(name: str, model: nn.Module, pictures: GroupedImages, labels: Int[Tensor, "images"]) -> Head:
    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    normalise = Normaliser(model)
    features, auxiliary = (head_inputs(model, head, normalise(p)) for p in (pictures.images, pictures.auxiliary))
    mean_probs = F.linear(auxiliary, weight, bias).softmax(dim=1).mean(dim=0)
    accuracy = float((F.linear(features, weight, bias).argmax(dim=1) == labels).double().mean())
    return Head(name, round(accuracy, 2), weight, bias, features, labels, mean_probs)


def head_inputs(model: nn.Module, head: nn.Linear, inputs: Tensor) -> Float[Tensor, "images features"]:
    """What the classifier reads of normalised images."""
    read: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    with torch.no_grad():
        for part in inputs.split(CHUNK):
            model(part)
    hook.remove()
    return torch.cat(read)


Fit = Callable[[nn.Module, Tensor, Tensor, int], None]


def sgd(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    train(model, images, labels, steps, 0.01)


def adam(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    """On all images at once."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = Normaliser(model)(images)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def _as_trained(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    chosen = _drawn(len(head.labels), size, rng)
    return chosen, head.labels[chosen]


def _random_labels(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return _drawn(len(head.labels), size, rng), _drawn(CLASSES, size, rng)


def _one_label(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return _drawn(len(head.labels), size, rng), _drawn(CLASSES, 1, rng).repeat(size)


def _one_class(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    of_class = (head.labels == _drawn(CLASSES, 1, rng)).nonzero().flatten()
    return of_class[_drawn(len(of_class), size, rng)], head.labels[of_class[:1]].repeat(size)


def _burst(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Copies of one image, of the same label but for one batch in three."""
    chosen = _drawn(len(head.labels), 1, rng).repeat(size)
    labels = _drawn(CLASSES, size if int(_drawn(3, 1, rng)) == 0 else 1, rng)
    return chosen, labels.expand(size)


def _one_twice(head: Head, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random labels, and one image twice."""
    chosen, labels = _random_labels(head, size, rng)
    chosen[1] = chosen[0]
    return chosen, labels


KINDS = {
    "as trained": _as_trained,
    "random": _random_labels,
    "one label": _one_label,
    "one class": _one_class,
    "burst": _burst,
    "one image twice": _one_twice,
}


def _drawn(most: int, size: int, rng: torch.Generator) -> Int[Tensor, "size"]:
    return torch.randint(most, (size,), generator=rng)


def measure(head: Head, kind: str, size: int, batches: int) -> CountedRow:
    """The figures of one kind of batch; draws are the same for all heads."""
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
    errors.sort()
    return CountedRow(
        head=head.name,
        accuracy=head.accuracy,
        labels=kind,
        batch_size=size,
        **{name: outcomes[name] for name in ("right", "wrong", "uncertified", "withheld", "false")},
        error=f"{errors[len(errors) // 2]:.1g} / {errors[-1]:.1g}" if errors else "-",
        uncertified_for=reasons.most_common(1)[0][0] if reasons else "-",
    )


if __name__ == "__main__":
    main()
