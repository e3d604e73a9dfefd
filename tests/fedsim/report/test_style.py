"""Text can be read on its ground in both themes: the contrast that WCAG 2 asks for."""

import re

import pytest

from fedsim.report.matrix.figures import FILLS
from fedsim.report.pages import filled

CSS = filled("style.css.j2")
BLOCKS = {
    "light": re.search(r":root \{\s+color-scheme: light dark;(.*?)\n\}", CSS, re.DOTALL),
    "system's dark": re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\}', CSS, re.DOTALL),
    "dark": re.search(r':root\[data-theme="dark"\] \{(.*?)\}', CSS, re.DOTALL),
}

GROUNDS = ("page", "surface")
TEXT = [(ink, ground) for ink in ("ink", "muted", "accent", "chart-ink") for ground in GROUNDS]
TEXT += [(hue, f"{hue}-bg") for hue in ("red", "amber", "blue", "grey")]
TEXT += [("ink", f"{hue}-bg") for hue in ("red", "amber", "blue", "grey")]
SIGNS = [("control", ground) for ground in GROUNDS] + [(f"series-{number}", "surface") for number in range(1, 9)]


def colours(theme: str) -> dict[str, str]:
    block = BLOCKS[theme]
    assert block is not None
    return dict(re.findall(r"--([\w-]+): (#\w{6});", block[1]))


def luminance(colour: str) -> float:
    """Relative, of an sRGB colour `#rrggbb` (WCAG 2.2)."""
    levels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", BLOCKS)
def test_text_and_signs_stand_out(theme: str) -> None:
    found = colours(theme)
    for pairs, least in ((TEXT, 4.5), (SIGNS, 3.0)):
        weak = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in pairs}
        assert {pair: value for pair, value in weak.items() if value < least} == {}


def test_a_chosen_dark_is_the_systems_dark() -> None:
    assert colours("dark") == colours("system's dark")
    assert set(colours("dark")) == set(colours("light"))


def test_text_in_a_cell_of_a_matrix_can_be_read_on_its_fill() -> None:
    weak = {level: contrast(*pair) for level, pair in FILLS.items() if contrast(*pair) < 4.5}
    assert not weak
