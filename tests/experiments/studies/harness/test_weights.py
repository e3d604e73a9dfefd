"""Trained weights whose classes stand in another order than the folders."""

from pathlib import Path

import pytest
import torch
from timm.data.imagenet_info import ImageNetInfo

from experiments.studies.harness.weights import class_count, class_order, load_weights
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec

FILE = Path("weights.pt")
NANO = ModelSpec("vit_nano_patch2_8", num_classes=3)


def test_folders_find_their_rows():
    synsets = ImageNetInfo().label_names()
    order = class_order([f"{synsets[n]}_name" for n in (7, 5, 999)], 1000, FILE)
    assert order[:3] == [7, 5, 999]
    assert sorted(order) == list(range(1000))
    assert order[3:] == sorted(order[3:])


def test_other_classes_stay_as_they_are():
    assert class_order(["cat", "dog"], 2, FILE) == [0, 1]
    for names, classes in (
        (["cat", "dog"], 10),
        (["n00000000", "n01440764"], 1000),
        (["n01440764_a", "n01440764_b"], 1000),
    ):
        with pytest.raises(ConfigError, match="--checkpoint"):
            class_order(names, classes, FILE)


@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_arrive(tmp_path, wrapped):
    model, other = NANO.build(0), NANO.build(1)
    torch.save({"model": model.state_dict()} if wrapped else model.state_dict(), tmp_path / "weights.pt")
    assert class_count(tmp_path / "weights.pt") == 3
    load_weights(other, tmp_path / "weights.pt", ["a", "b", "c"])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_aprils_architecture_leaves_the_first_norm_out(tmp_path):
    torch.save(NANO.build(0).state_dict(), tmp_path / "weights.pt")
    model = ModelSpec("vit_nano_patch2_8", num_classes=3, variant="april").build(1)
    load_weights(model, tmp_path / "weights.pt", ["a", "b", "c"])
    assert torch.equal(model.pos_embed, NANO.build(0).pos_embed)


def test_weights_that_do_not_fit(tmp_path):
    torch.save(ModelSpec("vit_nano_patch2_8", 3, kwargs={"depth": 1}).build(0).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="weights that fit"):
        load_weights(NANO.build(0), tmp_path / "weights.pt", ["a", "b", "c"])
    (tmp_path / "weights.pt").write_text("no weights")
    with pytest.raises(ConfigError, match="a state dict"):
        class_count(tmp_path / "weights.pt")
