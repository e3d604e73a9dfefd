"""How often true label counts certify, whether wrong ones ever do, and how exact the features then are.

python -m experiments.benchmarks.certificates --pictures DIR --batches 40

Batches with repeated labels, on the head of a small ViT after some steps of training. Every batch is certified from
the server's estimate; then the true counts are withheld, and all neighbours of theirs are put to the same test: one
that certifies would be a false certificate.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from attacks.label.residual import certify_counts
from attacks.label.rules import prior_counts
from experiments.benchmarks.label_rules import Batch, feature_error
from experiments.benchmarks.labels import Pictures, draw, head_features, head_gradients, train
from fedsim.models import ModelSpec, Normaliser

CLASSES = 10
EPS = 2.0**-23


def main() -> None:
    """One line for each state of training and batch size, and a JSON file of all."""
    options = _options()
    torch.set_num_threads(options.threads)
    pictures = Pictures(options.pictures, 32, CLASSES, options.limit)
    model = ModelSpec("vit_tiny_patch16_224", CLASSES, 32, 4, kwargs={"depth": options.depth}).build(0).train()
    rows, trained = [], 0
    print("| steps | B | batches | certified and right | certified and wrong | wrong counts tried | certified of them "
          "| feature error, median / worst |\n| --- | --- | --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for steps in options.steps:
        train(model, pictures.images, pictures.labels, steps - trained, options.lr)
        trained = steps
        for size in options.batch:
            row = {"steps": steps, "batch_size": size, **measure(model, pictures, size, options.batches)}
            rows.append(row)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def measure(model: nn.Module, pictures: Pictures, size: int, batches: int) -> dict[str, object]:
    """The figures of one state of the model and one batch size; draws are the same for all states."""
    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    weight, bias = head.weight.detach(), head.bias.detach()
    normalise = Normaliser(model)
    features, auxiliary = (head_features(model, normalise(p)) for p in (pictures.images, pictures.auxiliary))
    mean_probs = F.linear(auxiliary, weight, bias).softmax(dim=1).mean(dim=0)
    rng = torch.Generator().manual_seed(size)
    right = wrong = tried = false = 0
    errors: list[float] = []
    for _ in range(batches):
        chosen = draw(pictures.labels, size, CLASSES, "repeated", rng)
        assert chosen is not None, "too few pictures"
        chosen = chosen[pictures.labels[chosen].argsort()]
        h, labels = features[chosen], pictures.labels[chosen]
        gradients = head_gradients(h, weight, bias, labels)
        start = prior_counts(gradients[1], mean_probs, size)
        found = certify_counts(weight, bias, *gradients, start, size, eps=EPS, rng=rng)
        truth = torch.bincount(labels, minlength=CLASSES)
        right += found.certified and torch.equal(found.counts, truth)
        wrong += found.certified and not torch.equal(found.counts, truth)
        if found.certified and torch.equal(found.counts, truth):
            batch = Batch(labels, weight, bias, *gradients, mean_probs, features[:0], h)
            errors.append(feature_error(found, batch))
        around = certify_counts(weight, bias, *gradients, truth, size, eps=EPS, rng=rng, excluded=truth)
        tried += around.tried
        false += around.certified
    errors.sort()
    spread = f"{errors[len(errors) // 2]:.1g} / {errors[-1]:.1g}" if errors else "-"
    return {"batches": batches, "right": right, "wrong": wrong, "tried": tried, "false": false, "error": spread}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True, help="folder with train/ and val/ of ten class folders")
    parser.add_argument("--batches", type=int, default=40, help="for each line")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 9], help="batch sizes; at most classes - 1")
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 100, 300], help="of training, batches of 32")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--limit", type=int, default=720, help="private pictures")
    parser.add_argument("--depth", type=int, default=4, help="blocks of the ViT")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/certificates.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
