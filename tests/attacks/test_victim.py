import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsim
from attacks.optimization.problem import shared_update
from attacks.victim import make_victim
from defenses import Precode
from fedsim.errors import NotApplicable


def test_its_gradient_is_the_clients(small, victim_of, tools):
    observation, pictures = small(count=2, dtype="float64")
    victim, target = victim_of(observation)
    seen = (pictures - 0.5) / 0.5
    found = victim.gradient(victim.params, seen, torch.tensor([3, 5]))
    for name, tensor in target.items():
        torch.testing.assert_close(found[name], tensor)


def test_soft_labels_are_softmaxed_logits(small, victim_of, candidates):
    observation, _ = small()
    victim, _ = victim_of(observation)
    images, logits = candidates(1)[0], torch.randn(1, 10, generator=torch.Generator().manual_seed(0))
    model = observation.build_model()
    expected = F.cross_entropy(model(images), logits.softmax(dim=-1))
    torch.testing.assert_close(victim.loss(victim.params, images, logits), expected.detach())


@pytest.mark.parametrize("fused", [False, True])
def test_dropout_is_left_out(tools, cpu, fused):
    rates = ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
    spec = tools.tiny(img_size=16, kwargs={"depth": 1, **dict.fromkeys(rates, 0.5)})
    observation = tools.observe(spec, tools.photographs(16)[:1], [3])
    victim = make_victim(observation, observation.gradient, cpu, fused_attention=fused)
    images, labels = torch.zeros(1, 3, 16, 16), torch.tensor([3])
    losses = {float(victim.loss(victim.params, images, labels)) for _ in range(3)}
    assert len(losses) == 1


def test_a_bottlenecks_noise_is_left_out(tools, cpu):
    spec = tools.tiny(img_size=16, kwargs={"depth": 1})
    observation = tools.observe(spec, tools.photographs(16)[:1], [3], defenses={"precode": Precode(k=8)})
    victim = make_victim(observation, observation.gradient, cpu, fused_attention=False)
    images, labels = torch.zeros(1, 3, 16, 16), torch.tensor([3])
    assert len({float(victim.loss(victim.params, images, labels)) for _ in range(3)}) == 1
    noisy = observation.build_model()
    assert len({float(noisy(images)[0, 0].detach()) for _ in range(3)}) == 3


class Counting(nn.Sequential):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(48, 32), nn.Sigmoid(), nn.Linear(32, 10))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images):
        self.calls += 1
        return super().forward(images)


@pytest.mark.parametrize("name", ["gauss_newton", "inverting_gradients"])
def test_a_model_that_writes_to_its_buffers_is_searched(name):
    torch.manual_seed(0)
    seen = fedsim.observe(Counting(), torch.rand(1, 3, 4, 4), torch.tensor([3]))
    result = fedsim.attack(name, seen, steps=2)
    assert result.status == "done", result.reason


def test_attention_is_fused_only_where_asked(small, cpu):
    observation, _ = small()
    for fused in (True, False):
        victim = make_victim(observation, observation.gradient, cpu, fused)
        assert victim.model.blocks[0].attn.fused_attn is fused


def test_nothing_shared_is_refused(small, cpu):
    observation, _ = small()
    with pytest.raises(NotApplicable, match="no gradient"):
        make_victim(observation, {}, cpu, fused_attention=False)


def test_what_is_not_finite_is_refused(small, cpu):
    observation, _ = small()
    observation.update.tensors["norm.weight"][0] = torch.nan
    with pytest.raises(NotApplicable, match="gradient is not finite"):
        shared_update(observation, "gradient", cpu)
