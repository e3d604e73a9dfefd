"""J by finite differences of a client's gradient, written out."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clients.bounds.jacobian import check_linear, jacobian
from fedsim.errors import NotApplicable


def by_hand(model, images, labels, names, limit=math.inf, per="update"):
    """The mean gradient of one image after the other, in float64."""
    total = dict.fromkeys(names, 0.0)
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model((image[None] - 0.5) / 0.5), label[None])
        found = dict(zip(names, torch.autograd.grad(loss, [model.get_parameter(n) for n in names]), strict=True))
        for name in names:
            over = [found[name]] if per == "layer" else list(found.values())
            most = limit / math.sqrt(len(names)) if per == "layer" else limit
            norm = math.sqrt(sum(float(one.square().sum()) for one in over))
            total[name] = total[name] + found[name] * (min(1.0, most / norm) if per != "update" else 1.0)
    mean = torch.cat([(total[name] / len(images)).flatten() for name in names])
    return mean * min(1.0, limit / float(mean.norm())) if per == "update" else mean


NARROW = "+model.kwargs.embed_dim=32"
QUIET = ["defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=0"]
DEFENSES = {
    "nothing": (["defense=[]"], {}),
    "clip": (["defense=[gradient_clip]", "defense.gradient_clip.max_norm=0.1"], {"limit": 0.1}),
    "step": (["client.max_grad_norm=0.1"], {"limit": 0.1}),
    "dp_sgd": ([*QUIET, "defense.dp_sgd.max_grad_norm=0.5"], {"limit": 0.5, "per": "example"}),
    "withheld": (
        [
            "defense=[withhold,gradient_clip]",
            "defense.withhold.patterns=[head.*]",
            "defense.gradient_clip.max_norm=0.01",
        ],
        {"limit": 0.01},
    ),
    "per_layer": ([*QUIET, "defense.dp_sgd.per_layer=true"], {"limit": 1.0, "per": "layer"}),
}


@pytest.mark.parametrize(
    ("name", "batch"), [("nothing", 1), ("clip", 2), ("step", 2), ("dp_sgd", 2), ("withheld", 1), ("per_layer", 1)]
)
def test_the_columns_are_finite_differences_of_what_the_client_shares(parties, name, batch):
    defense, clip = DEFENSES[name]
    (party,) = parties(NARROW, *defense, images=1, batch=batch)
    whole = party.share(party.train())
    update, (found, shared) = whole.tensors, jacobian(party, whole)
    clients = torch.cat([tensor.flatten() for tensor in update.values()])
    assert torch.allclose(shared.float(), clients, atol=2e-5 * float(shared.abs().max()))
    party.runtime.load(party.state)
    model, images = copy.deepcopy(party.runtime.model).double(), party.images.double()
    for pixel in (0, 77, 191):
        step = torch.zeros_like(images).flatten()
        step[pixel] = 1e-5
        ends = [
            by_hand(model, images + sign * step.view(images.shape), party.pictures.labels, list(update), **clip)
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / 2e-5
        assert float((found[:, pixel] - slope).norm()) < 1e-4 * float(slope.norm())


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True)])
def test_statistics_that_training_changes_are_refused(own_party, norm):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(64, 5))
    with pytest.raises(NotApplicable, match=r"running_mean is shared as well, .* client.training_mode=false"):
        check_linear(own_party(model))
    check_linear(own_party(model, training=False))


def test_a_model_that_mixes_the_images_of_a_batch_is_refused(own_party):
    """Batch statistics without running ones, which no buffer shows."""
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(64, 5))
    with pytest.raises(NotApplicable, match="depends on the others of its batch: one in an update"):
        check_linear(own_party(model, count=2))
    apart = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 5))
    check_linear(own_party(apart, count=2))


class Counting(nn.Sequential):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(108, 20), nn.Sigmoid(), nn.Linear(20, 10))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images):
        self.calls += 1
        return super().forward(images)


def test_a_model_may_write_to_its_buffers(own_party):
    party = own_party(Counting())
    found, _ = jacobian(party, party.share(party.train()))
    assert found.shape[1] == 108
