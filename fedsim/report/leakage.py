"""What all attacks together took from the observed updates, image by image. No wording, no pictures."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fedsim.report.attack_records import AttackRecord, ImageRecord
from fedsim.report.level import Level, level
from fedsim.report.read import RunFolder
from fedsim.report.summary import mean

Key = tuple[str, int]
"""The observation, and the number of an image in it."""

Name = tuple[str, str | None]
"""An image's own name and its label."""

Made = tuple[AttackRecord, ImageRecord]
"""What an attack on an update made of one of its images."""


@dataclass(frozen=True)
class Different:
    """Different images: one that several updates were made of counts once, by its best result in any of them.

    Where the records do not tell images apart, those of one name and label count as one.

    Attributes:
        images: those on which an attack came to an end, by refusing too.
        certified: those that an attack vouches for, and that are not known to be wrong.
        recognisable: those that can be recognised as the client's own.
        as_seen: those that can be recognised as the model saw them, changed by a defense, and not as the client's own.
        guessed: those that the guess, or an attack that reads nothing of the update, makes as good as that.
        ended: attacks that came to an end with an image to judge, each update by itself.
        guess_known: a guess was recorded for each.
    """

    images: int = 0
    certified: int = 0
    recognisable: int = 0
    as_seen: int = 0
    guessed: int = 0
    ended: int = 0
    guess_known: bool = True

    @property
    def shown(self) -> int:
        """Those that can be recognised at all, in the one way or in the other."""
        return self.recognisable + self.as_seen

    @property
    def level(self) -> Level:
        return level(self.certified, self.shown, self.guessed, self.images, self.ended)


@dataclass(frozen=True)
class Leakage:
    """An image counts once an update, by its best result, in all but `counts`.

    Attributes:
        observations: observed updates.
        pictures: private images behind them.
        different: how many those are where one that several updates were made of counts once; None where the records
            do not tell.
        returned: images for which some attack returned a reconstruction, good or bad.
        scored: images that were compared with their original.
        recognisable: images that can be recognised as the client's own.
        as_seen: images that can be recognised as the model saw them, changed by a defense, and not as the client's own.
        seen_psnr, own_psnr: the mean in dB of those, against what the model saw and against the clients' own images.
    """

    observations: int
    pictures: int
    returned: int
    scored: int
    recognisable: int
    as_seen: int = 0
    different: int | None = None
    seen_psnr: float | None = None
    own_psnr: float | None = None
    counts: Different = field(default_factory=Different)

    @property
    def shown(self) -> int:
        """Images that can be recognised at all."""
        return self.recognisable + self.as_seen


def summarise_leakage(
    run: RunFolder, without: Sequence[AttackRecord] = (), labels: AbstractSet[str] = frozenset()
) -> Leakage:
    """Count images over all attacks, each image of each observation once.

    Args:
        without: records of attacks that read nothing of the same updates: what they reach is a guess too.
        labels: names of attacks on labels alone, which say nothing about images.
    """
    named, sizes = _named(run.attacks), _sizes(run.attacks)
    ended = [one for one in run.attacks if _ended(one) and one.attack not in labels and not one.labels_alone]
    found = _rebuilt(ended)
    best = {key: [one.leaked for _, one in images if one.leaked is not None] for key, images in found.items()}
    own = {key for key, images in found.items() if any(image.recognisable for _, image in images)}
    hidden = {key for key, images in found.items() if any(image.as_seen for _, image in images)} - own
    names = _names(named) if len(named) == sum(sizes.values()) else None
    return Leakage(
        observations=len(sizes),
        pictures=sum(sizes.values()),
        returned=len(found),
        scored=sum(map(bool, best.values())),
        recognisable=len(own),
        as_seen=len(hidden),
        different=None if names is None else len(set(names.values())),
        seen_psnr=mean([max(one.psnr or 0.0 for _, one in found[key] if one.as_seen) for key in hidden]),
        own_psnr=mean([max(best[key]) for key in hidden if best[key]]),
        counts=_counts(named, found, ended, own, hidden, _rebuilt(without)),
    )


def _counts(
    named: Mapping[Key, Made],
    found: Mapping[Key, Sequence[Made]],
    ended: Sequence[AttackRecord],
    own: AbstractSet[Key],
    hidden: AbstractSet[Key],
    without: Mapping[Key, Sequence[Made]],
) -> Different:
    names = _names(named) or {key: (image.image, image.label) for key, (_, image) in named.items()}

    def different(keys: Iterable[Key]) -> set[object]:
        return {names[key] for key in keys if key in names}

    tested = different((record.observation, source) for record in ended for source in record.forms)
    listed = Counter(observation for observation, _ in named)
    sizes = _sizes(ended)
    guessed = {key for key, images in found.items() if any(image.guessed for _, image in images)}
    guessed |= {key for key, (_, image) in named.items() if image.guessed}
    guessed |= {key for key, images in without.items() if any(one.recognisable or one.as_seen for _, one in images)}
    sure = {key for key, images in found.items() if any(_vouches(record, image) for record, image in images)}
    return Different(
        images=len(tested) + sum(max(0, size - listed[observation]) for observation, size in sizes.items()),
        certified=len(different(sure)),
        recognisable=len(different(own)),
        as_seen=len(different(hidden) - different(own)),
        guessed=len(different(guessed) & tested),
        ended=sum(any(_judged(record, image) for image in record.images) for record in ended),
        guess_known=all(image.guess_psnr is not None for _, image in named.values()),
    )


def _sizes(records: Iterable[AttackRecord]) -> dict[str, int]:
    """Private images behind each update."""
    sizes: dict[str, int] = {}
    for record in records:
        sizes[record.observation] = max(sizes.get(record.observation, 0), record.batch_size)
    return sizes


def _named(records: Iterable[AttackRecord]) -> dict[Key, Made]:
    """A record of each image, one with its guess where there is one."""
    named: dict[Key, Made] = {}
    for record in records:
        for source, (image, *_) in record.forms.items():
            key = record.observation, source
            if key not in named or (named[key][1].guess_psnr is None and image.guess_psnr is not None):
                named[key] = record, image
    return named


def _rebuilt(records: Iterable[AttackRecord]) -> dict[Key, list[Made]]:
    """All that attacks which came to an end made of each image, in each form in which the model saw it."""
    found: dict[Key, list[Made]] = {}
    for record in records:
        for source, images in record.forms.items() if record.status == "done" else ():
            made = [(record, image) for image in images if image.rebuilt]
            if made:
                found.setdefault((record.observation, source), []).extend(made)
    return found


def _ended(record: AttackRecord) -> bool:
    return record.status in ("done", "refused")


def _judged(record: AttackRecord, image: ImageRecord) -> bool:
    """Whether there is an image, and something to tell by what it is worth."""
    return record.status == "done" and image.rebuilt and (record.certified or image.leaked is not None)


def _vouches(record: AttackRecord, image: ImageRecord) -> bool:
    """One image that is known to be wrong takes its whole certificate away; what was not compared proves nothing."""
    known = image.psnr is not None or not record.scored
    return record.certified and known and not record.wrongly_certified


def _names(named: Mapping[Key, tuple[AttackRecord, ImageRecord]]) -> Mapping[Key, object] | None:
    """One name for each different image; None where that cannot be told.

    Two nodes may have images of the same name. In runs of one seed the guess, which depends on the image, tells
    them apart, or else the client. Another seed has another guess: there an image is known by its own name, if that
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
