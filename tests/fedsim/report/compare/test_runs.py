"""Several runs on one page."""

from pathlib import Path
from typing import Any

import pytest

from experiments.commands.report import write_page
from fedsim.report.compare import tradeoff
from fedsim.report.compare.runs import compare_runs, find_runs
from fedsim.report.render import build_comparison
from tests.fedsim.report.test_render import EVIL, check_page

CONFIG = "seed: {seed}\nmodel: {{name: '{model}'}}\ndefense: {defense}\nattack: {{patch_gradient: {{}}}}\n"


@pytest.fixture
def runs(write_run: Any, records: Any, picture: Any) -> list[Path]:
    """An undefended and a defended run in different folders; the second has an attack more."""
    folders = []
    for number, (defense, psnr) in enumerate([("{}", 80.0), ("{mjp: {ratio: 0.1}}", 15.0)]):
        name = f"{number}/{'run' if number else 'a <b>'}"
        shown = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
        rows = [records.attack(1, k, records.image(psnr + k, f"digits/{k}", guess_psnr=9.0, **shown)) for k in (0, 1)]
        rows += [records.refusal(1, 0, EVIL, attack=f"more {EVIL}")] * number
        folder = write_run(rows, config=CONFIG.format(seed=0, model="vit", defense=defense), name=name)
        picture(folder, "reconstructions/a.png")
        picture(folder, "reconstructions/o.png")
        folders.append(folder)
    return folders


def test_runs_from_different_folders(runs: list[Path], tmp_path: Path) -> None:
    for folder in runs:
        write_page([folder])
    page = build_comparison(runs, tmp_path / "out.html")
    parsed = check_page(page)
    text = page.read_text(encoding="utf-8")
    assert {link["href"] for link in parsed.all("a")} == {
        "#main",
        "0/a%20%3Cb%3E/report.html",
        "1/run/report.html",
    }
    for words in ("Each defense", "Leakage by attack", "The same images", "What it cost", "Settings that differ"):
        assert f"<h2>{words}</h2>" in text
    assert "defense.mjp.ratio" in text
    assert "80.5 dB (100 %)" in text
    assert "not run" in text
    assert "The server rebuilt 0 of 2 images recognisably (without the update: 0 of 2)" in text
    assert "Too few different images to tell whether it leaks less" in text
    assert '<section class="verdict open" aria-label="Verdict on mjp">' in text
    assert "reaches 6.5 dB more" in text
    assert "<script>alert" not in text
    assert "a &lt;b&gt;" in text
    alts = [image["alt"] for image in parsed.all("img")]
    assert len(alts) == 2 * 3
    assert "digits/1 as patch_gradient left it in 1/run" in alts
    assert text.count('<span class="where">1/run: mjp</span>') == 2


def test_the_numbers_of_a_comparison(runs: list[Path], tmp_path: Path) -> None:
    comparison = compare_runs(runs, tmp_path / "elsewhere", "x")
    assert [entry.name for entry in comparison.entries] == ["0/a <b>", "1/run"]
    assert comparison.entries[0].link is None
    assert comparison.differing == ("defense.mjp.ratio",)
    assert comparison.columns == ()
    assert len(comparison.rows) == 3
    assert [verdict.name for verdict in comparison.verdicts] == ["mjp"]
    original = comparison.pictures[0].original
    assert original is not None
    for given in (comparison, compare_runs(runs[::-1], tmp_path, "x")):  # the undefended one first
        assert [result.psnr for result in given.pictures[0].results] == [80.0, 15.0]


def test_the_command_chooses_the_page(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "1")
    assert write_page([runs[0]]) == runs[0] / "report.html"
    assert write_page([tmp_path]) == tmp_path / "report.html"
    assert "2 finished runs" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert write_page(runs) == tmp_path / "0" / "comparison.html"  # beside the first, wherever one stands
    assert write_page(runs, tmp_path / "both.html") == tmp_path / "both.html"
    (runs[0] / "measures.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("fedsim.report.measures.page.build_measures_page", lambda folder: folder / "measured.html")
    assert write_page([runs[0]]) == runs[0] / "measured.html"
    (tmp_path / "sweep").mkdir()
    wrongs = (
        ([runs[0]] * 2, "once"),
        ([tmp_path / "no"], "no folder"),
        ([runs[1], tmp_path / "sweep"], "must be runs: .*sweep holds none"),
        ([tmp_path, runs[1]], f"must be runs: {tmp_path} holds several .fedsim-report {tmp_path} makes its page, or"),
        ([runs[0], runs[1]], "must be runs: .*0/.* is of fedsim measure .fedsim-report .* makes its page.$"),
        ([tmp_path / "m", runs[1]], "must be runs: .*m is a matrix .fedsim-report .*m makes its page; its runs are in"),
    )
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "matrix.json").write_text("{}", encoding="utf-8")
    for wrong, words in wrongs:
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            write_page(wrong)
    with pytest.raises(ValueError, match="several"):
        write_page([runs[0]], tmp_path / "x.html")


def test_baselines_are_marked_and_are_no_attacks(write_run: Any, records: Any, picture: Any, tmp_path: Path) -> None:
    folders = []
    for number in range(2):
        shown = {"reconstruction": "reconstructions/a.png"}
        rows = [
            records.attack(1, 0, records.image(psnr, "digits/0", **shown), attack=name)
            for name, psnr in (("seeing", 15.0), ("blind", 25.0))
        ]
        config = f"seed: {number}\ndefense: {{}}\nattack: {{seeing: {{}}, blind: {{target: random}}}}\n"
        folders.append(write_run(rows, config=config, name=f"run-{number}"))
        picture(folders[-1])
    comparison = compare_runs(folders, tmp_path, "x")
    assert [
        (row.entry.name, row.baseline) for row in comparison.rows if row.attack and row.attack.attack == "blind"
    ] == [
        ("run-0", True),
        ("run-1", True),
    ]
    assert not any(row.baseline for row in comparison.rows if row.attack and row.attack.attack == "seeing")
    (one,) = comparison.pictures
    assert [(result.attack, result.psnr) for result in one.results] == [("seeing", 15.0)] * 2
    text = build_comparison(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.count('blind <span class="hint">baseline</span>') == 2  # a row for each run
    assert text.count('(100 %) <span class="hint">baseline</span>') == 2  # a cell for each run


def test_a_run_of_baselines_alone_shows_the_best_of_them(
    write_run: Any, records: Any, picture: Any, tmp_path: Path
) -> None:
    folders = []
    for name in ("seeing", "blind"):
        rows = [
            records.attack(k, 0, records.image(psnr, "digits/0", reconstruction="reconstructions/a.png"), attack=name)
            for k, psnr in enumerate((12.0, 9.0))
        ]
        config = f"defense: {{}}\nattack: {{{name}: {{{'target: random' if name == 'blind' else ''}}}}}\n"
        folders.append(write_run(rows, config=config, name=name))
        picture(folders[-1])
    (one,) = compare_runs(folders, tmp_path, "x").pictures
    assert [(result.attack, result.psnr) for result in one.results] == [("seeing", 12.0), ("blind, a baseline", 12.0)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, list[tuple[float, float]]]]:
    """What goes into the plots: whether it is shares, and (leakage, accuracy) of each point."""
    plots: list[tuple[bool, list[tuple[float, float]]]] = []

    def keep(trades: Any, defenses: Any, share: bool) -> None:
        plots.append((share, [(one.leakage, one.accuracy) for one in trades]))

    monkeypatch.setattr(tradeoff, "privacy_utility", keep)
    return plots


def test_the_trade_off_leaves_baselines_out(write_run: Any, records: Any, tmp_path: Path, drawn: Any) -> None:
    rows = [
        records.attack(1, 0, records.image(psnr), attack=name) for name, psnr in (("seeing", 15.0), ("blind", 25.0))
    ]
    config = "defense: {}\nattack: {seeing: {}, blind: {output: mean}}\n"
    build_comparison([write_run(rows, config=config)], tmp_path / "out.html")
    assert drawn == [(True, [(0.0, 0.75)]), (False, [(15.0, 0.75)])]


def test_the_trade_off_says_of_how_many_images_a_mean_is(
    write_run: Any, records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share counts those that did not come out, a mean does not."""
    shown: list[tuple[float, int, int]] = []
    monkeypatch.setattr(
        tradeoff,
        "privacy_utility",
        lambda trades, defenses, share: shown.extend((one.leakage, one.rebuilt, one.images) for one in trades),
    )
    images = [records.image(psnr, f"digits/{k}") for k, psnr in enumerate((50.0, None, None, None))]
    build_comparison([write_run([records.attack(1, 0, *images)])], tmp_path / "out.html")
    assert shown == [(0.25, 1, 4), (50.0, 1, 4)]


def test_the_trade_off_shows_what_the_model_saw_and_no_refusal(
    write_run: Any, records: Any, tmp_path: Path, drawn: Any
) -> None:
    rows = [
        records.attack(1, 0, records.image(44.0, private_psnr=8.5, private_ssim=0.1)),
        records.refusal(1, 0, "withheld", attack="other"),
    ]
    build_comparison([write_run(rows, config="defense: {ats: {}}\n")], tmp_path / "out.html")
    assert drawn == [(True, [(1.0, 0.75)]), (False, [(44.0, 0.75)])]


def test_of_a_changed_picture_the_recognisable_result_is_shown(
    write_run: Any, records: Any, picture: Any, tmp_path: Path
) -> None:
    folders = []
    for name in ("a", "b"):
        shown = {"reconstruction": "reconstructions/a.png", "private_ssim": 0.1}
        noise = records.attack(1, 0, records.image(7.7, private_psnr=8.0, **shown), attack="dlg")
        mirrored = records.attack(1, 0, records.image(157.0, private_psnr=6.4, **shown), attack="exact")
        folders.append(write_run([mirrored, noise], name=name))
        picture(folders[-1])
    (one,) = compare_runs(folders, tmp_path, "x").pictures
    assert [(result.attack, result.psnr, result.seen) for result in one.results] == [("exact", 6.4, 157.0)] * 2


def test_a_picture_that_the_model_saw_changed_is_no_original(
    write_run: Any, records: Any, picture: Any, tmp_path: Path
) -> None:
    """Mirrored, and un-mirrored rightly by the server: both scores are the same."""
    folders = []
    for name in ("a", "b"):
        shown = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
        image = records.image(157.7, private_psnr=157.7, private_ssim=0.5, changed=True, **shown)
        folders.append(write_run([records.attack(1, 0, image)], name=name))
        for file in shown.values():
            picture(folders[-1], file)
    (one,) = compare_runs(folders, tmp_path, "x").pictures
    assert one.original is None
    assert [result.seen for result in one.results] == [157.7] * 2
    assert "the number in brackets is of the picture above it" in build_comparison(folders, tmp_path / "x").read_text()


def test_pictures_are_shown_that_some_run_rebuilt_those_of_known_originals_first(
    write_run: Any, records: Any, picture: Any, tmp_path: Path
) -> None:
    folders = []
    for run in range(2):
        files = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
        by_eye = {"reconstruction": "reconstructions/a.png"}
        made = [{}, by_eye if run else {}, files if run else {}, files]
        images = [records.image(9.0 if shown else None, f"digits/{k}", **shown) for k, shown in enumerate(made)]
        folders.append(write_run([records.attack(1, 0, *images)], name=f"run-{run}"))
        for name in files.values():
            picture(folders[-1], name)
    shown = compare_runs(folders, tmp_path, "x").pictures
    assert [one.name for one in shown] == ["digits/3", "digits/2", "digits/1"]
    assert [one.original is not None for one in shown] == [True, True, False]
    for folder in folders:
        (folder / "attacks.jsonl").write_text("")
    assert "The same" not in build_comparison(folders, tmp_path / "out.html").read_text()


@pytest.mark.parametrize(("defended", "attack"), [(False, "dlg"), (True, "exact")])
def test_of_a_sweep_over_an_attack_s_settings_that_attack_is_shown(
    defended: bool, attack: str, write_run: Any, records: Any, picture: Any, tmp_path: Path
) -> None:
    folders = []
    for weight in (0, 1):
        shown = {"reconstruction": "reconstructions/a.png"}
        rows = [
            records.attack(1, 0, records.image(psnr, **shown), attack=name)
            for name, psnr in (("exact", 157.0), ("dlg", 9.0 + weight))
        ]
        defense = f"{{topk: {{ratio: {weight}}}}}" if defended else "{}"
        config = f"defense: {defense}\nattack: {{exact: {{}}, dlg: {{tv: {weight}}}, labels: {{by: {weight}}}}}\n"
        folders.append(write_run(rows, config=config, name=f"run-{weight}"))
        picture(folders[-1])
    (one,) = compare_runs(folders, tmp_path, "x").pictures
    assert [result.attack for result in one.results] == [attack] * 2


def test_runs_stand_in_the_order_given(write_run: Any, records: Any, tmp_path: Path) -> None:
    given = [("2", "{topk: {}}"), ("10", "{}"), ("9", "{mjp: {}}")]
    folders = [write_run(config=f"defense: {defense}\n", name=f"sweep/{name}") for name, defense in given]
    comparison = compare_runs(folders, tmp_path / "sweep", "x")
    assert [entry.name for entry in comparison.entries] == ["2", "10", "9"]
    assert [row.entry.name for row in comparison.rows] == ["2", "10", "9"]
    assert [path.name for path in find_runs(tmp_path / "sweep")] == ["2", "9", "10"]


def test_likeness_is_that_to_the_clients_own_pictures(write_run: Any, records: Any, tmp_path: Path) -> None:
    folders = []
    for defense, own, ssim in (("{}", 160.4, 0.999), ("{ats: {}}", 8.5, 0.103)):
        rows = [records.attack(1, 0, records.image(159.0, ssim=1.0, private_psnr=own, private_ssim=ssim))]
        config = CONFIG.format(seed=0, model="vit", defense=defense)
        folders.append(write_run(rows, config=config, name=f"run-{own}"))
    text = build_comparison(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    for cells in (
        '<td data-value="160.4">160.4 dB</td><td>0.999</td>',
        '<td data-value="8.5">8.5 dB</td><td>0.103</td>',
    ):
        assert cells in text
    assert "160.4 dB (100 %)" in text


def test_runs_of_one_defense_are_told_apart_by_the_settings_that_differ(run: Any, tmp_path: Path) -> None:
    files = {"reconstruction": "reconstructions/a.png"}
    weights = [f"{{prior: {{weight: {weight}}}}}" for weight in (0, 1)]
    folders = [run("{}", {"a": [20.0]}, attack=weight, files=files).path for weight in weights]
    comparison = compare_runs(folders, tmp_path, "sweep")
    assert [comparison.settings_of(entry.name) for entry in comparison.entries] == ["prior.weight=0", "prior.weight=1"]
    other = run("{noise: {}}", {"a": [20.0]}, attack="{prior: {weight: 2}}").path
    assert compare_runs([folders[0], other], tmp_path, "two").settings_of("run-0") == "", "the defense says it"
    page = build_comparison(folders, tmp_path / "page.html").read_text()
    assert page.count("prior.weight=1") >= 2  # below the image, and in the table by attack


def test_points_of_runs_with_unlike_settings_do_not_compare(write_run: Any, records: Any, tmp_path: Path) -> None:
    def said(*batches: int) -> bool:
        folders = []
        for number, batch in enumerate(batches):
            config = f"seed: {number}\ndefense: {{d: {{k: {number}}}}}\nclient: {{batch_size: {batch}}}\n"
            rows = [records.attack(1, 0, records.image(20.0))]
            folders.append(write_run(rows, config=config, name=f"{batches}-{number}"))
        page = build_comparison(folders, tmp_path / f"{batches}.html").read_text(encoding="utf-8")
        return "with unlike other settings do not compare" in page

    assert [said(1, 1), said(1, 8)] == [False, True]


def test_a_run_without_attacks_spent_no_time_on_them(write_run: Any, records: Any, tmp_path: Path) -> None:
    folders = [write_run([records.attack(1, 0, records.image(20.0))], name="a"), write_run(name="b")]
    page = build_comparison(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert '<td data-value="0.5">500 ms</td>' in page
    assert "< 1 ms" not in page
    assert "&lt; 1 ms" not in page
