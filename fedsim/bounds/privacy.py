"""What a federation reports of its clients' (ε, δ): a mean of ε, as of other metrics, is a bound for nobody."""

import math
import sys
from collections.abc import Iterable, Mapping

EPSILON = "epsilon"
MU, RELEASES, COPIES = "gdp_mu", "gdp_releases", "gdp_copies"
"""What Gaussian differential privacy counts beside it: μ of all that was sent, over so many releases.

μ is of an image with all its copies, of which a client holds so many at most; versions that reported no number of them
took each for an image of its own.
"""

BUDGETS = (EPSILON, MU, RELEASES, COPIES)
"""Of these metrics a federation reports the largest of its clients."""

FIRST_ROUND = "epsilon_since"
"""A metric beside an ε: the server round in which its client began to count."""


def is_budget(metric: str) -> bool:
    """Whether a client's metric counts all that it has sent so far: `dp_sgd_epsilon`, `dp_sgd_gdp_mu`, …"""
    return metric in BUDGETS or metric.endswith(tuple(f"_{one}" for one in BUDGETS))


def is_first_round(metric: str) -> bool:
    return metric == FIRST_ROUND or metric.endswith(f"_{FIRST_ROUND}")


def began_anew(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Each ε or other count that a client has from a later round than it said before, or that fell: it is forgotten.

    Args:
        before: what the client reported last, and `now` what it reports after further training.
    """
    found = []
    for name in filter(is_budget, now):
        kind = next(one for one in BUDGETS if name.endswith(one))
        since = f"{name.removesuffix(kind)}{FIRST_ROUND}"
        if name in before and (now[name] < before[name] or now.get(since) != before.get(since)):
            found.append(name)
    return found


def held_by_several(budgets: Mapping[str, float], holders: int | None) -> dict[str, float]:
    """The largest μ and number of releases for an image that several clients hold: each of them releases it.

    Args:
        holders: clients that hold one image, at most; None: nobody knows, and no μ is reported.
    """
    found = {name: value for name, value in budgets.items() if holders is not None or not name.endswith((MU, RELEASES))}
    for name in found:
        if holders is not None and name.endswith((MU, RELEASES)):
            found[name] *= math.sqrt(holders) if name.endswith(MU) else holders
    return found


def gdp(row: Mapping[str, object]) -> dict[str, tuple[float, int]]:
    """By defense, μ and its releases in a round's metrics; without those that did not count copies of an image."""
    found = {}
    for name, mu in row.items():
        defense = name.removesuffix(f"_{MU}")
        counted = [mu, row.get(f"{defense}_{RELEASES}"), row.get(f"{defense}_{COPIES}")]
        numbers = [float(one) for one in counted if isinstance(one, int | float) and math.isfinite(one)]
        if defense != name and len(numbers) == len(counted) and numbers[0] > 0 and min(numbers[1:]) >= 1:
            found[defense] = numbers[0], int(numbers[1])
    return found


def largest_budgets(reports: Iterable[Mapping[str, object]]) -> dict[str, float]:
    """The largest ε or μ of each name over the metrics of several clients, and over what it was before.

    Every client's ε then is at most the one reported. Releases and copies are those of the client whose μ it is. What
    is no number bounds nothing: it counts as ∞.
    """
    largest: dict[str, float] = {}
    for report in reports:
        spent = {name: spent_at_most(value) for name, value in report.items() if is_budget(name)}
        decides = {name: of if (of := _mu_beside(name)) in spent else name for name in spent}
        more = {of for of in decides.values() if of not in largest or spent[of] > largest[of]}
        largest |= {name: value for name, value in spent.items() if decides[name] in more}
    return largest


def _mu_beside(name: str) -> str:
    """That of the same defense, where this is a number of releases or copies."""
    return next((f"{name.removesuffix(kind)}{MU}" for kind in (RELEASES, COPIES) if name.endswith(kind)), name)


def spent_at_most(value: object) -> float:
    """A count as its client says it; ∞ where that is no number that a float can hold."""
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:  # which NaN is not
        return float(value)
    return math.inf
