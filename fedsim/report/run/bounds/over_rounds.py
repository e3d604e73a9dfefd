"""Reconstruction robustness of a federated run: γ of the client that released most, round by round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.bounds.privacy import gdp
from fedsim.bounds.robustness import KAPPAS, GaussianDP, blow_up
from fedsim.bounds.robustness_wording import lasting, probability, rounded_up, theorem_sentence
from fedsim.report.run.bounds.records import BoundRecord

ROWS = 8
"""Of the table at most: the first round, the last, and others evenly between."""


@dataclass(frozen=True)
class Released:
    """By one defense, the largest of any client up to a round: μ, and over how many releases."""

    defense: str
    mu: float
    releases: int


def released(row: Mapping[str, Any]) -> Released | None:
    """By the strongest defense in a line of `metrics.jsonl`; None where none proves anything."""
    found = [Released(defense, mu, releases) for defense, (mu, releases) in gdp(row).items()]
    return min(found, key=lambda one: one.mu, default=None)


def over_rounds(rounds: Sequence[tuple[int, Released | None]]) -> list[BoundRecord]:
    """One theorem of the whole run, with γ after each of some rounds; none where the last round has none."""
    known = [(number, one) for number, one in rounds if one is not None]
    if not known or rounds[-1][1] is None:
        return []
    last = known[-1][1]
    because = (
        f"{last.defense} clips what it adds noise to; of all clients the one that released most, equal images counted "
        "as one"
    )
    proven = GaussianDP(last.mu, last.releases, "image", 0.0, because)
    rows = [
        (
            str(number),
            f"{one.releases:,}",
            f"{rounded_up(one.mu):.3g}",
            *(probability(blow_up(kappa, one.mu)) for kappa in KAPPAS),
        )
        for number, one in _some(known)
    ]
    header = ("round", "releases", "μ", *(f"γ at κ = {kappa:g}" for kappa in KAPPAS))
    return [
        BoundRecord(
            "reconstruction_robustness",
            "theorem",
            "done",
            sentence=theorem_sentence(proven),
            note=lasting(proven),
            header=header,
            rows=tuple(rows),
            mu=last.mu,
            releases=last.releases,
        )
    ]


def _some(known: Sequence[tuple[int, Released]]) -> list[tuple[int, Released]]:
    if len(known) <= ROWS:
        return list(known)
    return [known[round(place * (len(known) - 1) / (ROWS - 1))] for place in range(ROWS)]
