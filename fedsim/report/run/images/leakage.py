"""What all attacks together took from the observed updates, image by image. No wording, no pictures."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fedsim.report.run.images.counts import Counts, count_images, on_images, rebuilt, recognised, sizes
from fedsim.report.run.images.same import named, same_images
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import mean_psnr


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
    counts: Counts = field(default_factory=Counts)

    @property
    def shown(self) -> int:
        """Images that can be recognised at all."""
        return self.recognisable + self.as_seen


def summarise_leakage(
    run: RecordedRun,
    without: Sequence[AttackRecord] = (),
    labels: AbstractSet[str] = frozenset(),
    unrun: bool = False,
) -> Leakage:
    """Count images over all attacks, each image of each observation once.

    Args:
        without: records of attacks that read nothing of the same updates: what they reach is a guess too.
        labels: names of attacks on labels alone, which say nothing about images.
        unrun: as `count_images`.
    """
    known, held = named(run.attacks), sizes(run.attacks)
    found = rebuilt(on_images(run.attacks, labels))
    best = {key: [one.leaked for _, one in images if one.leaked is not None] for key, images in found.items()}
    own, hidden = recognised(found)
    same = same_images(known)
    return Leakage(
        observations=len(held),
        pictures=sum(held.values()),
        returned=len(found),
        scored=sum(map(bool, best.values())),
        recognisable=len(own),
        as_seen=len(hidden),
        different=len(set(same.names.values())) if same.distinct and len(known) == sum(held.values()) else None,
        seen_psnr=mean_psnr([max(one.psnr or 0.0 for _, one in found[key] if one.as_seen) for key in hidden]),
        own_psnr=mean_psnr([max(best[key]) for key in hidden if best[key]]),
        counts=count_images(run.attacks, without, labels, unrun),
    )
