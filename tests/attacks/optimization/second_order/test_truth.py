"""What a client shared of its image is what the search expects of that image, whatever defenses stand in between."""

import pytest
import torch
from torch import nn

import fedsim
from attacks.optimization import GaussNewton, Pixels
from attacks.optimization.problem import local_updates, make_problem, shared_update
from attacks.optimization.second_order.residual.residual import Residual, make_residuals
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec
from tests.support.kinds_of_updates import ADAMW, DEFENSES, PAIRS, STEPS, is_left_out


def left(residual: Residual, x: torch.Tensor) -> float:
    """‖r‖² without the prior's rows."""
    found = torch.cat([tensor.flatten() for tensor in residual.shared(x)])
    return float((residual.weights * (found - residual.target)).square().sum())


@pytest.mark.parametrize("defenses", [(), *((one,) for one in DEFENSES), *PAIRS], ids=lambda names: "+".join(names))
def test_the_clients_own_image_leaves_what_errors_leave(defenses, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    image, labels, solved = torch.rand(1, 3, 4, 4, dtype=torch.float64), torch.tensor([1]), 0
    for how in STEPS if len(defenses) < 2 else STEPS[:4]:
        if is_left_out(defenses, how):
            continue
        seen = fedsim.observe(model, image, labels, defense=[{name: DEFENSES[name]} for name in defenses], **how)
        try:
            local = local_updates("auto", seen)
            problem = make_problem(seen, shared_update(seen, local, cpu), labels, Pixels(), {}, cpu)
            residuals = make_residuals(problem, local, GaussianPrior(), labels, cpu)
        except NotApplicable:  # a step of Adam of which a defense hides the size
            assert how.get("optimizer") is ADAMW
            continue
        truth = seen.normalised(image).flatten()
        for residual in residuals:
            allowed = 6.0 * residual.floor + 1e-12 * left(residual, torch.full_like(truth, 0.5))
            assert left(residual, truth) <= allowed, how
            solved += 1
    assert solved >= 3


@pytest.mark.parametrize("name", ["soteria", "mjp_dal"])
def test_what_is_no_part_of_the_target_counted_in_the_norm_of_a_clip(name, cpu, rng):
    model = ModelSpec("vit_nano_patch2_8", num_classes=10, dtype="float64").build(0)
    image = torch.rand(1, 3, 8, 8, dtype=torch.float64)
    seen = fedsim.observe(model, image, [3], defense=[name, {"gradient_clip": {"max_norm": 0.05}}])
    problem = GaussNewton()._problem(seen, rng, cpu)
    assert problem.target.keys() != seen.update.tensors.keys()
    (residual, *_) = make_residuals(problem, "gradient", GaussianPrior(), torch.tensor([3]), cpu)
    truth = seen.normalised(image).flatten()
    assert left(residual, truth) < 1e-9 * left(residual, torch.full_like(truth, 0.5))


@pytest.mark.parametrize("name", ["soteria", "mjp_dal"])
@pytest.mark.parametrize("std", [0.05, 1.0])
def test_noise_behind_a_clip_is_no_part_of_what_the_clip_left_for_others(name, std, cpu, rng):
    """It was taken for what was shared beside the target, and left a norm of nothing for the target."""
    model = ModelSpec("vit_nano_patch2_8", num_classes=10, dtype="float64").build(0)
    image, sizes = torch.rand(1, 3, 8, 8, dtype=torch.float64), []
    for noise in ([], [{"gradient_noise": {"relative_norm": None, "std": std}}]):
        seen = fedsim.observe(model, image, [3], defense=[name, {"gradient_clip": {"max_norm": 0.05}}, *noise])
        problem = GaussNewton()._problem(seen, rng, cpu)
        (residual, *_) = make_residuals(problem, "gradient", GaussianPrior(), torch.tensor([3]), cpu)
        shared = residual.shared(seen.normalised(image).flatten())
        sizes.append(float(torch.cat([tensor.flatten() for tensor in shared]).norm()))
    assert 0.3 * sizes[0] < sizes[1] < 0.0500001


def residuals_of(seen, labels, rng, cpu):
    problem, local = GaussNewton()._problem(seen, rng, cpu, labels), local_updates("auto", seen)
    return make_residuals(problem, local, GaussianPrior(), labels, cpu)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("steps", [1, 4])
def test_what_autocast_leaves_of_steps_goes_with_tensors_too(precision, steps, rng, cpu):
    """By rows alone the true image was 137 times as far as errors go."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 20), nn.Sigmoid(), nn.Linear(20, 5))
    image = torch.rand(1, 3, 4, 4)
    seen = fedsim.observe(model, image, [1], share="delta", local_steps=steps, precision=precision)
    truth = seen.normalised(image.double()).flatten()
    for residual in residuals_of(seen, torch.tensor([1]), rng, cpu):
        assert left(residual, truth) <= residual.floor


def test_a_bias_in_front_of_a_batch_norm_counts_for_nothing(rng, cpu):
    """Its gradient is rounding alone, of which the norm says nothing."""
    torch.manual_seed(0)
    convolved = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(288, 5))
    image = torch.rand(1, 3, 8, 8)
    seen = fedsim.observe(convolved, image, [1], training_mode=True)
    (residual, *_) = residuals_of(seen, torch.tensor([1]), rng, cpu)
    truth = seen.normalised(image.double()).flatten()
    assert left(residual, truth) <= residual.floor
    assert left(residual, torch.full_like(truth, 0.5)) > 1e6 * residual.floor


def test_numbers_that_noise_hides_still_rank_images(rng, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5))
    image, noise = torch.rand(1, 3, 4, 4), [{"gradient_noise": {"relative_norm": None, "std": 1e-3}}]
    step = {"share": "delta", "local_steps": 4, "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-3}}
    seen = fedsim.observe(model, image, [1], defense=noise, **step)
    residual = residuals_of(seen, torch.tensor([1]), rng, cpu)[0]
    truth = seen.normalised(image.double()).flatten()
    assert left(residual, truth) < left(residual, torch.full_like(truth, 0.5))


def test_images_behind_dp_sgds_clip_come_out(rng, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 20), nn.Sigmoid(), nn.Linear(20, 5))
    images, labels = torch.rand(3, 3, 4, 4), [1, 3, 4]
    clip = {"dp_sgd": {"max_grad_norm": 0.2, "noise_multiplier": 0.0}}
    seen = fedsim.observe(model, images, labels, defense=clip)
    result = fedsim.attack("gauss_newton", seen, labels=labels)
    assert min(fedsim.score(result, images, labels).psnr) > 100
