from contextlib import nullcontext

import pytest
import torch
from torch import nn

from clients.training import LossGradient
from defenses import Batch, DefenseChain, MaskedJigsawPuzzle, Outpost, Plan, Soteria
from defenses.model.soteria import feature_scores, kept_features
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.models.finetune.lora import LoRA
from tests.defenses.as_configured import configured

SPECS = {
    "vit": ModelSpec("vit_tiny_patch16_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 3}),
    "distilled": ModelSpec("deit_tiny_distilled_patch16_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24}),
    "mlp": ModelSpec("mlp_32", 5, img_size=8, kwargs={"hidden": [20, 16]}),
}


def batch_of(count, side=16):
    rng = torch.Generator().manual_seed(1)
    return Batch(torch.randn(count, 3, side, side, generator=rng), torch.arange(count) % 5)


def gradients(defense, model, batch):
    chain = DefenseChain({"soteria": defense})
    model = chain.wrap_model(model)
    return chain.gradient(model, batch, LossGradient(model, chain, 0.1), torch.Generator())


def taken(model, batch):
    """Head input, and the gradient of its output, by a pass of its own."""
    seen = {}
    handle = model.head.register_forward_hook(lambda _, inputs, out: seen.update(r=inputs[0], out=out))
    images = batch.images.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(images), batch.labels, label_smoothing=0.1)
    handle.remove()
    (delta,) = torch.autograd.grad(loss, seen["out"], retain_graph=True)
    return images, seen["r"], delta


def slow_scores(features, images):
    scores = torch.zeros_like(features)
    for b in range(len(features)):
        for i in range(features.shape[1]):
            (row,) = torch.autograd.grad(features[b, i], images, retain_graph=True)
            scores[b, i] = features[b, i].abs() / row.norm()
    return scores.detach()


@pytest.mark.parametrize("name", SPECS)
def test_no_pruning_is_bit_equal(name):
    batch, model = batch_of(2, 8 if name == "mlp" else 16), SPECS[name].build(0)
    expected = {n: g.clone() for n, g in LossGradient(model, DefenseChain(), 0.1)(batch).items()}
    shared = gradients(Soteria(0.0), SPECS[name].build(0), batch)
    assert shared.keys() == expected.keys()
    assert all(torch.equal(shared[n], g) for n, g in expected.items())


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rate", [0.25, 0.7, 1.0])
def test_exactly_the_share_of_columns_is_zero_and_nothing_else_changes(name, rate):
    batch, model = batch_of(2, 8 if name == "mlp" else 16), SPECS[name].build(0)
    stock = {n: g.clone() for n, g in LossGradient(model, DefenseChain(), 0.1)(batch).items()}
    defense = Soteria(rate)
    shared = gradients(defense, SPECS[name].build(0), batch)
    for n, g in stock.items():
        if n not in defense._heads:
            assert torch.equal(shared[n], g)
            continue
        zero, count = (shared[n] == 0).all(dim=0), round(rate * g.shape[1])
        # A ReLU network has features besides that no picture of the batch switches on.
        assert int(zero.sum()) >= count if name == "mlp" else int(zero.sum()) == count
        assert torch.equal(shared[n][:, ~zero], g[:, ~zero])


@pytest.mark.parametrize("at_once", [1, 5, 100])
def test_scores_against_one_backward_pass_each(at_once):
    model, batch = SPECS["vit"].build(0).double().eval(), batch_of(3)
    images, features, _ = taken(model, Batch(batch.images.double(), batch.labels))
    torch.testing.assert_close(feature_scores(features, images, at_once), slow_scores(features, images))


def test_scores_of_features_without_value_or_slope():
    images = torch.ones(1, 1, 1, 2, requires_grad=True)
    x = images.flatten(1)
    features = torch.cat([2 * x[:, :1], 0 * x[:, :1], 0 * x[:, :1] + 3], dim=1)
    assert feature_scores(features, images)[0].tolist() == [1.0, 0.0, float("inf")]


def test_the_largest_scores_go():
    scores = torch.tensor([[3.0, 1.0, 3.0, 2.0, float("inf")], [0.0, 1.0, 2.0, 3.0, 4.0]])
    assert kept_features(scores, 0.4).tolist() == [[False, True, True, True, False], [True, True, True, False, False]]
    assert kept_features(scores, 0.0).all()
    assert not kept_features(scores, 1.0).any()


@pytest.mark.parametrize("per", ["batch", "image"])
def test_against_a_slow_implementation(per):
    batch = batch_of(3)
    images, features, delta = taken(SPECS["vit"].build(0), batch)
    scores = slow_scores(features, images)
    if per == "batch":
        pruned = scores.sum(dim=0).topk(12).indices
        masks = torch.ones(3, 24)
        masks[:, pruned] = 0.0
    else:
        masks = torch.ones(3, 24).scatter(1, scores.topk(12).indices, 0.0)
    expected = sum(torch.outer(delta[b], features[b].detach() * masks[b]) for b in range(3))
    shared = gradients(Soteria(0.5, per), SPECS["vit"].build(0), batch)["head.weight"]
    torch.testing.assert_close(shared, expected, rtol=1e-4, atol=1e-7)


def test_one_picture_is_pruned_alike_by_both():
    batch = batch_of(1)
    by_image, by_batch = (gradients(Soteria(0.5, per), SPECS["vit"].build(0), batch) for per in ("image", "batch"))
    assert all(torch.equal(by_image[n], g) for n, g in by_batch.items())


class Normed(nn.Module):
    """A convolution, BatchNorm, dropout and a classifier."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.5))
        self.fc = nn.Linear(8 * 14 * 14, 5)

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(self.body(x))


def test_no_second_forward_pass():
    """Dropout draws, and BatchNorm counts, as without the defense."""
    batch, shared, models = batch_of(2), [], []
    for rate in (0.0, 0.001):
        torch.manual_seed(0)
        models.append(Normed().train())
        shared.append({n: g.clone() for n, g in gradients(Soteria(rate), models[-1], batch).items()})
    assert [int(model.body[1].num_batches_tracked) for model in models] == [1, 1]
    assert torch.equal(models[0].body[1].running_mean, models[1].body[1].running_mean)
    assert all(torch.equal(shared[1][n], g) for n, g in shared[0].items() if n != "fc.weight")
    assert not torch.equal(shared[0]["fc.weight"], shared[1]["fc.weight"])
    assert not models[1].fc._forward_hooks


def test_refuses_models_and_plans():
    headless = SPECS["vit"].build(0)
    headless.reset_classifier(0)
    with pytest.raises(ConfigError, match="soteria: must be a model with a linear classifier"):
        Soteria().wrap_model(headless)
    defense, model = Soteria(), SPECS["vit"].build(0)
    defense.wrap_model(model)
    defense.check(Plan(model, {}, {}, {"soteria": defense}))
    model.head.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"a classifier that is trained: head\.weight is not"):
        defense.check(Plan(model, {}, {}, {"soteria": defense}))
    for targets in (("qkv",), ("qkv", "head")):
        model = LoRA(rank=2, targets=targets).prepare(SPECS["vit"].build(0))
        defense.wrap_model(model)
        refused = pytest.raises(
            ConfigError, match=r"^finetune\.targets=head: must be .* without the classifier beside so"
        )
        with refused if "head" in targets else nullcontext():
            defense.check(Plan(model, {}, {}, {"soteria": defense}))
    model, each = SPECS["vit"].build(0), Soteria(per="image")
    each.wrap_model(model)
    with pytest.raises(ConfigError, match=r"client\.precision=bfloat16: must be float32 beside defense\.soteria\.per="):
        each.check(Plan(model, {"precision": "bfloat16"}, {}, {"soteria": each}))
    with pytest.raises(RuntimeError, match="wrap_model"):
        Soteria().gradient(model, batch_of(1), LossGradient(model, DefenseChain(), 0.0), torch.Generator())


def test_each_pictures_own_features_are_pruned_before_another_defense_changes_the_gradient():
    """Behind one that prunes, what is subtracted was no part of the gradient: its negative would be sent."""
    model, each = SPECS["vit"].build(0), Soteria(per="image")
    each.wrap_model(model)

    def check(**defenses):
        each.check(Plan(model, {}, {}, defenses))

    with pytest.raises(ConfigError, match=r"defense=\[outpost, soteria\]: must be soteria first: .* outpost changes"):
        check(outpost=Outpost(), soteria=each)
    check(soteria=each, outpost=Outpost())
    check(mjp=MaskedJigsawPuzzle(), soteria=each)
    whole = Soteria()
    whole.wrap_model(model)
    whole.check(Plan(model, {}, {}, {"outpost": Outpost(), "soteria": whole}))


@pytest.mark.parametrize(
    "settings",
    [{"prune_rate": -0.1}, {"prune_rate": 60}, {"prune_rate": "half"}, {"prune_rate": True}, {"per": "pixel"}],
)
def test_refuses_settings(settings):
    with pytest.raises(ConfigError, match=rf"defense\.soteria\.{next(iter(settings))}="):
        configured(Soteria, **settings)
