"""Which reconstructions the page shows at once, which it holds back as thumbnails, and which it leaves out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.report.draw.pictures import EmbeddedImage, embed_image, embed_strip, embed_thumbnail
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord, ImageRecord
from fedsim.report.wording import graded, likeness

PAIRS_SHOWN = 60
THUMBNAILS_HELD = 2000
FILMS_SHOWN = 24


@dataclass(frozen=True)
class Film:
    """Frames of a search side by side, and what to say about each; the last caption is the result's."""

    strip: EmbeddedImage
    steps: tuple[int, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """One picture and what an attack made of it."""

    record: AttackRecord
    image: ImageRecord
    original: EmbeddedImage | None
    reconstruction: EmbeddedImage
    film: Film | None = None

    @property
    def likeness(self) -> str:
        """Likeness to the client's own picture, or that it is what the model saw."""
        return "as the model saw it" if self.image.as_seen else likeness(self.image.leaked, self.image.blind_psnr)

    @property
    def looks(self) -> str:
        """The class that styles it: of what it is like, the client's own or what the model saw of it."""
        seen = self.image.as_seen
        psnr, guess = (self.image.psnr, None) if seen else (self.image.leaked, self.image.blind_psnr)
        return likeness(psnr, guess).replace(" ", "-")


@dataclass(frozen=True)
class Gallery:
    """The chosen pairs, best first.

    Attributes:
        pairs: shown at once.
        held: shown when asked for, as thumbnails.
        left_out: how many rebuilt pictures are in neither.
    """

    pairs: tuple[Pair, ...]
    held: tuple[Pair, ...]
    left_out: int


Found = list[tuple[AttackRecord, ImageRecord]]
Embed = Callable[[Path, str | None], EmbeddedImage | None]


def build_gallery(run: RecordedRun, limit: int = PAIRS_SHOWN, held: int = THUMBNAILS_HELD) -> Gallery:
    """Choose pairs: every attack gets its share; in it the best, the worst, and the rest spread over the rounds.

    Only reconstructions whose file lies in the run folder are counted and shown.
    """
    by_attack: dict[str, Found] = {}
    for record in run.attacks:
        for image in record.images:
            if image.reconstruction is not None:
                by_attack.setdefault(record.attack, []).append((record, image))
    total = sum(map(len, by_attack.values()))
    shown = _share_out(by_attack, limit)
    taken = {id(image) for found in shown.values() for _, image in found}
    rest = {name: [one for one in found if id(one[1]) not in taken] for name, found in by_attack.items()}
    pairs = _pairs(run, shown, embed_image)
    thumbnails = _pairs(run, _share_out(rest, held), embed_thumbnail)
    return Gallery(tuple(_with_films(run, pairs)), tuple(thumbnails), total - len(pairs) - len(thumbnails))


def _share_out(by_attack: dict[str, Found], limit: int) -> dict[str, Found]:
    quotas = _quotas({attack: len(found) for attack, found in by_attack.items()}, limit)
    return {attack: _choose(found, quotas[attack]) for attack, found in by_attack.items()}


def _pairs(run: RecordedRun, chosen: dict[str, Found], embed: Embed) -> list[Pair]:
    pairs = []
    for record, image in (one for found in chosen.values() for one in found):
        reconstruction = embed(run.path, image.reconstruction)
        if reconstruction is not None:
            pairs.append(Pair(record, image, embed(run.path, image.original), reconstruction))
    return pairs


def _with_films(run: RecordedRun, pairs: list[Pair]) -> list[Pair]:
    """Films for the best of each attack: they are what makes a page large."""
    moving: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        if pair.image.frames is not None:
            moving.setdefault(pair.record.attack, []).append(index)
    for attack, quota in _quotas({attack: len(found) for attack, found in moving.items()}, FILMS_SHOWN).items():
        for index in moving[attack][:quota]:
            pairs[index] = replace(pairs[index], film=_film(run, pairs[index].image))
    return pairs


def _film(run: RecordedRun, image: ImageRecord) -> Film | None:
    frames = image.frames
    assert frames is not None
    strip = embed_strip(run.path, frames.strip, len(frames.strip_steps))
    if strip is None:
        return None
    scores = dict(frames.curve)
    captions = [
        f"step {step:,}" + (f" · {graded(scores[step])}" if step in scores else "") for step in frames.strip_steps
    ]
    result = "result" + ("" if image.psnr is None else f" · {graded(image.psnr)}")
    return Film(strip, frames.strip_steps, (*captions, result))


def _quotas(available: dict[str, int], limit: int) -> dict[str, int]:
    """Share `limit` out evenly; what one attack cannot fill goes to those after it in size."""
    quotas, left = {}, limit
    for position, (attack, number) in enumerate(sorted(available.items(), key=lambda item: item[1])):
        quotas[attack] = min(number, left // (len(available) - position))
        left -= quotas[attack]
    return {attack: quotas[attack] for attack in available}


def _choose(found: Sequence[tuple[AttackRecord, ImageRecord]], quota: int) -> Found:
    """Best and worst first, then evenly spaced ones of the rest in the order of their rounds."""
    if quota <= 0:
        return []
    scored = [index for index, (_, image) in enumerate(found) if image.leaked is not None]
    scored.sort(key=lambda index: found[index][1].leaked or 0.0)
    chosen = list(dict.fromkeys([scored[-1], scored[0]] if scored else []))[:quota]
    rest = [index for index in range(len(found)) if index not in chosen]
    rest.sort(key=lambda index: (found[index][0].number or 0, index))
    room = quota - len(chosen)
    chosen += [rest[position * len(rest) // room] for position in range(room)]
    chosen.sort(key=lambda index: -(found[index][1].leaked or 0.0))
    return [found[index] for index in chosen]
