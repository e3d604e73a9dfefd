"""Numbers go to every tracker; one that fails leaves the others and the run alone."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from fedsim.errors import ConfigError
from fedsim.tracking import Trackers

TENSORBOARD = {"tensorboard": {"_target_": "fedsim.tracking.TensorBoard"}}
LISTED = {"listed": {"_target_": f"{__name__}.Listed"}, "full": {"_target_": f"{__name__}.Full"}}


class Listed:
    """Has no more than a tracker must have."""

    def __init__(self, folder):
        self.seen = []

    def log(self, step, values):
        self.seen.append((step, values))

    def close(self):
        self.seen.append("closed")


class Full(Listed):
    def log(self, step, values):
        raise OSError(28, "No space left on device")


def logged(folder):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_the_numbers(tmp_path):
    trackers = Trackers(TENSORBOARD, tmp_path)
    trackers.log(1, {"accuracy": 0.5})
    trackers.close()
    assert logged(tmp_path) == {"accuracy": [(1, 0.5)]}


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path, monkeypatch):
    # Of one second and one process the files are read by their number, as text: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    killed = Trackers(TENSORBOARD, tmp_path)
    for step in (1, 2, 3):
        killed.log(step, {"accuracy": 0.25 * step})
    killed.flush()
    resumed = Trackers(TENSORBOARD, tmp_path)
    resumed.resume(2)
    for step in (2, 3):
        resumed.log(step, {"accuracy": 0.125 * step})
    resumed.close()
    killed.close()
    assert logged(tmp_path) == {"accuracy": [(1, 0.25), (2, 0.25), (3, 0.375)]}


def test_a_tracker_that_cannot_write_is_left_out(tmp_path, caplog):
    trackers = Trackers(LISTED, tmp_path)
    listed = trackers._trackers["listed"]
    for step in (1, 2):
        trackers.log(step, {"loss": 1.0})
    trackers.resume(1)
    trackers.flush()
    trackers.close()
    assert listed.seen == [(1, {"loss": 1.0}), (2, {"loss": 1.0}), "closed"]
    assert caplog.text.count("tracker.full gets nothing from here on") == 1


def test_a_tracker_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a class with log and close"):
        Trackers({"odd": {"_target_": "builtins.dict"}}, tmp_path)
