"""The gallery holds the best and the worst of each attack and spreads the rest."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fedsim.report.draw.pictures import embed_image, embed_thumbnail, save_png
from fedsim.report.render import build_report
from fedsim.report.run.gallery import build_gallery
from fedsim.report.run.read import read_run


@pytest.fixture
def crowded(write_run: Any, records: Any, picture: Any) -> Any:
    rows = []
    for attack, rounds in (("many", 30), ("few", 3)):
        for number in range(1, rounds + 1):
            shown = records.image(
                10.0 + (number * 7) % 31, f"{attack}/{number}", reconstruction="reconstructions/a.png"
            )
            rows.append(records.attack(number, 0, shown, attack=attack))
    folder = write_run(rows)
    picture(folder)
    return read_run(folder)


def test_limit_best_worst_and_spread(crowded: Any) -> None:
    gallery = build_gallery(crowded, limit=10, held=0)
    assert len(gallery.pairs) == 10
    assert gallery.left_out == 23
    shown = {attack: [pair for pair in gallery.pairs if pair.record.attack == attack] for attack in ("many", "few")}
    assert len(shown["few"]) == 3
    assert len(shown["many"]) == 7
    every = [record.images[0].psnr for record in crowded.attacks if record.attack == "many"]
    values = [pair.image.psnr for pair in shown["many"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == max(every)
    assert values[-1] == min(every)
    rounds = sorted(pair.record.number for pair in shown["many"])
    assert len(set(rounds)) == 7
    assert rounds[0] <= 5
    assert rounds[-1] >= 24


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 33, 60])
def test_any_limit_is_kept(crowded: Any, limit: int) -> None:
    gallery = build_gallery(crowded, limit=limit, held=0)
    assert len(gallery.pairs) == min(limit, 33)
    assert gallery.left_out == 33 - len(gallery.pairs)
    assert len({(pair.record.observation, pair.record.attack) for pair in gallery.pairs}) == len(gallery.pairs)


@pytest.mark.parametrize(("held", "left_out"), [(5, 18), (23, 0), (2000, 0)])
def test_what_is_not_shown_is_held_as_thumbnails(crowded: Any, held: int, left_out: int) -> None:
    gallery = build_gallery(crowded, limit=10, held=held)
    assert gallery.left_out == left_out
    assert len(gallery.held) == 23 - left_out
    every = [pair.image.image for pair in (*gallery.pairs, *gallery.held)]
    assert len(set(every)) == 33 - left_out
    assert not any(pair.film for pair in gallery.held)


def test_thumbnails_are_small(tmp_path: Path) -> None:
    noise = torch.rand(3, 224, 224, generator=torch.Generator().manual_seed(0))
    save_png(noise, tmp_path / "a.png")
    whole, small = embed_image(tmp_path, "a.png"), embed_thumbnail(tmp_path, "a.png")
    assert whole is not None
    assert small is not None
    assert (small.width, small.height) == (224, 224)
    picture = Image.open(io.BytesIO(base64.b64decode(small.uri.split(",")[1])))
    assert picture.size == (72, 72)
    assert len(small.uri) < len(whole.uri) / 5
    save_png(noise[:, :32, :32], tmp_path / "b.png")
    assert embed_thumbnail(tmp_path, "b.png") == embed_image(tmp_path, "b.png")


def test_the_best_is_what_gives_most_away_of_the_clients_own_picture(
    write_run: Any, records: Any, picture: Any
) -> None:
    folder = write_run()
    shown = {"reconstruction": picture(folder)}
    # Mixed pictures come back well, the clients' own do not; the third was mixed with itself.
    scores = [(60.0, 8.0), (50.0, 9.0), (40.0, 39.0)]
    images = [records.image(psnr, f"digits/{k}", private_psnr=own, **shown) for k, (psnr, own) in enumerate(scores)]
    (folder / "attacks.jsonl").write_text(json.dumps(records.attack(1, 0, *images)) + "\n")
    assert [pair.image.leaked for pair in build_gallery(read_run(folder)).pairs] == [39.0, 9.0, 8.0]
    assert [pair.image.leaked for pair in build_gallery(read_run(folder), limit=1).pairs] == [39.0]


@pytest.mark.parametrize(
    ("psnr", "grey", "likeness"),
    [(30.5, 30.2, "no better than a guess"), (32.0, 30.2, "nearly identical"), (30.5, None, "nearly identical")],
)
def test_an_image_that_is_nearly_grey_is_badged_as_it_is_counted(
    write_run: Any, records: Any, picture: Any, psnr: float, grey: float | None, likeness: str
) -> None:
    folder = write_run()
    image = records.image(psnr, guess_psnr=8.0, grey_psnr=grey, reconstruction=picture(folder))
    (folder / "attacks.jsonl").write_text(json.dumps(records.attack(1, 0, image)) + "\n")
    (pair,) = build_gallery(read_run(folder)).pairs
    assert (pair.likeness, pair.looks) == (likeness, likeness.replace(" ", "-"))
    assert pair.image.recognisable == (likeness != "no better than a guess")


@pytest.mark.parametrize("bar", [20.0, 30.0])
def test_a_figure_is_not_rounded_up_to_what_its_badge_denies(
    write_run: Any, records: Any, picture: Any, bar: float
) -> None:
    folder = write_run()
    image = records.image(bar - 0.03, guess_psnr=8.0, reconstruction=picture(folder))
    (folder / "attacks.jsonl").write_text(json.dumps(records.attack(1, 0, image)) + "\n")
    page = build_report(folder).read_text(encoding="utf-8")
    assert page.count(f"{bar - 0.1} dB") >= 4  # the verdict, a card above, the table and below the image
    assert f"{bar} dB" not in page


def test_labels_and_an_order_are_named_where_they_are_known(write_run: Any, records: Any, picture: Any) -> None:
    order, labels = "the best of each attack first", "Each caption gives the label"
    for psnr, label, recovered, told in (
        (30.0, 3, 3, [True, True]),
        (None, None, None, [False, False]),
        (None, None, 3, [False, True]),
    ):
        folder = write_run(name=f"{psnr}-{recovered}")
        image = records.image(psnr, label=label, label_recovered=recovered, reconstruction=picture(folder))
        (folder / "attacks.jsonl").write_text(json.dumps(records.attack(1, 0, image)) + "\n")
        page = build_report(folder).read_text(encoding="utf-8")
        assert [words in page for words in (order, labels)] == told
        assert (f"{labels} of the image and" in page) is (label is not None)
