from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attacks.base import Attack
from attacks.building import build_attack
from attacks.optimization import GradientMatching
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
    "gauss_newton",
)
MORE = (*(f"labels_{rule}" for rule in LABELS), "labels_certified", *SEARCHES)


def loaded(name):
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "attack" / f"{name}.yaml"))
    assert list(settings) == [name]
    return settings[name]


@pytest.mark.parametrize("name", ATTACKS + MORE)
def test_a_file_builds_what_its_name_says(name):
    attack = build_attack(name, loaded(name))
    assert isinstance(attack, Attack)
    if name in SEARCHES:
        assert isinstance(attack, GradientMatching)
    if name.startswith("labels_") and name != "labels_certified":
        assert attack.rule == name.removeprefix("labels_")


def test_sme_moves_as_inverting_gradients_does():
    sme, other = loaded("sme"), loaded("inverting_gradients")
    assert all(sme[key] == other[key] for key in ("objective", "parametrisation", "optimiser", "schedule"))


def test_gradvit_asks_for_its_image_prior():
    settings = loaded("gradvit")
    with pytest.raises(ConfigError, match="checkpoint"):
        build_attack("gradvit", settings)
    settings["priors"]["image_prior"] = None
    attack = build_attack("gradvit", settings)
    assert set(attack.problem.terms) == {"patch_seam", "image_norm", "total_variation"}


@pytest.mark.parametrize("name", ["gias", "gifd", "ggl", "generator_samples", "lti", "lti_mean"])
def test_what_is_trained_before_asks_for_its_checkpoint(name):
    with pytest.raises(ConfigError, match="checkpoint"):
        build_attack(name, loaded(name))


@pytest.mark.parametrize("name", ["gias", "gifd", "ggl", "generator_samples"])
def test_one_checkpoint_serves_every_generative_attack(name, tmp_path):
    save_generator(ConvGenerator(8, 32, [16, 8]), tmp_path / "generator.safetensors")
    settings = loaded(name)
    settings["generator"]["checkpoint"] = str(tmp_path / "generator.safetensors")
    attack = build_attack(name, settings)
    assert attack.generator.latent == 8 if name == "generator_samples" else isinstance(attack, GradientMatching)


@pytest.mark.parametrize("path", sorted((CONF / "attack").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_gives_images_may_be_gone_on_from_by_one_key(path):
    ends = {"gauss_newton", "generator_samples", "lti_mean"}
    images = not path.stem.startswith("labels") and path.stem not in ends
    assert ("then" in loaded(path.stem)) == images


def test_no_file_offers_joint_labels_to_a_term_that_needs_classes():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (CONF / "attack").glob("*.yaml")}
    offering = {name for name, text in texts.items() if "joint (searched for too)" in text}
    assert "sme" in offering
    assert not {name for name in offering if "FeatureTarget" in texts[name]}
