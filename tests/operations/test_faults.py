"""The fault table's own parts, and one cheap row of it."""

import csv
import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.operations.faults import drill as faults
from tests.operations.faults.clients import AT_CLIENT, AT_ROUND, client_shares_nan
from tests.operations.faults.disk import not_kept, reach
from tests.operations.faults.resources import STORE, allocations, ray_logs, store_too_small, told
from tests.operations.processes import ProcessTree, wait_until
from tests.operations.runs import CLIENTS, Bench, Run, differences, doubled
from tests.operations.table import COLUMNS, Finding, Row, to_csv, to_markdown

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
SLEEPS = (sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])")


def row(*wrong):
    return Row("nan", "a | in it", "two\nlines", Finding(["it went on"], list(wrong)), 12.6)


def test_a_row_is_ok_where_nothing_is_wrong():
    assert row().ok
    assert not row("bits differ").ok
    assert row("bits differ").cells[-3:] == ("it went on; WRONG: bits differ", "13", "not ok")


def test_a_finding_says_what_was_found():
    finding = Finding()
    finding.say("killed")
    finding.check(True, "same bits", "other bits")
    finding.check(True, "", "a moment came too late")
    finding.check(False, "nothing left", "two processes left")
    assert finding == Finding(["killed", "same bits"], ["two processes left"])


def test_markdown_keeps_a_row_on_its_line_and_a_pipe_in_its_cell():
    lines = to_markdown([row(), row("x")]).splitlines()
    assert lines[0] == "| fault | injected | expected | happened | seconds | ok |"
    assert lines[2] == "| nan | a \\| in it | two lines | it went on | 13 | ok |"
    assert len(lines) == 4


def test_csv_gives_back_what_went_in():
    read = list(csv.reader(io.StringIO(to_csv([row()]), newline="")))
    assert read == [list(COLUMNS), list(row().cells)]


@pytest.fixture
def written(tmp_path):
    """`written(name, attacks=…, metrics=…)`: the folder of a finished run."""

    def call(name, attacks=(("o", "a", 1),), metrics="{}\n"):
        folder = tmp_path / name
        for part in ("checkpoints", "reconstructions"):
            (folder / part).mkdir(parents=True)
            (folder / part / "file").write_text(part)
        (folder / "summary.json").write_text('{"finished": true}')
        (folder / "metrics.jsonl").write_text(metrics)
        line = '{{"observation": "{}", "attack": "{}", "value": {}, "seconds": {}, "attempts": 1}}\n'
        (folder / "attacks.jsonl").write_text("".join(line.format(*one, len(name)) for one in attacks))
        return folder

    return call


def test_a_run_that_differs_is_told_by_what_differs(written):
    whole = written("whole")
    assert differences(written("again"), whole) == []
    assert differences(written("bits", metrics="{} \n"), whole) == ["metrics.jsonl has other bytes"]
    (lost,) = differences(written("lost", attacks=()), whole)
    assert lost == "results of attacks lost: 1, o a first"
    (others,) = differences(written("others", attacks=[("o", "a", 2)]), whole)
    assert others.startswith("results of attacks others")
    twice = written("twice", attacks=[("o", "a", 1)] * 2)
    assert doubled(twice) == [("o", "a")]
    assert differences(twice, whole) == ["results of attacks doubled: 1, o a first"]
    (more,) = differences(written("more", attacks=[("o", "a", 1), ("o", "b", 1)]), whole)
    assert more.startswith("results of attacks too many")
    picture = written("picture")
    (picture / "reconstructions" / "file").write_text("other")
    (picture / "resume").mkdir()
    assert differences(picture, whole) == [
        "reconstructions: 1 files differ, file first",
        "resume points are left over",
    ]


@pytest.mark.parametrize(("error", "ok"), [
    ("client 1: layer has values that are not finite", True),
    ("TypeError: Update() got an unexpected keyword argument", False),
])  # fmt: skip
def test_a_client_that_failed_for_another_reason_has_shared_no_nan(written, error, ok):
    def metrics(failed):
        failures = {AT_ROUND: [{"client": AT_CLIENT, "error": error}]} if failed else {}
        taking_part = [
            {"round": n, "loss": 1.0, "clients": CLIENTS - len(failures.get(n, ())), "failures": failures.get(n, [])}
            for n in range(AT_ROUND + 1)
        ]
        return "".join(f"{json.dumps(line)}\n" for line in taking_part)

    reference, failed = written("whole", metrics=metrics(False)), written("failed", metrics=metrics(True))
    result = {"observation": "o", "attack": "labels", "round": AT_ROUND, "client": AT_CLIENT}
    (reference / "attacks.jsonl").write_text(json.dumps({**result, "images": [{"image": "p"}]}) + "\n")
    (failed / "attacks.jsonl").write_text("")
    run = Run(None, failed, failed / "log")
    bench = SimpleNamespace(reference=lambda: reference, small=lambda *settings: settings, finished=lambda _: run)
    found = faults.observe("nan", faults.Fault("a", "b", client_shares_nan), bench)
    assert found.ok == ok, found.cells


@pytest.mark.parametrize(("code", "words", "right"), [
    (600, "ERROR: Unable to bind to address 127.0.0.1:20123", True),
    (1, "[Errno 98] Address already in use: ('127.0.0.1', 20123)", True),
    (1, "Port in server address 127.0.0.1:20123 is already in use.", True),
    (2, "usage: flower-superlink [--port 20123]\nerror: unrecognized arguments: --host", False),
    (1, "because the user may not\n20123", False),
    (1, "Unable to bind to address 127.0.0.1:201234", False),
    (None, "Unable to bind to address 127.0.0.1:20123", False),
])  # fmt: skip
def test_a_taken_port_is_told_by_a_line_that_names_it(code, words, right):
    assert told("SuperLink", 20123, code, words)[0] == right


def test_a_result_that_was_made_again_after_a_kill_is_not_kept(written):
    kept = [{"observation": "o", "attack": "a", "value": 1, "seconds": 5, "attempts": 1}]
    assert not_kept(kept, written("whole")) == []
    assert not_kept(kept, written("again, in more seconds")) == [("o", "a")]
    assert not_kept(kept, written("lost", attacks=())) == [("o", "a")]


@linux
@pytest.mark.subprocess
def test_a_moment_of_a_resumed_run_comes_after_it_goes_on(written, tmp_path):
    folder, log = written("resumed", metrics='{"round": 0}\n{"round": 1}\n'), tmp_path / "log"
    says = "import time; time.sleep(0.5); print('goes on after round 1', flush=True); time.sleep(600)"
    with ProcessTree(tmp_path) as tree:
        run = Run(tree.start(sys.executable, "-c", says, log=log), folder, log)
        assert reach(run, 1.0, resumed=False)
        assert run.said == ""
        assert reach(run, 1.0, resumed=True)
        assert "goes on" in run.said
        run.process.kill()
        assert not reach(run, 2.0, resumed=True)


LOG = "(raylet) dlmalloc.cc:153: create_and_mmap_buffer({}, /dev/shm/plasmaXXXXXX)\n"
BESIDE = "(raylet) dlmalloc.cc:153: create_and_mmap_buffer({}, /tmp/fs-x/ray/session_2026/plasmaXXXXXX)\n"


@pytest.mark.parametrize(("log", "ok"), [
    (LOG.format(STORE + 8) + BESIDE.format(92_278_792), True),
    (LOG.format(2_889_875_464), False),
    (LOG.format(2_889_875_464) + BESIDE.format(92_278_792), False),
    (LOG.format(STORE + 8), False),
    ("", False),
])  # fmt: skip
def test_a_store_that_was_large_enough_is_no_fault(written, tmp_path, log, ok):
    folder = written("run")
    earlier = tmp_path / "ray" / "session_1" / "logs" / "raylet.out"
    earlier.parent.mkdir(parents=True)
    earlier.write_text(LOG.format(2_889_875_464))

    def wait():
        session = tmp_path / "ray" / "session_2"
        (session / "logs").mkdir(parents=True)
        (session / "logs" / "raylet.out").write_text(log)
        (tmp_path / "ray" / "session_latest").symlink_to(session)
        return 0

    run = SimpleNamespace(folder=folder, wait=wait)
    bench = SimpleNamespace(
        scratch=tmp_path,
        workers=1,
        start=lambda *settings, environment=None: run,
        finished=lambda one: one,
        tree=SimpleNamespace(left_after=lambda seconds: []),
    )
    found = faults.observe("object-store", faults.Fault("a", "b", store_too_small), bench)
    assert found.ok == ok, found.cells
    assert len(list(ray_logs(tmp_path))) == 2
    assert allocations([log])[1] == ([92_278_792] if "/tmp" in log else [])


@linux
@pytest.mark.subprocess
def test_what_a_process_starts_is_found_and_ended_even_without_it(tmp_path):
    with ProcessTree(tmp_path) as tree, ProcessTree(tmp_path) as other:
        other.start("sleep", "600", log=tmp_path / "log")
        first = tree.start(*SLEEPS, log=tmp_path / "log")
        # Between its birth and its own command a child still has its parent's title.
        wait_until(
            lambda: [one.title for one in tree.members()].count("sleep 600") == 1, 60.0, "a process and its child"
        )
        (child,) = [one for one in tree.members("sleep 600") if one.pid != first.pid]
        assert child.parent == first.pid
        first.kill()
        first.wait()
        assert [one.pid for one in tree.left_after(0.0)] == [child.pid]
        tree.end_all()
        assert tree.members() == []
        assert len(other.members()) == 1
    assert other.members() == []


def test_a_fault_that_cannot_be_injected_is_a_row_that_is_not_ok(capsys):
    def inject(bench, finding):
        raise TimeoutError("no worker: not within 5 s")

    found = faults.observe("x", faults.Fault("a", "b", inject), None)
    assert found.finding.wrong == ["TimeoutError: no worker: not within 5 s"]
    assert "Traceback" in capsys.readouterr().err


@linux
@pytest.mark.subprocess
def test_a_superlink_on_a_taken_port_is_as_expected(tmp_path):
    with ProcessTree(tmp_path) as tree:
        bench = Bench(tree, tmp_path, 1, print)
        found = faults.observe("superlink-port", faults.FAULTS["superlink-port"], bench)
        assert tree.members() == []
    assert found.ok, found.cells
