"""The section of bounds: each kind under a heading of its own, with its images."""

from dataclasses import dataclass

from fedsim.report.draw.pictures import EmbeddedImage, embed_image
from fedsim.report.run.bounds.records import HEADINGS, BoundRecord
from fedsim.report.run.read import RecordedRun

SIDE = 112
"""Pixels of an image in a strip."""


@dataclass(frozen=True)
class ShownBound:
    """A record, and its strips with the images that could be read."""

    record: BoundRecord
    strips: tuple[tuple[str, tuple[tuple[EmbeddedImage, str], ...]], ...]


@dataclass(frozen=True)
class ShownKind:
    """The bounds of one kind, and what such a statement is worth."""

    heading: str
    meaning: str
    bounds: tuple[ShownBound, ...]


def shown_bounds(run: RecordedRun) -> list[ShownKind]:
    """In the order of the kinds; a kind without bounds is left out."""
    found = []
    for kind, (heading, meaning) in HEADINGS.items():
        records = [record for record in run.bounds if record.kind == kind]
        if records:
            found.append(ShownKind(heading, meaning, tuple(ShownBound(one, _strips(run, one)) for one in records)))
    return found


def _strips(run: RecordedRun, record: BoundRecord) -> tuple[tuple[str, tuple[tuple[EmbeddedImage, str], ...]], ...]:
    strips = []
    for name, panels in record.strips:
        shown = [(embed_image(run.path, one.image, side=SIDE), one.caption) for one in panels]
        strips.append((name, tuple((image, caption) for image, caption in shown if image is not None)))
    return tuple(strips)
