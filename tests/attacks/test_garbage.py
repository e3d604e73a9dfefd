"""What one observation or one attack held goes with it: tensors do not wait for Python's search for cycles."""

import gc

import pytest
import torch

import fedsim
from attacks.optimization import Budget, GaussNewton, GradientMatching, LevenbergMarquardt
from attacks.optimization.priors import BatchNormStatistics


def own_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 12), torch.nn.Tanh(), torch.nn.Linear(12, 5))


def observed(defense="gradient_clip"):
    rng = torch.Generator().manual_seed(0)
    return fedsim.observe(own_model(), torch.rand(1, 3, 4, 4, generator=rng), [3], defense=defense)


def tensors_left_by(call):
    """Shapes of tensors that only a search for cycles finds."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        call()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [tuple(one.shape) for one in gc.garbage if isinstance(one, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if collecting:
            gc.enable()


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_an_observation_leaves_no_client_behind(share):
    model, images = own_model(), torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert tensors_left_by(lambda: fedsim.observe(model, images, [3], defense="gradient_clip", share=share)) == []


@pytest.mark.parametrize(
    "attack",
    [
        GaussNewton(LevenbergMarquardt(steps=3, starts=["mean"]), budget=Budget(frames=0)),
        GaussNewton(LevenbergMarquardt(steps=3, starts=["mean"]), budget=Budget(frames=0, memory_gib=1e-4)),
        GradientMatching(steps=3, labels="bias_sign"),
        GradientMatching(steps=3, labels="bias_sign", priors={"batch_norm": BatchNormStatistics(1.0)}),
        "patch_gradient",
        "fc_bias",
        "labels",
    ],
    ids=["dense", "by products", "first order", "refused", "patch_gradient", "fc_bias", "labels"],
)
def test_an_attack_leaves_no_tensor_behind(attack):
    seen = observed()
    assert tensors_left_by(lambda: fedsim.attack(attack, seen)) == []
