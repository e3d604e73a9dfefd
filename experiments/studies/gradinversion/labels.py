"""Label rules on the same batches of a network in evaluation mode, whose features are computed once."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.benchmarks.heads import CHUNK, REFERENCE, draw, head_features, head_gradients
from experiments.engine.setup import Setup
from experiments.studies.gradinversion.label_rules import HeadBatch, RuleResult, run_rule
from experiments.studies.gradinversion.page import RULES_SHOWN
from experiments.studies.harness.ledger import Entry
from fedsim.data import ImageSet
from fedsim.determinism import torch_generator
from fedsim.metrics.accuracy import mean_softmax
from fedsim.models import Normaliser


@dataclass(frozen=True)
class Known:
    """What batches are made of, and what the server knows besides their gradients.

    Attributes:
        labels: of `features`, below `classes`.
        mean_probs: over public pictures.
        random_features: of pictures of noise.
    """

    weight: Float[Tensor, "outputs width"]
    bias: Float[Tensor, "outputs"]
    features: Float[Tensor, "pictures width"]
    labels: Int[Tensor, "pictures"]
    classes: int
    mean_probs: Float[Tensor, "outputs"]
    random_features: Float[Tensor, "noise width"]


def known_features(setup: Setup, pictures: int, seed: int, device: str) -> Known:
    """Features of at most so many pictures of clients, drawn at random."""
    data = setup.data
    model = setup.model.to(device).eval()
    normalise = Normaliser(model)
    head: nn.Linear = model.get_classifier()  # type: ignore[operator]
    held = data.train.subset(_drawn(len(data.train), pictures, seed, "clients"))
    public = data.auxiliary.subset(_drawn(len(data.auxiliary), 256, seed, "public"))
    noise = torch.rand(REFERENCE, *held.images([0]).shape[1:], generator=torch_generator(seed, "noise pictures"))
    return Known(
        head.weight.detach().cpu(),
        head.bias.detach().cpu(),
        _features(model, normalise, held),
        held.labels,
        data.num_classes,
        mean_softmax(model, public, normalise, training_mode=False),
        head_features(model, normalise(noise)).cpu(),
    )


def measure(
    known: Known,
    kind: str,
    sizes: Sequence[int],
    batches: int,
    rng: torch.Generator,
    rules: Iterable[str] = tuple(RULES_SHOWN),
) -> list[Entry]:
    """These rules on the same batches, the mean of each at each size; sizes that cannot be drawn are left out."""
    entries: list[Entry] = []
    for size in sizes:
        found: dict[str, list[RuleResult]] = defaultdict(list)
        for _ in range(batches):
            chosen = draw(known.labels, size, known.classes, kind, rng)
            if chosen is None:
                continue
            batch = batch_of(known, chosen)
            for rule in rules:
                outcome = run_rule(rule, batch, rng)
                if outcome is not None:
                    found[rule].append(outcome)
        entries += [{"rule": rule, "batch_size": size, **_summary(outcomes)} for rule, outcomes in found.items()]
    return entries


def batch_of(known: Known, chosen: Int[Tensor, "batch"]) -> HeadBatch:
    """The head's gradient of these pictures with mean cross-entropy."""
    chosen = chosen[known.labels[chosen].argsort()]
    features, labels = known.features[chosen], known.labels[chosen]
    gradients = head_gradients(features, known.weight, known.bias, labels)
    return HeadBatch(labels, known.weight, known.bias, *gradients, known.mean_probs, known.random_features, features)


def _summary(outcomes: Sequence[RuleResult]) -> Entry:
    count = len(outcomes)
    return {
        "batches": count,
        "share": sum(one.overlap for one in outcomes) / count,
        "exact": sum(one.exact for one in outcomes) / count,
        "certified": sum(one.certified for one in outcomes) / count,
        "wrongly_certified": sum(one.certified and not one.exact for one in outcomes),
        "seconds": sum(one.seconds for one in outcomes) / count,
    }


def _features(model: nn.Module, normalise: Normaliser, images: ImageSet) -> Float[Tensor, "pictures width"]:
    parts = torch.arange(len(images)).split(CHUNK)
    return torch.cat([head_features(model, normalise(images.images(part))).cpu() for part in parts])


def _drawn(count: int, most: int, seed: int, purpose: str) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch_generator(seed, "label batches", purpose)).tolist()
    return order[:most]
