"""Label counts that the signs of Adam's steps leave, by the update's shape and by how like the public images it is.

python -m experiments.benchmarks.adam_labels --out DIR

`vit_nano` on scikit-learn's digits, drawn and trained by SGD on all private images. A client's labels are drawn like
all images', by shares of its own (Dirichlet, 0.5), or from two classes. Mean share of an update's labels that is right,
Σ min(n̂, n) / B: by `labels`, by the classes alone that rose, alike, and by labels drawn like the public images'.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.studies.harness.options import parsed
from experiments.studies.harness.tables import markdown

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

CLASSES = 10
UPDATES: dict[str, dict[str, Any]] = {
    f"{images}, {steps} step{'s' * (steps > 1)}": {"images": images, "batch_size": images, "local_steps": steps}
    for images in (2, 8, 64)
    for steps in (1, 10)
} | {"64, an epoch of batches of 8": {"images": 64, "batch_size": 8}}
ADAMW = {"_target_": "torch.optim.AdamW"}
CLIENTS = ("like all images", "shares of its own", "two classes")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20, help="for each cell")
    parser.add_argument("--steps", type=int, nargs="+", default=(0, 400), help="of training")
    parser.add_argument("--out", type=Path, default=Path("runs/adam_labels"), help="folder of adam_labels.md")
    return parsed(parser)


def main() -> None:
    """Measure every cell; the page is written anew after each model."""
    options = _arguments()

    import torch

    from experiments.benchmarks.heads import train
    from experiments.studies.harness.study import code_and_machine
    from fedsim.data import Digits, FederatedData
    from fedsim.models import ModelSpec

    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = FederatedData(Digits(), None, 8)
    private, public = (
        (held.images(range(len(held))), torch.as_tensor(held.labels)) for held in (data.train, data.auxiliary)
    )
    model, done = ModelSpec("vit_nano_patch2_8", CLASSES, 8, 2).build(0).train(), 0
    head = ["steps of training", "images in an update", *CLIENTS]
    rows: list[list[str]] = []
    for target in options.steps:
        train(model, *private, target - done, 0.05)
        done = target
        for name, cells in measured(model, private, public, options.updates):
            rows.append([str(target), name, *cells])
            print(f"after {target} steps, {name}: {' | '.join(cells)}", flush=True)
        about = f"{options.updates} updates a cell: `labels` (the classes that rose, alike; no gradient)"
        table = f"{about} · {code_and_machine('cpu')}\n\n{markdown(head, rows)}"
        (options.out / "adam_labels.md").write_text(table, encoding="utf-8")
    print(f"\n{table}")


def measured(
    model: "nn.Module", private: tuple["Tensor", "Tensor"], public: tuple["Tensor", "Tensor"], updates: int
) -> Iterator[tuple[str, list[str]]]:
    """Each shape of an update, and a cell for each kind of client."""
    from statistics import fmean

    import torch

    import fedsim
    from fedsim.determinism import torch_generator
    from fedsim.metrics.labels import label_share

    for name, given in UPDATES.items():
        shape = dict(given)
        images, cells = shape.pop("images"), list[str]()
        for kind in CLIENTS:
            rng = torch_generator(0, "adam labels", name, kind)
            shares = list[tuple[float, ...]]()
            for _ in range(updates):
                truth = drawn(kind, images, rng)
                chosen = torch.stack([_one_of(private[1], int(label), rng) for label in truth])
                seen = fedsim.observe(model, private[0][chosen], truth, share="delta", optimizer=ADAMW, **shape)
                seen = seen.with_public_images(*public)
                found = fedsim.attack("labels", seen, progress=False).labels
                rose = fedsim.attack("labels_bias_sign", seen, progress=False).labels
                assert found is not None
                assert rose is not None
                alike = rose.repeat(-(-images // len(rose)))[:images]
                guess = public[1][torch.randint(len(public[1]), (images,), generator=rng)]
                shares.append(tuple(label_share(truth, labels) for labels in (found, alike, guess)))
            mean, before, by_chance = (100 * fmean(each) for each in zip(*shares, strict=True))
            cells.append(f"{mean:.0f} ({before:.0f}; {by_chance:.0f})")
        yield name, cells


def drawn(kind: str, images: int, rng: "Generator") -> "Tensor":
    """Labels of a client of that kind."""
    import torch

    if kind == "two classes":
        shares = torch.zeros(CLASSES).index_fill(0, torch.randperm(CLASSES, generator=rng)[:2], 0.5)
    elif kind == "shares of its own":
        shares = torch._standard_gamma(torch.full((CLASSES,), 0.5), generator=rng)
    else:
        shares = torch.ones(CLASSES)
    return torch.multinomial(shares, images, replacement=True, generator=rng)


def _one_of(labels: "Tensor", label: int, rng: "Generator") -> "Tensor":
    import torch

    own = (labels == label).nonzero().flatten()
    return own[torch.randint(len(own), (), generator=rng)]


if __name__ == "__main__":
    main()
