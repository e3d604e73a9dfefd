"""The rounds of a run."""

import weakref

import pytest

from fedsim.simulation import InlineGrid
from fedsim.wire.records import ARRAYS
from server import rounds


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian"])
def test_a_rounds_updates_are_gone_before_the_next_ones_come(strategy, command, tmp_path, monkeypatch):
    """Summed or whole: a round's memory is that of one round."""
    exchange, sent, alive = InlineGrid.send_and_receive, [], []

    def watched(grid, messages, *, timeout=None):
        alive.append(sum(record() is not None for record in sent))
        replies = exchange(grid, messages, timeout=timeout)
        sent[:] = [weakref.ref(reply.content[ARRAYS]) for reply in replies if ARRAYS in reply.content]
        return replies

    monkeypatch.setattr(InlineGrid, "send_and_receive", watched)
    monkeypatch.setattr(rounds, "CYCLES_WORTH", 1)
    settings = ("simulation=inline", "num_clients=4", "num_rounds=3", "tracker=[]", "attack=[]", "evaluate_every=3")
    few = ("data.test_fraction=0.85", "client.batch_size=16")
    code, _, error = command("fedsim", f"run_dir={tmp_path / 'run'}", f"strategy={strategy}", *settings, *few)
    assert (code, [line for line in error.splitlines() if not line.endswith("…")]) == (0, [])
    assert len(alive) >= 3
    assert set(alive) == {0}
