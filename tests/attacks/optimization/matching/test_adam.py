"""A gradient read off torch's own first step of Adam and AdamW."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.optimization.matching.adam import invert_adam_first_step, read_adam
from defenses import QSGD, GradientNoise, Sign, TopK
from fedsim.errors import NotApplicable

ADAMW = {"_target_": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.05}
ADAM = {"_target_": "torch.optim.Adam", "lr": 1e-3, "weight_decay": 0.01}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))


@pytest.fixture(scope="module")
def image():
    return torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def observed(model, image, optimizer=ADAMW, **more):
    return fedsim.observe(model, image, [7], optimizer=optimizer, share="delta", local_steps=1, **more)


def test_it_is_inverted_where_it_can_be():
    gradient = torch.tensor([3e-7, -2e-6, 0.0, 5.0], dtype=torch.float64)
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=1e-2, eps=1e-6)
    weights.grad = gradient.clone()
    optimiser.step()
    rounding = torch.full((4,), 1e-6, dtype=torch.float64)
    found = invert_adam_first_step({"w": weights.detach()}, 1e-2, 1e-6, {"w": rounding})
    torch.testing.assert_close(found.gradient["w"][:3], gradient[:3], rtol=1e-4, atol=1e-12)
    assert found.error["w"].isfinite().tolist() == [True, True, True, False]
    assert 0 < found.gradient["w"][3] <= 5.0
    assert found.share == 0.5


@pytest.mark.parametrize("optimizer", [ADAMW, ADAM])
@pytest.mark.parametrize("share", ["delta", "weights"])
def test_each_entry_is_as_near_as_it_says(model, image, optimizer, share):
    seen = fedsim.observe(model, image, [7], optimizer=optimizer, share=share, local_steps=1)
    exact, found = fedsim.observe(model, image, [7]).gradient, read_adam(seen)
    assert found.share > 0.03
    for name, gradient in found.gradient.items():
        told = found.error[name].isfinite()
        assert bool(((gradient - exact[name]).abs() <= 4.0 * found.error[name])[told].all())
        if optimizer is ADAMW:
            assert bool((gradient.sign() == exact[name].sign())[exact[name].abs() > 1e-12].all())


@pytest.mark.parametrize(
    ("defense", "word"), [(GradientNoise(relative_norm=1e-3), "noisy"), (QSGD(levels=16), "rounded")]
)
def test_what_hides_its_size_is_refused(model, image, defense, word):
    with pytest.raises(NotApplicable, match=f"a {word} step of adamw: its size"):
        read_adam(observed(model, image, defense=[defense]))


def test_several_steps_and_none_are_refused(model, image):
    seen = observed(model, image)
    with pytest.raises(NotApplicable, match="2 steps of adamw"):
        read_adam(replace(seen, protocol=replace(seen.protocol, steps=2, lrs=(1e-3, 1e-3))))
    with pytest.raises(NotApplicable, match="learning rate was zero"):
        read_adam(replace(seen, protocol=replace(seen.protocol, lrs=(0.0,))))


def test_a_tiny_epsilon_leaves_signs_alone(model, image):
    with pytest.raises(NotApplicable, match="of the gradient legible: it is its sign"):
        read_adam(observed(model, image, {**ADAMW, "eps": 1e-14}))


def test_second_order_rebuilds_the_image_from_one_step(model, image):
    """As well as the draws from its posterior say, from the sixth of the entries that is legible."""
    seen = observed(model, image, {**ADAMW, "lr": 0.1})
    assert 0.1 < read_adam(seen).share < 0.3
    result = fedsim.attack("gauss_newton", seen, steps=20, starts=["mean"], draws=40, frames=0)
    assert result.labels.tolist() == [7]
    error = float((result.images.double() - image.double()).square().mean())
    assert error < 10 ** (-0.1 * result.certificate.values["predicted_psnr"]) < 2e-3
    assert float((image - 0.5).square().mean()) > 0.05
    assert not result.certified


def test_what_was_pruned_of_a_step_tells_nothing_and_signs_hide_its_size(model, image):
    legible = {**ADAMW, "eps": 1e-3}
    pruned = observed(model, image, legible, defense=[TopK(ratio=0.3, error_feedback=False)])
    found = read_adam(pruned)
    for name, change in pruned.update.tensors.items():
        assert bool(found.error[name][change == 0].isinf().all())
    with pytest.raises(NotApplicable, match="a rounded step of adamw"):
        read_adam(observed(model, image, defense=[Sign(error_feedback=False)]))
