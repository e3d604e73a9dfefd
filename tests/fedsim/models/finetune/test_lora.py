"""LoRA against its definition and against gradients taken by an independent loop."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.models.finetune import LoRA, recorded_finetune
from fedsim.models.finetune.lora import LowRankLinear

NANO = ModelSpec("vit_nano_patch2_8", 10, dtype="float64")


def prepared(recipe, seed=0, spec=NANO):
    return Architecture(spec, seed=seed, finetune=recipe).build()


def moved(model, seed=1):
    """With factors that are not zero, as after some rounds."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
    return model


@pytest.mark.parametrize("targets", [("qkv", "proj"), ("fc1", "fc2"), ("qkv", "proj", "fc1", "fc2")])
def test_at_first_the_outputs_are_the_base_models(targets, rng):
    images = torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    assert torch.equal(prepared(LoRA(targets=targets))(images), NANO.build(0)(images))


def test_its_weights_are_those_of_the_definition(rng):
    """Outputs are those of the base model with W + (alpha/rank)·B·A written into it."""
    model = moved(prepared(LoRA(rank=3, alpha=5.0, targets=("qkv", "fc1"))))
    merged = NANO.build(0)
    for name, layer in merged.named_modules():
        if name.endswith(("qkv", "fc1")):
            low = model.get_submodule(name)
            layer.weight.data += 5.0 / 3 * low.lora_B @ low.lora_A
    images = torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(model(images), merged(images), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("first_step", [True, False])
def test_gradients_of_the_factors(first_step, rng):
    """∂L/∂B = s·(ΔᵀX)Aᵀ and ∂L/∂A = s·Bᵀ(ΔᵀX), with ΔᵀX summed token by token from hooks on the layer."""
    scale, recipe = 7.0 / 4, LoRA(rank=4, alpha=7.0, targets=("qkv", "fc2"))
    model = prepared(recipe) if first_step else moved(prepared(recipe))
    inputs, deltas = {}, {}
    for name, layer in model.named_modules():
        if isinstance(layer, LowRankLinear):
            layer.register_forward_hook(lambda _, x, y, name=name: _keep(inputs, deltas, name, x[0], y))
    images = torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    F.cross_entropy(model(images), torch.tensor([3, 8])).backward()
    assert len(inputs) == 4
    for name, x in inputs.items():
        layer = model.get_submodule(name)
        product = torch.zeros(layer.out_features, layer.in_features, dtype=torch.float64)
        for row, delta in zip(
            x.reshape(-1, layer.in_features), deltas[name].reshape(-1, layer.out_features), strict=True
        ):
            for place in range(layer.out_features):
                product[place] += delta[place] * row
        torch.testing.assert_close(layer.lora_B.grad, scale * product @ layer.lora_A.T, rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(layer.lora_A.grad, scale * layer.lora_B.T @ product, rtol=1e-9, atol=1e-13)
        assert bool(layer.lora_A.grad.eq(0).all()) == first_step
        assert float(layer.lora_B.grad.norm()) > 0
        assert layer.weight.grad is None


def _keep(inputs, deltas, name, x, output):
    inputs[name] = x.detach()
    output.register_hook(lambda delta: deltas.__setitem__(name, delta.detach()))


def test_per_sample_gradients_are_those_one_by_one(rng):
    model = moved(prepared(LoRA(rank=2)))
    shared = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    images, labels = torch.randn(3, 3, 8, 8, generator=rng, dtype=torch.float64), torch.tensor([1, 2, 2])

    def loss(parameters, image, label):
        return F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])

    for block in model.blocks:
        block.attn.fused_attn = False
    together = vmap(grad(loss), (None, 0, 0))(shared, images, labels)
    for place in range(3):
        model.zero_grad()
        F.cross_entropy(model(images[place : place + 1]), labels[place : place + 1]).backward()
        for name in shared:
            torch.testing.assert_close(together[name][place], model.get_parameter(name).grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("aggregate", ["both", "freeze_a"])
def test_what_is_trained(aggregate):
    model = prepared(LoRA(targets=("qkv",), aggregate=aggregate, head=False))
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    factors = ("lora_A", "lora_B") if aggregate == "both" else ("lora_B",)
    assert names == {f"blocks.{block}.attn.qkv.{factor}" for block in (0, 1) for factor in factors}


def test_the_base_models_names_and_roles_stay():
    model, bare = prepared(LoRA(targets=("qkv", "proj", "fc1", "fc2"))), NANO.build(0)
    assert find_roles(model) == find_roles(bare)
    added = model.state_dict().keys() - bare.state_dict().keys()
    assert bare.state_dict().keys() <= model.state_dict().keys()
    assert all(name.endswith(("lora_A", "lora_B")) for name in added)
    assert len(added) == 16
    assert isinstance(model.patch_embed.proj, nn.Conv2d)


def test_draws_come_from_the_seed_and_the_layer():
    first, again, other = (prepared(LoRA(), seed).state_dict() for seed in (3, 3, 4))
    name, next_name = "blocks.0.attn.qkv.lora_A", "blocks.1.attn.qkv.lora_A"
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.items())
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first[next_name])
    wider = prepared(LoRA(targets=("qkv", "fc1")), 3).state_dict()
    assert torch.equal(first[name], wider[name])  # whatever else is drawn
    assert float(first[name].abs().max()) <= 1 / 8
    torch.testing.assert_close(first[name].std(), torch.tensor(1 / 8 / 3**0.5, dtype=torch.float64), rtol=0.1, atol=0)


def test_copies_are_apart():
    model = prepared(LoRA())
    copied = copy.deepcopy(model)
    copied.blocks[0].attn.qkv.lora_B.data += 1
    assert bool(model.blocks[0].attn.qkv.lora_B.eq(0).all())


def test_a_checkpoint_of_the_base_and_one_of_the_run_both_load(tmp_path):
    from safetensors.torch import save_file

    base, run = NANO.build(5), moved(prepared(LoRA(rank=2), 5))
    save_file(base.state_dict(), tmp_path / "base.safetensors")
    save_file(run.state_dict(), tmp_path / "run.safetensors")
    for name, expected in (("base", base), ("run", run)):
        spec = ModelSpec(NANO.name, 10, dtype="float64", checkpoint=str(tmp_path / f"{name}.safetensors"))
        loaded = prepared(LoRA(rank=2), 9, spec)
        assert {n for n, p in loaded.named_parameters() if p.requires_grad} == {
            n for n, p in run.named_parameters() if p.requires_grad
        }
        assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in expected.state_dict().items())


def personal(recipe, seed=0):
    model = prepared(recipe, seed)
    return model, recipe.personalise(model, seed)


def test_a_local_pair_at_zero_changes_nothing_and_the_server_has_none(rng):
    recipe = LoRA(aggregate="local_pair")
    (model, added), shared = personal(recipe), moved(prepared(recipe))
    assert added == model.state_dict().keys() - shared.state_dict().keys()
    assert len(added) == 8
    assert all(name.endswith(("local_A", "local_B")) for name in added)
    assert {n for n, p in model.named_parameters() if p.requires_grad} - added == {
        n for n, p in prepared(LoRA()).named_parameters() if p.requires_grad
    }
    images = torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    assert torch.equal(moved(model)(images), shared(images))
    again, other = personal(recipe)[0].state_dict(), personal(recipe, 1)[0].state_dict()
    name = "blocks.0.attn.qkv.local_A"
    assert torch.equal(model.state_dict()[name], again[name])
    assert not torch.equal(again[name], other[name])
    assert not torch.equal(again[name], again["blocks.0.attn.qkv.lora_A"])


def test_both_pairs_add_to_the_weights(rng):
    """Outputs are those of the base model with W + s·B·A + s·B'·A' written into it."""
    recipe = LoRA(rank=3, alpha=5.0, targets=("qkv", "fc1"), aggregate="local_pair")
    model = moved(personal(recipe)[0])
    merged = NANO.build(0)
    for name, layer in merged.named_modules():
        if name.endswith(("qkv", "fc1")):
            low = model.get_submodule(name)
            low.local_B.data = 0.1 * torch.randn(low.local_B.shape, generator=rng, dtype=torch.float64)
            layer.weight.data += 5.0 / 3 * (low.lora_B @ low.lora_A + low.local_B @ low.local_A)
    images = torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(model(images), merged(images), rtol=1e-12, atol=1e-12)


def test_other_recipes_keep_nothing():
    for recipe in (LoRA(), LoRA(aggregate="freeze_a")):
        assert not recipe.keeps
        assert personal(recipe)[1] == set()


def test_refusals():
    for settings, words in [
        ({"rank": 0}, r"finetune\.rank=0: must be a whole number of at least 1"),
        ({"alpha": -1.0}, r"finetune\.alpha=-1\.0: must be a positive number"),
        ({"targets": "qkv"}, r"finetune\.targets=qkv: must be names of layers, as in \[qkv,proj\]"),
        ({"targets": []}, r"finetune\.targets=\[\]: must be names of layers"),
        ({"aggregate": "stack"}, r"finetune\.aggregate=stack: must be one of both, freeze_a"),
    ]:
        with pytest.raises(ConfigError, match=words):
            LoRA(**settings)
    with pytest.raises(ConfigError, match=r"finetune\.targets=qvk: .*: fc1, fc2, head, proj, qkv\. Did you mean 'qkv'"):
        prepared(LoRA(targets=("qvk",)))


class _GoesPast(nn.Module):
    """Reads a layer's weight without calling it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(12, 4), nn.Linear(4, 2)

    def forward(self, images):
        return self.head(F.linear(images.flatten(1), self.qkv.weight, self.qkv.bias))


def test_a_model_that_goes_past_the_factors_is_refused():
    recipe = LoRA(rank=2, targets=("qkv",), head=False)
    with pytest.raises(
        ConfigError, match="finetune=lora: must be a model that calls its modules: _GoesPast goes past qkv"
    ):
        recipe.check(recipe.prepare(_GoesPast()), (3, 2, 2))
    recipe.check(prepared(recipe), (3, 8, 8))


def test_records_come_back():
    recipe = LoRA(rank=2, alpha=3.0, targets=["qkv"], aggregate="freeze_a", head=False)
    assert recorded_finetune(recipe.to_record()) == recipe
