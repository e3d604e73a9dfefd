import copy

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from clients.training import LossGradient
from defenses import Batch, DefenseChain, Plan, Precode, Soteria
from defenses.model.precode import VariationalBottleneck, kl_to_standard_normal
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, find_roles
from tests.defenses.as_configured import configured

SPECS = {
    "vit": ModelSpec("vit_tiny_patch16_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 3}),
    "deit": ModelSpec("deit_tiny_distilled_patch16_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24}),
    "gap": ModelSpec("vit_base_patch16_rope_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 3}),
    "resnet": ModelSpec("resnet18_cifar_32", 5),
    "lenet": ModelSpec("lenet_dlg_32", 5),
}


def side(name):
    return 32 if name in ("resnet", "lenet") else 16


def batch_of(count=2, pixels=16):
    images = torch.randn(count, 3, pixels, pixels, generator=torch.Generator().manual_seed(1))
    return Batch(images, torch.arange(count) % 5)


def shared(chain, model, batch, seed=0):
    with seeded_globals(seed):
        return dict(chain.gradient(model, batch, LossGradient(model, chain, 0.0), torch.Generator()))


def pass_through(bottleneck):
    """The limit: z is r, without noise."""
    width = bottleneck.decoder.in_features
    with torch.no_grad():
        bottleneck.encoder.weight.copy_(torch.cat([torch.eye(width), torch.zeros(width, width)]))
        bottleneck.encoder.bias.copy_(torch.cat([torch.zeros(width), torch.full((width,), -1e4)]))
        bottleneck.decoder.weight.copy_(torch.eye(width))
        bottleneck.decoder.bias.zero_()


@pytest.mark.parametrize("name", SPECS)
def test_the_classifier_keeps_its_name_and_reads_the_bottleneck(name):
    stock, model = SPECS[name].build(0).eval(), Architecture(SPECS[name], (Precode(k=7),)).build().eval()
    before, after = find_roles(stock), find_roles(model)
    assert before == after
    assert after.head_weights
    for weight in after.head_weights:
        assert torch.equal(model.get_parameter(weight), stock.get_parameter(weight))
    bottlenecks = [m for m in model.modules() if isinstance(m, VariationalBottleneck)]
    assert len(bottlenecks) == len(after.head_weights)
    assert all(b.encoder.out_features == 14 for b in bottlenecks)
    images = batch_of(2, side(name)).images
    read = []
    head = model.get_submodule(after.head_weights[0].rpartition(".")[0])
    head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    scores = model(images)
    if len(after.head_weights) == 1:
        torch.testing.assert_close(scores, torch.nn.functional.linear(read[0], head.weight, head.bias))
    assert not torch.allclose(scores, stock(images))
    assert not torch.allclose(scores, model(images))


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_limit_of_a_bottleneck_that_lets_everything_through_is_bit_equal(name):
    stock = SPECS[name].build(0).eval()
    width = stock.get_classifier().in_features
    model = Precode(k=width, beta=0.0).wrap_model(SPECS[name].build(0)).eval()
    pass_through(model.get_classifier().bottleneck)
    images = batch_of(2, side(name)).images
    assert torch.equal(model(images), stock(images))


def test_every_party_builds_the_same_model():
    first, second = (Architecture(SPECS["vit"], (Precode(),), seed=3).build().state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    Architecture(SPECS["vit"], (Precode(),), seed=4).build().load_state_dict(first)


def test_sampling_modes():
    for sample, random_in in (("always", (True, False)), ("training", (True,)), ("never", ())):
        bottleneck = VariationalBottleneck(6, 4, sample)
        features = torch.randn(2, 6)
        for training in (True, False):
            bottleneck.train(training)
            assert torch.equal(bottleneck(features), bottleneck(features)) == (training not in random_in)
            if training not in random_in:
                torch.testing.assert_close(
                    bottleneck(features), bottleneck.decoder(bottleneck.encoder(features)[:, :4])
                )


def test_an_evaluation_is_noisy_and_can_be_repeated():
    bottleneck, features = VariationalBottleneck(6, 4).eval(), torch.randn(2, 6)
    with torch.no_grad():
        first = bottleneck(features)
        assert torch.equal(first, bottleneck(features))
        mean = bottleneck.decoder(bottleneck.encoder(features)[:, :4])
    assert not torch.allclose(first, mean, atol=1e-3)


def test_samples_have_the_encoders_mean_and_deviation():
    torch.manual_seed(0)
    bottleneck = VariationalBottleneck(3, 3)
    pass_through(bottleneck)
    with torch.no_grad():
        bottleneck.encoder.bias[3:] = torch.tensor([-2.0, 0.0, 3.0])
        drawn = bottleneck(torch.tensor([[1.0, -5.0, 0.0]]).expand(20_000, 3))
    torch.testing.assert_close(drawn.mean(dim=0), torch.tensor([1.0, -5.0, 0.0]), atol=0.07, rtol=0)
    expected = torch.nn.functional.softplus(torch.tensor([-2.0, 0.0, 3.0]))
    torch.testing.assert_close(drawn.std(dim=0), expected, rtol=0.03, atol=0)


def test_kl_against_torch_distributions():
    rng = torch.Generator().manual_seed(0)
    mean, std = torch.randn(4, 9, generator=rng).double(), 0.1 + torch.rand(4, 9, generator=rng).double()
    expected = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).sum(dim=1).mean()
    torch.testing.assert_close(kl_to_standard_normal(mean, std), expected)
    assert float(kl_to_standard_normal(torch.zeros(2, 3), torch.ones(2, 3))) == 0.0
    assert bool(kl_to_standard_normal(torch.zeros(2, 3), torch.zeros(2, 3)).isfinite())


@pytest.mark.parametrize("name", ["vit", "deit"])
def test_the_loss_gains_beta_times_the_divergence(name):
    batch = batch_of()
    defense = Precode(k=4, beta=0.5)
    chain = DefenseChain({"precode": defense})
    model = chain.wrap_model(SPECS[name].build(0))
    got = shared(chain, model, batch)
    with seeded_globals(0):
        loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
    terms = []
    for head in find_roles(model).head_weights:
        bottleneck = model.get_submodule(head.rpartition(".")[0]).bottleneck
        terms.append(kl_divergence(Normal(*bottleneck._statistics), Normal(0.0, 1.0)).sum(dim=1).mean())
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected = torch.autograd.grad(loss + 0.5 * sum(terms), parameters)
    for parameter, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(got[parameter], gradient, rtol=1e-4, atol=1e-7)
    assert Precode(beta=0.0).extra_loss(model, batch) is None


def test_replay_by_the_global_generator():
    chain = DefenseChain({"precode": Precode(k=4)})
    model = chain.wrap_model(SPECS["vit"].build(0))
    first, again, other = (shared(chain, model, batch_of(), seed)["head.weight"].clone() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_soteria_behind_it_prunes_what_the_classifier_reads():
    chain = DefenseChain({"precode": Precode(k=4), "soteria": Soteria(0.5)})
    model = chain.wrap_model(SPECS["vit"].build(0))
    alone, pruned = DefenseChain({"precode": chain.defenses["precode"]}), shared(chain, model, batch_of())
    stock = shared(alone, model, batch_of())
    zero = (pruned["head.weight"] == 0).all(dim=0)
    assert int(zero.sum()) == 12
    assert torch.equal(pruned["head.weight"][:, ~zero], stock["head.weight"][:, ~zero])


def test_a_used_model_can_be_copied():
    model = Precode(k=4).wrap_model(SPECS["vit"].build(0))
    model(batch_of().images).sum().backward()
    twin = copy.deepcopy(model)
    twin.head.bottleneck.decoder.bias.data += 1.0
    with seeded_globals(0):
        first = model(batch_of().images)
    with seeded_globals(0):
        assert not torch.allclose(first, twin(batch_of().images))
    with pytest.raises(RuntimeError, match="run the model first"):
        copy.deepcopy(model).head.bottleneck.divergence()


def test_refuses_models_and_plans():
    headless = SPECS["vit"].build(0)
    headless.reset_classifier(0)
    with pytest.raises(ConfigError, match="precode: must be a model with a linear classifier"):
        Precode().wrap_model(headless)
    quiet = Precode(sample="training")
    quiet.check(Plan(headless, {"training_mode": True}, {}, {}))
    with pytest.raises(
        ConfigError, match=r"precode\.sample=training: must be always, since client\.training_mode=false"
    ):
        quiet.check(Plan(headless, {"training_mode": False}, {}, {}))


@pytest.mark.parametrize(
    "settings", [{"k": 0}, {"k": 2.5}, {"k": "ten"}, {"beta": -1.0}, {"beta": "small"}, {"sample": "sometimes"}]
)
def test_refuses_settings(settings):
    with pytest.raises(ConfigError, match=rf"defense\.precode\.{next(iter(settings))}="):
        configured(Precode, **settings)
