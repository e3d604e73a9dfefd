"""From a resolved configuration to objects."""

from dataclasses import replace

import pytest

from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.models.registry import timm
from fedsim.settings.composition import build_data, image_side
from tests.support.federation import settings


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("partition.alpha=0", r"^partition\.alpha=0: must be a positive number$"),
        ("partition.alpha=[]", r"^partition=DirichletPartitioner: .*"),
    ],
)
def test_a_partition_that_cannot_be_is_one_line(override, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_data(settings("config", "partition=dirichlet", override))
    assert "\n" not in str(caught.value)


def test_what_divides_nothing_is_no_partitioner():
    config = settings("config") | {"partition": {"_target_": "fedsim.data.Digits"}}
    with pytest.raises(ConfigError, match=r"^partition\._target_=.*Digits: must be a subclass of .*Partitioner"):
        build_data(config)


def test_who_is_told_how_data_are_divided_asks_no_partitioner(monkeypatch):
    config = settings("config", "partition=dirichlet")
    here = build_data(config)
    monkeypatch.setattr("fedsim.settings.composition._partitioner", None)
    there = build_data(config, here.partitions())
    assert [there.client(number).ids for number in range(there.num_partitions)] == [
        here.client(number).ids for number in range(here.num_partitions)
    ]


def test_the_rate_that_qfedavg_goes_by_is_that_of_its_clients():
    config = settings("config", "strategy=qfedavg", "client.optimizer.lr=0.03")
    assert config["strategy"]["client_learning_rate"] == 0.03
    stated = settings("config", "strategy=qfedavg", "strategy.client_learning_rate=0.5")
    assert stated["strategy"]["client_learning_rate"] == 0.5


@pytest.mark.parametrize("key", ["num_classes", "img_size", "patch_size"])
def test_settings_of_their_own_are_no_arguments_of_a_constructor(key):
    model = {"name": "vit_nano_patch2_8", "kwargs": {key: 4}}
    said = rf"^model\.kwargs\.{key}=4: must be left out: model\.{key} is a setting of its own$"
    with pytest.raises(ConfigError, match=said):
        image_side(model)
    ModelSpec.from_dict({**model, "num_classes": 4}).check()  # a record's model stays what it was


def test_a_model_of_pictures_that_are_not_square_or_not_rgb_is_refused(monkeypatch):
    tall = {"name": "vit_base_patch16_sapiens2"}
    with pytest.raises(ConfigError, match=r"^model\.name=.*: must be a model of square pictures, not of 1024x768: "):
        image_side(tall)
    assert image_side({**tall, "img_size": 512}) == 512
    grey = replace(timm.get_pretrained_cfg("vit_nano_patch2_8"), input_size=(1, 8, 8))
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: grey)
    with pytest.raises(ConfigError, match=r"^model\.name=.*: must be a model of pictures of 3 channels, not of 1$"):
        image_side({"name": "vit_nano_patch2_8", "img_size": 16})
    assert image_side({"name": "vit_nano_patch2_8", "kwargs": {"in_chans": 3}}) == 8
