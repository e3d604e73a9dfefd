"""First order: at the client's own image the distance is what errors leave, whatever defenses stand in between."""

import math

import pytest
import torch
from torch import nn

import fedsim
from attacks.noise import noise_of
from attacks.optimization import SquaredL2
from attacks.optimization.matching.local_steps import unit_scale
from attacks.optimization.problem import local_updates, make_update_map, shared_update, with_clip
from attacks.victim import make_victim
from fedsim.effects import Sparsifies
from fedsim.errors import NotApplicable
from tests.support import kinds_of_updates as kinds
from tests.support.kinds_of_updates import ADAMW, PAIRS, STEPS, is_left_out

# Noise of a size that is published, as a first-order distance has none of its own to weigh it by.
DEFENSES = {
    **kinds.DEFENSES,
    "gradient_noise": {"relative_norm": None, "std": 1e-4},
    "dp_sgd": {"max_grad_norm": 0.05, "noise_multiplier": 1e-3},
}
ALONE = [(), *((name,) for name in DEFENSES)]
ALIKE = [defenses for defenses in ALONE if defenses != ("dp_sgd",)]  # which scales each image by a factor of its own


@pytest.mark.parametrize(
    ("defenses", "count"), [*((one, 1) for one in (*ALONE, *PAIRS)), *((one, 2) for one in ALIKE)], ids=str
)
def test_the_clients_own_images_leave_what_errors_leave(defenses, count, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    images, labels, tried = torch.rand(count, 3, 4, 4, dtype=torch.float64), torch.arange(1, 1 + count), 0
    for how in STEPS if len(defenses) < 2 else STEPS[:4]:
        if is_left_out(defenses, how):
            continue
        seen = fedsim.observe(model, images, labels, defense=[{name: DEFENSES[name]} for name in defenses], **how)
        local = local_updates("auto", seen)
        try:
            target = shared_update(seen, local, cpu)
        except NotApplicable:  # a step of Adam of which a defense hides the size
            assert how.get("optimizer") is ADAMW
            continue
        objective = with_clip(SquaredL2(mask_zeros=seen.effect(Sparsifies) is not None), seen, local)
        update = make_update_map(local, make_victim(seen, target, cpu, fused_attention=False), seen)
        pictures = (images, torch.full_like(images, 0.5))
        found = [update({"images": seen.normalised(pixels), "labels": labels}) for pixels in pictures]
        own, other = (float(objective(one, target)) for one in found)
        noise = noise_of(seen, target, unit_scale(seen))
        errors = 0.0 if noise is None else math.fsum(float(std.square().sum()) for std in noise.values())
        assert own <= 6.0 * errors + 1e-12 * other, how
        tried += 1
    assert tried >= 3
