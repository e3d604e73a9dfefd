import csv
import math
from functools import partial

import pytest
import torch
from PIL import Image

from attacks.optimization import LevenbergMarquardt
from experiments.studies.second_order import references, victims
from experiments.studies.second_order import study as second_order
from fedsim.bounds.references import Determined, determined, gaussian_reference, information, prior_precision
from fedsim.models import Architecture, ModelSpec, Normaliser

ENTRY = {"unit": "built/everything/gauss_newton/0", "guess": 0.1, "seconds": 2.0, "certified": True}


@pytest.fixture
def briefly(monkeypatch):
    """A step, and ten draws of the posterior; how far more of them get is tested with the attack."""
    monkeypatch.setitem(second_order.BUDGETS, "small", (1, 1))
    monkeypatch.setattr(second_order, "LevenbergMarquardt", partial(LevenbergMarquardt, draws=10))


def table(folder):
    with (folder / "second_order.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def call(call_main, tmp_path):
    return partial(call_main, "experiments.studies.second_order.__main__", "--out", str(tmp_path), "--workers", "1")


def test_a_cell_stands_beside_its_reference_and_is_not_computed_again(call, monkeypatch, briefly, tmp_path):
    asked = ["--models", "built", "--shares", "noise 0.1", "--images", "1", "--starts", "mean"]
    code, out, err = call(*asked)
    assert code == 0, err
    (row,) = table(tmp_path)
    assert (row["model"], row["shared"], row["done"], row["unknowns"]) == ("built", "noise 0.1", "1", "192")
    assert -20 * math.log10(0.3) - 0.01 < float(row["white"]) < float(row["rounding"])
    assert row["white_each"] == row["white"], "one image is its own average"
    assert float(row["public_each"]) < float(row["class_each"]), "a class varies less than all"
    assert float(row["floor"]) < 20
    assert "no theorem on digits" in out
    assert "the mean of those of its class, which the label alone gives, is at 19." in out
    monkeypatch.setattr(second_order, "work", lambda unit: pytest.fail(f"{unit.key} was computed again"))
    assert call(*asked)[0] == 0
    code, _, err = call(*asked, "--attacks")
    assert code == 0, err
    (alone,) = table(tmp_path)
    assert (alone["attack"], alone["done"], alone["floor"]) == ("none", "0", "")
    assert (alone["white"], alone["rounding"]) == (row["white"], row["rounding"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "resnet"], "--models=resnet"),
        (["--shares", "everything", "noise 1"], "--shares=noise 1: must be globs on everything"),
        (["--models", "vit_tiny_8"], "--models=vit_tiny_8"),
        (["--images", "0"], "--images"),
        (["--restarts", "0"], "--restarts=0: must be at least 1"),
        (["--starts", "gray"], "--starts=gray"),
        (["--attacks", "april"], "--attacks=april"),
    ],
)
def test_wrong_options_are_refused(call, arguments, said):
    code, _, err = call(*arguments)
    assert code == 2
    assert said in err


@pytest.mark.usefixtures("failing_attacks")
def test_an_attack_that_fails_is_tried_again(call, tmp_path):
    code, _, err = call("--models", "stock", "--shares", "everything", "--images", "1")
    assert code == 2
    assert "OutOfMemoryError: full; the same command tries it again" in err
    assert not (tmp_path / "results.jsonl").exists()


def test_errors_are_averaged_before_decibels_and_refusals_count_nothing():
    entries = [{**ENTRY, "squared_error": 1e-2}, {**ENTRY, "squared_error": 1e-8, "certified": False}]
    row = second_order.cell([*entries, {"unit": "built/everything/gauss_newton/2", "refused": "why"}])
    assert row["floor"] == pytest.approx(-10 * math.log10((1e-2 + 1e-8) / 2))
    assert (row["exact"], row["done"], row["refused"]) == (1, 2, 1)
    assert (row["certified"], row["seconds"]) == (1, 2.0)
    assert second_order.cell([])["floor"] is None


def test_what_unlike_devices_took_is_not_averaged():
    done = [
        {**ENTRY, "squared_error": 1e-2, "by": f"{code} on {place}"}
        for code, place in (("a", "2 CPU cores"), ("b", "2 CPU cores"))
    ]
    assert second_order.cell(done)["seconds"] == 2.0
    done[0]["by"] = "a on 9 CPU cores"
    assert second_order.cell(done)["seconds"] == 2.0
    done[0]["by"] = "a on NVIDIA H100"
    row = second_order.cell(done)
    assert (row["seconds"], row["cpu_seconds"], row["peak_gib"], row["done"]) == (None, None, None, 2)


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle():
    entries = [{**ENTRY, "squared_error": error} for error in (1e-2, 1e-5, 1e-3, 1e-1)]
    assert second_order.cell(entries)["median"] == pytest.approx(25.0)
    assert second_order.cell(entries[:3])["median"] == pytest.approx(30.0)


def test_a_row_has_its_least_and_its_most_and_counts_what_is_recognisable(monkeypatch):
    monkeypatch.setattr(second_order, "_nearest", lambda *args: "not known")
    monkeypatch.setattr(second_order, "_of_its_class", lambda *args: "not known")
    entries = [{**ENTRY, "squared_error": error} for error in (1e-1, 1e-3)]
    beside = {"rank": 191, "unknowns": 192, "rounding": 90.0, "least_rounding": 70.0, "determined": 1}
    entries.append({"unit": "built/everything/beside of 2", **beside})
    settings = {"steps": 1, "restarts": 1, "starts": ["mean"]}
    (found,) = second_order.page(entries, [("built", "everything", "gauss_newton")], 2, settings).tables
    row = dict(zip(found.header, found.rows[0], strict=True))
    assert (row["least / most"], row["recognisable"], row["above 60 dB"]) == ("10.0 / 30.0", "1 of 2", "0 of 2")
    assert row["rounding alone"] == "90.0, least 70.0 (1 of 2)"
    refused = {"unit": "built/everything/gauss_newton/2", "refused": "why"}
    for shown, some, images in (("13.0 (2 of 3)", [*entries, refused], 3), ("refused", [refused], 1)):
        (found,) = second_order.page(some, [("built", "everything", "gauss_newton")], images, settings).tables
        assert found.rows[0][found.header.index("dB of the mean error")] == shown


def test_rounding_alone_is_of_the_images_that_lose_no_direction(monkeypatch):
    ranks = [(192, 80.0), (191, -math.inf), (192, 60.0), (190, -math.inf)]
    left = iter([Determined(192, rank, 1.0, decibels) for rank, decibels in ranks])
    monkeypatch.setattr(second_order, "observed", lambda *args: ())
    monkeypatch.setattr(second_order, "linear", lambda *args: (torch.eye(2), torch.ones(2), torch.ones(2)))
    monkeypatch.setattr(second_order, "determined", lambda *args: next(left))
    found = second_order.beside({"model": "built", "share": "everything", "images": 4})
    assert (found["rounding"], found["least_rounding"], found["determined"], found["rank"]) == (70.0, 60.0, 2, 190)


def test_what_is_shared_is_what_it_says():
    shared = {name: tensors("built", name) for name in second_order.SHARES}
    assert all("bias" in name for name in shared["biases alone"])
    assert not any(name.startswith("blocks.0") for name in shared["last block and head"])
    assert {"head.weight", "blocks.1.mlp.fc1.weight"} <= shared["without what closed forms read"].keys()
    assert not {"pos_embed", "blocks.0.attn.qkv.weight"} & shared["without what closed forms read"].keys()
    assert all("norm" in name for name in shared["norms alone"])
    assert not {"head.weight", "head.bias"} & shared["norms alone"].keys()
    fixed = {name: tensors("sincos", name).keys() for name in second_order.SHARES}
    assert fixed == {name: every.keys() - {"pos_embed"} for name, every in shared.items()}


def test_the_trained_model_knows_digits_that_it_has_not_seen(monkeypatch):
    monkeypatch.setattr(victims, "TRAINING_STEPS", 150)  # half of them are enough
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True).eval()
    vit.load_state_dict(victims.trained.__wrapped__())
    images, labels = victims.digits(range(300))
    assert (vit(Normaliser(vit)(images.float())).argmax(dim=1) == labels).double().mean() > 0.8


def tensors(model, share, pictures=None):
    settings = {"model": model, "share": share, "seed": 0, "pictures": pictures}
    return second_order.observed(settings, 0)[0].update.tensors


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    for index in range(8):
        (folder / str(index % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 32), (30 * index, 90, 10)).save(folder / str(index % 2) / f"{index}.png")
    return str(folder)


def test_a_folders_images_of_32_pixels_are_shared_by_vit_tiny(pictures):
    shared = tensors("vit_tiny_8", "everything", pictures)
    assert shared["patch_embed.proj.weight"].shape == (192, 3, 8, 8)
    assert shared["pos_embed"].dtype == torch.float64
    assert "blocks.1.norm1.weight" in shared
    assert "blocks.2.norm1.weight" not in shared
    fixed = tensors("vit_tiny_4_sincos_float32", "everything", pictures)
    assert fixed.keys() == shared.keys() - {"pos_embed"}
    assert fixed["patch_embed.proj.weight"].shape == (192, 3, 4, 4)
    assert fixed["patch_embed.proj.weight"].dtype == torch.float32


def test_more_images_than_a_folder_has_are_refused_before_any_work(call, pictures, refuse_work):
    refuse_work(second_order)
    code, _, err = call("--pictures", pictures, "--models", "built", "vit_tiny_8", "--images", "4")
    assert code == 2
    assert f"--images=4: must be 1 to 3, {pictures} having 3 private images" in err
    code, _, err = call("--models", "built", "--images", "1001")
    assert "--images=1001: must be 1 to 1000\n" in err


def test_closed_forms_stand_beside_the_search_and_a_refusal_is_said(call, tmp_path):
    models, attacks = ["built", "sincos"], ["patch_gradient", "first_block"]
    code, out, err = call("--models", *models, "--attacks", *attacks, "--shares", "everything", "--images", "1")
    assert code == 0, err
    rows = {(row["model"], row["attack"]): row for row in table(tmp_path)}
    assert [*rows] == [(model, attack) for model in models for attack in attacks]
    assert float(rows["built", "patch_gradient"]["floor"]) > 100
    assert rows["sincos", "patch_gradient"]["refused"] == "1"
    assert rows["sincos", "first_block"]["exact"] in {"0", "1"}
    assert "| patch_gradient | refused |" in out


def test_a_white_prior_knows_of_neighbours_nothing():
    settings = {"model": "stock", "share": "noise 0.1", "seed": 0, "pictures": None}
    told, white = (
        second_order.observed({**settings, "attack": attack}, 0)[0].image_prior.spectrum
        for attack in ("gauss_newton", "gauss_newton_white")
    )
    assert white.unique().numel() == 1
    assert told.unique().numel() > 1
    assert white.square().mean() == pytest.approx(told.square().mean())


def test_what_a_sketch_tells_is_what_j_whole_tells():
    settings = {"model": "stock", "share": "noise 0.01", "seed": 0, "pictures": None}
    given, prior = second_order.observed(settings, 0), victims.public()
    jacobian, std, rounding = references.linear(*given, prior)
    assert references.noise_std(given[0], given[2], prior) == pytest.approx(float(std.mean()), rel=1e-6)
    found, rows = references.sketched(*given, prior, torch.float32)
    for one in (prior, prior.white()):
        precision = prior_precision(one, victims.SHAPE)
        exact = gaussian_reference([information(jacobian, std)], precision)
        assert gaussian_reference([found / std.mean() ** 2], precision, rows) == pytest.approx(exact, abs=0.3)
    found, rows = references.sketched(*given, prior, torch.float64, rounding=True)
    left = determined(jacobian, rounding).rounding_psnr
    assert references.left_by_rounding(found, rows) == pytest.approx(left, abs=0.5)


def test_a_large_images_references_are_those_of_its_noise(monkeypatch):
    monkeypatch.setattr(victims, "LARGE", victims.SHAPE)
    settings = {"model": "stock", "share": "noise 0.01", "seed": 0, "pictures": None, "images": 1}
    small, large = second_order.beside(settings), second_order._beside_large(settings)
    assert large["white"] == pytest.approx(small["white"], abs=0.3)
    assert large["public"] == pytest.approx(small["public"], abs=0.3)
    assert large["unknowns"] == small["unknowns"]


def test_a_number_that_was_pruned_tells_nothing_of_an_image():
    settings, prior = {"model": "stock", "seed": 0, "pictures": None}, victims.public()
    whole, pruned = (second_order.observed({**settings, "share": share}, 0) for share in ("everything", "topk 0.1"))
    every, _, _ = references.linear(*whole, prior)
    jacobian, _, rounding = references.linear(*pruned, prior)
    kept = torch.cat([tensor.flatten() != 0 for tensor in pruned[0].update.tensors.values()])
    assert 0 < int(kept.sum()) < 0.2 * len(kept)
    assert len(jacobian) == int(kept.sum())
    assert torch.allclose(jacobian, every[kept], rtol=1e-6)
    assert 0.0 < determined(jacobian, rounding).rounding_psnr < 200.0
