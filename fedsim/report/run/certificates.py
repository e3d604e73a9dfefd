"""How many certificates were granted in a run, and how often one may be wrong."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from fedsim.report.run.records import AttackRecord
from fedsim.report.wording import count, percent

Kind = Literal["images", "labels"]

CONFIDENT = 3.0
"""k draws without a wrong one: no more than 3/k of all are wrong, at 95 % (ln 0.05 is -3.0)."""


@dataclass(frozen=True)
class Certificates:
    """Results that an attack vouches for, each update under each attack by itself.

    Attributes:
        of: what they vouch for.
        granted: how many.
        checked: those that the audit could hold against the truth.
        wrong: those that it found to be wrong.
        updates: different ones behind those that were checked: of other images or labels. Two attacks that judge one
            update are one draw; where one calls the other they are one test. Updates of the same images are one draw
            too, whoever sent them and when.
    """

    of: Kind
    granted: int
    checked: int
    wrong: int
    updates: int

    @property
    def sentences(self) -> list[str]:
        if not self.granted:
            return []
        certificates = f"{count(self.granted, 'certificate')} of {self.of}"
        meaning = " (which classes an update holds, and how often; of no image)" if self.of == "labels" else ""
        granted = f"{certificates}{meaning} {'was' if self.granted == 1 else 'were'} granted"
        if self.wrong:
            wrong = f"{self.wrong:,} of {self.checked:,} checked {'is' if self.wrong == 1 else 'are'} wrong"
            return [f"{granted}, and {wrong}: a fault of the certificate, which breaks nothing by itself."]
        if not self.checked:
            return [f"{granted}; without the originals nothing here says whether they are right."]
        several = self.updates < self.checked
        draws = f", of {count(self.updates, 'different update')}," if several else ""
        share = f"3/{self.updates:,} = {percent(CONFIDENT / self.updates)}"
        bound = f"at most {share} of such {'updates have a wrong one' if several else 'certificates are wrong'}"
        bound = f"{bound} (95 % confidence)"
        if self.updates <= CONFIDENT:
            bound = "too few to bound the share of wrong ones"
        return [f"{granted}, none of {self.checked:,} checked{draws} is wrong: {bound}."]


def certificates(records: Iterable[AttackRecord]) -> tuple[Certificates, Certificates]:
    """Certificates of images, and of labels where an attack returned nothing else."""
    granted = [record for record in records if record.certified]
    images = [record for record in granted if of_images(record)]
    labels = [record for record in granted if record.target in (None, "images", "labels") and not of_images(record)]
    return (
        _counted("images", images, [one for one in images if any(image.psnr is not None for image in one.images)]),
        _counted("labels", labels, [one for one in labels if one.label_exact is not None]),
    )


def _counted(of: Kind, granted: list[AttackRecord], checked: list[AttackRecord]) -> Certificates:
    wrong = sum(one.wrongly_certified for one in granted)
    return Certificates(of, len(granted), len(checked), wrong, len(set(map(_held, checked))))


def _held(record: AttackRecord) -> Hashable:
    """What an update is known by: its images and labels; its name where there are no digests of all of them."""
    held = Counter((image.content, image.label) for image in record.images)
    if not held or any(content is None for content, _ in held):
        return record.seed, record.observation
    return frozenset(held.items())


def certificate_sentences(records: Iterable[AttackRecord], asked: bool) -> list[str]:
    """Sentences on certificates of images and of labels, each by themselves.

    Args:
        asked: say so where none is of images.
    """
    images, labels = certificates(records)
    none = ["No certificate of an image: without the originals the server could not tell good from bad."]
    return [*(images.sentences or (none if asked else [])), *labels.sentences]


def of_images(record: AttackRecord) -> bool:
    """Whether its certificate, if it has one, is of images; else it is of the labels alone."""
    return any(image.rebuilt for image in record.images)
