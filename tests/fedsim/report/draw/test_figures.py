"""What a chart shows stands below it as a table, and its bars differ by more than their colour."""

import re
from itertools import pairwise
from typing import Any

import pytest

from fedsim.report.compare.tradeoff import Trade, privacy_utility
from fedsim.report.draw import figures, svg
from fedsim.report.draw.chart_data import ROWS_SHOWN, Series
from fedsim.report.draw.figures import HATCHES
from fedsim.report.draw.svg import SERIES
from fedsim.report.matrix.figures import Point, privacy_utility_svg


def test_a_curve_as_a_table() -> None:
    lines = [Series("a", [(1.0, 300.0), (3.0, 12.25), (4.0, 29.98)]), Series("b", [(2.0, 20.0)])]
    chart = figures.leakage_curve(lines)
    assert chart is not None
    assert chart.data.columns == ("Round", "a", "b")
    assert chart.data.rows == (("1", "exact", "–"), ("2", "–", "20.0 dB"), ("3", "12.2 dB", "–"), ("4", "29.9 dB", "–"))
    accuracy = figures.accuracy_curve([Series("accuracy", [(0.0, 0.1), (5.0, 0.755)])])
    assert accuracy is not None
    assert accuracy.data.rows == (("0", "10.0 %"), ("5", "75.5 %"))


def test_long_tables_are_thinned_out_evenly() -> None:
    chart = figures.accuracy_curve([Series("accuracy", [(float(number), number / 1000) for number in range(1001)])])
    assert chart is not None
    shown = [int(row[0].replace(",", "")) for row in chart.data.rows]
    assert (len(shown), chart.data.of, shown[0], shown[-1]) == (ROWS_SHOWN, 1001, 0, 1000)
    assert {after - before for before, after in pairwise(shown)} <= {25, 26}


def test_a_search_as_a_table() -> None:
    objective, psnr = [(1.0, 0.5), (10000.0, 1e-7)], [(1.0, 9.0), (50.0, 19.98)]
    chart = figures.search_curve("dlg", "objective", [Series("update 0", objective)], [Series("update 0", psnr)])
    assert chart is not None
    assert chart.data.columns == ("Step", "objective, update 0", "PSNR, update 0")
    assert chart.data.rows == (("1", "0.5", "9.0 dB"), ("50", "–", "19.9 dB"), ("10,000", "1e-07", "–"))


def test_an_axis_says_where_what_is_above_its_end_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    whole = svg.markup
    monkeypatch.setattr(
        svg, "markup", lambda figure, *more: labels.append(figure.axes[-1].get_ylabel()) or whole(figure, *more)
    )
    for top in (120.0, 300.0):
        lines = [Series("a", [(1.0, 20.0), (2.0, top)])]
        figures.leakage_curve(lines)
        figures.search_curve("dlg", "loss", lines, lines)
    assert labels == ["Mean PSNR (dB)"] * 2 + ["Mean PSNR (dB),\n120 and more as that"] * 2


def test_a_histogram_as_a_table() -> None:
    chart = figures.psnr_histogram(["a", "b"], [[9.0, 9.5, 30.0], [300.0, 121.0]])
    assert chart is not None
    assert chart.data.columns == ("PSNR", "a", "b")
    assert chart.data.rows == (("8 to 12 dB", "2", "0"), ("28 to 32 dB", "1", "0"), ("120 dB and above", "0", "2"))


def test_times_as_a_table() -> None:
    chart = figures.time_bars(["work", "rest"], [(1, 1, [1.5, 0.5]), (2, 3, [60.0, 90.0])])
    assert chart is not None
    assert chart.data.columns == ("Round", "work", "rest", "together")
    assert chart.data.rows == (("1", "1.5 s", "500 ms", "2.0 s"), ("2 to 3", "60.0 s", "90.0 s", "2 min 30 s"))


@pytest.mark.parametrize(("share", "told"), [(True, "100 %"), (False, "1.0 dB")])
def test_the_trade_off_as_a_table(share: bool, told: str) -> None:
    trades = [Trade("none", "dlg", "0", 0.8, 0.04, 1.0, 1, 4), Trade("mjp", "dlg", "1", 0.5, None, 0.0, 4, 4)]
    chart = privacy_utility(trades, ["none", "mjp"], share=share)
    assert chart is not None
    assert chart.data.columns[:4] == ("Defense", "Attack", "Run", "Test accuracy")
    assert chart.data.columns[-1] == "Images returned"
    assert chart.data.rows[0] == ("none", "dlg", "0", "80.0 % ± 4.0", told, "1 of 4")
    assert len(chart.data.rows) == 2


def test_the_front_as_a_table() -> None:
    points = [Point("none", 0.9, 0.01, 60.0, False, False), Point("noise", 0.8, None, 15.0, True)]
    chart = privacy_utility_svg(points, 10.0, "front")
    assert chart.data.columns == ("Defense", "Test accuracy ± standard error", "Leakage in dB", "Pareto front")
    assert chart.data.rows == (("none", "90.0 % ± 1.0", "≥ 60", "–"), ("noise", "80.0 %", "15.0", "on it"))


def test_accuracy_goes_to_the_right_on_an_axis_that_chance_does_not_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """23.5 % and 26.5 % of four test images say as much as each other."""
    drawn = []
    whole = svg.markup
    monkeypatch.setattr(svg, "markup", lambda figure, *more: drawn.append(figure.axes[0]) or whole(figure, *more))
    for error, span in ((0.18, (0.0, 62.5)), (None, (0.0, 100.0)), (0.001, (23.3, 26.7))):
        trades = [Trade("none", "a", "r", one, error, 0.5, 1, 2) for one in (0.235, 0.265)]
        assert privacy_utility(trades, ["none"], share=True) is not None
        assert drawn[-1].get_xlim() == pytest.approx(span)
        assert drawn[-1].get_ylim() == (0.0, 100.0)
        points = [Point(one.run, one.accuracy, error, 40.0, False) for one in trades]
        privacy_utility_svg(points, None, "front")
        low, high = drawn[-1].get_xlim()
        assert 0.0 <= low <= span[0] < span[1] <= high <= 100.0
        assert all("accuracy" in axes.get_xlabel() for axes in drawn)
    figures.accuracy_curve([Series("accuracy", [(0.0, 0.0), (1.0, 1.0)])])
    assert drawn[-1].get_ylim() == (0.0, 100.0)


def test_a_line_under_others_is_drawn_thicker() -> None:
    flat, near, apart = [(1.0, 50.0), (2.0, 50.0)], [(1.0, 50.5), (2.0, 50.0), (3.0, 90.0)], [(1.0, 10.0), (2.0, 50.0)]
    assert figures.hidden([flat, near, flat, apart, []]) == [2, 0, 0, 0, 0]
    chart = figures.leakage_curve([Series("a", flat), Series("b", flat)])
    assert chart is not None
    widths = re.findall(r"stroke: var\(--series-\d\); stroke-width: ([\d.]+)", str(chart.svg))
    assert float(widths[0]) > 2 * float(widths[1])


def bars(kind: str) -> Any:
    names = [f"part {number}" for number in range(len(SERIES))]
    if kind == "time":
        return figures.time_bars(names, [(1, 1, [1.0] * len(names)), (2, 2, [2.0] * len(names))])
    return figures.psnr_histogram(names, [[10.0 + number] for number in range(len(names))])


@pytest.mark.parametrize("kind", ["time", "histogram"])
def test_bars_differ_by_their_hatches_in_either_theme(kind: str) -> None:
    svg = str(bars(kind).svg)
    assert len(set(HATCHES)) == len(HATCHES) == len(SERIES)
    patterns = dict(re.findall(r'<pattern id="([^"]+)"(.*?)</pattern>', svg, re.DOTALL))
    assert len(patterns) == len(SERIES) - 1  # the first is plain
    assert len({re.sub(r"series-\d", "", pattern) for pattern in patterns.values()}) == len(patterns)
    for name, pattern in patterns.items():
        assert name.startswith(f"{kind}-")
        assert svg.count(f"url(#{name})") >= 2  # a bar, and its mark in the legend
        assert set(re.findall(r"var\((--[a-z]+)", pattern)) == {"--series", "--surface"}
    assert not re.search(r"#0[1-5]0[1-5]0[1-8]", svg)
