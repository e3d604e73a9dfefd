from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from attacks.base import Attack

CONF = Path(__file__).resolve().parents[2] / "conf"
ATTACKS = ("patch_gradient", "april", "labels", "labels_idlg", "labels_gradinversion", "labels_bias_sign")
MORE = ("labels_bias_corrected", "labels_bias_prior")


@pytest.mark.parametrize("name", ATTACKS + MORE)
def test_a_file_builds_what_its_name_says(name):
    loaded = OmegaConf.load(CONF / "attack" / f"{name}.yaml")
    assert list(loaded) == [name]
    attack = instantiate(loaded[name])
    assert isinstance(attack, Attack)
    if name.startswith("labels_"):
        assert attack.rule == name.removeprefix("labels_")
