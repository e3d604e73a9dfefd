"""What all attacks together took from the observed updates, picture by picture. No wording, no pictures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedsim.report.attack_records import AttackRecord, ImageRecord, sources
from fedsim.report.read import RunFolder
from fedsim.report.summary import mean
from fedsim.report.thresholds import EXACT, INDISTINGUISHABLE, RECOGNISABLE

Key = tuple[str, int]
"""The observation, and the number of a picture in it."""

Name = tuple[str, str | None]
"""A picture's own name and its label."""


@dataclass(frozen=True)
class Leakage:
    """A picture counts once an update, by its best result.

    Attributes:
        observations: observed updates.
        pictures: private pictures behind them.
        different: how many those are where one that several updates were made of counts once; None where the records
            do not tell.
        returned: pictures for which some attack returned a reconstruction, good or bad.
        scored: pictures that were compared with their original.
        recognisable: pictures that reach `RECOGNISABLE`.
        different_recognisable: how many of the different ones do in some update; None where `different` is.
        mean_known: dB over all pictures, none below its guess, which is what one that is not rebuilt counts as, and
            none above `INDISTINGUISHABLE`. One on which every attack failed is left out; None where another one has
            no guess.
        certified: pictures whose reconstruction an attack vouches for without knowing the original.
        certified_wrong: those of them whose vouched-for reconstruction stays below `RECOGNISABLE`.
        as_seen: pictures rebuilt as the model saw them, changed by a defense, and below `RECOGNISABLE` against the
            client's own: PSNR does not tell whether an eye finds the one in the other.
        seen_psnr, own_psnr: their mean in dB, against what the model saw and against the clients' own pictures.
    """

    observations: int
    pictures: int
    returned: int
    scored: int
    recognisable: int
    certified: int
    certified_wrong: int
    different: int | None = None
    different_recognisable: int | None = None
    mean_known: float | None = None
    as_seen: int = 0
    seen_psnr: float | None = None
    own_psnr: float | None = None


def summarise_leakage(run: RunFolder) -> Leakage:
    """Count pictures over all attacks, each picture of each observation once."""
    sizes: dict[str, int] = {}
    returned, certified, wrong = set(), set(), set()
    best: dict[Key, float] = {}
    seen: dict[Key, float] = {}
    named: dict[Key, tuple[AttackRecord, ImageRecord]] = {}
    ended: set[Key] = set()
    for record in run.attacks:
        sizes[record.observation] = max(sizes.get(record.observation, 0), record.batch_size)
        for source, image in zip(sources(record.images), record.images, strict=True):
            key = record.observation, source
            if key not in named or (named[key][1].guess_psnr is None and image.guess_psnr is not None):
                named[key] = record, image
            if record.status not in ("done", "refused"):
                continue
            ended.add(key)
            if record.status == "refused":
                continue
            if image.rebuilt:
                returned.add(key)
                if record.certified:
                    certified.add(key)
                    if image.psnr is not None and image.psnr < RECOGNISABLE:
                        wrong.add(key)
            if image.leaked is not None:
                best[key] = max(best.get(key, image.leaked), image.leaked)
            if image.psnr is not None and rebuilt_as_seen(record, image):
                seen[key] = max(seen.get(key, image.psnr), image.psnr)
    hidden = [key for key in seen if best.get(key, 0.0) < RECOGNISABLE]
    whole = len(named) == sum(sizes.values())
    names = _names(named) if whole else None
    reached = [_reached(best.get(key), image.guess_psnr) for key, (_, image) in named.items() if key in ended]
    known = [value for value in reached if value is not None]
    recognisable = [key for key, value in best.items() if value >= RECOGNISABLE]
    return Leakage(
        observations=len(sizes),
        pictures=sum(sizes.values()),
        returned=len(returned),
        scored=len(best),
        recognisable=len(recognisable),
        certified=len(certified),
        certified_wrong=len(wrong),
        different=None if names is None else len(set(names.values())),
        different_recognisable=None if names is None else len({names[key] for key in recognisable}),
        mean_known=mean(known) if whole and len(known) == len(reached) else None,
        as_seen=len(hidden),
        seen_psnr=mean([seen[key] for key in hidden]),
        own_psnr=mean([best[key] for key in hidden if key in best]),
    )


def _reached(best: float | None, guess: float | None) -> float | None:
    """Whoever knows that the guess is better submits it."""
    known = [min(value, INDISTINGUISHABLE) for value in (best, guess) if value is not None]
    return max(known, default=None)


def _names(named: Mapping[Key, tuple[AttackRecord, ImageRecord]]) -> Mapping[Key, object] | None:
    """One name for each different picture; None where that cannot be told.

    Two nodes may have pictures of the same name. In runs of one seed the guess, which depends on the picture, tells
    them apart, or else the client. Another seed has another guess: there a picture is known by its own name, if that
    was enough under each seed by itself.
    """
    under: dict[int, dict[Key, tuple[Name, object]]] = {}
    for key, (record, image) in named.items():
        mark = ("client", record.client) if image.guess_psnr is None else ("guess", image.guess_psnr)
        under.setdefault(record.seed, {})[key] = (image.image, image.label), mark
    if len(under) == 1:
        return next(iter(under.values()))
    own: Iterable[dict[Key, tuple[Name, object]]] = under.values()
    if any(len(set(names.values())) != len({name for name, _ in names.values()}) for names in own):
        return None
    return {key: name for names in under.values() for key, (name, _) in names.items()}


def rebuilt_as_seen(record: AttackRecord, image: ImageRecord) -> bool:
    """Whether it is, certified or up to rounding, what the model saw of a picture that a defense had changed.

    A certificate counts where the result is recognisable: otherwise it is wrong.
    """
    if record.status != "done" or not image.changed or image.psnr is None:
        return False
    return image.psnr >= EXACT or (record.certified and image.psnr >= RECOGNISABLE)
