"""When resume points are written, and what becomes of those that cannot be."""

import errno

import pytest
from flwr.app import ArrayRecord

from fedsim.storage.sealed import SealedStates
from server.resume import points as resume
from server.resume.points import ResumePoint, ResumePoints, newest_point


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(resume, "time", clock)
    return clock


@pytest.fixture
def states(tmp_path):
    return SealedStates(tmp_path / "resume", keep=100)


def point(number):
    return ResumePoint(number, ArrayRecord(), {"0 FedAvg": {}}, {}, 1.5)


def write(points, clock, seconds, rounds, last=100):
    """A round takes as long as is said."""
    for number in rounds:
        clock.now += seconds
        points.after_round(number == last, lambda number=number: point(number))


def test_the_first_and_the_last_and_one_every_thirty_seconds(states, clock):
    write(ResumePoints(states, 30.0), clock, 10.0, range(1, 11), last=9)
    assert states.numbers() == [1, 4, 7, 9]


def test_after_each_round(states, clock):
    write(ResumePoints(states, 0.0, settle=lambda: 0), clock, 0.001, range(1, 5))
    assert states.numbers() == [1, 2, 3, 4]


def test_writing_takes_at_most_a_twentieth_of_the_time(states, clock):
    def settle():
        clock.now += 5.0
        return 0

    write(ResumePoints(states, 30.0, settle), clock, 25.0, range(1, 11))
    assert states.numbers() == [1, 5, 9]


def test_a_point_comes_back(states, clock, tmp_path):
    write(ResumePoints(states, 0.0), clock, 1.0, [1, 2])
    assert newest_point(states, pytest.fail) == point(2)
    assert newest_point(SealedStates(tmp_path / "none"), pytest.fail) is None


def test_a_point_that_cannot_be_written_is_said_once_and_the_earlier_stay(states, clock):
    full, said = {"disk": False}, []

    def settle():
        if full["disk"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 7

    points = ResumePoints(states, 0.0, settle, said.append)
    write(points, clock, 1.0, [1])
    full["disk"] = True
    write(points, clock, 1.0, [2, 3])
    full["disk"] = False
    write(points, clock, 1.0, [4])
    assert states.numbers() == [1, 4]
    found = newest_point(states, pytest.fail)
    assert found is not None
    assert found.tracked == 7
    assert said == ["no resume point, the run itself goes on: [Errno 28] No space left on device"]


def test_a_state_that_cannot_be_kept_is_said_and_the_run_goes_on(states, clock):
    said = []
    points = ResumePoints(states, 0.0, say=said.append)
    points.after_round(False, lambda: ResumePoint(1, ArrayRecord(), {"0 Odd": {"x": object()}}, {}, 1.0))
    assert states.numbers() == []
    assert said == ["no resume point, the run itself goes on: strategy/0 Odd/x is a object"]
