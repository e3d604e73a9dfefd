"""The report in a browser, by keyboard alone."""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedsim.report.render import build_report
from tests.browser import Page, browser, find_browser

CHROMIUM = find_browser()
pytestmark = [pytest.mark.subprocess, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome")]

SHOTS = os.environ.get("REPORT_SCREENSHOTS")
"""A folder for screenshots, for whoever wants to look at them."""

SHOWN = "[...document.querySelectorAll('.attack-group:not([hidden]) .gallery > .pair')]"
TOLD = "document.querySelector('[role=group] output').textContent"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def built() -> list[Path]:
    """The report that all these tests look at, once one has built it."""
    return []


@pytest.fixture
def page(chromium: Any, built: list[Path], write_run: Any, records: Any, picture: Any, strip: Any) -> Page:
    """A run of one search and one closed form with 100 pictures, on a tab."""
    if not built:
        built.append(build_report(_run(write_run, records, picture, strip)))
    tab: Page = chromium.page()
    tab.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    tab.open(built[0])
    return tab


def _run(write_run: Any, records: Any, picture: Any, strip: Any) -> Path:
    folder: Path = write_run()
    shown = {"original": picture(folder, "reconstructions/o.png"), "reconstruction": picture(folder)}
    frames = strip(folder)
    rows = [
        records.attack(k, k % 4, records.image(5.0 + k / 2, f"digits/{k}", **shown), seconds=float(9 - k % 10))
        for k in range(100)
    ]
    rows += [
        records.attack(k, 0, records.image(12.0 + k, frames=frames, **shown), attack="search", seconds=0.25)
        for k in range(2)
    ]
    rows.append(records.refusal(1, 0, "withheld", attack="april"))
    (folder / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def focus(page: Page, selector: str) -> None:
    """Tab on until an element has the focus: the keyboard must reach it."""
    for _ in range(400):
        if page.run(f"document.activeElement.matches({json.dumps(selector)})"):
            return
        page.press("Tab")
    pytest.fail(f"the keyboard does not reach {selector}")


def shoot(page: Page, name: str) -> None:
    if SHOTS is not None:
        page.screenshot(Path(SHOTS) / f"{name}.png", 1200, 2400)


def test_a_report_by_keyboard(page: Page) -> None:
    shoot(page, "light")
    background = "getComputedStyle(document.body).backgroundColor"
    page.press("Tab")
    assert page.run("document.activeElement.getAttribute('href')") == "#main"

    # Theme: automatic, light, dark; what the system prefers counts for the first alone.
    light = page.run(background)
    focus(page, ".theme")
    page.prefer(prefers_color_scheme="dark", prefers_reduced_motion="no-preference")
    dark = page.run(background)
    assert dark != light
    page.press("Enter")
    assert page.run("document.activeElement.textContent") == "Theme: light"
    assert page.run(background) == light
    page.press(" ")
    assert page.run("document.activeElement.textContent") == "Theme: dark"
    page.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    assert page.run(background) == dark
    shoot(page, "dark")
    page.press("Enter")
    assert page.run(background) == light

    # A table sorts by what its cells mean; what is not known stays last either way.
    attacks = "[...document.querySelectorAll('[aria-label=Attacks] tbody th')].map(cell => cell.textContent)"
    median = "document.querySelector('[aria-label=Attacks] thead th:last-child')"
    page.run(f"{median}.querySelector('button').focus()")
    page.press("Enter")
    assert page.run(f"{median}.ariaSort") == "ascending"
    assert page.run(attacks) == ["search", "patch_gradient", "april"]
    page.press("Enter")
    assert page.run(f"{median}.ariaSort") == "descending"
    assert page.run(attacks) == ["patch_gradient", "search", "april"]

    # Pictures: 60 in the page, the others wait outside of the document until they are asked for.
    assert page.run(f"{SHOWN}.length") == 60
    assert page.run(TOLD) == "60 shown, 102 of 102 match"
    focus(page, ".more")
    page.press("Enter")
    assert page.run(f"{SHOWN}.length") == 102
    assert page.run("document.activeElement.matches('.pair')")
    page.until("[...document.activeElement.querySelectorAll('img')].every(image => image.naturalWidth === 8)")
    page.run("document.querySelector('[role=group] select').focus()")
    focus(page, "[role=group] input")
    page.press(*"digits/9")
    assert page.run(TOLD) == "11 shown, 11 of 102 match"
    assert {name.split("/")[1][0] for name in page.run(f"{SHOWN}.map(card => card.dataset.picture)")} == {"9"}
    page.run("document.activeElement.value = ''")
    page.run("document.activeElement.dispatchEvent(new Event('input'))")

    def choose(name: str, value: str) -> None:
        page.run(
            f"{{ const select = [...document.querySelectorAll('[role=group] label')]"
            f".find(label => label.firstChild.data === {json.dumps(name + ' ')}).querySelector('select');"
            f" select.value = {json.dumps(value)}; select.dispatchEvent(new Event('change')); select.focus(); }}"
        )

    choose("Client", "3")
    choose("Sort", "worst")
    scores = page.run(f"{SHOWN}.map(card => Number(card.dataset.score))")
    assert scores == sorted(scores)
    assert len(scores) == 25
    choose("Likeness", "recognisable")
    assert all(20 <= score < 30 for score in page.run(f"{SHOWN}.map(card => Number(card.dataset.score))"))
    shoot(page, "filtered")
    for name in ("Client", "Sort", "Likeness"):
        choose(name, "")
    assert page.run(TOLD) == "60 shown, 102 of 102 match"


def test_frames_play_and_stand_still_for_who_asked(page: Page) -> None:
    focus(page, ".controls button")
    told = "document.activeElement.closest('.film').querySelector('.told').textContent"
    assert page.run("document.activeElement.getAttribute('aria-label')").startswith("▶ Play: Frames of ")
    last = page.run(told)
    assert last.startswith("result")
    page.press("Enter")
    page.until("document.activeElement.closest('.film').querySelector('.told').textContent.startsWith('step 50')")
    assert page.run("document.activeElement.closest('.pair').querySelector('canvas').hidden") is False
    page.press("Enter")
    assert page.run("document.activeElement.textContent") == "▶ Play"
    page.press("Tab", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert page.run(told).startswith("step 1 ")
    page.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    page.run("document.activeElement.closest('.film').querySelector('button').focus()")
    page.until("document.activeElement.textContent === 'Next frame'")
    page.press("Enter")
    assert page.run(told).startswith("step 50")
    page.run("new Promise(done => setTimeout(done, 900))")
    assert page.run(told).startswith("step 50")


def test_every_control_has_a_name_and_headings_have_an_order(page: Page) -> None:
    unnamed = (
        "[...document.querySelectorAll('button, input, select, [role=region], [role=group], section, [role=img]')]"
        ".filter(one => !(one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim()))"
        ".map(one => one.outerHTML.slice(0, 80))"
    )
    assert page.run(unnamed) == []
    levels = page.run("[...document.querySelectorAll('h1, h2, h3, h4')].map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_chart_unfolds_its_numbers(page: Page) -> None:
    focus(page, ".plot summary")
    numbers = "document.activeElement.closest('details').querySelector('table')"
    assert page.run(f"{numbers}.checkVisibility()") is False
    page.press("Enter")
    assert page.run(f"{numbers}.checkVisibility()") is True
    page.run("document.querySelectorAll('.plot details').forEach(one => one.open = true)")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run("document.querySelectorAll('.numbers button, .numbers input').length") == 0
    shoot(page, "numbers")


def test_a_wide_table_shows_that_it_goes_on_and_scrolls_by_keyboard(page: Page) -> None:
    region = "document.querySelector('[aria-label=Attacks]')"
    cue = f"{region}.nextElementSibling"
    width = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", width=390, **width)
    page.until(f"{region}.className.includes('more-right')")
    assert page.run(f"{cue}.textContent").startswith("More to the right")
    assert page.run(f"{cue}.checkVisibility()") is True
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    focus(page, "[aria-label=Attacks]")
    for _ in range(3):
        page.press("ArrowRight")
    page.until(f"{region}.className.includes('more-left')")
    page.run(f"{region}.scrollLeft = 1e6")
    page.until(f"!{region}.className.includes('more-right')")
    page.call("Emulation.setDeviceMetricsOverride", width=2000, **width)
    page.until(f"{cue}.hidden && !{region}.className.includes('more')")


@pytest.mark.parametrize(
    "names",
    [
        ["2026-11-25/23-00-00", "2026-11-26/9-00-00", "2026-11-26/12-30-05"],
        ["-1", "0.05", "0.1"],
        ["8", "12", "8 or 9"],
    ],
)
def test_names_that_begin_with_digits_sort_as_names(page: Page, names: list[str]) -> None:
    cells = "[...document.querySelectorAll('[aria-label=Attacks] tbody th')]"
    shuffled = json.dumps(names[2:] + names[:2])
    page.run(f"{cells}.forEach((cell, place) => {{ cell.textContent = {shuffled}[place]; }})")
    for expected in (names, names[::-1]):
        page.run("document.querySelector('[aria-label=Attacks] thead button').click()")
        assert page.run(f"{cells}.map(cell => cell.textContent)") == expected


def test_a_lone_picture_has_no_button_for_more(chromium: Any, write_run: Any, records: Any, picture: Any) -> None:
    folder: Path = write_run()
    row = records.attack(1, 0, records.image(25.0, reconstruction=picture(folder)))
    (folder / "attacks.jsonl").write_text(json.dumps(row) + "\n")
    tab: Page = chromium.page()
    tab.open(build_report(folder))
    assert tab.run("document.querySelectorAll('.gallery > .pair').length") == 1
    assert (
        tab.run(
            "[...document.querySelectorAll('button')].filter(one => one.offsetParent && !one.textContent.trim()).length"
        )
        == 0
    )
