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
