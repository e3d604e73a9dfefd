"""Codes against slow implementations of their papers; errors that come back a round later."""

import math

import numpy as np
import pytest
import torch

from defenses import QSGD, ClientRound, DefenseChain, Half, Sign, TopK
from fedsim.effects import AddsErrors, effects_in
from fedsim.errors import ConfigError
from fedsim.update import Update
from tests.defenses.as_configured import configured

LOSSY = {
    "topk": lambda **kw: TopK(0.1, **kw),
    "topk per tensor": lambda **kw: TopK(0.1, "tensor", **kw),
    "sign": lambda **kw: Sign("mean_abs", **kw),
    "sign per update": lambda **kw: Sign("mean_abs", "update", **kw),
    "qsgd": lambda **kw: QSGD(3, 16, **kw),
    "half": lambda **kw: Half("bfloat16", **kw),
}


@pytest.fixture
def update():
    return drawn(3)


def drawn(seed):
    rng = torch.Generator().manual_seed(seed)
    tensors = {
        "weight": torch.randn(40, 25, generator=rng),
        "bias": 0.01 * torch.randn(30, generator=rng, dtype=torch.float64),
        "scalar": torch.randn((), generator=rng),
        "count": torch.arange(3),
    }
    return Update(tensors, "gradient", 4)


def share(defense, update, seed=0):
    return defense.transform_update(update, torch.Generator().manual_seed(seed)).tensors


def floats(tensors):
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


@pytest.mark.parametrize(
    "defense",
    [TopK(1.0), TopK(1.0, "tensor", False), QSGD(None), QSGD(None, error_feedback=True), Half(None), Half("none")],
)
def test_identity_is_bit_equal(defense, update, rng):
    chain = DefenseChain({"identity": defense})
    memory = {}
    for _ in range(2):
        chain.begin(ClientRound(1, 10, memory))
        after = chain.transform_update(update, rng)
        assert all(torch.equal(after.tensors[name], tensor) for name, tensor in update.tensors.items())
        memory = chain.memory()


@pytest.mark.parametrize("name", LOSSY)
def test_others_change_the_update_and_not_in_place(name, update):
    before = {key: tensor.clone() for key, tensor in update.tensors.items()}
    after = LOSSY[name](error_feedback=False).transform_update(update, torch.Generator().manual_seed(0))
    assert list(after.tensors) == list(before)
    assert (after.kind, after.num_examples) == ("gradient", 4)
    assert not torch.equal(after.tensors["weight"], before["weight"])
    for key, tensor in before.items():
        assert torch.equal(update.tensors[key], tensor)
        assert after.tensors[key].dtype == tensor.dtype
        assert after.tensors[key].shape == tensor.shape
    assert torch.equal(after.tensors["count"], before["count"])


@pytest.mark.parametrize("name", LOSSY)
def test_replay(name, update):
    listed = Update(dict(reversed(update.tensors.items())), "gradient", 4)
    defense = LOSSY[name](error_feedback=False)
    first, second, other = share(defense, update, 1), share(defense, listed, 1), share(defense, update, 2)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[key], other[key]) for key in first) == (name != "qsgd")


@pytest.mark.parametrize("ratio", [1e-4, 0.01, 0.25, 0.999])
def test_topk_keeps_exactly_the_largest(ratio, update):
    sent = floats(share(TopK(ratio, error_feedback=False), update))
    given = torch.cat([update.tensors[name].double().flatten() for name in sent])
    found = torch.cat([tensor.double().flatten() for tensor in sent.values()])
    wanted = sorted(range(len(given)), key=lambda i: -abs(float(given[i])))[: max(1, round(ratio * len(given)))]
    assert found.nonzero().flatten().tolist() == sorted(wanted)
    assert torch.equal(found[wanted], given[wanted])


def test_topk_per_tensor_keeps_a_share_of_each(update):
    sent = share(TopK(0.1, "tensor", error_feedback=False), update)
    assert [int((sent[name] != 0).sum()) for name in ("weight", "bias", "scalar")] == [100, 3, 1]


def test_topk_of_equal_magnitudes_is_as_sparse():
    equal = Update({"w": torch.ones(50) * torch.tensor([1.0, -1.0]).repeat(25)}, "delta", 1)
    assert int((share(TopK(0.3, error_feedback=False), equal)["w"] != 0).sum()) == 15


def test_sign(update):
    bare = floats(share(Sign("none", error_feedback=False), update))
    scaled = share(Sign("mean_abs", "tensor", False), update)
    together = share(Sign("mean_abs", "update", False), update)
    every = torch.cat([update.tensors[name].double().flatten() for name in bare])
    for name, sign in bare.items():
        given = update.tensors[name]
        assert torch.equal(sign, (given > 0).to(given) - (given < 0).to(given))
        torch.testing.assert_close(scaled[name], sign * given.abs().mean())
        torch.testing.assert_close(together[name].double(), sign.double() * every.abs().mean())
    zero = Update({"w": torch.tensor([0.0, 2.0])}, "delta", 1)
    assert share(Sign("none", error_feedback=False), zero)["w"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bucket_size", [None, 7, 64, 5000])
def test_qsgd_values_lie_on_the_levels_beside_theirs(norm, bucket_size, update):
    """Each coordinate becomes one of the two multiples of norm/s around it, bucket by bucket."""
    levels = 4
    sent = share(QSGD(levels, bucket_size, norm), update)
    for name in ("weight", "bias", "scalar"):
        given, found = update.tensors[name].double().flatten().tolist(), sent[name].double().flatten().tolist()
        for start in range(0, len(given), bucket_size or len(given)):
            bucket = given[start : start + (bucket_size or len(given))]
            size = math.sqrt(sum(v * v for v in bucket)) if norm == "l2" else max(abs(v) for v in bucket)
            for v, q in zip(bucket, found[start:], strict=False):
                step = abs(q) / size * levels
                assert step == pytest.approx(round(step), abs=1e-4)
                assert abs(round(step) - abs(v) / size * levels) <= 1 + 1e-4
                assert v * q >= 0


@pytest.mark.parametrize(("norm", "bucket_size"), [("l2", None), ("l2", 50), ("max", 50)])
def test_qsgd_is_unbiased_and_within_the_variance_of_lemma_3_1(norm, bucket_size):
    given = torch.randn(150, generator=torch.Generator().manual_seed(1))
    update, levels, draws = Update({"w": given}, "gradient", 1), 2, 1000
    rng, defense = torch.Generator().manual_seed(2), QSGD(levels, bucket_size, norm)
    sent = torch.stack([defense.transform_update(update, rng).tensors["w"] for _ in range(draws)])
    assert bool(((sent.mean(dim=0) - given).abs() < 5 * sent.std(dim=0) / math.sqrt(draws) + 1e-6).all())
    if norm == "l2":
        n = bucket_size or 150
        bound = min(n / levels**2, math.sqrt(n) / levels) * float(given.square().sum())
        assert float((sent - given).square().sum(dim=1).mean()) < bound


def test_qsgd_of_zeros_is_zero():
    assert not share(QSGD(), Update({"w": torch.zeros(20)}, "delta", 1))["w"].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_is_the_round_trip(dtype, update):
    sent = share(Half(dtype), update)
    for name, tensor in floats(update.tensors).items():
        assert torch.equal(sent[name], tensor.to(getattr(torch, dtype)).to(tensor.dtype))
    if dtype == "float16":
        with_numpy = update.tensors["weight"].numpy().astype("float16").astype("float32")
        assert torch.equal(sent["weight"], torch.from_numpy(with_numpy))


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_sends_the_nearest_finite_number_of_its_type(dtype, kind):
    """All of a half type's numbers are listed: one of the two nearest is sent, the nearer."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    numbers = bits[bits.isfinite()].double().unique().numpy()
    values = [0.0, 1.0, -0.3, 65280.0, 6e-8]
    values += [] if kind == torch.float16 else [65503.0, 65519.0, 65520.0, 7e4, -1e9, 3.4e38]
    values += [1e300, -1e300] if kind == torch.float64 else []
    wanted = torch.tensor(values, dtype=kind)
    sent = share(Half(dtype), Update({"w": wanted}, "delta", 1))["w"].double()
    for value, found in zip(wanted.double().tolist(), sent.tolist(), strict=True):
        assert found in numbers
        assert abs(found - value) == np.abs(numbers - value).min()
    assert share(Half(dtype), Update({"w": torch.tensor([65503.0], dtype=kind)}, "delta", 1))["w"].isfinite()
    odd = share(Half(dtype), Update({"w": torch.tensor([torch.inf, -torch.inf, torch.nan])}, "delta", 1))["w"]
    assert odd[:2].tolist() == [torch.inf, -torch.inf], "a diverged client shows"
    assert odd[2].isnan()


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("name", [*LOSSY, "float16"])
def test_one_number_that_is_not_finite_spoils_no_later_round(name, odd):
    make = {**LOSSY, "float16": lambda **kw: Half("float16", **kw)}[name]
    defense, memory = make(error_feedback=True), {}
    rounds = [drawn(0), drawn(1), drawn(2)]
    rounds[0].tensors["weight"][3, 4] = odd
    for server_round, update in enumerate(rounds):
        defense.begin(ClientRound(server_round, 10, memory))
        before = memory.get("weight", torch.zeros(40, 25)).clone()
        sent = share(defense, update)["weight"]
        assert memory["weight"].isfinite().all()
        if server_round > 0:
            assert sent.isfinite().all()
            torch.testing.assert_close(sent + memory["weight"], update.tensors["weight"] + before)


def test_what_half_cuts_off_is_fed_back():
    defense, memory = Half("float16", error_feedback=True), {}
    total = torch.zeros(2)
    for server_round in range(3):
        defense.begin(ClientRound(server_round, 1, memory))
        update = Update({"w": torch.tensor([7e4, 1.0]) if server_round == 0 else torch.zeros(2)}, "delta", 1)
        total += share(defense, update)["w"]
    assert total.tolist() == [7e4, 1.0]


@pytest.mark.parametrize("name", LOSSY)
def test_error_feedback_carries_what_was_not_sent(name):
    """After each round: all that was sent, and the error kept, are together all that was to be sent."""
    chain = DefenseChain({"code": LOSSY[name](error_feedback=True)})
    wanted, sent, memory = torch.zeros(40, 25), torch.zeros(40, 25), {}
    other_client = drawn(99)
    for server_round in range(4):
        update = drawn(server_round)
        chain.begin(ClientRound(server_round, 10, memory))
        shared = chain.transform_update(update, torch.Generator().manual_seed(server_round)).tensors
        memory = chain.memory()
        chain.begin(ClientRound(server_round, 10))
        chain.transform_update(other_client, torch.Generator().manual_seed(server_round))
        wanted, sent = wanted + update.tensors["weight"], sent + shared["weight"]
        torch.testing.assert_close(sent + memory["code/weight"], wanted, rtol=1e-4, atol=1e-4)
        assert set(memory) == {"code/weight", "code/bias", "code/scalar"}


@pytest.mark.parametrize("name", LOSSY)
def test_errors_of_earlier_rounds_show_from_the_second_round_on(name):
    fed, plain = LOSSY[name](error_feedback=True).effects(), LOSSY[name](error_feedback=False).effects()
    before = [effects_in(server_round, fed)[:-1] for server_round in (0, 1, 2, 9)]
    assert before == [(), (), (AddsErrors(),), (AddsErrors(),)]
    assert all(effects_in(server_round, fed)[-1:] == effects_in(server_round, plain) != () for server_round in (1, 2))


def test_error_feedback_sends_small_coordinates_in_the_end():
    update = Update({"w": torch.tensor([1.0, 0.3])}, "gradient", 1)

    def sums(defense, rounds=10):
        memory, total = {}, torch.zeros(2)
        for server_round in range(rounds):
            turn = ClientRound(server_round, 1, memory)
            defense.begin(turn)
            total += share(defense, update)["w"]
            memory = turn.memory
        return total.tolist()

    assert sums(TopK(0.5, error_feedback=False)) == [10.0, 0.0]
    assert sums(TopK(0.5, error_feedback=True))[1] == pytest.approx(3.0, abs=1.0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TopK(0.0), r"defense\.topk\.ratio=0\.0: must be more than 0 and at most 1"),
        (lambda: TopK(1.5), "at most 1"),
        (lambda: TopK(math.nan), "at most 1"),
        (lambda: configured(TopK, ratio="ten"), r"topk\.ratio=ten"),
        (lambda: configured(TopK, ratio=True), r"topk\.ratio=True"),
        (lambda: TopK(0.5, "layer"), "one of update, tensor"),
        (lambda: Sign("mean"), r"sign\.scale=mean: must be one of none, mean_abs"),
        (lambda: Sign("none"), r"sign\.error_feedback=True: must be false with scale=none"),
        (lambda: configured(Sign, scale=3), r"sign\.scale=3"),
        (lambda: QSGD(0), r"qsgd\.levels=0: must be a whole number of at least 1, or null"),
        (lambda: configured(QSGD, levels=2.5), r"qsgd\.levels=2\.5"),
        (lambda: configured(QSGD, bucket_size="all"), r"qsgd\.bucket_size=all"),
        (lambda: QSGD(1, norm="l1"), r"qsgd\.norm=l1: must be one of l2, max"),
        (lambda: Half("float8"), "one of none, float16, bfloat16. Did you mean 'float16'"),
        (lambda: configured(Half, dtype=16), r"half\.dtype=16"),
    ],
)
def test_settings_that_make_no_sense(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize("name", LOSSY)
def test_whole_weights_are_refused(name, update, rng):
    with pytest.raises(ConfigError, match="formed after the defenses"):
        LOSSY[name](error_feedback=False).transform_update(Update(update.tensors, "weights", 4), rng)


@pytest.mark.parametrize(("scale", "per"), [("none", "update"), ("mean_abs", "update"), ("mean_abs", "tensor")])
def test_signs_have_the_magnitudes_that_are_published(scale, per, update):
    defense = Sign(scale, per, error_feedback=False)
    (effect,) = defense.effects()
    magnitudes = {n: t.abs()[t != 0].unique() for n, t in floats(share(defense, update)).items()}
    assert all(len(values) == 1 for values in magnitudes.values())
    values = {float(one) for one in magnitudes.values()}
    assert (values == {1.0}) == (effect.per is None)
    assert (max(values) > 1.01 * min(values)) == (effect.per == "tensor")  # of one magnitude in several dtypes
