"""Clients that train a part of the model: what they share, against the gradient of everything."""

import pytest
import torch
from torch.nn import functional as F

import fedsim
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec

PARTS = ["head", "bias", "norm", "last_k"]


@pytest.fixture(scope="module")
def model():
    return ModelSpec("vit_nano_patch2_8", 10).build(0)


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(5))


LABELS = [1, 7, 7]


@pytest.mark.parametrize("finetune", PARTS)
def test_a_parts_gradient_is_that_of_everything(finetune, model, images):
    """What is frozen has no say in the gradient of what is not; the same bits, since the same operations run."""
    whole = fedsim.observe(model, images, LABELS).update.tensors
    part = fedsim.observe(model, images, LABELS, finetune=finetune).update.tensors
    assert 0 < len(part) < len(whole)
    for name, gradient in part.items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("whole", ["full", {"last_k": {"k": 3}}])
def test_everything_is_todays_training(whole, model, images):
    settings = {"share": "delta", "batch_size": 2, "local_epochs": 2}
    usual = fedsim.observe(model, images, LABELS, **settings).update.tensors
    same = fedsim.observe(model, images, LABELS, finetune=whole, **settings).update.tensors
    assert usual.keys() == same.keys()
    assert all(torch.equal(tensor, same[name]) for name, tensor in usual.items())


def test_local_steps_move_the_head_alone(model, images):
    seen = fedsim.observe(model, images, LABELS, finetune="head", share="weights", local_steps=3, lr=0.5)
    with torch.no_grad():
        features = model.forward_head(model.forward_features((images - 0.5) / 0.5), pre_logits=True)
    weight, bias = model.head.weight.detach().clone(), model.head.bias.detach().clone()
    for _ in range(3):
        weight.requires_grad_(), bias.requires_grad_()
        loss = F.cross_entropy(features @ weight.T + bias, torch.tensor(LABELS))
        gradients = torch.autograd.grad(loss, (weight, bias))
        weight, bias = (p.detach() - 0.5 * g for p, g in zip((weight, bias), gradients, strict=True))
    assert seen.update.tensors.keys() == {"head.weight", "head.bias"}
    torch.testing.assert_close(seen.update.tensors["head.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(seen.update.tensors["head.bias"], bias, rtol=1e-4, atol=1e-6)


def test_the_users_model_stays_as_it_is(model, images):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fedsim.observe(model, images, LABELS, finetune="head", share="delta", local_steps=2)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("finetune", PARTS)
def test_on_disk_and_back(finetune, model, images, tmp_path):
    from fedsim.storage.observation_files import save_observation

    seen = fedsim.observe(model, images[:1], [3], finetune=finetune)
    save_observation(seen, tmp_path / "seen")
    again = fedsim.Observation.load(tmp_path / "seen", model=model)
    assert again.finetune == seen.finetune
    names = {name for name, p in again.build_model().named_parameters() if p.requires_grad}
    assert names == seen.update.tensors.keys()
    assert fedsim.attack("labels", again).labels.tolist() == [3]
    refused = fedsim.attack("patch_gradient", again)
    assert (refused.status, refused.reason) == (
        "refused",
        f"pos_embed is not trained (finetune={finetune}), so it has no gradient",
    )


def test_what_is_no_recipe_is_refused(model, images):
    with pytest.raises(ConfigError, match=r"finetune=haed: .*Did you mean 'head'"):
        fedsim.observe(model, images, LABELS, finetune="haed")
    with pytest.raises(ConfigError, match=r"finetune\.k=x: must be a whole number"):
        fedsim.observe(model, images, LABELS, finetune={"last_k": {"k": "x"}})
    with pytest.raises(ConfigError, match="a name of conf/finetune"):
        fedsim.observe(model, images, LABELS, finetune=["head"])


LOCAL_PAIR = {"lora": {"aggregate": "local_pair"}}


def test_a_local_pair_is_in_nothing_that_is_observed(model, images, tmp_path):
    from fedsim.storage.observation_files import save_observation

    settings = {"share": "weights", "local_steps": 4, "lr": 0.5}
    seen = fedsim.observe(model, images, LABELS, finetune=LOCAL_PAIR, **settings)
    both = fedsim.observe(model, images, LABELS, finetune="lora", **settings)
    assert seen.update.tensors.keys() == both.update.tensors.keys()
    assert seen.global_state.keys() == both.global_state.keys()
    assert not any(torch.equal(one, both.update.tensors[name]) for name, one in seen.update.tensors.items())
    assert both.repeatable
    assert not seen.repeatable
    save_observation(seen, tmp_path / "seen")
    assert not any(b"local_B" in path.read_bytes() for path in (tmp_path / "seen").iterdir())
    again = fedsim.Observation.load(tmp_path / "seen", model=model)
    assert again.finetune == seen.finetune


def test_one_step_beside_a_local_pair_at_zero_is_that_without(model, images):
    settings = {"share": "delta", "local_steps": 1, "lr": 0.5}
    pair, both = (
        fedsim.observe(model, images, LABELS, finetune=recipe, **settings).update for recipe in (LOCAL_PAIR, "lora")
    )
    assert all(torch.equal(tensor, both.tensors[name]) for name, tensor in pair.tensors.items())


def test_who_takes_no_step_trains_no_pair_of_its_own(model, images):
    with pytest.raises(ConfigError, match=r"client\.share=gradient: must be delta or weights"):
        fedsim.observe(model, images, LABELS, finetune=LOCAL_PAIR)
