import pytest


@pytest.fixture
def federate():
    """`federate("key=value", …)`: a small federation that runs in this process."""
    from experiments.engine.setup import prepare
    from tests.support.federation import Federation, settings

    def make(*overrides):
        config = settings("config", *overrides)
        return Federation(config, prepare(config))

    return make


@pytest.fixture
def same_bits():
    from fedsim.wire.records import from_arrays

    def compare(left, right):
        a, b = from_arrays(left), from_arrays(right)
        return set(a) == set(b) and all(a[n].dtype == b[n].dtype and a[n].equal(b[n]) for n in a)

    return compare


@pytest.fixture
def task(monkeypatch):
    """Flower's messages are made within a task."""
    from flwr.supercore.task_identity import TaskIdentity

    for identity in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, identity, 1)
