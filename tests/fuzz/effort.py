"""How Hypothesis searches here: the same examples in every run, as many as asked for."""

from hypothesis import HealthCheck, settings


def effort(examples):
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
