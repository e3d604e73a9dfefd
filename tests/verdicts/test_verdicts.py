"""No report can be made to lie in the ways that were thought of; the script's own checks can fail."""

import json
from dataclasses import fields
from html import escape
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.text import Text

from experiments.studies.harness.study import code_and_machine
from fedsim.metrics.records import ImageScore
from fedsim.result import AttackResult
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.results import ResultWriter
from tests.verdicts.case import Case, PlannedRun, of_run
from tests.verdicts.command import REAL, SYNTHETIC, answer, believed, to_markdown, to_page
from tests.verdicts.expectations import FORBIDDEN, level
from tests.verdicts.lines import ended, image
from tests.verdicts.pages import parse

CASES = [case for group in SYNTHETIC.values() for case in group]
DRAWINGS = (
    "draw.figures.accuracy_curve", "draw.figures.leakage_curve", "draw.figures.psnr_histogram",
    "draw.figures.labels_curve", "draw.figures.time_bars", "compare.tradeoff.privacy_utility",
    "matrix.files.privacy_utility_svg", "matrix.files.privacy_utility_png", "matrix.files.heat_map_png",
)  # fmt: skip
DRAWN = {}


@pytest.fixture(autouse=True)
def words_alone(request, monkeypatch):
    """Charts say all their words and are not painted, which takes most of the time of a page: PNGs nobody reads here.

    Cases share many of them: each is made for the first case whose page has it. Where a name is HTML, the real chart
    shows that it stays text.
    """
    case = request.node.callspec.params["case"] if hasattr(request.node, "callspec") else None
    if case is not None and "HTML" in case.name:
        return
    monkeypatch.setattr("fedsim.report.draw.svg.markup", _words)
    monkeypatch.setattr("fedsim.report.draw.svg.laid_out", _not_laid_out)
    monkeypatch.setattr("fedsim.report.matrix.figures._png", lambda figure: b"")
    for name in DRAWINGS:
        module, _, function = f"fedsim.report.{name}".rpartition(".")
        monkeypatch.setattr(f"{module}.{function}", _kept(name, getattr(import_module(module), function)))


def _kept(name, draw):
    def kept(*arguments, **settings):
        key = name, repr(arguments), repr(settings)
        if key not in DRAWN:
            DRAWN[key] = draw(*arguments, **settings)
        return DRAWN[key]

    return kept


def _not_laid_out(figure, axes, xs, ys):
    """Where the points would lie, were there no words around the axes."""
    return axes.transData.transform(np.column_stack([xs, ys])) / (figure.dpi / 72)


def _words(figure, prefix, description):
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels()  # writes them
    texts = Markup("").join(Markup("<text>{}</text>").format(text.get_text()) for text in figure.findobj(Text))
    return Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 1 1">{}</svg>').format(description, texts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_untrue_is_said(case, tmp_path):
    assert answer(case, tmp_path / "case").wrong == []


def test_every_case_has_a_name_of_its_own():
    for cases in (*SYNTHETIC.values(), REAL):
        assert len({case.name for case in cases}) == len(cases)
    assert len(CASES) >= 40


def test_lines_are_those_that_the_server_writes(tmp_path):
    folder = RunFolder(tmp_path)
    writer = ResultWriter(folder, Trackers({}, tmp_path), "m", [])
    writer.write(AttackResult("o", "rebuild", "refused", "why", batch_size=1), None)
    (written,) = map(json.loads, (tmp_path / "attacks.jsonl").read_text().splitlines())
    (ours,) = ended([30.0])
    assert sorted(ours) == sorted(written)
    theirs = {field.name for field in fields(ImageScore)} | {"original", "frames", "guess_psnr", "seen_guess_psnr"}
    theirs |= {"grey_psnr", "seen_grey_psnr", "content"}
    assert set(image(30.0, "a")) == theirs


def test_what_is_untrue_is_found(tmp_path):
    """A wrong expectation does not hold, and a promise is seen wherever it stands."""
    case = Case("wrong", "", of_run(PlannedRun(ended([160.0], certified=[0]))), (level("not tested"),))
    one = answer(case, tmp_path / "case")
    assert "level: not tested" in one.wrong
    assert "NO: level: not tested" in to_markdown([one])
    page = to_page([one])
    assert "0 of 1 cases hold" in page
    assert "NO: level: not tested" in page
    assert "| constructed | a careless page would say | though | ours says |" in page
    assert "word for word in 1 of the 1 runs that print one. Whoever" in page
    assert f" · {code_and_machine('cpu')}\n" in page
    assert FORBIDDEN.search("These clients are safe.")
    assert not FORBIDDEN.search("unsafe what there is to protect")


def test_belief_and_truth_stand_apart():
    assert believed("20 images were rebuilt: it is one") == ("20 images were rebuilt", "it is one")
    assert believed("8 images leaked, where none was attacked") == ("8 images leaked", "none was attacked")
    assert believed("the likeness was measured") == ("the likeness was measured", "")


def test_the_committed_page_holds_every_case():
    page = (Path(__file__).parents[2] / "docs" / "results" / "verdicts.md").read_text(encoding="utf-8")
    every = [*CASES, *REAL]
    assert f"{len(every)} of {len(every)} cases hold" in page
    assert [case.name for case in every if f"| {escape(case.name, quote=False)} |" not in page] == []


def test_a_page_is_read_as_a_reader_does():
    tree = parse('<p class="a b">x <b title="y">z</b><br>w</p><style>p {}</style><ul><li>1<li>2</ul><p>end')
    assert tree.text == "x y z w 1 2 end"
    assert tree.first("p", "b").classes == ["a", "b"]
    assert [item.text for item in tree.all("li")] == ["1 2", "2"]
