import math

import numpy as np
import pytest
import torch
from scipy import stats

from defenses import QSGD, DefenseChain, GradientClip, GradientNoise, Half, Plan, Sign, TopK
from defenses.update.perturbation import _warn_of_statistics
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.update import Update
from tests.defenses.as_configured import configured


@pytest.fixture
def update():
    rng = torch.Generator().manual_seed(3)
    tensors = {
        "weight": torch.randn(200, 50, generator=rng),
        "bias": 1e-3 * torch.randn(50, generator=rng, dtype=torch.float64),
        "half": torch.randn(10, generator=rng).bfloat16(),
        "count": torch.arange(3),
    }
    return Update(tensors, "gradient", 4)


def norm(update):
    return math.sqrt(sum(float(t.double().square().sum()) for t in update.tensors.values() if t.is_floating_point()))


def change(before, after):
    tensors = {name: after.tensors[name].double() - t.double() for name, t in before.tensors.items()}
    return Update(tensors, "gradient", 4)


def copies(update):
    return {name: tensor.clone() for name, tensor in update.tensors.items()}


@pytest.mark.parametrize(
    "defense",
    [
        GradientNoise(0.0),
        GradientNoise(0.0, distribution="laplace"),
        GradientNoise(relative_norm=0.0),
        GradientClip(math.inf),
        GradientClip(1e9),
        GradientClip(),
    ],
)
def test_identity_limit_is_bit_equal(defense, update, rng):
    after = DefenseChain({"identity": defense}).transform_update(update, rng)
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in update.tensors.items())


@pytest.mark.parametrize(
    "defense",
    [
        GradientNoise(0.1),
        GradientNoise(0.1, distribution="laplace"),
        GradientNoise(relative_norm=0.1),
        GradientClip(0.5),
    ],
)
def test_changes_the_update_and_not_in_place(defense, update, rng):
    before = copies(update)
    after = defense.transform_update(update, rng)
    for name, tensor in update.tensors.items():
        assert torch.equal(tensor, before[name])
        assert after.tensors[name].dtype == tensor.dtype
        assert torch.equal(after.tensors[name], tensor) == (name == "count")
    assert (after.kind, after.num_examples) == ("gradient", 4)


@pytest.mark.parametrize(
    ("distribution", "law"), [("gaussian", stats.norm(0, 0.3)), ("laplace", stats.laplace(0, 0.3 / math.sqrt(2)))]
)
def test_noise_has_the_standard_deviation_and_the_law(distribution, law, update, rng):
    noise = change(update, GradientNoise(0.3, None, distribution).transform_update(update, rng)).tensors["weight"]
    assert float(noise.std()) == pytest.approx(0.3, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    # Kolmogorov's distance of 10,000 draws exceeds 0.02 with a probability of 7e-4; the other law is 0.05 away.
    assert stats.kstest(np.asarray(noise.flatten()), law.cdf).statistic < 0.02


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
@pytest.mark.parametrize("relative_norm", [1e-3, 0.1, 2.0])
def test_relative_norm_is_of_all_tensors_together(relative_norm, distribution, update, rng):
    noise = change(update, GradientNoise(0.0, relative_norm, distribution).transform_update(update, rng))
    assert norm(noise) / norm(update) == pytest.approx(relative_norm, rel=0.05)
    assert float(noise.tensors["bias"].std()) == pytest.approx(float(noise.tensors["weight"].std()), rel=0.3)


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_noise_replays_from_its_generator_alone(distribution, update):
    def draw(seed, listed):
        torch.manual_seed(torch.seed() % 1000)
        return GradientNoise(0.1, None, distribution).transform_update(listed, torch.Generator().manual_seed(seed))

    reversed_listing = Update(dict(reversed(update.tensors.items())), "gradient", 4)
    first, second, other = draw(1, update), draw(1, reversed_listing), draw(2, update)
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in update.tensors)
    assert not torch.equal(first.tensors["weight"], other.tensors["weight"])


def test_clip_bounds_the_global_norm_and_keeps_the_direction(update, rng):
    before = update.tensors["weight"].double()
    for bound in (1e-3, 1.0, 50.0):
        after = GradientClip(bound).transform_update(update, rng)
        assert norm(after) <= bound * (1 + 1e-3)
        ratio = after.tensors["weight"].double().norm() / before.norm()
        torch.testing.assert_close(after.tensors["weight"].double(), before * ratio, rtol=1e-5, atol=1e-9)
        assert float(after.tensors["bias"].norm() / update.tensors["bias"].norm()) == pytest.approx(float(ratio), 1e-4)


def test_order_in_a_chain_matters(update):
    def shared(*names):
        defenses = {"clip": GradientClip(1.0), "noise": GradientNoise(1.0)}
        chain = DefenseChain({name: defenses[name] for name in names})
        return norm(chain.transform_update(update, torch.Generator().manual_seed(0)))

    assert shared("noise", "clip") <= 1.001
    assert shared("clip", "noise") > 10


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GradientNoise(-1.0), r"gradient_noise\.std=-1\.0: must be 0 or more"),
        (lambda: GradientNoise(math.nan), "0 or more"),
        (lambda: GradientNoise(relative_norm=-1.0), r"gradient_noise\.relative_norm=-1\.0"),
        (lambda: GradientNoise(0.1, 0.1), "either sets the noise"),
        (lambda: GradientNoise(0.1, distribution="laplacian"), "one of gaussian, laplace. Did you mean 'laplace'"),
        (lambda: configured(GradientNoise, std="ten"), r"gradient_noise\.std=ten: must be 0 or more"),
        (lambda: configured(GradientNoise, relative_norm=[1]), r"gradient_noise\.relative_norm=\[1\]"),
        (lambda: configured(GradientClip, max_norm=True), r"gradient_clip\.max_norm=True"),
        (lambda: GradientClip(0.0), r"gradient_clip\.max_norm=0\.0: must be more than 0"),
        (lambda: GradientClip(-1.0), "more than 0"),
        (lambda: GradientClip(math.nan), "more than 0"),
    ],
)
def test_settings_that_make_no_sense(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize("defense", [GradientNoise(0.1), GradientClip(1.0), GradientNoise(0.0)])
def test_whole_weights_are_refused(defense, update, rng):
    with pytest.raises(ConfigError, match="formed after the defenses"):
        defense.transform_update(Update(update.tensors, "weights", 4), rng)


@pytest.mark.parametrize(
    "defense", [GradientNoise(), GradientClip(), TopK(), QSGD(), Sign(), Half()], ids=lambda d: type(d).__name__
)
def test_running_statistics_are_warned_of_once(defense, caplog):
    _warn_of_statistics.cache_clear()
    model = ModelSpec("resnet18", 5, 32, kwargs={"layers": [1, 1, 1, 1]}).build(0)
    vit = ModelSpec("vit_tiny_patch16_224", 5, 16, 8, kwargs={"depth": 1}).build(0)
    for quiet in (Plan(vit, {"training_mode": True}, {}, {}), Plan(model, {"training_mode": False}, {}, {})):
        defense.check(quiet)
    assert not caplog.records
    for _ in range(3):
        defense.check(Plan(model, {"training_mode": True}, {}, {}))
    (record,) = caplog.records
    assert "leaves running statistics as they are: those of bn1" in record.getMessage()
