"""What a federation reports of its clients' (ε, δ): a mean of ε, as of other metrics, is a bound for nobody."""

import math
from collections.abc import Iterable, Mapping

EPSILON = "epsilon"
FIRST_ROUND = "epsilon_since"
"""A metric beside an ε: the server round in which its client began to count."""


def is_epsilon(metric: str) -> bool:
    """Whether a client's metric is the ε of all that it has sent so far: `dp_sgd_epsilon`."""
    return metric == EPSILON or metric.endswith(f"_{EPSILON}")


def is_first_round(metric: str) -> bool:
    return metric == FIRST_ROUND or metric.endswith(f"_{FIRST_ROUND}")


def began_anew(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Each ε that a client counts from a later round than it said before, or that fell: what it had spent is forgotten.

    Args:
        before: what the client reported last, and `now` what it reports after further training.
    """
    found = []
    for name in filter(is_epsilon, now):
        since = f"{name.removesuffix(EPSILON)}{FIRST_ROUND}"
        if name in before and (now[name] < before[name] or now.get(since) != before.get(since)):
            found.append(name)
    return found


def largest_epsilons(reports: Iterable[Mapping[str, object]]) -> dict[str, float]:
    """The largest ε of each name over the metrics of several clients, and over what was the largest before.

    Every client's ε then is at most the one reported. What is no number bounds nothing: it counts as ∞.
    """
    largest: dict[str, float] = {}
    for report in reports:
        for name, value in report.items():
            if is_epsilon(name):
                known = isinstance(value, int | float) and not math.isnan(value)
                epsilon = float(value) if known else math.inf  # type: ignore[arg-type]
                largest[name] = max(largest.get(name, epsilon), epsilon)
    return largest
