"""Errors on corrupted pictures, accuracy on hard ones, and whether foreign ones are noticed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from experiments.measure.jigsawed import Answers
from experiments.measure.subjects import Pictures, Subject
from fedsim.data import FederatedData, ImageFolder, ImageSet
from fedsim.data.corruption_levels import table_for
from fedsim.data.corruptions import Photograph, corrupt, load_frost
from fedsim.determinism import derive_seed
from fedsim.errors import ConfigError
from fedsim.metrics.robustness import aupr, aurra


@dataclass(frozen=True)
class CorruptionPlan:
    """Which corruptions, and how: see `measure.corruptions` in conf/measure.yaml."""

    names: tuple[str, ...]
    severities: tuple[int, ...]
    num_images: int | None
    table: str
    frost: str | None
    seed: int

    def table_of(self, side: int) -> str:
        return table_for(side) if self.table == "auto" else self.table


@torch.no_grad()
def corruption_errors(
    subjects: Sequence[Subject], plan: CorruptionPlan, batch_size: int, done: Callable[[], None]
) -> list[dict[str, list[float]]]:
    """Share of wrong predictions by corruption and severity, for each of several models with the same pictures.

    Every picture is corrupted once, by a generator of its own, and shown to all of them.

    Args:
        done: called after each corruption at one severity.
    """
    pictures = subjects[0].pictures
    count = min(len(pictures), plan.num_images or len(pictures))
    side = pictures.images.images([0]).shape[-1]
    table = plan.table_of(side)
    frost = load_frost(plan.frost, table, side) if plan.frost is not None and "frost" in plan.names else []
    errors: list[dict[str, list[float]]] = [{name: [] for name in plan.names} for _ in subjects]
    for name in plan.names:
        for severity in plan.severities:
            wrong = [0] * len(subjects)
            for start in range(0, count, batch_size):
                positions = range(start, min(start + batch_size, count))
                images = _corrupted(pictures, positions, name, severity, plan.seed, table, frost)
                labels = pictures.labels[start : positions.stop]
                for number, subject in enumerate(subjects):
                    predicted = subject.model(subject.normalise(images)).argmax(1).cpu()
                    wrong[number] += int((predicted != labels).sum())
            for number, count_wrong in enumerate(wrong):
                errors[number][name].append(count_wrong / count)
            done()
    return errors


def _corrupted(
    images: Pictures,
    positions: range,
    name: str,
    severity: int,
    seed: int,
    table: str,
    frost: Sequence[Photograph],
) -> Float32[Tensor, "b 3 h w"]:
    whole = images.images.images(positions).permute(0, 2, 3, 1).double().numpy()
    changed = []
    for position, image in zip(positions, whole, strict=True):
        rng = np.random.default_rng(derive_seed(seed, "corruption", name, severity, images.images.ids[position]))
        changed.append(corrupt(image, name, severity, rng, table, frost))
    return torch.from_numpy(np.stack(changed)).float().permute(0, 3, 1, 2)


@dataclass(frozen=True)
class FolderImages:
    """Pictures of a folder of class folders, as one model reads them.

    Attributes:
        classes: the data's classes after which the folders are called; None: they are called otherwise.
    """

    key: str
    path: str
    data: FederatedData
    classes: tuple[int, ...] | None


@cache
def _read_folder(path: str, side: int) -> FederatedData:
    """Once for all models that read pictures of this size."""
    return FederatedData(ImageFolder(path, test_fraction=0.0, auxiliary_fraction=0.0), None, side)


def folder_images(path: str, subject: Subject, key: str, *, must_match: bool) -> FolderImages:
    """The folder at the size that the model reads.

    Raises:
        ConfigError: no such folder, or (`must_match`) a class folder that is called like no class of the data.
    """
    try:
        data = _read_folder(path, subject.pictures.images.images([0]).shape[-1])
    except ConfigError as error:
        raise ConfigError(key, path, error.expected, error.fault) from error
    known = {name: number for number, name in enumerate(subject.pictures.class_names)}
    unknown = [name for name in data.class_names if name not in known]
    if unknown and must_match:
        few = ", ".join(unknown[:3])
        raise ConfigError(key, path, f"class folders called as the classes of the data; {len(unknown)} are not: {few}")
    return FolderImages(key, path, data, None if unknown else tuple(known[name] for name in data.class_names))


@dataclass(frozen=True)
class HardImages:
    """Top-1 and AURRA on pictures that models find hard (ImageNet-A), among the classes that these have."""

    pictures: int
    classes: int
    top1: float
    aurra: float


def measure_hard(subject: Subject, folder: FolderImages, batch_size: int) -> HardImages:
    assert folder.classes is not None
    held = folder.data.train
    probabilities = _probabilities(subject, held, folder.classes, batch_size)
    correct = probabilities.argmax(1) == held.labels.numpy()
    confidence = probabilities.max(1)
    return HardImages(len(held), len(folder.classes), float(correct.mean()), aurra(confidence, correct))


@dataclass(frozen=True)
class ForeignImages:
    """How well a low confidence tells foreign pictures (ImageNet-O) from the test pictures.

    Attributes:
        classes: how many the probabilities are taken over: those after which the foreign folders are called, if all
            are, and the test pictures are then of these classes alone (the authors' protocol); else all.
        chance: the AUPR of guessing.
    """

    pictures: int
    familiar: int
    classes: int
    aupr: float
    chance: float


def check_foreign(subject: Subject, folder: FolderImages) -> None:
    """Raises ConfigError: none of the test pictures is of the foreign folders' classes."""
    if folder.classes is not None and not bool(torch.isin(subject.pictures.labels, torch.tensor(folder.classes)).any()):
        expected = "class folders called after classes of the test pictures, or otherwise"
        raise ConfigError(folder.key, folder.path, expected)


def measure_foreign(subject: Subject, clean: Answers, folder: FolderImages, batch_size: int) -> ForeignImages:
    held = folder.data.train
    count = clean.logits.shape[1]
    classes = tuple(range(count)) if folder.classes is None else folder.classes
    kept = torch.isin(subject.pictures.labels, torch.tensor(classes))
    familiar = clean.logits[kept][:, list(classes)].double().softmax(1).amax(1).numpy()
    foreign = _probabilities(subject, held, classes, batch_size).max(1)
    share = len(foreign) / (len(foreign) + len(familiar))
    return ForeignImages(len(foreign), len(familiar), len(classes), aupr(-foreign, -familiar), share)


@torch.no_grad()
def _probabilities(
    subject: Subject, held: ImageSet, classes: Sequence[int], batch_size: int
) -> Float[np.ndarray, "n classes"]:
    """Softmax over the named classes alone."""
    found = []
    for start in range(0, len(held), batch_size):
        images = held.images(range(start, min(start + batch_size, len(held))))
        found.append(subject.model(subject.normalise(images))[:, list(classes)].double().softmax(1).cpu())
    probabilities: Float[np.ndarray, "n classes"] = torch.cat(found).numpy()
    return probabilities
