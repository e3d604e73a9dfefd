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


def test_a_round_that_is_reported_can_be_gone_on_from(command, tmp_path, monkeypatch):
    seen, folder = [], tmp_path / "run"

    def show(self, server_round, rounds, metrics):
        seen.append((server_round, sorted(path.name for path in (folder / "resume").glob("round-*"))))

    monkeypatch.setattr("experiments.run.command._Run._show_round", show)
    small = ["num_clients=2", "num_rounds=2", "simulation=inline", "observe.every=0", "resume_every_seconds=0"]
    code, _, err = command("fedsim", *small, f"run_dir={folder}")
    assert code == 0, err
    assert [(number, any(f"{number}" in name for name in names)) for number, names in seen] == [
        (0, False),
        (1, True),
        (2, True),
    ]
