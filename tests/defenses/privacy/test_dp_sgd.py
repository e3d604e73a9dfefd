"""DP-SGD against a loop over pictures, its noise, and what its accountant counts."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsim
from clients.app import ClientRuntime
from clients.training import LossGradient
from defenses import (
    DPSGD,
    AutomaticTransformation,
    Batch,
    ClientRound,
    CutMix,
    Defense,
    DefenseChain,
    InstaHide,
    MaskedJigsawPuzzle,
    MixUp,
    Plan,
    TopK,
)
from defenses.privacy.accounting import gaussian_delta, gaussian_epsilon, rdp_epsilon, sampled_gaussian_rdp
from defenses.privacy.dp_sgd import clipped_sum
from defenses.privacy.sampled import composed_epsilon
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.settings.composition import build_data
from tests.defenses.as_configured import configured
from tests.support.federation import settings

VIT = ModelSpec("vit_tiny_patch16_224", 5, 16, 8, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 2})


class Given:
    """Per-example gradients written down, for what must hold of any gradients."""

    def __init__(self, each):
        self.each = each

    def __call__(self, batch):
        return {name: g[batch.labels].mean(dim=0) for name, g in self.each.items()}

    def per_example(self, batch):
        return {name: g[batch.labels] for name, g in self.each.items()}


def numbered(count):
    return Batch(torch.zeros(count, 3, 2, 2), torch.arange(count))


def step(defense, compute, batch, seed=0, num_examples=1000):
    defense.begin(ClientRound(1, num_examples))
    return defense.gradient(nn.Identity(), batch, compute, torch.Generator().manual_seed(seed))


def each_of(count, scale=1.0):
    rng = torch.Generator().manual_seed(count)
    shapes = {"weight": (20, 30), "bias": (30,), "scalar": ()}
    return {name: scale * torch.randn(count, *shape, generator=rng) for name, shape in shapes.items()}


def norm(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_the_clipped_mean_is_a_loop_over_pictures(per_layer, chunk, soft):
    model = VIT.build(0)
    rng = torch.Generator().manual_seed(4)
    images = torch.randn(5, 3, 16, 16, generator=rng) * torch.tensor([0.1, 1.0, 3.0, 1.0, 10.0]).view(-1, 1, 1, 1)
    labels = torch.rand(5, 5, generator=rng).softmax(dim=1) if soft else torch.tensor([0, 4, 4, 1, 2])

    def alone(image, label):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None], label_smoothing=0.1).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    norms = [norm(alone(image, label)) for image, label in zip(images, labels, strict=True)]
    bound = sorted(norms)[2]
    for image, label in zip(images, labels, strict=True):
        gradient = alone(image, label)
        for name, g in gradient.items():
            if per_layer:
                factor = min(1.0, bound / math.sqrt(len(gradient)) / max(1e-12, float(g.norm())))
            else:
                factor = min(1.0, bound / norm(gradient))
            expected[name] += factor * g / 5
    defense = DPSGD(bound, 0.0, per_layer=per_layer, chunk=chunk)
    found = step(defense, LossGradient(model, Defense(), 0.1), Batch(images, labels))
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-6)
    if not per_layer:
        assert defense.measurements()["clipped_share"] == pytest.approx(2 / 5, abs=0.21)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_no_picture_contributes_more_than_the_bound(scale, per_layer):
    each = each_of(6, scale)
    for i in range(6):
        alone = {name: g[i : i + 1] for name, g in each.items()}
        contribution, shortened = clipped_sum(alone, 0.7, per_layer)
        assert norm(contribution) <= 0.7 * (1 + 1e-5)
        assert shortened == (scale > 1e-6)
        if scale == 1e-6:
            assert all(torch.equal(contribution[name], alone[name][0]) for name in each)


def test_replacing_a_picture_by_nothing_moves_the_sum_by_the_bound_at_most():
    each, defense = each_of(8, 5.0), DPSGD(0.5, 0.0)
    without = {name: g.clone() for name, g in each.items()}
    for g in without.values():
        g[3] = 0.0
    first, second = (step(defense, Given(gradients), numbered(8)) for gradients in (each, without))
    assert norm({name: 8 * (first[name] - second[name]) for name in first}) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])  # the square of the last overflows float32
def test_a_picture_whose_gradient_is_not_finite_counts_as_nothing(value, per_layer):
    each = each_of(8, 5.0)
    without = {name: g.clone() for name, g in each.items()}
    each["weight"][3, 0, 0] = value
    for g in without.values():
        g[3] = 0.0
    defense = DPSGD(0.5, 2.0, per_layer=per_layer)
    first, second = (step(defense, Given(gradients), numbered(8)) for gradients in (each, without))
    for name, tensor in first.items():
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
        assert torch.equal(tensor, second[name])


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_clipped_added_up_and_given_noise_in_float32(dtype, chunk, per_layer):
    """A loop in float64, and float32's noise; the step is rounded to the weights' type at the very end."""
    each = {name: g.to(dtype) for name, g in each_of(8, 5.0).items()}
    bound = 0.7 / math.sqrt(len(each)) if per_layer else 0.7
    found = step(DPSGD(0.7, 1.5, chunk=chunk, per_layer=per_layer), Given(each), numbered(8))
    whole = [norm({name: g[i] for name, g in each.items()}) for i in range(8)]
    rng = torch.Generator().manual_seed(0)
    for name in sorted(each):
        sizes = [norm({"": one}) for one in each[name]] if per_layer else whole
        total = sum(min(1.0, bound / size) * one.double() for one, size in zip(each[name], sizes, strict=True))
        expected = (total + 0.7 * 1.5 * torch.randn(each[name].shape[1:], generator=rng)) / 8
        assert found[name].dtype == dtype
        # Half a unit in the last place: what rounding once leaves.
        torch.testing.assert_close(found[name].double(), expected, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def test_a_step_of_bfloat16_weights_keeps_their_type():
    model = VIT.build(0).bfloat16()
    images, labels = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 4, 1])
    found = step(DPSGD(1e-3, 1.0), LossGradient(model, Defense(), 0.0), Batch(images.bfloat16(), labels))
    for name, parameter in model.named_parameters():
        parameter.grad = found[name]
        assert parameter.grad.any()


class DividesByDeviation(nn.Module):
    """As a normalisation without a smallest variance: a flat picture has no finite gradient."""

    def forward(self, images):
        centred = images - images.mean((1, 2, 3), keepdim=True)
        return centred / images.std((1, 2, 3), keepdim=True)


@pytest.mark.parametrize("chunk", [None, 2])
def test_a_flat_picture_does_not_show_where_the_model_divides_by_its_deviation(chunk):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(DividesByDeviation(), nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 5))
    images, labels = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    images[0] = 0.5
    compute = LossGradient(model, Defense(), 0.0)
    assert all(g[0].isnan().any() for g in compute.per_example(Batch(images, labels)).values())
    kept = step(DPSGD(1.0, 0.0, chunk=chunk), compute, Batch(images, labels))
    others = step(DPSGD(1.0, 0.0, chunk=chunk), compute, Batch(images[1:], labels[1:]))
    for name, tensor in kept.items():
        torch.testing.assert_close(4 * tensor, 3 * others[name])
    noised = step(DPSGD(1.0, 5.0, chunk=chunk), compute, Batch(images, labels))
    assert all(tensor.isfinite().all() for tensor in noised.values())


def test_zero_gradients_stay_zero():
    found = step(DPSGD(1.0, 0.0), Given({"w": torch.zeros(3, 4)}), numbered(3))
    assert torch.equal(found["w"], torch.zeros(4))


@pytest.mark.parametrize(("sigma", "bound", "size"), [(1.0, 0.5, 4), (3.0, 2.0, 10)])
def test_noise_has_the_standard_deviation(sigma, bound, size):
    zeros = {"a": torch.zeros(size, 200, 100), "b": torch.zeros(size, 3000)}
    found = step(DPSGD(bound, sigma), Given(zeros), numbered(size))
    for tensor in found.values():
        assert float(tensor.std()) == pytest.approx(sigma * bound / size, rel=0.05)
        assert abs(float(tensor.mean())) < 5 * sigma * bound / size / math.sqrt(tensor.numel())


def test_noise_replays_from_its_generator_alone():
    each, defense = each_of(4), DPSGD(1.0, 1.0)
    reversed_listing = Given(dict(reversed(each.items())))
    first, second = step(defense, Given(each), numbered(4), 1), step(defense, reversed_listing, numbered(4), 1)
    other = step(defense, Given(each), numbered(4), 2)
    assert all(torch.equal(first[name], second[name]) for name in each)
    assert not any(torch.equal(first[name], other[name]) for name in each)


def participate(defense, rounds, steps, size, num_examples):
    """Measurements after rounds of local steps, the memory kept through a chain as clients do."""
    chain, memory = DefenseChain({"dp_sgd": defense}), {}
    for server_round in range(rounds):
        chain.begin(ClientRound(server_round, num_examples, memory))
        for _ in range(steps):
            batch = numbered(size)
            chain.gradient(nn.Identity(), batch, Given({"w": torch.ones(size, 2)}), torch.Generator().manual_seed(0))
        memory = chain.memory()
    return chain.measurements()


@pytest.mark.parametrize(
    ("rounds", "steps", "passes"), [(1, 1, 1), (1, 4, 1), (1, 5, 2), (3, 1, 3), (3, 4, 3), (2, 9, 6)]
)
def test_without_amplification_each_pass_counts_once(rounds, steps, passes):
    """Four batches of 5 hold each of 20 pictures once; a round starts anew."""
    sigma, delta = 1.5, 1e-5
    measured = participate(DPSGD(1.0, sigma, delta), rounds, steps, 5, 20)
    assert gaussian_delta(measured["dp_sgd_epsilon"], math.sqrt(passes) / sigma) == pytest.approx(delta, rel=1e-4)
    assert measured["dp_sgd_delta"] == delta


@pytest.mark.parametrize(("rounds", "steps"), [(1, 1), (1, 4), (3, 2)])
def test_poisson_counts_steps_at_the_rate_of_the_batch(rounds, steps):
    measured = participate(DPSGD(1.0, 1.5, 1e-5, "poisson"), rounds, steps, 5, 20)
    expected = composed_epsilon(1.5, (0.25,), (rounds * steps,), 1e-5)
    assert measured["dp_sgd_epsilon"] == pytest.approx(expected, rel=1e-9)
    assert expected < rdp_epsilon(rounds * steps * sampled_gaussian_rdp(1.5, 0.25), 1e-5)


def test_a_last_batch_of_another_size_is_a_step_at_another_rate():
    defense, turn = DPSGD(1.0, 1.5, 1e-5, "poisson"), ClientRound(1, 20)
    defense.begin(turn)
    for size in (8, 8, 4, 8, 8, 4):
        defense.gradient(nn.Identity(), numbered(size), Given(each_of(8)), torch.Generator().manual_seed(0))
    assert (turn.memory["rates"].tolist(), turn.memory["counts"].tolist()) == ([0.4, 0.2], [4, 2])
    assert defense.measurements()["epsilon"] == composed_epsilon(1.5, (0.2, 0.4), (2, 4), 1e-5)
    bound = rdp_epsilon(turn.memory["rdp"], 1e-5)
    del turn.memory["rates"], turn.memory["counts"]
    assert defense.measurements()["epsilon"] == bound, "what an earlier version kept"
    step_more = ClientRound(2, 20, turn.memory)
    defense.begin(step_more)
    defense.gradient(nn.Identity(), numbered(8), Given(each_of(8)), torch.Generator().manual_seed(0))
    assert "rates" not in step_more.memory
    assert defense.measurements()["epsilon"] > bound


def test_where_nothing_is_composed_epsilon_is_renyis():
    measured = participate(DPSGD(1.0, 1.5, 1e-14, "poisson"), 1, 3, 5, 20)
    assert measured["dp_sgd_epsilon"] == rdp_epsilon(3 * sampled_gaussian_rdp(1.5, 0.25), 1e-14)


def test_a_client_smaller_than_its_batch_gains_nothing_by_sampling():
    measured = participate(DPSGD(1.0, 1.5, 1e-5, "poisson"), 1, 3, 8, 8)
    exact = gaussian_epsilon(1e-5, math.sqrt(3) / 1.5)
    assert exact < measured["dp_sgd_epsilon"] < 1.02 * exact


def test_without_noise_there_is_no_guarantee():
    for amplification in ("none", "poisson"):
        assert participate(DPSGD(1.0, 0.0, 1e-5, amplification), 1, 1, 4, 8)["dp_sgd_epsilon"] == math.inf


@pytest.fixture(scope="module")
def digits():
    config = settings("audit", "data=digits", "model=vit_nano", "audit.batch_size=4")
    return config, build_data(config)


@pytest.fixture
def shared(digits):
    """`shared(settings of dp_sgd or None, settings of the client)`: what a client shares, and the measurements."""

    def call(dp_sgd, rounds=1, **client):
        config, data = digits
        defense = {} if dp_sgd is None else {"dp_sgd": {"_target_": "defenses.DPSGD", **dp_sgd}}
        runtime = ClientRuntime({**config, "client": {**config["client"], **client}, "defense": defense}, data)
        state = {name: tensor.detach().clone() for name, tensor in runtime.model.state_dict().items()}
        memory = {}
        for server_round in range(rounds):
            runtime.load(state)
            result = runtime.train(data.train.subset(range(10)), 0, server_round, memory=memory)
            memory = runtime.defenses.memory()
        return runtime.share(result, state, 4, 0, 0).update.tensors, runtime.defenses.measurements()

    return call


@pytest.mark.parametrize("share", ["gradient", "delta"])
def test_identity_shares_the_bits_of_the_undefended_run(shared, share):
    plain, _ = shared(None, share=share)
    identical, _ = shared({"max_grad_norm": math.inf, "noise_multiplier": 0.0}, share=share)
    assert all(torch.equal(plain[name], identical[name]) for name in plain)
    for noise in (0.1, 0.0):
        changed, _ = shared({"max_grad_norm": 0.1, "noise_multiplier": noise}, share=share)
        assert not any(torch.equal(plain[name], changed[name]) for name in plain)


def test_a_wide_bound_without_noise_is_sgd(shared):
    plain, _ = shared(None)
    wide, measured = shared({"max_grad_norm": 1e6, "noise_multiplier": 0.0})
    for name, tensor in plain.items():
        torch.testing.assert_close(wide[name], tensor, rtol=1e-4, atol=1e-6)
    assert measured["dp_sgd_clipped_share"] == 0.0


def test_local_training_replays_and_is_accounted_for(shared):
    training = {"share": "delta", "local_epochs": 2, "rounds": 2}
    (first, measured), (second, _) = shared({}, **training), shared({}, **training)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert gaussian_delta(measured["dp_sgd_epsilon"], math.sqrt(4)) == pytest.approx(1e-5, rel=1e-4)


def plan(model, defenses, training_mode=True):
    return Plan(model, {"training_mode": training_mode}, {}, defenses)


class ChangesBatches(Defense):
    def transform_batch(self, batch, rng):
        return batch


class AddsLoss(Defense):
    def extra_loss(self, model, batch):
        return torch.zeros(())


class TakesGradients(Defense):
    def gradient(self, model, batch, compute, rng):
        return compute(batch)


@pytest.mark.parametrize(
    ("other", "hook"),
    [(ChangesBatches(), "transform_batch"), (AddsLoss(), "extra_loss"), (TakesGradients(), "gradient")],
)
def test_defenses_that_touch_batches_losses_or_gradients_are_refused(other, hook):
    defense = DPSGD()
    for defenses in ({"dp_sgd": defense, "other": other}, {"other": other, "dp_sgd": defense}):
        with pytest.raises(ConfigError, match=rf"\[dp_sgd, other\]: must be no defense beside it that has a `{hook}`"):
            DefenseChain(defenses).check(plan(VIT.build(0), defenses))


ALONE = {
    "ats": lambda: AutomaticTransformation("random", crop_padding=2, flip=True),
    "mjp_jp": lambda: MaskedJigsawPuzzle(0.8, min_block=1, embedding="own"),
    "per_batch": lambda: MaskedJigsawPuzzle(0.8, "batch", min_block=1, embedding="own"),
    "mjp_spp": lambda: MaskedJigsawPuzzle(1.0, shuffle="patches_and_pixels", embedding="own"),
    "by_chance": lambda: MaskedJigsawPuzzle(0.8, min_block=1, embedding="own", probability=0.5),
}


def pictures(seed, count=4):
    """Of strong contrast, so that each has a gradient longer than the bound."""
    return 3.0 * torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def transformed_sum(beside, images, labels, first, bound=0.05, seed=3):
    """What the model saw, and Σ_i clip(g_i, C) of it, with the draws of one seed."""
    dp_sgd = DPSGD(bound, 0.0, chunk=2)
    defenses = {"dp_sgd": dp_sgd, "other": beside} if first else {"other": beside, "dp_sgd": dp_sgd}
    chain = DefenseChain(defenses)
    model = chain.wrap_model(VIT.build(0))
    chain.check(plan(model, defenses))
    chain.begin(ClientRound(1, 100))
    rng = torch.Generator().manual_seed(seed)
    batch = chain.transform_batch(Batch(images, labels), rng)
    drawn = rng.get_state()
    found = chain.gradient(model, batch, LossGradient(model, chain, 0.0), rng)
    return batch.images, {name: len(labels) * g for name, g in found.items()}, drawn


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("first", [False, True])
def test_one_picture_more_or_less_moves_the_sum_of_transformed_pictures_by_the_bound_alone(name, first):
    """With the same draws, an exchanged picture changes nothing but its own clipped gradient."""
    bound, labels = 0.05, torch.tensor([0, 4, 1, 2])
    other_labels = torch.tensor([0, 4, 3, 2])
    one, other = pictures(1), pictures(1)
    other[2] = pictures(9)[2]
    seen, total, drawn = transformed_sum(ALONE[name](), one, labels, first, bound)
    exchanged, total_of_other, drawn_for_other = transformed_sum(ALONE[name](), other, other_labels, first, bound)
    assert torch.equal(drawn, drawn_for_other)
    assert [torch.equal(a, b) for a, b in zip(seen, exchanged, strict=True)] == [True, True, False, True]
    assert name == "by_chance" or not torch.equal(seen[0], one[0])
    moved = norm({n: total[n] - total_of_other[n] for n in total})
    assert 0.5 * bound < moved <= 2 * bound * (1 + 1e-5)
    # A picture with nothing in its place: the sum of the others' gradients, each by itself.
    rest = [i for i in range(4) if i != 2]
    alone = DPSGD(bound, 0.0)
    without = step(alone, LossGradient(VIT.build(0), Defense(), 0.0), Batch(seen[rest], labels[rest]))
    moved = norm({n: total[n] - 3 * without[n] for n in total})
    assert moved == pytest.approx(bound, rel=1e-3)


class MixesAfterwards(AutomaticTransformation):
    """Inherits `per_picture`, which it is not."""

    def transform_batch(self, batch, rng):
        return Batch((batch.images + batch.images.roll(1, 0)) / 2, batch.labels)


class MixesByItsWord(MixesAfterwards):
    per_picture = True


def test_a_subclass_must_say_for_itself_that_it_changes_each_picture_alone():
    defense = DPSGD()
    with pytest.raises(ConfigError, match=r"\[dp_sgd, mixing\]: must be no defense beside it that has a `transform_b"):
        defense.check(plan(VIT.build(0), {"dp_sgd": defense, "mixing": MixesAfterwards()}))
    defense.check(plan(VIT.build(0), {"dp_sgd": defense, "mixing": MixesByItsWord()}))


@pytest.mark.parametrize("beside", [MixUp(), CutMix(), InstaHide()])
def test_mixed_pictures_are_refused_and_would_move_the_others(beside):
    model, defense = VIT.build(0), DPSGD()
    with pytest.raises(ConfigError, match=r"has a `transform_batch`.*ats and mjp_jp change each picture by itself"):
        defense.check(plan(model, {"dp_sgd": defense, "mixing": beside}))
    one, other = pictures(1), pictures(1)
    other[2] = pictures(9)[2]
    beside.wrap_model(model)
    beside.begin(ClientRound(1, 100))
    labels = torch.tensor([0, 4, 1, 2])

    def seen(images, seed):
        return beside.transform_batch(Batch(images, labels), torch.Generator().manual_seed(seed)).images

    changed = [(seen(one, seed) != seen(other, seed)).flatten(1).any(dim=1).sum() for seed in range(5)]
    assert max(changed) > 1


@pytest.mark.parametrize(
    "settings",
    [{}, {"embedding": "indexed"}, {"embedding": "own", "dal": "linear"}, {"embedding": "own", "dal": "pca"}],
)
@pytest.mark.parametrize("first", [False, True])
def test_a_jigsaw_that_touches_embeddings_is_refused(settings, first):
    defense, mjp = DPSGD(), MaskedJigsawPuzzle(**settings)
    defenses = {"dp_sgd": defense, "mjp": mjp} if first else {"mjp": mjp, "dp_sgd": defense}
    chain = DefenseChain(defenses)
    model = chain.wrap_model(VIT.build(0))
    with pytest.raises(ConfigError, match="no defense beside it" if first else "beside dp_sgd: gradients of single"):
        chain.check(plan(model, defenses))


def test_defenses_of_the_update_may_stand_beside_it():
    defense = DPSGD()
    defense.check(plan(VIT.build(0), {"dp_sgd": defense, "topk": TopK()}))


def test_batch_norm_is_refused_in_training_mode_only():
    model, defense = ModelSpec("resnet10t", 5).build(0), DPSGD()
    with pytest.raises(ConfigError, match=r"without BatchNorm \(conv1\.1 mixes .*\), or client.training_mode=false"):
        defense.check(plan(model, {"dp_sgd": defense}))
    defense.check(plan(model, {"dp_sgd": defense}, training_mode=False))
    model = model.eval()
    batch = Batch(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]))
    compute = LossGradient(model, Defense(), 0.0)
    found, plain = step(DPSGD(1e6, 0.0), compute, batch), compute(batch)
    for name, tensor in plain.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)


def test_steps_before_begin():
    with pytest.raises(RuntimeError, match="call begin first"):
        DPSGD().gradient(nn.Identity(), numbered(2), Given(each_of(2)), torch.Generator())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DPSGD(0.0), r"defense\.dp_sgd\.max_grad_norm=0\.0: must be more than 0"),
        (lambda: DPSGD(math.inf), r"max_grad_norm=inf: must be finite: the noise is a multiple of it"),
        (lambda: DPSGD(1.0, -1.0), r"noise_multiplier=-1\.0: must be 0 or more"),
        (lambda: DPSGD(1.0, math.inf), "noise_multiplier=inf"),
        (lambda: DPSGD(delta=0.0), r"dp_sgd\.delta=0\.0: must be between 0 and 1"),
        (lambda: DPSGD(delta=1.0), r"dp_sgd\.delta"),
        (lambda: DPSGD(amplification="poison"), "one of none, poisson. Did you mean 'poisson'"),
        (lambda: DPSGD(chunk=0), r"chunk=0: must be a whole number of at least 1, or null"),
        (lambda: configured(DPSGD, chunk="all"), r"chunk=all"),
        (lambda: configured(DPSGD, per_layer="yes"), r"per_layer=yes: must be true or false"),
        (lambda: configured(DPSGD, noise_multiplier=None), r"noise_multiplier=None"),
        (lambda: configured(DPSGD, max_grad_norm="one"), r"max_grad_norm=one"),
        (lambda: configured(DPSGD, delta="1/n"), r"delta=1/n"),
    ],
)
def test_settings_that_make_no_sense(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


class Writes(nn.Module):
    """Does what torch cannot do image by image."""

    def __init__(self, what):
        super().__init__()
        self.head, self.what = nn.Linear(12, 3), what
        self.register_buffer("seen", torch.zeros(()))
        self.norm = nn.InstanceNorm2d(3, track_running_stats=True) if what == "statistics" else nn.Identity()

    def forward(self, x):
        if self.what == "counter":
            self.seen.add_(1)
        if self.what == "number":
            x = x * (1 if x.sum().item() > 0 else 2)
        if self.what == "shape" and self.training:
            x = x.flatten(1)[:, :5]
        return self.head(self.norm(x).flatten(1))


@pytest.mark.parametrize("what", ["counter", "number", "statistics"])
def test_a_model_that_cannot_be_taken_image_by_image_is_one_line(what):
    with pytest.raises(ConfigError, match="writes to no buffer and turns no tensor into a number") as refused:
        fedsim.observe(Writes(what).train(), torch.rand(2, 3, 2, 2), [0, 1], defense="dp_sgd")
    assert "\n" not in str(refused.value)


def test_another_fault_of_a_model_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fedsim.observe(Writes("shape").train(), torch.rand(2, 3, 2, 2), [0, 1], defense="dp_sgd")
