"""Every file of the groups `data` and `partition` builds what it names."""

import itertools
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedsim.data import FederatedData, Source
from fedsim.errors import ConfigError

CONF = Path(__file__).resolve().parents[3] / "conf"
ROOT = {"seed": 3, "num_clients": 4}


def build(group: str, name: str, **overrides: object) -> object:
    root = OmegaConf.create(ROOT)
    root[group] = OmegaConf.merge(OmegaConf.load(CONF / group / f"{name}.yaml"), overrides)
    return instantiate(root[group])


@pytest.mark.parametrize("name", ["digits", "photos"])
def test_embedded_sources_load(name):
    splits = build("data", name).load()
    assert len(splits.train) > len(splits.test) > 0


@pytest.mark.parametrize(("name", "key"), [("imagefolder", "data.path"), ("hub", "data.name")])
def test_what_must_be_given_is_asked_for(name, key):
    source = build("data", name)
    assert isinstance(source, Source)
    with pytest.raises(ConfigError, match=f"{key}=None"):
        source.load()


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shard", "pathological"])
def test_partitions_divide_the_digits(name):
    data = FederatedData(build("data", "digits"), build("partition", name), image_size=8)
    data.check(4)
    assert data.num_partitions == 4
    assert min(data.partition_sizes()) > 0


def test_natural_partition_by_label():
    data = FederatedData(build("data", "digits"), build("partition", "natural", partition_by="label"), image_size=8)
    data.check(4)
    assert data.num_partitions == data.num_classes


@pytest.mark.parametrize("path", sorted(CONF.glob("data/*.yaml")) + sorted(CONF.glob("partition/*.yaml")), ids=str)
def test_every_key_is_explained(path):
    lines = path.read_text().splitlines()
    assert all(before.startswith("#") for before, line in itertools.pairwise(lines) if not line.startswith("#"))
