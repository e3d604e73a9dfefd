"""Different images, and what the attacks took of them: the counts that every level comes from. No wording.

A run's report, a comparison and a matrix count with `count_images`, so that one and the same folder has one level.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fedsim.report.level import Level, level
from fedsim.report.run.images.same import Key, Made, named, same_images
from fedsim.report.run.records import AttackRecord, ImageRecord


@dataclass(frozen=True)
class Counts:
    """An image that several updates were made of counts once, by its best result in any of them.

    Attributes:
        certified: those that an attack vouches for, and that are not known to be wrong.
        recognisable: those that can be recognised, as the client's own or as the model saw them.
        guessed: those that an answer without the update makes recognisable, by the same bar.
        images: those on which an attack ended; one that was only refused, or only failed, was not tested.
        ended: attacks that came to an end with an image to judge, each update by itself.
        as_seen: of the recognisable ones those that are it as the model saw them alone, changed by a defense.
        refused, failed: further images, on which attacks refused and none ended, and on which they only failed.
        unheld: recognisable ones for which no guess was recorded: chance cannot be told on them.
        unguessed: recognisable ones on which no baseline ended, though one was asked: what it reaches is not known.
        guess_known: a guess was recorded for each.
        updates: behind `images`, those of the same images as one; None: each is of an update of its own.
        leaking: of `updates` those with recognisable images, and no fewer than without the update.
        guessing: those of which as many or more are recognisable without the update.
        ahead, apart: those with more recognisable images than without the update, and with more or fewer.
    """

    certified: int = 0
    recognisable: int = 0
    guessed: int = 0
    images: int = 0
    ended: int = 0
    as_seen: int = 0
    refused: int = 0
    failed: int = 0
    unheld: int = 0
    guess_known: bool = True
    updates: int | None = None
    leaking: int = 0
    guessing: int = 0
    unguessed: int = 0
    ahead: int = 0
    apart: int = 0

    @property
    def own(self) -> int:
        """Those that can be recognised as the client's own."""
        return self.recognisable - self.as_seen

    @property
    def beyond_guess(self) -> int:
        """Those that can be recognised, or are certified, beyond as many as an answer without the update makes so."""
        return max(self.recognisable - self.guessed, self.certified)

    @property
    def level(self) -> Level:
        return level(self.certified, *self.tested, self.independent, self.ended, self.pairs)

    @property
    def independent(self) -> int:
        """Images, and no more of them than updates: those behind one share its noise, its mask and its search."""
        return self.images if self.updates is None else min(self.images, self.updates)

    @property
    def by_update(self) -> bool:
        """Whether updates are counted: there are fewer of them, or more images are recognisable than updates leak."""
        return self.independent < self.images or (self.updates is not None and self.leaking < self.recognisable)

    @property
    def tested(self) -> tuple[int, int]:
        """Of the `independent` those that are recognisable, and those that a guess makes so, or may make so."""
        guessed = min(self.guessed + self.unheld + self.unguessed, self.images)
        if self.by_update:  # one image behind several updates makes no more than one of those
            return min(self.leaking, self.recognisable), min(self.guessing, guessed)
        return self.recognisable, guessed

    @property
    def pairs(self) -> tuple[int, int] | None:
        """Updates that lead, and those that differ, where the sign test counts: beside updates with guesses.

        One image makes no more than one of them lead. Those that lag all count: that never makes a level claim more.
        """
        if not self.by_update or not self.tested[1]:
            return None
        ahead = min(self.ahead, self.recognisable)
        return ahead, ahead + self.apart - self.ahead


def count_images(
    records: Iterable[AttackRecord],
    without: Iterable[AttackRecord] = (),
    labels: AbstractSet[str] = frozenset(),
    unrun: bool = False,
) -> Counts:
    """Over all of these attacks.

    Args:
        records: of attacks that read what was shared.
        without: of attacks on the same updates that read nothing of them.
        labels: names of attacks on labels alone, which say nothing about images.
        unrun: a baseline was asked for that has no record.
    """
    tried, without = on_images(records, labels), on_images(without, labels)
    known = named([*tried, *without])
    names = same_images(known).names
    found = rebuilt(tried)

    def different(keys: Iterable[Key]) -> set[object]:
        return {names[key] for key in keys}

    own, seen = recognised(found)
    sure = {key for key, made in found.items() if any(_vouches(record, image) for record, image in made)}
    guessed = {key for key, made in rebuilt(without).items() if any(one.recognisable or one.as_seen for _, one in made)}
    ended = [record for record in tried if record.status == "done"]
    refused = [record for record in tried if record.status == "refused"]
    tested, beyond = _observed(ended, names)
    declined, beyond_declined = _observed(refused, names)
    every, beyond_every = _observed(tried, names)
    unheld = {key for key in own | seen if known[key][1].guess_psnr is None}
    held = guessed | unheld | _ended(without)
    unguessed = (own | seen) - held if unrun or asked(without) else set()
    which = _updates([*tried, *without], names)

    def within(keys: Iterable[Key]) -> set[tuple[Hashable, object]]:
        return {(which.get(key[0], key[0]), names[key]) for key in keys}

    unknown = within(unguessed) - within(held)  # one update of an image that a baseline ended on is enough
    shown, blind = (
        Counter(one for one, _ in pairs) for pairs in (within(own | seen), within(guessed | unheld) | unknown)
    )
    updates = {which.get(one.observation, one.observation) for one in ended}
    return Counts(
        certified=len(different(sure)),
        recognisable=len(different(own | seen)),
        guessed=len(different(guessed) & tested),
        images=len(tested) + sum(beyond.values()),
        ended=sum(any(_judged(record, image) for image in record.images) for record in ended),
        as_seen=len(different(seen) - different(own)),
        refused=len(declined - tested) + _beside(beyond_declined, beyond),
        failed=len(every - tested - declined) + _beside(beyond_every, beyond | beyond_declined),
        unheld=len(different(unheld)),
        guess_known=all(
            known[one.observation, source][1].guess_psnr is not None for one in ended for source in one.forms
        ),
        updates=len(updates),
        leaking=sum(shown[update] >= max(blind[update], 1) for update in updates),
        guessing=sum(blind[update] >= max(shown[update], 1) for update in updates),
        unguessed=len(different(unguessed) - different(held)),
        ahead=sum(shown[update] > blind[update] for update in updates),
        apart=sum(shown[update] != blind[update] for update in updates),
    )


def on_images(records: Iterable[AttackRecord], labels: AbstractSet[str]) -> list[AttackRecord]:
    """Records of attacks that are after images."""
    return [record for record in records if record.attack not in labels and not record.only_labels]


def rebuilt(records: Iterable[AttackRecord]) -> dict[Key, list[Made]]:
    """All that attacks which came to an end made of each image, in each form in which the model saw it."""
    result: dict[Key, list[Made]] = {}
    for record in records:
        for source, images in record.forms.items() if record.status == "done" else ():
            made = [(record, image) for image in images if image.rebuilt]
            if made:
                result.setdefault((record.observation, source), []).extend(made)
    return result


def recognised(found: Mapping[Key, Sequence[Made]]) -> tuple[set[Key], set[Key]]:
    """Images that can be recognised as the client's own, and the others that can be as the model saw them."""
    own = {key for key, made in found.items() if any(image.recognisable for _, image in made)}
    return own, {key for key, made in found.items() if any(image.as_seen for _, image in made)} - own


def sizes(records: Iterable[AttackRecord]) -> dict[str, int]:
    """Private images behind each update."""
    result: dict[str, int] = {}
    for record in records:
        result[record.observation] = max(result.get(record.observation, 0), record.batch_size)
    return result


def asked(without: Iterable[AttackRecord]) -> list[AttackRecord]:
    """Records of baselines on images, less those of one that only refused: it applies to none of these updates."""
    rows = [record for record in without if record.target in (None, "images")]
    names = {record.attack for record in rows if record.status != "refused"}
    return [record for record in rows if record.attack in names]


def _ended(without: Iterable[AttackRecord]) -> set[Key]:
    """Images on which a baseline ended."""
    rows = [record for record in asked(without) if record.status == "done"]
    return {(record.observation, source) for record in rows for source in record.forms}


def _updates(records: Sequence[AttackRecord], names: Mapping[Key, object]) -> dict[str, Hashable]:
    """What each update is known by: its different images, or its name where not all of them are listed.

    Updates of the same images are one draw, whoever sent them and when; those that share a part of them stay apart.
    """
    held: defaultdict[str, list[object]] = defaultdict(list)
    for (observation, _), name in names.items():
        held[observation].append(name)
    size = sizes(records)
    return {one: frozenset(found) if len(found) >= size[one] else one for one, found in held.items()}


def _observed(records: Sequence[AttackRecord], names: Mapping[Key, object]) -> tuple[set[object], dict[str, int]]:
    """The different images behind these updates, and how many more each update holds than are listed."""
    listed = Counter(observation for observation, _ in names)
    found = {names[record.observation, source] for record in records for source in record.forms}
    return found, {update: max(0, size - listed[update]) for update, size in sizes(records).items()}


def _beside(more: Mapping[str, int], counted: Mapping[str, int]) -> int:
    return sum(number for update, number in more.items() if update not in counted)


def _judged(record: AttackRecord, image: ImageRecord) -> bool:
    """Whether there is an image, and something to tell by what it is worth."""
    return image.rebuilt and (image.leaked is not None or _vouches(record, image))


def _vouches(record: AttackRecord, image: ImageRecord) -> bool:
    """One image that is known to be wrong takes its whole certificate away; what was not compared proves nothing."""
    known = image.psnr is not None or not record.scored
    return record.certified and known and not record.wrongly_certified
