"""Defenses on top of a recipe: each does its work on what is trained, or is refused before anything starts."""

import pytest
import torch

import fedsim
from clients.observe import observe
from defenses import Defense
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, architecture_seed
from fedsim.models.finetune import LoRA

NANO = ModelSpec("vit_nano_patch2_8", 10)
IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
LABELS = [4, 1, 4, 9]


@pytest.fixture(scope="module")
def model():
    return NANO.build(0)


@pytest.mark.parametrize("recipe", ["lora", "adapter", "prompt", "bias"])
def test_dp_sgd_clips_each_images_gradient_of_the_factors(recipe, model):
    """Against a loop over images."""
    limit = 0.3
    settings = {"dp_sgd": {"noise_multiplier": 0.0, "max_grad_norm": limit, "chunk": 2}}
    found = observe(model, IMAGES, LABELS, finetune=recipe, defense=settings).update.tensors
    expected = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
    for image, label in zip(IMAGES, LABELS, strict=True):
        own = observe(model, image[None], [label], finetune=recipe).update.tensors
        norm = torch.stack([tensor.norm() for tensor in own.values()]).norm()
        for name, tensor in own.items():
            expected[name] += tensor * min(1.0, limit / float(norm)) / len(LABELS)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["mjp", "mjp_dal", "mjp_jp_unk"])
def test_mjp_wants_position_embeddings_that_are_trained(name, model):
    with pytest.raises(
        ConfigError, match="defense=mjp: must be a position embedding that is trained: here it is frozen"
    ):
        observe(model, IMAGES, LABELS, finetune="lora", defense=name)


def test_withholding_what_is_not_trained_is_refused(model):
    with pytest.raises(ConfigError, match=r"withhold\.patterns=patch_weight: must be something that is trained"):
        observe(model, IMAGES, LABELS, finetune="head", defense="withhold")
    with pytest.raises(ConfigError, match="defense=withhold_pe: must be a position embedding that is trained"):
        observe(model, IMAGES, LABELS, finetune="head", defense="withhold_pe")


def test_each_pattern_must_name_something_that_is_trained(model):
    """Else the factors beside the frozen weight would be shared in silence."""
    both = {"withhold": {"patterns": ["qkv_weight", "head_weights"]}}
    words = r"patterns=qkv_weight: must be something that is trained.*: blocks\.0\.attn\.qkv\.lora_A, .*\.lora_B$"
    with pytest.raises(ConfigError, match=words):
        observe(model, IMAGES, LABELS, finetune="lora", defense=both)


def test_what_is_withheld_of_a_recipe_is_told_apart_from_what_is_frozen(model):
    withheld = {"withhold": {"patterns": ["*.lora_B", "head_weights"]}}
    seen = observe(model, IMAGES, LABELS, finetune="lora", defense=withheld)
    assert {name.rpartition(".")[2] for name in seen.update.tensors} == {"lora_A", "bias"}
    assert fedsim.attack("labels_certified", seen).reason == "head.weight's gradient is withheld by withhold"
    assert "is not trained (finetune=lora)" in fedsim.attack("row_space_batch", seen).reason


def test_what_a_defense_adds_is_trained_besides(model):
    seen = observe(model, IMAGES, LABELS, finetune="head", defense="precode")
    assert {"head.weight", "head.bias"} < seen.update.tensors.keys()
    assert all(name.startswith("head.") for name in seen.update.tensors)
    assert "head.bottleneck.encoder.weight" in seen.update.tensors


class Halves(Defense):
    """A plug-in that knows nothing of recipes."""

    def transform_update(self, update, rng):
        from dataclasses import replace

        return replace(update, tensors={name: tensor / 2 for name, tensor in update.tensors.items()})


@pytest.mark.parametrize("recipe", ["norm", "lora"])
def test_a_plug_in_works_on_what_is_shared(recipe, model):
    plain = observe(model, IMAGES, LABELS, finetune=recipe).update.tensors
    halved = observe(model, IMAGES, LABELS, finetune=recipe, defense=Halves()).update.tensors
    assert plain.keys() == halved.keys()
    assert all(torch.equal(halved[name], tensor / 2) for name, tensor in plain.items())


def test_the_recipe_comes_before_the_defense(model):
    """Low-rank factors stand in the model that a defense gets, so that it finds them by name."""
    seen = observe(model, IMAGES, LABELS, finetune="lora", defense={"withhold": {"patterns": ["*.lora_A"]}}, seed=3)
    assert seen.update.withheld.keys() == {n for n in seen.global_state if n.endswith("lora_A")}
    drawn = Architecture(NANO, seed=architecture_seed(3), finetune=LoRA()).build().state_dict()
    assert torch.equal(seen.global_state["blocks.0.attn.qkv.lora_A"], drawn["blocks.0.attn.qkv.lora_A"])
