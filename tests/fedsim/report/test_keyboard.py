"""Every page by keyboard alone: all that can be worked or scrolled is reached, and one sees where one is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim.report.matrix.files import build_matrix_report, write_matrix
from fedsim.report.measures.figures import draw_jigsaw
from fedsim.report.measures.page import build_measures_page
from fedsim.report.render import build_comparison
from tests.browser import Page, browser, check_by_keyboard, find_browser
from tests.fedsim.report.matrix.test_files import small_matrix
from tests.fedsim.report.measures.test_page import measures
from tests.fedsim.report.measures.test_page import run as measured

CHROMIUM = find_browser()
pytestmark = [pytest.mark.subprocess, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome")]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as one:
        yield one.page()


def comparison(run: Any, folder: Path) -> Path:
    runs = [run("{}", {"a": [80.0] * 8, "b": [25.0] * 8}), run("{noise: {std: 0.1}}", {"a": [25.0] * 8, "b": "no"})]
    return build_comparison([one.path for one in runs], folder / "comparison.html")


def matrix(run: Any, folder: Path) -> Path:
    write_matrix(small_matrix(), folder)
    return build_matrix_report(folder)


def measures_page(run: Any, folder: Path) -> Path:
    made = measures(measured(), measured("a-model-with-a-long-name"))
    draw_jigsaw(made["runs"], folder / "jigsaw.png")
    made["figures"] = [{"file": "jigsaw.png", "caption": "Jigsaws", "hint": "Masked shares."}]
    (folder / "measures.json").write_text(json.dumps(made))
    return build_measures_page(folder)


@pytest.mark.parametrize("build", [comparison, matrix, measures_page])
@pytest.mark.parametrize(("pixels", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_page_by_keyboard(tab: Page, run: Any, tmp_path: Path, build: Any, pixels: int, scheme: str) -> None:
    tab.width(pixels)
    tab.prefer(prefers_color_scheme=scheme)
    tab.open(build(run, tmp_path))
    check_by_keyboard(tab)
