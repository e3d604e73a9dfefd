"""The soak's slope and its look at processes."""

import mmap
import os
import sys

import numpy as np
import pytest

from tests.operations.processes import Process
from tests.operations.soak.drill import MEASURES, tell
from tests.operations.soak.sampling import SHARED, role_of, still_there, take_sample
from tests.operations.soak.slope import Slope, fit_slope, second_half

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")


def test_a_line_has_its_slope_and_no_doubt():
    slope = fit_slope(range(10), [3.0 + 2.0 * step for step in range(10)])
    assert (slope.value, slope.low, slope.high) == pytest.approx((2.0, 2.0, 2.0))
    assert not slope.flat
    assert fit_slope(range(10), [5.0] * 10).flat


def test_the_interval_is_that_of_scipy_where_residuals_are_independent():
    from scipy import stats

    x = np.arange(40.0)
    y = 0.3 * x + np.where(np.arange(40) % 2 == 0, 1.0, -1.0)  # alternating: no correlation to widen it for
    found, oracle = fit_slope(x, y), stats.linregress(x, y)
    reach = stats.t.ppf(0.975, 38) * oracle.stderr
    assert found.value == pytest.approx(oracle.slope)
    assert found.high - found.value == pytest.approx(reach)


def test_nineteen_of_twenty_intervals_hold_the_slope_even_of_correlated_noise():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        noise = np.zeros(250)
        for step in range(1, 250):
            noise[step] = 0.7 * noise[step - 1] + rng.normal()
        slope = fit_slope(range(250), 0.05 * np.arange(250) + noise)
        held += slope.low <= 0.05 <= slope.high
    assert 360 <= held <= 398


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="4 points"):
        fit_slope([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="4 points"):
        fit_slope([2] * 5, range(5))


@pytest.mark.parametrize(("name", "slope", "good"), [
    ("driver's own memory, bytes", Slope(100.0, -900.0, 1_100.0), True),
    ("driver's own memory, bytes", Slope(50_000.0, 40_000.0, 60_000.0), False),
    ("driver's own memory, bytes", Slope(200_000.0, -100_000.0, 500_000.0), False),
    ("attack workers' own memory, bytes", None, False),
    ("open files", Slope(1.0, 0.99, 1.01), False),
    ("shared memory, entries", Slope(1.0, 0.99, 1.01), False),
    ("processes", Slope(1.0, 0.99, 1.01), False),
])  # fmt: skip
def test_a_soak_is_good_only_where_nothing_is_shown_to_grow(name, slope, good):
    slopes = {**dict.fromkeys(MEASURES, Slope(0.0, 0.0, 0.0)), name: slope}
    assert tell(report(), slopes, 20_000.0) == good


def test_a_role_that_was_never_seen_is_not_flat(capsys):
    slopes = dict.fromkeys(MEASURES, Slope(0.0, 0.0, 0.0))
    assert not tell(report(attacks=0), slopes, 20_000.0)
    assert "never seen: attacks" in capsys.readouterr().out


def report(**processes):
    nothing = {"processes": [], "shared memory": [], "files": [], "sockets": []}
    counts = {"driver": 1, "clients": 2, "attacks": 1, **processes}
    sample = {"roles": {role: {"processes": count} for role, count in counts.items()}}
    interrupted = {**nothing, "exit": 130, "seconds": 1.0, "said": "interrupted"}
    return {"exit": 0, "ended": nothing, "interrupted": interrupted, "samples": [sample]}


def test_the_second_half_is_what_comes_after_the_middle():
    assert second_half(list(range(7))) == [3, 4, 5, 6]
    assert second_half([]) == []


def test_processes_have_roles():
    assert role_of(Process(7, 1, "python -m experiments.run"), driver=7) == "driver"
    assert role_of(Process(8, 1, "ray::ClientWorker.run"), driver=7) == "clients"
    assert role_of(Process(8, 1, "ray::AttackWorker"), driver=7) == "attacks"
    assert role_of(Process(8, 1, "…/raylet/raylet --raylet_socket_name=…"), driver=7) == "ray"


@linux
@pytest.mark.subprocess
def test_a_sample_sees_memory_files_and_shared_memory(tmp_path):
    me, gone = Process(os.getpid(), 1, "python"), Process(2**22 + 1, 1, "ray::ClientWorker")
    before = take_sample(0, 0.0, me.pid, [me, gone])
    shared = SHARED / f"fedsim-test-{os.getpid()}"
    # New pages: malloc may give what this process has freed before.
    block = np.frombuffer(mmap.mmap(-1, 2**27, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    block[:] = 1
    with (tmp_path / "file").open("w"), shared.open("w"):
        after = take_sample(1, 1.0, me.pid, [me])
        assert still_there(after.shared) == [str(shared)]
        shared.unlink()
        assert still_there(after.shared) == []
    assert after.shared - before.shared == {str(shared)}
    mine, then = after.roles["driver"], before.roles["driver"]
    assert mine.processes == then.processes == 1
    assert before.roles["clients"].processes == 0
    assert mine.files == then.files + 2
    assert mine.own - then.own > 0.9 * block.nbytes
    assert mine.rss >= mine.own
