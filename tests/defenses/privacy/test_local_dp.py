"""Local DP against Flower's mod, and ε by the definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

from defenses import ClientRound, DefenseChain, LocalDP, Plan
from defenses.privacy.accounting import gaussian_delta
from fedsim.determinism import seeded_globals
from fedsim.effects import AddsNoise, Clips
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.update import Update
from tests.defenses.as_configured import configured


@pytest.fixture
def update():
    rng = torch.Generator().manual_seed(3)
    tensors = {"weight": torch.randn(200, 100, generator=rng), "bias": torch.randn(50, generator=rng)}
    return Update(tensors, "delta", 4)


def share(defense, update, seed=0):
    defense.begin(ClientRound(1, 10))
    return defense.transform_update(update, torch.Generator().manual_seed(seed)).tensors


@pytest.fixture
def in_a_task(monkeypatch):
    """Flower makes messages only inside a task."""
    for identity in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, identity, 1)


def by_flower(update, start, **mod):
    """What the server reads of start + update through Flower's mod."""

    def record(tensors):
        return RecordDict({"arrays": ArrayRecord({name: Array(t.numpy()) for name, t in tensors.items()})})

    message = Message(record(start), dst_node_id=1, message_type="train")
    trained = {name: start[name] + delta for name, delta in update.tensors.items()}
    with seeded_globals(0, "flower's noise"):
        reply = LocalDpMod(**mod)(
            message,
            Context(0, 0, {}, RecordDict(), {}),
            lambda asked, context: Message(record(trained), reply_to=asked),
        )
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in reply.content["arrays"].items()}


@pytest.mark.parametrize("bound", [0.5, 30.0, 1e4])
def test_clipping_is_flowers(bound, update, in_a_task):
    start = {
        name: torch.randn(t.shape, generator=torch.Generator().manual_seed(9)) for name, t in update.tensors.items()
    }
    flower = by_flower(update, start, clipping_norm=bound, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    ours = share(LocalDP(bound, math.inf), update)
    for name, tensor in ours.items():
        torch.testing.assert_close(start[name] + tensor, flower[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(0.2, 0.5), (3.0, 0.9)])
def test_noise_has_flowers_standard_deviation(sensitivity, epsilon, update, in_a_task):
    zero = {name: torch.zeros_like(t) for name, t in update.tensors.items()}
    mod = {"clipping_norm": 1.0, "sensitivity": sensitivity, "epsilon": epsilon, "delta": 1e-5}
    clipped = share(LocalDP(1.0, math.inf), update)["weight"]
    flower = by_flower(update, zero, **mod)["weight"] - clipped
    defense = LocalDP(1.0, epsilon, 1e-5, sensitivity)
    ours = share(defense, update)["weight"] - clipped
    assert float(ours.std()) == pytest.approx(float(flower.std()), rel=0.03)
    assert float(ours.std()) == pytest.approx(defense.std, rel=0.02)
    assert abs(float(ours.mean())) < 5 * defense.std / math.sqrt(ours.numel())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_clipped_and_given_noise_in_float32(dtype, update):
    half = replace(update, tensors={name: t.to(dtype) for name, t in update.tensors.items()})
    defense = LocalDP(0.5, 5.0)
    factor = 0.5 / math.sqrt(sum(float(t.double().square().sum()) for t in half.tensors.values()))
    found, rng = share(defense, half), torch.Generator().manual_seed(0)
    for name in sorted(half.tensors):
        noise = torch.randn(half.tensors[name].shape, generator=rng)
        expected = factor * half.tensors[name].double() + defense.std * noise
        assert found[name].dtype == dtype
        # Half a unit in the last place: what rounding once leaves.
        torch.testing.assert_close(found[name].double(), expected, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def test_a_zero_update_gets_noise_and_no_division_by_zero(update):
    nothing = Update({name: torch.zeros_like(t) for name, t in update.tensors.items()}, "gradient", 4)
    assert all(bool(t.isfinite().all() and t.any()) for t in share(LocalDP(), nothing).values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_sent_as_a_zero_one(value, update):
    nothing = Update({name: torch.zeros_like(t) for name, t in update.tensors.items()}, "delta", 4)
    broken = replace(update, tensors={name: t.clone() for name, t in update.tensors.items()})
    broken.tensors["bias"][7] = value
    first, second = share(LocalDP(), broken), share(LocalDP(), nothing)
    assert all(t.dtype == torch.float32 and t.isfinite().all() for t in first.values())
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_identity_is_bit_equal_and_others_are_not(update):
    before = {name: t.clone() for name, t in update.tensors.items()}
    same = share(LocalDP(math.inf, math.inf), update)
    assert all(torch.equal(same[name], before[name]) for name in before)
    for defense in (LocalDP(0.5, math.inf), LocalDP(1e9, 1.0)):
        after = share(defense, update)
        assert not any(torch.equal(after[name], before[name]) for name in before)
        assert all(torch.equal(update.tensors[name], before[name]) for name in before)


def test_replay(update):
    listed = Update(dict(reversed(update.tensors.items())), "delta", 4)
    first, second, other = share(LocalDP(), update, 1), share(LocalDP(), listed, 1), share(LocalDP(), update, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("epsilon", [0.1, 0.9, 8.0])
def test_analytic_noise_is_exactly_enough(epsilon):
    defense = LocalDP(2.0, epsilon, 1e-5, calibration="analytic")
    assert gaussian_delta(epsilon, 4.0 / defense.std) == pytest.approx(1e-5, rel=1e-6)
    assert defense.std < LocalDP(2.0, epsilon, 1e-5).std


@pytest.mark.parametrize("rounds", [1, 4])
def test_epsilon_of_all_rounds_so_far(rounds, update):
    defense = LocalDP(1.5, 0.7, 1e-6, calibration="analytic")
    chain, memory = DefenseChain({"local_dp": defense}), {}
    for server_round in range(rounds):
        chain.begin(ClientRound(server_round, 10, memory))
        chain.transform_update(update, torch.Generator().manual_seed(0))
        memory = chain.memory()
    measured = chain.measurements()
    assert gaussian_delta(measured["local_dp_epsilon"], math.sqrt(rounds) * 3.0 / defense.std) == pytest.approx(
        1e-6, rel=1e-4
    )
    assert measured["local_dp_delta"] == 1e-6
    if rounds == 1:
        assert measured["local_dp_epsilon"] == pytest.approx(0.7, rel=1e-4)


def test_a_sensitivity_below_the_true_one_buys_less(update):
    honest, short = LocalDP(1.0, 0.5), LocalDP(1.0, 0.5, sensitivity=1.0)
    for defense in (honest, short):
        share(defense, update)
    assert honest.measurements()["epsilon"] < 0.5 < short.measurements()["epsilon"]


def test_without_noise_there_is_no_guarantee(update):
    defense = LocalDP(1.0, math.inf)
    share(defense, update)
    assert defense.measurements()["epsilon"] == math.inf


class Counts(torch.nn.Module):
    """A layer of no known class that remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("constant", torch.ones(2))


@pytest.mark.parametrize("encoded", ["delta", "weights"])
def test_a_buffer_that_training_changed_is_refused(encoded, update):
    model, defense = Counts(), LocalDP(1.0, 0.9)
    before = {"seen": torch.zeros(2), "constant": torch.ones(2)}
    share_of = {name: value if encoded == "weights" else value - before[name] for name, value in before.items()}
    defense.begin(ClientRound(1, 10, model=model))
    sent = defense.transform_update(replace(update, buffers=share_of), torch.Generator())
    assert sent.buffers is share_of
    defense.begin(ClientRound(1, 10, model=model))
    model.seen += 0.5
    with pytest.raises(ConfigError, match="seen would be shared without noise"):
        defense.transform_update(replace(update, buffers=share_of | {"seen": model.seen}), torch.Generator())
    defense.transform_update(update, torch.Generator())  # withheld by another defense


def test_running_statistics_are_refused():
    defense = LocalDP()
    model = ModelSpec("resnet10t", 5).build(0)
    with pytest.raises(ConfigError, match=r"without running statistics .*training_mode=false"):
        defense.check(Plan(model, {"training_mode": True}, {}, {"local_dp": defense}))
    defense.check(Plan(model, {"training_mode": False}, {}, {"local_dp": defense}))
    vit = ModelSpec("vit_tiny_patch16_224", 5, 16, 8, kwargs={"depth": 1}).build(0)
    defense.check(Plan(vit, {"training_mode": True}, {}, {"local_dp": defense}))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LocalDP(0.0), r"defense\.local_dp\.clipping_norm=0\.0: must be more than 0"),
        (lambda: LocalDP(math.inf), r"clipping_norm=inf: must be finite, or epsilon=\.inf beside it"),
        (lambda: LocalDP(1.0, 0.0), r"epsilon=0\.0: must be more than 0"),
        (lambda: LocalDP(delta=1.0), r"delta=1\.0: must be between 0 and 1"),
        (lambda: LocalDP(sensitivity=0.0), r"sensitivity=0\.0: must be more than 0, or null"),
        (lambda: LocalDP(calibration="exact"), "one of classical, analytic"),
        (lambda: configured(LocalDP, epsilon="one"), r"epsilon=one"),
        (lambda: configured(LocalDP, sensitivity=np.ones(2)), r"sensitivity"),
    ],
)
def test_settings_that_make_no_sense(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_whole_weights_are_refused(update, rng):
    with pytest.raises(ConfigError, match="formed after the defenses"):
        LocalDP().transform_update(Update(update.tensors, "weights", 4), rng)


def test_what_it_publishes_is_what_it_does(update):
    defense = LocalDP(clipping_norm=2.0, epsilon=5.0)
    clips, noise = defense.effects()
    assert (clips, noise) == (Clips(2.0, "update"), AddsNoise(defense.std, relative=False, distribution="gaussian"))
    clipped = share(LocalDP(clipping_norm=2.0, epsilon=math.inf), update)
    flat = torch.cat([t.flatten() for t in clipped.values()])
    assert float(flat.norm()) == pytest.approx(clips.max_norm, rel=1e-5)
    added = torch.cat([t.flatten() for t in share(defense, update).values()]) - flat
    assert float(added.std()) == pytest.approx(noise.std, rel=0.02)
    assert LocalDP(2.0, math.inf).effects() == (clips,)
    assert LocalDP(math.inf, math.inf).effects() == ()


@pytest.mark.parametrize(("epsilon", "spent"), [(0.9, "0.7"), (10.0, "10.4")])
def test_flowers_formula_spends_more_than_it_is_set_to_where_it_is_not_proven(epsilon, spent, update):
    """As docs/defenses/local_dp.md has it."""
    defense = LocalDP(epsilon=epsilon)
    share(defense, update)
    assert f"{defense.measurements()['epsilon']:.1f}" == spent
