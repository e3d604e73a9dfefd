"""Parts of a round add up to its time, and damaged lines cost nothing but themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedsim.report.render import build_report
from fedsim.report.run.read import read_run
from fedsim.report.run.timings import BARS, time_spent

Row = dict[str, Any]


def row(number: int, **values: Any) -> Row:
    laps = {"configure": 0.1, "train": 2.0, "aggregate": 0.3, "attacks": 0.2, "evaluate": 0.4}
    known = {"send": 0.15, "receive": 0.25, "clients_per_second": 5.0, "attacks_waiting": 4, "attacks_running": 1}
    since = {"seconds": 3.0, "since_start": 1.0 + 3.5 * number}
    return {"round": number, **laps, **known, **since, "memory_gib": 0.5, "worker_memory_gib": 0.25, **values}


def write(folder: Path, rows: list[Row]) -> Path:
    (folder / "timings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


START = {"round": 0, "seconds": 0.5, "since_start": 1.0, "evaluate": 0.5}


def test_parts_add_up_to_the_time_of_the_rounds_of_training(tmp_path: Path) -> None:
    spent = time_spent(read_run(write(tmp_path, [START, row(1), row(2)])))
    assert spent is not None
    totals = {part.name: pytest.approx(part.total) for part in spent.parts}
    assert totals == {
        "preparing and sending": 0.5,
        "clients at work": 3.2,
        "taking replies": 0.5,
        "aggregation": 0.6,
        "attacks in the server": 0.4,
        "server's evaluation": 0.8,
        "everything else": 1.0,
    }
    assert sum(part.total for part in spent.parts) == pytest.approx(7.0)
    assert sum(part.share for part in spent.parts) == pytest.approx(1.0)
    assert spent.sentence == "The largest part of the 7.0 s of 2 rounds, 45.7 %, went to clients at work."
    assert [sum(bar.heights) for bar in spent.bars] == [pytest.approx(3.5)] * 2
    assert dict(spent.facts) == {
        "Clients per second": "5 in the median round",
        "Attacks at a round's end": "at most 4 waiting, 1 running",
        "Most memory": "server 0.50 GiB, largest client worker 0.25 GiB",
    }


def test_a_missing_round_makes_no_rest(tmp_path: Path) -> None:
    spent = time_spent(read_run(write(tmp_path, [START, row(5)])))
    assert spent is not None
    assert "everything else" not in {part.name for part in spent.parts}
    assert sum(spent.bars[0].heights) == pytest.approx(3.0)


def test_many_rounds_share_bars(tmp_path: Path) -> None:
    spent = time_spent(read_run(write(tmp_path, [START, *(row(number) for number in range(1, 1001))])))
    assert spent is not None
    assert len(spent.bars) <= BARS
    assert (spent.bars[0].first, spent.bars[-1].last) == (1, 1000)


@pytest.mark.parametrize(
    "rows", [[], [START], [{"round": 1, "seconds": 2.0}], [{"round": 0, "seconds": 1, "train": 1}]]
)
def test_without_parts_there_is_no_section(tmp_path: Path, rows: list[Row]) -> None:
    assert time_spent(read_run(write(tmp_path, rows))) is None
    assert "Where the time went" not in build_report(tmp_path).read_text(encoding="utf-8")


def test_the_page_names_the_largest_part_and_cuts_a_bar_that_dwarfs_the_others(write_run: Any) -> None:
    slow = row(1, train=60.0, since_start=62.5)
    later = [row(number, since_start=59.0 + 3.5 * number) for number in range(2, 12)]
    folder = write(write_run(), [START, slow, *later])
    page = build_report(folder).read_text(encoding="utf-8")
    assert "Where the time went" in page
    assert "went to clients at work." in page
    assert "↑ 61.5 s" in page
    assert page == build_report(folder).read_text(encoding="utf-8")


def test_odd_values_cost_no_page(write_run: Any) -> None:
    odd: list[Row] = [
        row(1, train=1e308, send=1e308, since_start=-1e308),
        row(2, train=-5.0, receive="<b>", attacks=None, **{"<script>": 1.0}),
        row(3, clients_per_second=True, memory_gib=1e308, attacks_waiting=float("nan")),
    ]
    page = build_report(write(write_run(), odd)).read_text(encoding="utf-8")
    assert page.count("<script>") == 1  # the page's own
    assert "<b>" not in page
