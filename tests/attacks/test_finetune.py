"""Attacks on updates of a part of the model: each runs on what is shared, or says what is not trained."""

import pytest
import torch

import fedsim
from fedsim.models import ModelSpec

NANO = ModelSpec("vit_nano_patch2_8", 10)
RECIPES = ["head", "bias", "norm", "last_k", "lora", "adapter", "prompt"]


@pytest.fixture(scope="module")
def seen():
    """One image's update under a recipe."""
    model, made = NANO.build(0), {}
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(2))

    def observed(recipe):
        if str(recipe) not in made:
            made[str(recipe)] = fedsim.observe(model, image, [4], finetune=recipe)
        return made[str(recipe)]

    return observed


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("attack", "needs"),
    [
        ("patch_gradient", "pos_embed"),
        ("april_optimization", "pos_embed"),
        ("row_space", "patch_embed.proj.weight"),
        ("first_block", "patch_embed.proj.weight"),
    ],
)
def test_closed_forms_say_what_is_not_trained(attack, needs, recipe, seen):
    result = fedsim.attack(attack, seen(recipe))
    reason = f"{needs} is not trained (finetune={recipe}), so it has no gradient"
    assert (result.status, result.reason) == ("refused", reason)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_heads_gradient_tells_the_label(recipe, seen):
    for attack in ("labels", "labels_certified"):
        result = fedsim.attack(attack, seen(recipe))
        assert (result.status, result.labels.tolist()) == ("done", [4])
        assert result.certificate.status == "certified"


def test_without_the_head_no_rule_reads_a_label(seen):
    for recipe in ("norm", "lora", "adapter", "prompt"):
        result = fedsim.attack("labels", seen({recipe: {"head": False}}))
        reason = f"head.weight is not trained (finetune={recipe}), so it has no gradient"
        assert (result.status, result.reason) == ("refused", reason)
    assert fedsim.attack("labels", seen({"bias": {"head": False}})).labels.tolist() == [4]


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("recipe", RECIPES)
def test_searches_match_whatever_is_shared(recipe, seen):
    short = {"gauss_newton": {"steps": 1, "starts": ["mean"]}, "inverting_gradients": {"steps": 2, "restarts": 1}}
    for attack, given in short.items():
        result = fedsim.attack(attack, seen(recipe), **given)
        assert result.status == "done", result.reason
        assert result.images.shape == (1, 3, 8, 8)


def test_the_last_blocks_and_the_embedding_are_for_closed_forms(seen):
    observation = seen({"last_k": {"k": 3}})
    assert fedsim.attack("patch_gradient", observation).status == "done"
