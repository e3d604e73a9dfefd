import csv
import json

import pytest
from PIL import Image

from fedsim.metrics.jigsaw import Spread
from fedsim.report.measures.figures import _span, draw_corruptions, draw_jigsaw
from fedsim.report.measures.page import build_measures_page, csv_text, tables
from fedsim.report.measures.records import over_runs
from fedsim.report.measures.wording import cautions, findings


def spread(mean, std=0.01, count=3):
    return {"mean": mean, "std": std, "count": count}


def run(name="baseline", top1=0.5, **values):
    points = [
        {"ratio": ratio, "masked": spread(ratio), "top1": spread(top1 - ratio), "diff_norm": spread(10 * ratio),
         "consistency": spread(1 - ratio)}
        for ratio in (0.0, 0.27)
    ]  # fmt: skip
    position = {
        "grid": [8, 8], "mae_1d": spread(1.25), "mae_2d": spread(0.5), "chance_1d": 16.0, "chance_2d": 2.0,
        "explained_variance": {"3": 0.4, "10": 0.8}, "svd_energy": [0.5, 1.0],
    }  # fmt: skip
    corruptions = {
        "errors": {"fog": [0.2, 0.4], "snow": [0.6, 0.6]}, "pictures": 20, "severities": [1, 5], "table": "cifar",
        "mean_error": 0.45, "mce": 0.45, "reference": None,
    }  # fmt: skip
    record = {
        "name": name, "folder": "runs/a", "round": 4, "seed": 0, "model": "vit", "defenses": ["mjp"], "pictures": 100,
        "top1": top1, "loss": 1.0, "features": "the class token", "notes": [], "position": position,
        "jigsaw": {"grid": [8, 8], "patch": [4, 4], "mask_embedding": "own", "points": points},
        "corruptions": corruptions,
    }  # fmt: skip
    return record | values


def measures(*runs):
    return {"runs": list(runs), "figures": [], "settings": {"draws": 3}, "seed": 0}


def by_title(*runs):
    return {table.title: table for table in tables(measures(*runs))}


def test_repetitions_are_one_row_with_their_spread():
    (row,) = by_title(run(top1=0.5), run(top1=0.7))["Accuracy"].rows
    assert row[:2] == ("baseline", "vit")
    assert row[2] == "2"
    assert row[4] == "60.0 ± 14.1"
    assert over_runs([0.5, None]) == Spread(0.5, None, 1)
    assert over_runs([spread(0.5)]) == Spread(0.5, 0.01, 3)
    assert over_runs([spread(0.5), spread(0.7)]).std == pytest.approx(0.2 / 2**0.5)
    assert over_runs([None]) is None


def test_the_note_on_corruptions_names_all_tables_and_numbers_of_pictures():
    other = run("large")
    other["corruptions"] |= {"table": "imagenet", "pictures": 50}
    note = by_title(run(), run(), other)["Common corruptions"].note
    assert "Errors on 20, 50 corrupted test pictures, mean over severities 1, 5, " in note
    assert "with the numbers of cifar, imagenet; mCE is left out" in note


def test_the_tables_hold_the_numbers():
    found = by_title(run(), run("mjp", jigsaw=None, position=None))
    assert found["Consistency (%)"].rows[0] == ("baseline", "own", "100.0 ± 1.0", "73.0 ± 1.0")
    assert found["Consistency (%)"].rows[1] == ("mjp", "–", "–", "–")
    assert found["Diff. Norm."].rows[0][2:] == ("0.00 ± 0.01", "2.70 ± 0.01")
    assert found["Position embeddings"].rows[0][1:5] == ("1.250 ± 0.010", "0.500 ± 0.010", "16.000", "2.000")
    assert found["Position embeddings"].columns[-2:] == ("PCA 3 (%)", "PCA 10 (%)")
    assert found["Common corruptions"].rows[0][1:] == ("45.0", "45.0", "30.0", "60.0")
    assert "Hard and foreign pictures" not in found


def test_hard_and_foreign_pictures_where_they_were_measured():
    hard = {"pictures": 9, "classes": 3, "top1": 0.25, "aurra": 0.5}
    found = by_title(run(hard=hard), run("mjp"))["Hard and foreign pictures"]
    assert found.columns == ("Model", "hard pictures: top-1 (%)", "AURRA (%)")
    assert found.rows == (("baseline", "25.0", "50.0"), ("mjp", "–", "–"))


def test_csv_has_a_line_for_each_run():
    lines = list(csv.DictReader(csv_text(measures(run(), run("mjp", position=None))).splitlines()))
    assert [line["name"] for line in lines] == ["baseline", "mjp"]
    assert float(lines[0]["consistency@0.27"]) == pytest.approx(0.73)
    assert float(lines[0]["explained_variance_10"]) == 0.8
    assert float(lines[0]["error_fog"]) == pytest.approx(0.3)
    assert lines[1]["mae_1d"] == ""


def test_the_page_quotes_names_and_holds_its_figures(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "figure.png")
    record = measures(run("<script>alert(1)</script> | x"), run("mjp", notes=["jigsawed pictures: <none>"]))
    record["figures"] = [
        {"file": "figure.png", "caption": "A <figure>", "hint": "So."},
        {"file": "../secret.png", "caption": "outside", "hint": ""},
    ]
    (tmp_path / "measures.json").write_text(json.dumps(record))
    page = build_measures_page(tmp_path).read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "A &lt;figure&gt;" in page
    assert page.count("data:image/png;base64,") == 1
    assert "outside" not in page
    assert "from the files in this folder alone." in page
    assert "jigsawed pictures: &lt;none&gt;" in page
    assert page.index('aria-label="What was found"') < page.index("<h2>")
    markdown = (tmp_path / "measures.md").read_text()
    assert "alert(1)</script> \\| x | vit" in markdown
    assert (tmp_path / "measures.csv").exists()


def test_the_first_sentence_says_what_was_found_and_what_few_images_leave_open():
    first, places, whole, corrupted = findings(measures(run(), run("mjp", top1=0.9)))
    assert first == (
        "73.0 % (baseline) and 73.0 % (mjp) of the test images keep their class when patches are shuffled "
        "(ratio 0.27), no further apart than chance explains on 100 images."
    )
    assert places.endswith("are off by 0.50 (baseline) and 0.50 (mjp); guessed, by 2.00 patches.")
    assert whole == "Accuracy on whole images: 50.0 % (baseline) and 90.0 % (mjp)."
    assert corrupted == "Errors on corrupted images: 45.0 % (baseline) and 45.0 % (mjp)."
    twice = [run(name, top1=top1) for name in ("a", "b") for top1 in (0.5, 0.9)]
    assert findings(measures(*twice))[2] == (
        "Accuracy on whole images: 70.0 % (a) and 70.0 % (b), no further apart than chance explains on 100 images: "
        "2 seeds are too few to tell."
    )
    many = measures(*(run(f"m{k}", top1=k / 10, jigsaw=None) for k in (3, 1, 2, 5, 4)))
    assert findings(many)[1] == "Accuracy on whole images: 10.0 % (m1) to 50.0 % (m5)."
    assert findings(measures(run(jigsaw=None, position=None, corruptions=None))) == [
        "Accuracy on whole images: 50.0 % (baseline)."
    ]
    assert cautions(measures(run(pictures=4, corruptions=None), run())) == [
        "Only 4 test images: chance moves a share of them by up to 35 points.",
        "Only 20 corrupted test images: chance moves a share of them by up to 20 points.",
    ]
    assert cautions(measures(run(corruptions=None))) == []


def test_a_model_of_one_class_for_all_says_nothing_of_its_patches():
    """It keeps the class of every shuffled image, as 100 % told of an untrained one."""
    told = cautions(measures(run(classes_named=1, corruptions=None), run("mjp", classes_named=4, corruptions=None)))
    assert told == ["baseline names one class for all test images: that these keep it says nothing of the patches."]
    seeds = [run("mjp", classes_named=classes, corruptions=None) for classes in (10, 1, 10)]
    (some,) = cautions(measures(*seeds))
    assert some.startswith("mjp (in 1 of 3 runs) names one class for all test images")


@pytest.mark.parametrize(
    ("low", "high", "least", "span"),
    [(40.0, 60.0, 10.0, (40.0, 60.0)), (99.0, 104.0, 10.0, (90.0, 100.0)), (-2.0, 3.0, 10.0, (0.0, 10.0)),
     (45.0, 55.0, 71.0, (14.5, 85.5))],
)  # fmt: skip
def test_a_panel_of_shares_ends_at_all_and_at_none(low, high, least, span):
    assert _span(low, high, least) == pytest.approx(span)


def test_figures(tmp_path):
    runs = [run(), run("mjp")]
    assert draw_jigsaw(runs, tmp_path / "jigsaw.png")
    assert draw_corruptions(runs, tmp_path / "corruptions.png")
    with Image.open(tmp_path / "jigsaw.png") as picture:
        assert picture.width > 500
    assert not draw_jigsaw([run(jigsaw=None)], tmp_path / "none.png")
    assert not draw_corruptions([run(corruptions=None)], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
