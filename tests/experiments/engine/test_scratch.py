"""The folder of unfinished attacks: watched while a run goes on, gone after it."""

import io
import json
import os
import time

import pytest
from rich.console import Console

from attacks.session import PROGRESS, FolderSession
from experiments.cli.progress import Bars
from experiments.engine import scratch
from experiments.engine.scratch import describe, read_progress, scratch_folder
from fedsim.storage.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def bars(output):
    return Bars(Console(file=output, width=200))


def walking(path, client=0, done=400):
    session = FolderSession(path, [f"round-00000-client-{client:05d}"], "walk", lambda: "")
    session.progress(done, 4800, {"objective": 0.1234})
    return session


def test_how_long_a_search_takes_and_how_long_an_attack_without_steps_has_taken(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("attacks.session.time.time", lambda: now[0])
    monkeypatch.setattr("attacks.session.time.monotonic", lambda: now[0])
    search = FolderSession(tmp_path, ["a"], "search", lambda: "")
    search.progress(100, 400, {})  # it goes on from an earlier call
    now[0] += 60.0
    search.progress(200, 400, {})
    FolderSession(tmp_path, ["b"], "solve", lambda: "").begin()
    now[0] += 30.0
    solving, searching = (describe([one]) for one in sorted(read_progress(tmp_path), key=lambda one: one["total"]))
    assert solving == "solve on b: at work for 30.0 s"
    assert searching == "search on a: step 200/400, about 3 min 00 s left"


def test_lines_now_and_then_say_how_long_it_will_take(bars, output, monkeypatch):
    monkeypatch.setattr("experiments.cli.progress.time.monotonic", lambda: 100.0)
    for step in range(1, 4):
        bars.set("rounds", step, 9)
        bars.say_now_and_then(f"round {step}", "rounds")
    assert output.getvalue().splitlines() == ["round 1"]


def failed_row(status="failed"):
    return {"observation": "o", "attack": "a", "status": status}


def test_progress_of_running_attacks_is_told(folder, bars, output, monkeypatch):
    monkeypatch.setattr(scratch, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(scratch, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(scratch, "SECONDS_TO_FIRST_LINE", 0.0)
    with scratch_folder(folder, bars, resumable=True) as path:
        walking(path)
        deadline = time.monotonic() + 20
        while "step 400/4800" not in output.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "walk on round-00000-client-00000: step 400/4800, objective 0.123" in output.getvalue()


def test_what_has_just_begun_is_no_line_of_a_log(folder, bars, output):
    watch = scratch.ProgressWatch(folder.root, bars)
    watch._due = 0.0
    watch._show([{"title": "solve on b", "done": 0, "total": 0, "values": {}, "since": time.time(), "first": 0}])
    assert not output.getvalue()


def test_many_running_attacks_are_counted(tmp_path):
    for client in range(4):
        walking(tmp_path, client)
    words = describe(read_progress(tmp_path))
    assert words.count("step 400/4800") == 2
    assert words.endswith("; and 2 more")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"title": "x"}', json.dumps({"title": 1, "done": None, "total": 1})])
def test_damaged_and_old_progress_is_passed_over(tmp_path, text):
    (walking(tmp_path, 1).folder / PROGRESS).write_text(text)
    os.utime(walking(tmp_path, 2).folder / PROGRESS, (1.0, 1.0))
    assert read_progress(tmp_path, since=2.0) == []


@pytest.mark.parametrize(
    ("resumable", "status", "kept"), [(True, "done", False), (True, "failed", True), (False, "failed", False)]
)
def test_after_a_run_only_what_another_call_needs_is_kept(folder, bars, resumable, status, kept):
    with scratch_folder(folder, bars, resumable) as path:
        walking(path)
        folder.append("attacks", failed_row())
        folder.append("attacks", failed_row(status))
    assert path.exists() is kept


def interrupt(folder, bars, used):
    with scratch_folder(folder, bars, resumable=True) as path:
        if used:
            walking(path)
        raise KeyboardInterrupt


@pytest.mark.parametrize("used", [True, False])
def test_an_interrupted_audit_keeps_all_and_an_empty_folder_goes(folder, bars, used):
    with pytest.raises(KeyboardInterrupt):
        interrupt(folder, bars, used)
    assert (folder.root / "scratch").exists() is used


def test_a_folder_that_cannot_be_made_costs_the_resume_alone(folder, bars, caplog):
    (folder.root / "scratch").write_text("in its place")
    with scratch_folder(folder, bars, resumable=True) as path:
        assert path is None
    assert "cannot be resumed" in caplog.text
