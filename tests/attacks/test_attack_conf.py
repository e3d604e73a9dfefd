from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from attacks.base import Attack
from attacks.optimization import GradientMatching
from fedsim.components import build_component
from fedsim.errors import ConfigError
from fedsim.models.generator import ConvGenerator, save_generator

CONF = Path(__file__).resolve().parents[2] / "conf"
ATTACKS = ("patch_gradient", "april", "row_space", "mjp_adaptive", "fc_bias", "rgap", "labels")
LABELS = (
    "idlg",
    "gradinversion",
    "bias_sign",
    "bias_corrected",
    "bias_prior",
    "llg",
    "llg_bias",
    "ilrg",
    "zlg",
    "rlg",
    "gradinversion_sum",
)
SEARCHES = (
    "dlg",
    "idlg",
    "inverting_gradients",
    "gradinversion",
    "april_optimization",
    "tag",
    "sme",
    "row_space_batch",
)
MORE = (*(f"labels_{rule}" for rule in LABELS), "labels_certified", *SEARCHES)


@pytest.mark.parametrize("name", ATTACKS + MORE)
def test_a_file_builds_what_its_name_says(name):
    loaded = OmegaConf.load(CONF / "attack" / f"{name}.yaml")
    assert list(loaded) == [name]
    attack = instantiate(loaded[name], _convert_="all")
    assert isinstance(attack, Attack)
    if name in SEARCHES:
        assert isinstance(attack, GradientMatching)
    if name.startswith("labels_") and name != "labels_certified":
        assert attack.rule == name.removeprefix("labels_")


def test_gradvit_asks_for_its_image_prior():
    loaded = OmegaConf.load(CONF / "attack" / "gradvit.yaml")
    with pytest.raises(InstantiationException) as refusal:
        instantiate(loaded["gradvit"], _convert_="all")
    assert isinstance(refusal.value.__cause__, ConfigError)
    assert "checkpoint" in str(refusal.value.__cause__)
    loaded["gradvit"]["priors"]["image_prior"] = None
    attack = instantiate(loaded["gradvit"], _convert_="all")
    assert set(attack.priors) == {"patch_seam", "image_norm", "total_variation"}


@pytest.mark.parametrize("name", ["gias", "gifd", "ggl", "generator_samples", "lti", "lti_mean"])
def test_what_is_trained_before_asks_for_its_checkpoint(name):
    loaded = OmegaConf.load(CONF / "attack" / f"{name}.yaml")
    assert list(loaded) == [name]
    with pytest.raises(InstantiationException) as refusal:
        instantiate(loaded[name], _convert_="all")
    assert isinstance(refusal.value.__cause__, ConfigError)
    assert "checkpoint" in str(refusal.value.__cause__)


@pytest.mark.parametrize("name", ["gias", "gifd", "ggl", "generator_samples"])
def test_one_checkpoint_serves_every_generative_attack(name, tmp_path):
    save_generator(ConvGenerator(8, 32, [16, 8]), tmp_path / "generator.safetensors")
    loaded = OmegaConf.load(CONF / "attack" / f"{name}.yaml")
    loaded[name].generator.checkpoint = str(tmp_path / "generator.safetensors")
    attack = build_component(f"attack.{name}", OmegaConf.to_container(loaded[name]), Attack)
    assert attack.generator.latent == 8 if name == "generator_samples" else isinstance(attack, GradientMatching)
