"""What a federation reports of its clients' (ε, δ): a mean of ε, as of other metrics, is a bound for nobody."""

import math
from collections.abc import Iterable, Mapping

EPSILON = "epsilon"


def is_epsilon(metric: str) -> bool:
    """Whether a client's metric is the ε of all that it has sent so far: `dp_sgd_epsilon`."""
    return metric == EPSILON or metric.endswith(f"_{EPSILON}")


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
