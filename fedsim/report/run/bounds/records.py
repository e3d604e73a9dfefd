"""What stands beside the attacks in `bounds.jsonl`, read tolerantly; and whether a theorem makes the run proven."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.bounds.robustness import PROVEN_GAMMA, PROVEN_KAPPA, blow_up
from fedsim.storage.values import items, number, numbers, whole

HEADINGS = {
    "theorem": (
        "Theorems",
        "They hold for every attacker, under what each sentence says, and say nothing of what is outside of it.",
    ),
    "reference": (
        "References",
        "What a Gaussian model of images alone would leave. Real images are none: who knows more may pass it.",
    ),
    "local fact": (
        "Local facts",
        "About these images and those close by. They prove no protection, and promise no attack.",
    ),
    "test": (
        "Tests of the mechanism",
        "Whether a private defense keeps what it claims. A test that finds nothing proves nothing.",
    ),
}
"""By kind, in the order of the page; kinds never share a table."""


@dataclass(frozen=True)
class PanelRecord:
    """One image of a strip, by the name of its file, and the words below it."""

    image: str
    caption: str


@dataclass(frozen=True)
class BoundRecord:
    """One line of `bounds.jsonl`.

    Attributes:
        status: `done`, `refused` or `failed`; the reason of the last two.
        sentence: with its assumption; `note`: what follows for whoever reads on.
        mu, releases: of the theorem that a defense may be proven by; None where it is none.
        strips: a name and its images.
    """

    bound: str
    kind: str
    status: str
    reason: str = ""
    sentence: str = ""
    note: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    strips: tuple[tuple[str, tuple[PanelRecord, ...]], ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    mu: float | None = None
    releases: int | None = None
    seconds: float | None = None

    @property
    def proves(self) -> bool:
        """Reconstruction robustness with a γ that is small enough, counted anew from μ."""
        theorem = self.status == "done" and self.kind == "theorem" and self.mu is not None and self.mu >= 0
        return theorem and self.mu is not None and blow_up(PROVEN_KAPPA, self.mu) <= PROVEN_GAMMA

    @property
    def finds_fault(self) -> bool:
        """A test that found a mechanism broken."""
        return self.status == "done" and self.kind == "test" and bool(self.values.get("broken"))


def bound_record(row: Mapping[str, Any]) -> BoundRecord | None:
    """None for a line that names no bound, or one of a kind that there is not."""
    name, kind = row.get("bound"), row.get("kind")
    if not isinstance(name, str) or kind not in HEADINGS:
        return None
    proof = row.get("proof")
    proof = proof if isinstance(proof, Mapping) else {}
    return BoundRecord(
        bound=name,
        kind=str(kind),
        status=str(row.get("status") or "failed"),
        reason=str(row.get("reason") or ""),
        sentence=str(row.get("sentence") or ""),
        note=str(row.get("note") or ""),
        header=tuple(map(str, items(row.get("header")))),
        rows=tuple(tuple(map(str, items(one))) for one in items(row.get("rows"))),
        strips=tuple(_strip(one) for one in items(row.get("strips")) if isinstance(one, Mapping)),
        values=numbers(row.get("values")),
        mu=number(proof.get("mu")),
        releases=whole(proof.get("releases")),
        seconds=number(row.get("seconds")),
    )


def proof_of(bounds: Sequence[BoundRecord]) -> BoundRecord | None:
    """The weakest theorem of those that make a run proven; None without one, and where a test found a fault."""
    if any(record.finds_fault for record in bounds):
        return None
    return weakest([record for record in bounds if record.proves])


def weakest(proofs: Sequence[BoundRecord]) -> BoundRecord | None:
    """That of the largest μ, whose numbers hold for all; None without any."""
    return max(proofs, key=lambda one: one.mu or 0.0, default=None)


def cautions(bounds: Sequence[BoundRecord], rebuilt: int, unguessed: int = 0) -> list[str]:
    """Where a theorem and what was found do not go together.

    Args:
        rebuilt: different images recognised beyond those that a guess makes so.
        unguessed: of these, those on which no baseline ended, though one was asked.
    """
    sentences = [f"{one.bound} found a fault: {one.sentence}" for one in bounds if one.finds_fault]
    if rebuilt > 0 and (proof := proof_of(bounds)) is not None:
        unknown = f" (no baseline ended on {unguessed:,} of those that came out, to tell)" if unguessed else ""
        sentences.append(
            f"A theorem says that this is improbable ({proof.bound}), so that nothing is proven: the mechanism is not "
            f"as its settings say (bound=[canaries] tests it), or the images were easy to guess before{unknown}."
        )
    return sentences


def _strip(row: Mapping[str, Any]) -> tuple[str, tuple[PanelRecord, ...]]:
    panels = [one for one in items(row.get("panels")) if isinstance(one, Mapping)]
    return str(row.get("name") or "?"), tuple(
        PanelRecord(str(one.get("image") or ""), str(one.get("caption") or "")) for one in panels
    )
