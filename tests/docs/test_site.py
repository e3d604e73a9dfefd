"""The site builds without a warning, loads nothing from elsewhere, and has a page for each attack and defense."""

import csv
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import fedsim
from fedsim import __version__
from tests.browser import browser, check_by_keyboard, find_browser
from tests.docs.blocks import ROOT

GROUPS = {"attacks": "attack", "defenses": "defense"}
LARGEST, ALL = 60_000, 2_000_000
"""Bytes of a picture made by docs/make_pictures.py, and of all pictures."""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)  # pytest-timeout guards it
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(find_browser(), tmp_path_factory.mktemp("profile")) as one:
        yield one.page()


def names(folder: str, suffix: str, below: str) -> set[str]:
    return {path.stem for path in (ROOT / below / folder).glob(f"*{suffix}")}


@pytest.mark.parametrize("folder", GROUPS)
def test_every_option_has_its_page_and_every_page_its_option(folder):
    assert names(folder, ".md", "docs") - {"index"} == names(GROUPS[folder], ".yaml", "conf")


@pytest.mark.parametrize("folder", GROUPS)
def test_every_page_lists_every_setting_of_its_option(folder, site):
    for name in names(GROUPS[folder], ".yaml", "conf"):
        page = (site / folder / f"{name}.html").read_text(encoding="utf-8")
        settings = yaml.safe_load((ROOT / "conf" / GROUPS[folder] / f"{name}.yaml").read_text(encoding="utf-8"))[name]
        known = settings.pop("knows", [])
        assert bool(known) == (folder == "attacks"), name
        for key in leaves(settings):
            assert f"<code>{key}</code>" in page, f"{name}: {key}"
        assert all(html.escape(words, quote=False) in page for words in known), name


@pytest.mark.parametrize("folder", GROUPS)
def test_every_page_says_how_to_run_its_option(folder, site):
    for name in names(GROUPS[folder], ".yaml", "conf"):
        text = (ROOT / "docs" / folder / f"{name}.md").read_text(encoding="utf-8")
        assert re.search(rf"```bash\n.*{GROUPS[folder]}=\[(\w+,)*{name}[,\]]", text), name
        assert f'href="{name}.html"' in (site / folder / "index.html").read_text(encoding="utf-8")


def test_pages_show_what_the_matrix_measured(site):
    cells = {}
    for name in ("matrix.csv", "matrix_second_order.csv"):
        with (ROOT / "docs" / "results" / name).open(newline="", encoding="utf-8") as file:
            cells |= {(line["defense"], line["attack"]): line for line in csv.DictReader(file)}
    lines = list(cells.values())
    assert {line["status"] for line in lines} <= {"done", "refused"}
    for line in lines:
        page = (site / "attacks" / f"{line['attack']}.html").read_text(encoding="utf-8")
        assert "In the matrix" in page
        if line["leakage"] and float(line["leakage"]) < 60:
            count = "" if line["batch"] == "1" else f" ({line['batch']} images in an update)"
            shown = f"{float(line['leakage']):.1f}"
            assert any(f"{line['defense']}{end}{count} {shown}" in page for end in ("", "</a>")), line
    for defense, row in (("fixed_pe", "sincos_pe"), ("gradient_noise", "noise_1e-2"), ("topk", "topk")):
        page = (site / "defenses" / f"{defense}.html").read_text(encoding="utf-8")
        accuracy = next(line["accuracy"] for line in lines if line["defense"] == row)
        assert f"{100 * float(accuracy):.1f} %" in page
    for defense, beside in (("mixup", "none_batch_2"), ("secure_aggregation", "none_batch_8"), ("topk", "none")):
        page = (site / "defenses" / f"{defense}.html").read_text(encoding="utf-8")
        headings = re.findall(r"<th>([\w-]+)", page[page.index("In the matrix") :])
        assert headings[:2] == [beside, defense]
    page = (site / "defenses" / "topk.html").read_text(encoding="utf-8")
    row = page[page.index("gauss_newton", page.rindex("In the matrix")) :].partition("</tr>")[0]
    assert float(cells["topk", "gauss_newton"]["leakage"]) >= 60
    assert re.findall(r"<td>([^<]+)</td>", row) == ["≥ 60", "≥ 60"], row
    assert "In the matrix" not in (site / "attacks" / "tag.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["config", "audit", "matrix", "prior", "measure"])
def test_the_options_page_lists_every_setting_of_a_command(command, site):
    page = (site / "options.html").read_text(encoding="utf-8")
    settings = yaml.safe_load((ROOT / "conf" / f"{command}.yaml").read_text(encoding="utf-8"))
    own = {key: value for key, value in settings.items() if key not in ("defaults", "hydra") and value != {}}
    for key in leaves(own):
        if not key.startswith(("matrix.defenses.", "matrix.attacks.")):
            assert f"<code>{key}</code>" in page, key


@pytest.mark.parametrize("group", ["bound", "data", "model", "partition", "simulation", "strategy", "tracker"])
def test_the_options_page_names_every_option(group, site):
    page = (site / "options.html").read_text(encoding="utf-8")
    for name in names(group, ".yaml", "conf"):
        assert f"<td><code>{name}</code></td>" in page, name


def test_the_reference_begins_with_every_public_name(site):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    headings = [re.sub(r"<[^>]+>", "", found) for found in re.findall(r"<h3[^>]*>(.*?)</h3>", page, flags=re.DOTALL)]
    shown = {heading.split()[0].removesuffix("¶") for heading in headings}
    assert {f"fedsim.{name}" for name in fedsim.__all__} <= shown


def test_each_argument_of_the_reference_has_its_own_type(site):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    rows = [re.sub("<[^>]+>", " ", row).split() for row in page.split("<tr")]
    for name in ("local_epochs", "local_steps", "num_images"):
        assert [row[row.index(name) + 1] for row in rows if name in row[:4]].count("int") >= 1, name


def test_links_within_the_site_lead_somewhere(site):
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^"#?:]+\.html)[#"?]', page.read_text(encoding="utf-8")):
            assert page.name == "404.html" or (page.parent / link).is_file(), f"{page.relative_to(site)}: {link}"


def test_no_page_loads_anything_from_elsewhere(site):
    outside = (r'(?:script|img|iframe)[^>]+src="(?:https?:)?//', r'link[^>]+rel="(?:stylesheet|pre\w+)"[^>]+href="http')
    loads = re.compile(f"<(?:{'|'.join(outside)})")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page


def test_scripts_stay_out_of_the_site(site):
    assert not list(site.rglob("*.py"))


def test_pictures_are_small_and_shown():
    small = [path for folder in GROUPS for path in (ROOT / "docs" / "images" / folder).glob("*.png")]
    assert small
    for path in small:
        assert path.stat().st_size <= LARGEST, path
        assert path.stem in names(GROUPS[path.parent.name], ".yaml", "conf"), path
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "images").rglob("*.png")) < ALL


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert str(citation["version"]) == __version__
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def leaves(settings: dict, prefix: str = "") -> list[str]:
    """Dotted keys of all values, without the option's own class."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += leaves(value, f"{prefix}{key}.")
        elif prefix or key != "_target_":
            found.append(f"{prefix}{key}")
    return found


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome")
@pytest.mark.parametrize(
    ("name", "pixels", "scheme"),
    [
        ("attacks/patch_gradient", 1300, "light"),
        *((name, 390, "dark") for name in ("index", "python", "attacks/patch_gradient", "results/april")),
    ],
)
def test_a_page_by_keyboard(name, pixels, scheme, site, tab):
    tab.width(pixels)
    tab.prefer(prefers_color_scheme=scheme)
    tab.open(site / f"{name}.html")
    check_by_keyboard(tab)
