"""How far quantisation moves what is shared."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import fedsim
from attacks.noise import noise_of, noise_of_gradient, quantised_std, std_before_clip
from attacks.optimization.matching.objectives import Clipped, SquaredL2
from attacks.optimization.problem import with_clip
from defenses import QSGD, GradientNoise
from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import Quantises
from fedsim.wire.records import Contribution
from server.sums.summing import RunningSum


@pytest.mark.parametrize(("levels", "norm"), [(7, "l2"), (127, "l2"), (7, "max")])
def test_the_errors_of_qsgd_are_about_as_large_as_the_steps_that_show_say(levels, norm, rng):
    """Monte Carlo over gradients as heavy-tailed as those of ViTs: errors in units of what is told."""
    scale = torch.randn(24, 512, generator=rng).exp()
    gradient = {"weight": torch.randn(24, 512, generator=rng) * scale}
    ratios = []
    for seed in range(20):
        shared = QSGD(levels, norm=norm).compress(gradient, torch.Generator().manual_seed(seed))["weight"]
        told = quantised_std(shared, Quantises(1 / levels, "tensor", 512, norm=norm))
        ratios.append(float(((shared - gradient["weight"]) / told).square().mean()))
    assert 0.5 < sum(ratios) / len(ratios) < 1.5


def test_buckets_are_read_apart_and_the_last_may_be_shorter():
    shared = torch.tensor([0.0, 2.0, 0.0, 4.0, 0.0, 0.1])
    found = quantised_std(shared, Quantises(1.0, "tensor", 4))
    small = 2.0 * math.sqrt(1 / 3 * 2 / 3)
    assert torch.allclose(found, torch.tensor([small, small, small, 2.0 / math.sqrt(6), 0.05, 0.05]))


def test_a_bucket_of_zeros_has_no_step():
    assert float(quantised_std(torch.zeros(3, 5), Quantises(1.0, "tensor")).abs().max()) == 0.0


def test_a_defense_says_its_buckets(rng):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 30))
    seen = fedsim.observe(
        model, torch.rand(1, 3, 4, 4, generator=rng), torch.tensor([1]), defense=[QSGD(bucket_size=16)]
    )
    target = {name: tensor.double() for name, tensor in seen.update.tensors.items()}
    found = noise_of(seen, target, 1.0)
    assert found is not None
    assert torch.equal(found["1.weight"], quantised_std(target["1.weight"], Quantises(1 / 7, "tensor", 16)))


def heavy(rng, clients=1):
    scale = torch.randn(24, 512, generator=rng).exp()
    return [torch.randn(24, 512, generator=rng) * scale for _ in range(clients)]


def ratio(true, told):
    """Root of the mean square of true errors, in units of what is told of all."""
    return float(true.square().mean().sqrt() / told.square().mean().sqrt())


@pytest.mark.parametrize("clients", [2, 8])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_in_a_mean_no_steps_show_and_those_published_count(clients, alike, norm, rng):
    """Read off the sum, its steps are far too small."""
    defense = QSGD(norm=norm)
    model = torch.nn.Linear(512, 24, bias=False)
    seen = fedsim.observe(
        torch.nn.Sequential(torch.nn.Flatten(), model), torch.rand(1, 2, 16, 16), torch.tensor([1]), defense=[defense]
    )
    each = heavy(rng) * clients if alike else heavy(rng, clients)
    sent = [defense.compress({"1.weight": one}, rng)["1.weight"] for one in each]
    mean = replace(seen.update, tensors={"1.weight": torch.stack(sent).mean(dim=0)})
    told = noise_of_gradient(replace(seen, update=mean, summed=clients))["1.weight"]
    true = torch.stack(sent).mean(dim=0) - torch.stack(each).mean(dim=0)
    assert (0.2 if alike else 0.5) < ratio(true, told) < 1.5


@pytest.mark.parametrize("share", ["delta", "weights"])
def test_weight_decay_is_no_part_of_what_was_quantised(share, rng):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(512, 24))
    image = torch.rand(1, 2, 16, 16, generator=rng)
    decay = {"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": 0.1}, "share": share}
    exact, seen = (fedsim.observe(model, image, [1], defense=one, **decay) for one in ([], ["qsgd"]))
    told = noise_of_gradient(seen)["1.weight"]
    assert 0.7 < ratio(seen.gradient["1.weight"] - exact.gradient["1.weight"], told) < 1.4


@pytest.mark.parametrize("std", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_noise_behind_hides_the_steps(std, norm, rng):
    """And is no part of the norm that they were of."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(512, 24))
    image = torch.rand(1, 2, 16, 16, generator=rng)
    noise = {"gradient_noise": {"std": std, "relative_norm": None}}
    exact, seen = (fedsim.observe(model, image, [1], defense=one) for one in ([], [QSGD(norm=norm), noise]))
    told = noise_of_gradient(seen)["1.weight"]
    assert 0.6 < ratio(seen.gradient["1.weight"] - exact.gradient["1.weight"], told) < 1.1


SEVENTHS = Quantises(1 / 7, "tensor", 512)


def test_of_few_numbers_the_published_step_says_how_many_the_least_is():
    """One large number of ten, as of a classifier's bias: seven steps, not one."""
    error = torch.tensor([-0.9, *[0.1] * 9], dtype=torch.float64)
    step = float(error.norm()) / 7
    shared = torch.tensor([-7 * step, 0.0, 0.0, *[0.0] * 7], dtype=torch.float64)
    assert (
        float(quantised_std(shared, SEVENTHS)[1])
        < 0.5 * step
        < float(quantised_std(shared, Quantises(1.0, "tensor"))[1])
    )
    several = torch.tensor([-6 * step, 2 * step, 3 * step, *[0.0] * 7], dtype=torch.float64)
    assert float(quantised_std(several, SEVENTHS)[1]) == pytest.approx(step / math.sqrt(6), rel=0.2)


class OtherNoise(GradientNoise):
    name = "other_noise"


def test_of_two_equal_noises_each_stands_where_it_stands(rng):
    """The second was taken for the first, and so for one that the clip between them scaled down."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 20))
    defenses = [GradientNoise(std=0.1), {"gradient_clip": {"max_norm": 0.01}}, OtherNoise(std=0.1)]
    images = torch.rand(1, 3, 4, 4, generator=rng)
    found = [
        fedsim.observe(model, images, [1], defense=defenses, server_round=n).gradient["1.weight"] for n in range(9)
    ]
    seen = fedsim.observe(model, images, [1], defense=defenses)
    told = noise_of_gradient(seen)["1.weight"]
    assert float(told.mean()) == pytest.approx(float(torch.stack(found).var(dim=0).mean().sqrt()), rel=0.05)


MOMENTUM = {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9}
PLAIN = {"gradient_noise": {"std": 0.1, "relative_norm": None}}
PRIVATE = {"dp_sgd": {"max_grad_norm": 0.1, "noise_multiplier": 5.0}}


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("defense", [PLAIN, PRIVATE], ids=["on_update", "on_steps"])
@pytest.mark.parametrize(
    "steps",
    [
        {"share": "gradient"},
        {"share": "delta", "batch_size": 4, "local_epochs": 2},
        {"share": "delta", "batch_size": 3, "local_steps": 6, "optimizer": MOMENTUM},
    ],
    ids=["gradient", "short_last_batch", "momentum"],
)
def test_told_is_how_far_noise_moves_what_is_shared(clients, defense, steps, rng):
    """Monte Carlo; a mean over clients holds less of each one's noise, and a batch of one image more of it."""
    model, images = (
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 20)),
        torch.rand(5, 3, 4, 4, generator=rng),
    )
    found = []
    for server_round in range(6):
        total, each = RunningSum(), []
        for client in range(clients):
            labels = torch.arange(5)
            each.append(
                fedsim.observe(
                    model, images, labels, defense=[defense], client=client, server_round=server_round, **steps
                )
            )
            total.add(Contribution(each[-1].update, each[-1].protocol))
        one = each[0] if clients == 1 else None
        if one is None:
            mean = total.result()
            one = replace(each[0], update=mean.update, protocol=mean.protocol, summed=clients)
        found.append(one)
    shared = torch.stack([one.gradient["1.weight"] for one in found])
    told = noise_of_gradient(found[0])
    assert told is not None
    assert float(told["1.weight"].mean()) == pytest.approx(float(shared.var(dim=0).mean().sqrt()), rel=0.1)


def test_noise_that_is_clipped_with_the_update_hides_no_more_than_unclipped_noise():
    """It was taken for as large as it was added: a clip behind noise looked like 15 dB of protection."""
    digits = (torch.from_numpy(load_digits().images / 16).float()[:, None]).contiguous()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.Sigmoid(), torch.nn.Linear(24, 10)
    )
    plain = {"gradient_noise": {"std": 0.006, "relative_norm": None}}  # a tenth of the gradient's norm
    found = []
    for defense in ([plain], [plain, {"gradient_clip": {"max_norm": 0.25}}]):
        seen = fedsim.observe(model, digits[7:8], [7], defense=defense)
        seen = replace(seen, image_prior=PublicPrior.of(digits[1000:1300]))
        result = fedsim.attack("gauss_newton", seen, frames=0, draws=10, steps=20, starts=["mean"])
        found.append(fedsim.score(result, digits[7:8]).scores.images[0].psnr)
    assert found[0] > 25
    assert found[1] == pytest.approx(found[0], abs=1.0)


@pytest.mark.parametrize(("std", "relative"), [(0.1, 0.0), (0.0, 1.0), (0.1, 1.0)])
def test_noise_that_was_clipped_too_counts_in_the_norm_of_the_clip(std, relative, rng):
    gradient = {"w": torch.randn(30, generator=rng, dtype=torch.float64)}
    whole = math.sqrt(float(gradient["w"].square().sum()) * (1 + relative**2) + 30 * std**2)
    target = {"w": 0.1 * gradient["w"] / whole}
    assert float(Clipped(SquaredL2(), 0.1, std, relative=relative)(gradient, target)) < 1e-20
    assert float(Clipped(SquaredL2(), 0.1)(gradient, target)) > 1e-8


LOOSE = {"gradient_clip": {"max_norm": 1e3}}


@pytest.mark.parametrize("relative", [False, True])
def test_noise_between_two_clips_counts_in_the_norm_of_the_one_behind_it_alone(relative, rng):
    """Of a tight clip before the noise and a loose one behind it, the tight one alone binds."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 20))
    image = torch.rand(1, 3, 4, 4, generator=rng)
    noise = {"gradient_noise": {"std": 0.0, "relative_norm": 1.0}} if relative else PLAIN
    tight = {"local_dp": {"clipping_norm": 0.1}} if not relative else {"gradient_clip": {"max_norm": 0.1}}

    def clip(*defenses):
        return with_clip(SquaredL2(), fedsim.observe(model, image, [1], defense=list(defenses)), "gradient")

    behind = clip(noise, {"gradient_clip": {"max_norm": 0.1}})
    assert (behind.noise, behind.relative) == ((0.0, 1.0) if relative else (pytest.approx(0.1), 0.0))
    if relative:
        seen = fedsim.observe(model, image, [1], defense=[noise, LOOSE])
        assert std_before_clip(seen, 1.0, 0.1) == (0.0, 0.0)
    else:
        loose = clip(tight, LOOSE)
        assert (loose.max_norm, loose.noise) == (0.1, 0.0)


@pytest.mark.parametrize("share", ["gradient", "delta"])
def test_half_precision_rounds_small_numbers_by_one_step_for_all(share, rng):
    """Below 6.1e-5 float16's numbers are 2^-24 apart, and what is nearest to zero is sent as zero."""
    model, image = (
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 300)),
        torch.rand(1, 3, 4, 4, generator=rng),
    )
    how = {"share": share, "lr": 0.5, **({} if share == "gradient" else {"local_steps": 1})}
    exact, seen = (fedsim.observe(model, 0.003 * image, [1], **how, defense=one) for one in ([], ["half"]))
    found = noise_of_gradient(seen)
    off, told = seen.gradient["1.weight"] - exact.gradient["1.weight"], found["1.weight"]
    sent = exact.update.tensors["1.weight"].abs()
    small = (sent > 2e-7) & (sent < 5e-5)
    assert small.sum() > 500
    assert 0.5 < float((off[small] / told[small]).square().mean()) < 1.5
