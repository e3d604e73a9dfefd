"""How many certificates were granted in a run, and how often one may be wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedsim.report.run.records import AttackRecord
from fedsim.report.wording import count, percent

CONFIDENT = 3.0
"""k without a wrong one among k: no more than 3/k of all are wrong, at 95 % (ln 0.05 is -3.0)."""


@dataclass(frozen=True)
class Certificates:
    """Results that an attack vouches for, each update under each attack by itself.

    Attributes:
        of: what they vouch for.
        granted: how many.
        checked: those that the audit could hold against the truth.
        wrong: those that it found to be wrong.
    """

    of: Literal["images", "labels"]
    granted: int
    checked: int
    wrong: int

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
        share = f"3/{self.checked:,} = {percent(CONFIDENT / self.checked)}"
        bound = f"at most {share} of such certificates are wrong (95 % confidence)"
        if self.checked <= CONFIDENT:
            bound = "too few to bound the share of wrong ones"
        return [f"{granted}, none of {self.checked:,} checked is wrong: {bound}."]


def certificates(records: Iterable[AttackRecord]) -> tuple[Certificates, Certificates]:
    """Certificates of images, and of labels where an attack returned nothing else."""
    granted = [record for record in records if record.certified]
    images = [record for record in granted if of_images(record)]
    labels = [record for record in granted if record.target in (None, "images", "labels") and not of_images(record)]
    checked = sum(any(image.psnr is not None for image in record.images) for record in images)
    return (
        Certificates("images", len(images), checked, sum(one.wrongly_certified for one in images)),
        Certificates(
            "labels",
            len(labels),
            sum(one.label_exact is not None for one in labels),
            sum(one.wrongly_certified for one in labels),
        ),
    )


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
