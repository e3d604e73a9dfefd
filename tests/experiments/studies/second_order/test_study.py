import csv
import math
from functools import partial

import pytest
import torch
from PIL import Image

from experiments.studies.second_order import study as second_order
from experiments.studies.second_order import victims
from fedsim.models import Architecture, ModelSpec, Normaliser

ENTRY = {"unit": "built/everything/0", "guess": 0.1, "seconds": 2.0, "certified": True}


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setitem(second_order.BUDGETS, "small", (1, 1))


def table(folder):
    with (folder / "second_order.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def call(call_main, tmp_path):
    return partial(call_main, "experiments.studies.second_order.__main__", "--out", str(tmp_path), "--workers", "1")


def test_a_cell_stands_beside_its_reference_and_is_not_computed_again(call, monkeypatch, briefly, tmp_path):
    asked = ["--models", "built", "--shares", "noise 0.1", "--images", "1"]
    code, out, err = call(*asked)
    assert code == 0, err
    (row,) = table(tmp_path)
    assert (row["model"], row["shared"], row["done"], row["unknowns"]) == ("built", "noise 0.1", "1", "192")
    assert -20 * math.log10(0.3) - 0.01 < float(row["white"]) < float(row["rounding"])
    assert float(row["floor"]) < 20
    assert "no theorem on digits" in out
    monkeypatch.setattr(second_order, "work", lambda unit: pytest.fail(f"{unit.key} was computed again"))
    assert call(*asked)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "resnet"], "--models=resnet"),
        (["--models", "vit_tiny_8"], "--models=vit_tiny_8"),
        (["--images", "0"], "--images"),
        (["--starts", "gray"], "--starts=gray"),
    ],
)
def test_wrong_options_are_refused(call, arguments, said):
    code, _, err = call(*arguments)
    assert code == 2
    assert said in err


def test_errors_are_averaged_before_decibels_and_refusals_count_nothing():
    entries = [{**ENTRY, "squared_error": 1e-2}, {**ENTRY, "squared_error": 1e-8, "certified": False}]
    row = second_order.cell([*entries, {"unit": "built/everything/2", "refused": "why"}])
    assert row["floor"] == pytest.approx(-10 * math.log10((1e-2 + 1e-8) / 2))
    assert (row["exact"], row["done"], row["certified"], row["seconds"]) == (1, 2, 1, 2.0)
    assert second_order.cell([])["floor"] is None


def test_what_is_shared_is_what_it_says():
    shared = {name: tensors("built", name) for name in second_order.SHARES}
    assert all("bias" in name for name in shared["biases alone"])
    assert not any(name.startswith("blocks.0") for name in shared["last block and head"])
    assert {"head.weight", "blocks.1.mlp.fc1.weight"} <= shared["without what closed forms read"].keys()
    assert not {"pos_embed", "blocks.0.attn.qkv.weight"} & shared["without what closed forms read"].keys()
    assert all("norm" in name for name in shared["norms alone"])
    assert not {"head.weight", "head.bias"} & shared["norms alone"].keys()
    assert "pos_embed" not in tensors("sincos", "everything")


def test_the_trained_model_knows_digits_that_it_has_not_seen():
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True).eval()
    vit.load_state_dict(victims.trained())
    images, labels = victims.digits(range(victims.PRIVATE))
    assert (vit(Normaliser(vit)(images.float())).argmax(dim=1) == labels).double().mean() > 0.8


def tensors(model, share, pictures=None):
    settings = {"model": model, "share": share, "seed": 0, "pictures": pictures}
    return second_order.observed(settings, 0)[0].update.tensors


def test_a_folders_images_of_32_pixels_are_shared_by_vit_tiny(tmp_path):
    for index in range(8):
        (tmp_path / str(index % 2)).mkdir(exist_ok=True)
        Image.new("RGB", (40, 32), (30 * index, 90, 10)).save(tmp_path / str(index % 2) / f"{index}.png")
    shared = tensors("vit_tiny_8", "everything", str(tmp_path))
    assert shared["patch_embed.proj.weight"].shape == (192, 3, 8, 8)
    assert shared["pos_embed"].dtype == torch.float64
    assert "blocks.1.norm1.weight" in shared
    assert "blocks.2.norm1.weight" not in shared
    assert tensors("vit_tiny_8_sincos", "everything", str(tmp_path)).keys() == shared.keys() - {"pos_embed"}
