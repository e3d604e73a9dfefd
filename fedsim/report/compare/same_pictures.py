"""The same private pictures in several runs, each as the best attack of the run left it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from fedsim.report.compare.settings import defense_name
from fedsim.report.draw.pictures import EmbeddedImage, embed_image
from fedsim.report.run.baseline import guessing, needs_no_gradient, reading
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord, ImageRecord

PICTURES_SHOWN = 6
RUNS_SHOWN = 8


@dataclass(frozen=True)
class Rebuilt:
    """What a run gave away of a picture; `picture` is None where no attack returned one.

    `defense` is that of the run, `none` without any; `seen` is the PSNR against what the model saw, where a defense had
    changed the picture.
    """

    run: str
    defense: str
    attack: str
    psnr: float | None
    picture: EmbeddedImage | None
    seen: float | None = None


@dataclass(frozen=True)
class SamePicture:
    """One picture by its name; its original, and one result for each run that observed it."""

    name: str
    original: EmbeddedImage | None
    results: tuple[Rebuilt, ...]


def same_pictures(runs: Mapping[str, RecordedRun]) -> list[SamePicture]:
    """Pictures that at least two runs observed, those that most runs did first.

    Args:
        runs: by the name that the page gives them; the first `RUNS_SHOWN` that observed any are shown.
    """
    observed = ((name, found) for name, run in runs.items() if (found := _best(run)))
    best = dict(islice(observed, RUNS_SHOWN))
    seen: dict[str, int] = {}
    for images in best.values():
        for image in images:
            seen[image] = seen.get(image, 0) + 1
    shared = sorted((image for image, number in seen.items() if number > 1), key=lambda image: -seen[image])
    return [_row(image, best, runs) for image in shared[:PICTURES_SHOWN]]


def _best(run: RecordedRun) -> dict[str, tuple[AttackRecord, ImageRecord]]:
    """For each picture a result that is recognisable as the client's own, else as the model saw it, else any other; of
    several the one with the highest PSNR against the client's own. Unscored ones come last.

    Baselines are no attacks: theirs is shown where no attack was made.
    """
    return _highest(guessing(run)) | _highest(reading(run))


def _highest(run: RecordedRun) -> dict[str, tuple[AttackRecord, ImageRecord]]:
    best: dict[str, tuple[AttackRecord, ImageRecord]] = {}
    for record in run.attacks:
        for image in record.images:
            known = best.get(image.image)
            if known is None or _rank(image) > _rank(known[1]):
                best[image.image] = record, image
    return best


def _rank(image: ImageRecord) -> tuple[bool, bool, bool, float]:
    leaked = image.leaked if image.leaked is not None else -1.0
    return image.reconstruction is not None, image.recognisable, image.as_seen, leaked


def _row(
    name: str, best: Mapping[str, Mapping[str, tuple[AttackRecord, ImageRecord]]], runs: Mapping[str, RecordedRun]
) -> SamePicture:
    results, original = [], None
    for run, images in best.items():
        if name not in images:
            continue
        record, image = images[name]
        # What a defense changed before the model saw it is not the client's own picture.
        if original is None and not image.changed:
            original = embed_image(runs[run].path, image.original)
        attack = f"{record.attack}, a baseline" if needs_no_gradient(runs[run], record.attack) else record.attack
        rebuilt = embed_image(runs[run].path, image.reconstruction)
        results.append(
            Rebuilt(run, defense_name(runs[run]), attack, image.leaked, rebuilt, image.psnr if image.changed else None)
        )
    return SamePicture(name, original, tuple(results))
