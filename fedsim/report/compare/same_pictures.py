"""The same private pictures in several runs, each as the best attack of the run left it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fedsim.report.compare.settings import defense_name, defense_settings, flatten
from fedsim.report.draw.pictures import EmbeddedImage, embed_image
from fedsim.report.run.baseline import guessing, needs_no_gradient, reading
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord, ImageRecord

Key = tuple[str, str | None]
"""An image's name and the digest of its numbers: other data may use the same names.

Of a recorded update of one image the name and the record, in place of the digest.
"""

PICTURES_SHOWN = 6
RUNS_SHOWN = 8


@dataclass(frozen=True)
class Rebuilt:
    """What a run gave away of a picture; `picture` is None where no attack returned one.

    `defense` is that of the run, `none` without any; `seen` is that against what the model saw, where there are two.
    """

    run: str
    defense: str
    attack: str
    psnr: float | None
    picture: EmbeddedImage | None
    seen: float | None = None


@dataclass(frozen=True)
class SamePicture:
    """One picture, of one name and the same numbers; its original, and one result for each run that observed it."""

    name: str
    original: EmbeddedImage | None
    results: tuple[Rebuilt, ...]


def same_pictures(runs: Mapping[str, RecordedRun]) -> list[SamePicture]:
    """Pictures that at least two runs observed and one rebuilt; first those whose original is known, and of them those
    that most runs rebuilt. What undefended runs gave away stands before the others'.

    Args:
        runs: by the name that the page gives them; the first `RUNS_SHOWN` that observed any are shown.
    """
    runs = dict(sorted(runs.items(), key=lambda one: bool(defense_settings(one[1]))))
    swept = _swept(list(runs.values()))
    observed = ((name, found) for name, run in runs.items() if (found := _best(run, swept)))
    best = dict(islice(observed, RUNS_SHOWN))
    made: dict[Key, list[ImageRecord]] = {}
    for images in best.values():
        for key, (_, image) in images.items():
            made.setdefault(key, []).append(image)

    def worth(key: Key) -> tuple[bool, int, int]:
        images = made[key]
        return any(map(_has_original, images)), sum(map(_has_rebuilt, images)), len(images)

    shared = [key for key, images in made.items() if len(images) > 1 and any(map(_has_rebuilt, images))]
    return [_row(key, best, runs) for key in sorted(shared, key=worth, reverse=True)[:PICTURES_SHOWN]]


def _has_rebuilt(image: ImageRecord) -> bool:
    return image.reconstruction is not None


def _has_original(image: ImageRecord) -> bool:
    """What a defense changed before the model saw it is not the client's own picture."""
    return image.original is not None and not image.changed


def _swept(runs: Sequence[RecordedRun]) -> frozenset[str]:
    """Names of the attacks to show: those that rebuilt something and whose settings differ, where no defense's do."""
    if len({defense_settings(run) for run in runs}) > 1:
        return frozenset()
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for run in runs:
        for name in {one.attack for one in run.attacks if any(map(_has_rebuilt, one.images))}:
            found.setdefault(name, set()).add(tuple(sorted(flatten(run.settings_of(name)).items())))
    return frozenset(name for name, settings in found.items() if len(settings) > 1)


def _best(run: RecordedRun, swept: frozenset[str]) -> dict[Key, tuple[AttackRecord, ImageRecord]]:
    """For each picture a result that is recognisable as the client's own, else as the model saw it, else any other; of
    several the one with the highest PSNR against the client's own. Unscored ones come last.

    Baselines are no attacks: theirs is shown where no attack was made.

    Args:
        swept: the attacks to look at, where the run has one of them.
    """
    if swept & {record.attack for record in run.attacks}:
        run = replace(run, attacks=tuple(record for record in run.attacks if record.attack in swept))
    return _highest(guessing(run)) | _highest(reading(run))


def _highest(run: RecordedRun) -> dict[Key, tuple[AttackRecord, ImageRecord]]:
    best: dict[Key, tuple[AttackRecord, ImageRecord]] = {}
    for record in run.attacks:
        for image in record.images:
            key = image.image, image.content
            if image.content is None and image.label is None:
                if not run.recorded or record.batch_size > 1:
                    continue  # without the truth a name is a place in what an attack returned
                key = image.image, str(run.setting("observation"))
            known = best.get(key)
            if known is None or _rank(image) > _rank(known[1]):
                best[key] = record, image
    return best


def _rank(image: ImageRecord) -> tuple[bool, bool, bool, float]:
    leaked = image.leaked if image.leaked is not None else -1.0
    return _has_rebuilt(image), image.recognisable, image.as_seen, leaked


def _row(
    key: Key, best: Mapping[str, Mapping[Key, tuple[AttackRecord, ImageRecord]]], runs: Mapping[str, RecordedRun]
) -> SamePicture:
    results, original = [], None
    for run, images in best.items():
        if key not in images:
            continue
        record, image = images[key]
        if original is None and _has_original(image):
            original = embed_image(runs[run].path, image.original)
        attack = f"{record.attack}, a baseline" if needs_no_gradient(runs[run], record.attack) else record.attack
        rebuilt = embed_image(runs[run].path, image.reconstruction)
        results.append(
            Rebuilt(run, defense_name(runs[run]), attack, image.leaked, rebuilt, image.psnr if image.twofold else None)
        )
    return SamePicture(key[0], original, tuple(results))
