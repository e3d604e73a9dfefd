"""Rules, batches and models of the benchmark, and its page."""

import argparse
import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.label.counts.possible import least_counts
from attacks.label.counts.residual import certify_counts
from attacks.label.public_images.counts import MAX_MISFIT
from attacks.label.public_images.drift import drifted_counts
from attacks.label.public_images.moments import ClassMoments, class_moments, fit_counts
from attacks.label.recover import COUNTED_ALONE
from attacks.label.rules import basic, counting
from experiments.benchmarks.heads import head_gradients, head_inputs, train
from experiments.benchmarks.trained_labels import LOCAL, SIZES
from experiments.studies.harness.study import code_and_machine
from experiments.studies.harness.tables import markdown
from fedsim.data import Digits, FederatedData, ImageFolder
from fedsim.determinism import torch_generator
from fedsim.models import ModelSpec, Normaliser
from fedsim.public_images import MOST

LOCAL_AT = (400,)
CLASSES = 10
DEFAULT = "`labels`"
"""What alone explains the head, of few images; then class_moments or bias_prior, by the misfit."""
SIMULATED = "class_moments, with simulated clients"
Entry = dict[str, Any]


@dataclass(frozen=True)
class State:
    """A model in some state of training, and what its head reads."""

    data: str
    steps: int
    model: nn.Module
    inputs: Tensor
    public_inputs: Tensor
    labels: Tensor
    features: Tensor
    public: Tensor
    public_labels: Tensor
    accuracy: tuple[float, float]
    """On private and on public images."""

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        head: nn.Linear = self.model.get_classifier()  # type: ignore[operator]
        return head.weight.detach().clone(), head.bias.detach().clone()


def states(name: str, source: Digits | ImageFolder, lr: float, steps: tuple[int, ...]) -> Iterator[State]:
    """One model, after more and more training."""
    side, patch = (8, 2) if name == "digits" else (32, 4)
    data = FederatedData(source, None, side)
    images, labels = data.train.images(range(len(data.train))), torch.as_tensor(data.train.labels)
    public = data.auxiliary.images(range(min(len(data.auxiliary), MOST)))
    public_labels = torch.as_tensor(data.auxiliary.labels)[: len(public)]
    model = ModelSpec("vit_nano_patch2_8", CLASSES, side, patch).build(0).train()
    normalise, done = Normaliser(model), 0
    for target in steps:
        train(model, images, labels, target - done, lr)
        done = target
        head: nn.Linear = model.get_classifier()  # type: ignore[operator]
        read = [head_inputs(model, head, normalise(some)) for some in (images, public)]
        right = [
            float((head(one).argmax(dim=1) == truth).double().mean())
            for one, truth in zip(read, (labels, public_labels), strict=True)
        ]
        features, seen = read
        known = name, target, model, normalise(images), normalise(public), labels, features, seen, public_labels
        yield State(*known, accuracy=(right[0], right[1]))


Rule = Callable[[Tensor, Tensor, int, torch.Generator], Tensor]


def rules_of(state: State) -> dict[str, Rule]:
    """Counts from the gradients of weight and bias, and the number of labels."""
    weight, bias = state.head
    probs = F.linear(state.public, weight, bias).double().softmax(dim=1)
    moments = {
        "class_moments": class_moments(weight, bias, state.public, F.one_hot(state.public_labels, CLASSES).double()),
        "class_moments, public images without labels": class_moments(weight, bias, state.public, probs),
    }

    def by_moments(found: ClassMoments) -> Rule:
        return lambda w, b, size, rng: fit_counts(found, w, b, least_counts(b, size), size).counts

    def llg_bias(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        share = counting.share_of_reference(probs.mean(dim=0)[None], torch.ones(1), size)
        return torch.bincount(counting.llg(b, size, share), minlength=CLASSES)

    def ilrg(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        return basic.largest_remainder(counting.ilrg_counts(weight, bias, w, b, size), size)

    def bias_prior(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        return basic.largest_remainder(basic.prior_counts(b, probs.mean(dim=0), size), size)

    def guess(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        chosen = torch.randint(len(state.public_labels), (size,), generator=rng)
        return torch.bincount(state.public_labels[chosen], minlength=CLASSES)

    def by_misfit(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        fit = fit_counts(moments["class_moments"], w, b, least_counts(b, size), size)
        return fit.counts if fit.misfit <= MAX_MISFIT else bias_prior(w, b, size, rng)

    def default(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        if size <= COUNTED_ALONE:
            found = certify_counts(weight, bias, w, b, torch.full_like(b, size / CLASSES), size, rng=rng)
            if found.certified or found.alone:
                return found.counts
        return by_misfit(w, b, size, rng)

    known: dict[str, Rule] = {DEFAULT: default, **{name: by_moments(found) for name, found in moments.items()}}
    return {**known, "bias_prior": bias_prior, "llg_bias": llg_bias, "ilrg": ilrg, "no gradient": guess}


def one_step(state: State, size: int, batches: int) -> list[Entry]:
    """All rules on gradients of the same batches."""
    weight, bias = state.head
    found, rng = rules_of(state), torch_generator(0, "trained labels", state.data, size)
    scores: dict[str, list[tuple[bool, float]]] = {name: [] for name in found}
    for _ in range(batches):
        chosen = torch.randperm(len(state.labels), generator=rng)[:size]
        gradients = head_gradients(state.features[chosen], weight, bias, state.labels[chosen])
        _score(scores, found, gradients, torch.bincount(state.labels[chosen], minlength=CLASSES), rng)
    return _entries(state, scores, size=size, local=1)


def local_steps(state: State, size: int, local: int, lr: float, batches: int) -> list[Entry]:
    """All rules on what several steps of SGD on one batch made of the head, as the steps' mean gradient."""
    found, rng = rules_of(state), torch_generator(0, "local steps", state.data, size)
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    weight, bias = state.head

    def trained(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        optimizer = torch.optim.SGD(state.model.parameters(), lr=lr)
        for _ in range(local):
            optimizer.zero_grad()
            F.cross_entropy(state.model(inputs), labels).backward()
            optimizer.step()
        after = state.head
        state.model.load_state_dict(before)
        return (weight - after[0]) / (lr * local), (bias - after[1]) / (lr * local)

    def drift(chosen: Tensor) -> tuple[Tensor, Tensor]:
        labels = state.public_labels[chosen]
        steps, first = (
            trained(state.public_inputs[chosen], labels),
            head_gradients(state.public[chosen], weight, bias, labels),
        )
        return steps[0] - first[0], steps[1] - first[1]

    def simulated(w: Tensor, b: Tensor, size: int, rng: torch.Generator) -> Tensor:
        first = found["bias_prior"](w, b, size, rng)
        return drifted_counts(moments, (w, b), least_counts(b, size), first, state.public_labels, drift, rng).counts

    moments = class_moments(weight, bias, state.public, F.one_hot(state.public_labels, CLASSES).double())
    found = {SIMULATED: simulated, **{name: rule for name, rule in found.items() if name != DEFAULT}}
    scores: dict[str, list[tuple[bool, float]]] = {name: [] for name in found}
    for _ in range(batches):
        chosen = torch.randperm(len(state.labels), generator=rng)[:size]
        gradients = trained(state.inputs[chosen], state.labels[chosen])
        _score(scores, found, gradients, torch.bincount(state.labels[chosen], minlength=CLASSES), rng)
    return _entries(state, scores, size=size, local=local)


def _score(
    scores: dict[str, list[tuple[bool, float]]],
    found: dict[str, Rule],
    gradients: tuple[Tensor, Tensor],
    truth: Tensor,
    rng: torch.Generator,
) -> None:
    size = int(truth.sum())
    for name, rule in found.items():
        counts = rule(*gradients, size, rng)
        scores[name].append((torch.equal(counts, truth), float(torch.minimum(counts, truth).sum()) / size))


def _entries(state: State, scores: dict[str, list[tuple[bool, float]]], **about: int) -> list[Entry]:
    known = {"data": state.data, "steps": state.steps, "accuracy": state.accuracy, **about}
    return [
        {**known, "rule": rule, "exact": fmean(exact for exact, _ in ones), "overlap": fmean(part for _, part in ones)}
        for rule, ones in scores.items()
    ]


def page(entries: list[Entry], batches: int, lr: float, given: str = "") -> str:
    """The tables in Markdown: per cent of batches whose counts are all right / mean share of labels.

    Args:
        given: options of the command that are not the usual ones.
    """
    day = datetime.datetime.now(tz=datetime.UTC).date()
    text = [
        "# Label counts from updates of trained models",
        f"Per cent of {batches} batches whose whole multiset of labels is right / mean share of a batch's labels "
        "(Σ min(n̂, n)/B), by the images in an update. `vit_nano` on scikit-learn's digits (8 px, patches of 2) and "
        "CIFAR-10 (32 px, patches of 4), trained by SGD with momentum on batches of 32 of the private images; the "
        "attacked batches are random draws of these, so that the model has been trained on them. Public images are of "
        "no client, with their labels unless a row says otherwise. `no gradient` draws labels like the public images'. "
        f"`labels` is the default rule: up to {COUNTED_ALONE} images counts that alone explain the head's gradient, "
        "else class_moments or bias_prior, by the misfit.",
        f"`python -m experiments.benchmarks.trained_labels --cifar10 DIR --out DIR --batches {batches}{given}`, {day}, "
        f"{code_and_machine('cpu')}.",
    ]
    for local in dict.fromkeys(entry["local"] for entry in entries):
        for data in dict.fromkeys(entry["data"] for entry in entries):
            shown = [entry for entry in entries if entry["local"] == local and entry["data"] == data]
            if not shown:
                continue
            names = list(dict.fromkeys(entry["rule"] for entry in shown))
            columns = list(dict.fromkeys((entry["steps"], entry["size"]) for entry in shown))
            cells = {
                (e["rule"], e["steps"], e["size"]): f"{100 * e['exact']:.0f} / {100 * e['overlap']:.0f}" for e in shown
            }
            lines = [[name, *(cells[name, *column] for column in columns)] for name in names]
            sort = (
                "one gradient" if local == 1 else f"a change of {local} local steps on one batch, learning rate {lr:g}"
            )
            text.append(f"## {data}, {sort}")
            text.append(markdown(["rule", *(f"{steps} steps, B = {size}" for steps, size in columns)], lines))
            right = dict.fromkeys((e["steps"], e["accuracy"]) for e in shown)
            said = "; ".join(f"{steps} steps: {100 * own:.0f} / {100 * new:.0f} %" for steps, (own, new) in right)
            text.append(f"Accuracy on private / public images: {said}.")
    return "\n\n".join(part.rstrip() for part in text) + "\n"


def run(options: argparse.Namespace) -> None:
    """Measure every setting and write the page."""
    torch.set_num_threads(1)
    sources: dict[str, tuple[Digits | ImageFolder, float]] = {"digits": (Digits(), 0.05)}
    if options.cifar10 is not None:
        sources["CIFAR-10"] = ImageFolder(str(options.cifar10), auxiliary_fraction=0.1, test_fraction=0.01), 0.05
    entries: list[Entry] = []
    given = "" if tuple(options.sizes) == SIZES else " --sizes " + " ".join(map(str, options.sizes))
    given += "" if tuple(options.local) == LOCAL else " --local" + "".join(f" {steps}" for steps in options.local)
    options.out.mkdir(parents=True, exist_ok=True)
    jobs: list[tuple[tuple[int, ...], bool]] = [(tuple(options.steps), False)]
    jobs += [(LOCAL_AT, True)] if options.local else []
    for steps, several in jobs:
        for name, (source, lr) in sources.items():
            for state in states(name, source, lr, steps):
                for size in () if several else options.sizes:
                    entries += one_step(state, size, options.batches)
                for local in options.local if several else ():
                    entries += local_steps(state, options.sizes[0], local, options.lr, options.batches)
                text = page(entries, options.batches, options.lr, given)
                (options.out / "trained_labels.md").write_text(text, encoding="utf-8")
                print(f"{name} after {state.steps} steps", flush=True)
