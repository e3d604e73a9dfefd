"""Which of the observed images are one and the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedsim.report.run.records import AttackRecord, ImageRecord

Key = tuple[str, int]
"""The observation, and the number of an image in it."""

Made = tuple[AttackRecord, ImageRecord]
"""What an attack on an update made of one of its images."""


@dataclass(frozen=True)
class Same:
    """Which images are one.

    Attributes:
        names: one for each different image.
        distinct: False where one name stands for two images of one seed: those of several seeds are not told apart.
    """

    names: Mapping[Key, object]
    distinct: bool


def named(records: Iterable[AttackRecord]) -> dict[Key, Made]:
    """A record of each image, one with its guess where there is one."""
    result: dict[Key, Made] = {}
    for record in records:
        for source, (image, *_) in record.forms.items():
            key = record.observation, source
            if key not in result or (result[key][1].guess_psnr is None and image.guess_psnr is not None):
                result[key] = record, image
    return result


def same_images(known: Mapping[Key, Made]) -> Same:
    """One name for each different image.

    An image is its numbers, whatever its name, its label and who holds it, as a digest of them tells. One without a
    digest is at most one of those of its name and its label. Folders of earlier versions have none: there, of one seed,
    images of one guess, to the last bit, and one label are one. Without a guess an image is known by its name, its
    label and its client. Another seed has another guess: there an image is known by its name and its label, and by all
    other names that it has under any seed; one without a label and a guess is none of another seed.
    """
    marks = {key: _mark(*made) for key, made in known.items()}
    if len({seed for seed, *_ in marks.values()}) <= 1:
        return Same(marks, distinct=True)
    titles = {key: (image.image, image.label) for key, (_, image) in known.items()}
    under: dict[tuple[object, object], set[object]] = {}
    contents = {mark for mark in marks.values() if mark[0] is None}
    first: dict[object, object] = {titles[key]: mark for key, mark in marks.items() if mark in contents}
    for key, mark in marks.items():
        if mark in contents:
            continue  # its numbers tell
        if titles[key][1] is None and known[key][1].guess_psnr is None:
            continue  # without the truth a name is a place in what an attack returned
        under.setdefault((mark[0], titles[key]), set()).add(mark)
        one, other = _root(first, mark), _root(first, titles[key])
        if other in contents:
            one, other = other, one
        if one != other and other not in contents:
            first[other] = one
    names = {key: _root(first, mark) for key, mark in marks.items()}
    return Same(names, distinct=all(len(found) == 1 for found in under.values()))


def _mark(record: AttackRecord, image: ImageRecord) -> tuple[object, ...]:
    if image.content is not None:
        return None, image.content
    if image.guess_psnr is None:
        return record.seed, image.image, image.label, record.client
    return record.seed, image.guess_psnr, image.label


def _root(first: Mapping[object, object], one: object) -> object:
    while one in first:
        one = first[one]
    return one
