"""How many certificates were granted in a run, and how often one may be wrong."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedsim.report.attack_records import AttackRecord
from fedsim.report.wording import count, percent

CONFIDENT = 3.0
"""k without a wrong one among k: no more than 3/k of all are wrong, at 95 % (ln 0.05 is -3.0)."""


@dataclass(frozen=True)
class Certificates:
    """Results that an attack vouches for, each update under each attack by itself.

    Attributes:
        granted: how many.
        checked: those that the audit could hold against the truth.
        wrong: those that it found to be wrong.
    """

    granted: int
    checked: int
    wrong: int

    @property
    def sentences(self) -> list[str]:
        if not self.granted:
            return ["No result is certified: without the originals the server could not tell good from bad."]
        granted = f"{count(self.granted, 'certificate')} {'was' if self.granted == 1 else 'were'} granted"
        if self.wrong:
            wrong = f"{self.wrong:,} of {self.checked:,} checked {'is' if self.wrong == 1 else 'are'} wrong"
            return [f"{granted}, and {wrong}: a fault of the certificate, which breaks nothing by itself."]
        if not self.checked:
            return [f"{granted}; without audit nothing says whether they are right."]
        bound = f"at most 3/{self.checked:,} = {percent(min(1.0, CONFIDENT / self.checked))} of such are wrong (95 %)"
        return [f"{granted}, none of {self.checked:,} checked is wrong: {bound}."]


def certificates(records: Iterable[AttackRecord]) -> Certificates:
    """Of images, and of labels where an attack returned nothing else."""
    granted = [record for record in records if record.certified]
    return Certificates(len(granted), sum(map(_checked, granted)), sum(one.wrongly_certified for one in granted))


def _checked(record: AttackRecord) -> bool:
    if any(image.rebuilt for image in record.images):
        return any(image.psnr is not None for image in record.images)
    return record.label_exact is not None
