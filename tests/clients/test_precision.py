"""Autocast on a client, against torch written out, and what attacks take it for."""

import copy
import json
import math
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

import fedsim
from attacks.optimization.matching.local_steps import UnrolledSteps, update_scale
from attacks.optimization.second_order.residual.errors import autocast_of
from attacks.victim import make_victim
from clients.app import ClientRuntime
from clients.local_model import LocalModel
from clients.precision import GROWTH_INTERVAL, INITIAL, LossScale
from clients.training import LossGradient, batches, train_locally
from defenses.base import Batch, Defense, Plan
from experiments.engine.setup import prepare
from fedsim.data.tensors import TensorImages
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import ConfigError
from fedsim.models import Normaliser
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.schema import plain
from fedsim.update import LocalProtocol
from tests.support.federation import settings

HALVES = ("bfloat16", "float16")


@pytest.fixture
def tiny_vit():
    with seeded_globals(0, "weights"):
        return timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=4, num_classes=10, embed_dim=48, depth=2, num_heads=3
        )


def client_of(*overrides):
    config = settings("audit", "data=digits", "model=vit_nano", "audit.batch_size=3", *overrides)
    return ClientRuntime(config, build_data(config))


def trained(client, ids=(5, 9, 2), **kwargs):
    """What training gives from the weights that the client was built with, which are put back."""
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    result = client.train(client.data.train.subset(ids), 0, 0, **kwargs)
    client.load(state)
    return result


def by_hand(client, ids, precision, scale):
    """One gradient of torch's own autocast and GradScaler's arithmetic."""
    pictures = client.data.train.subset(ids)
    order = [pictures.ids.index(name) for name in trained(client, ids, audit=True).truth.ids]
    images = (pictures.images(order) - 0.5) / 0.5
    client.model.zero_grad()
    with torch.autocast("cpu", getattr(torch, precision)):
        loss = F.cross_entropy(client.model(images), pictures.labels[order])
    (loss * scale).backward()
    return {name: parameter.grad / scale for name, parameter in client.model.named_parameters()}


@pytest.mark.parametrize(("precision", "scale"), [("bfloat16", 1.0), ("float16", INITIAL)])
def test_the_shared_gradient_is_torchs_own_to_the_bit(precision, scale):
    client = client_of(f"client.precision={precision}")
    result = trained(client)
    expected = by_hand(client, (5, 9, 2), precision, scale)
    assert result.tensors.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(result.tensors[name], gradient), name
    plainly = trained(client_of("client.precision=float32"))
    assert any(not torch.equal(result.tensors[name], plainly.tensors[name]) for name in expected)
    assert result.protocol.precision == precision
    assert all(tensor.dtype == torch.float32 for tensor in result.tensors.values())


def test_float32_is_what_is_computed_without_autocast():
    client = client_of("client.precision=float32")
    pictures = client.data.train.subset([5])
    result = trained(client, [5])
    F.cross_entropy(client.model((pictures.images([0]) - 0.5) / 0.5), pictures.labels).backward()
    assert all(torch.equal(result.tensors[name], p.grad) for name, p in client.model.named_parameters())


def test_the_scale_is_that_of_torchs_scaler():
    scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    ours = LossScale("float16")
    for step in range(2 * GROWTH_INTERVAL + 10):
        gradient = torch.tensor([torch.inf if step in (0, 1, 7) else 1.0])
        scaler.scale(parameter.sum())  # it begins with the first loss that it scales
        parameter.grad = gradient.clone()
        scaler.step(optimizer)
        scaler.update()
        ours.unscaled({"w": gradient})
        assert ours.step() == bool(gradient.isfinite())
        assert ours.value == scaler.get_scale(), step
    assert ours.value == INITIAL / 2, "three overflows, two growths"


def overflowing(client, at_most):
    """Has the head bias's scaled gradient overflow where it exceeds this; a handle that ends it."""

    def capped(gradient):
        return torch.where(gradient.abs().max() > at_most, torch.inf, gradient)

    return client.model.head.bias.register_hook(capped)


STEPS = ("client.share=delta", "client.local_steps=3", "client.precision=float16", "+client.optimizer.momentum=0.9")


def test_steps_that_overflow_are_those_of_torchs_scaler_on_the_same_batch():
    client = client_of(*STEPS, "client.schedule.shape=cosine", "client.schedule.over=steps")
    biggest = float(by_hand(client, (5, 9, 2), "float16", INITIAL)["head.bias"].abs().max()) * INITIAL
    handle = overflowing(client, 0.3 * biggest)
    result = trained(client, audit=True)
    pictures = client.data.train.subset((5, 9, 2))
    start = {name: one.detach().clone() for name, one in client.model.named_parameters()}
    optimizer = torch.optim.SGD(client.model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    scaler, overflows = torch.amp.GradScaler("cpu"), 0
    for order in batches(3, 3, 1, 3, torch_generator(0, "client", 0, 0)):
        left_out = True
        while left_out:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(client.model((pictures.images(order) - 0.5) / 0.5), pictures.labels[order])
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            left_out = scaler.get_scale() < scale
            overflows += left_out
        schedule.step()
    handle.remove()
    assert overflows == 2
    assert result.skipped == 0
    assert result.protocol.steps == 3
    plainly = trained(client_of(*STEPS[:2], "client.schedule.shape=cosine", "client.schedule.over=steps"))
    assert result.protocol.lrs == plainly.protocol.lrs
    for name, parameter in client.model.named_parameters():
        assert torch.equal(result.tensors[name], parameter.detach() - start[name]), name


def test_a_batch_that_is_finite_at_no_scale_is_skipped_and_leaves_the_scale():
    client = client_of(*STEPS)
    handle = overflowing(client, 0.0)
    never = trained(client, audit=True)
    handle.remove()
    assert never.skipped == 3
    assert never.protocol.lrs == (0.0,)
    assert never.truth is None
    assert not any(bool(tensor.any()) for tensor in never.tensors.values())
    model = nn.Linear(3, 2)
    compute = LossGradient(model, Defense(), 0.0, precision="float16")
    good = Batch(torch.ones(1, 3), torch.tensor([1]))
    compute(Batch(torch.full((1, 3), torch.nan), torch.tensor([1])))
    assert not compute.ended_finite()
    assert compute.scale.value == INITIAL
    compute(good)
    assert compute.ended_finite()


class Counting(nn.BatchNorm1d):
    """Each call puts another tensor in place of the count."""

    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


def test_running_statistics_move_once_however_often_a_gradient_overflows():
    images, labels = 100 * torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
    model = nn.Sequential(Counting(3), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.fill_(20.0)  # overflows at the first scale
    expected = copy.deepcopy(model)
    compute = LossGradient(model, Defense(), 0.0, precision="float16")
    compute(Batch(images, labels))
    assert compute.scale.value < INITIAL
    assert len(compute.take_losses()) == 1
    expected(images)
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)


def test_a_skipped_step_leaves_the_loss_and_the_running_statistics():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 5))
    images, labels = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])
    config = config_of(settings("audit", "audit.batch_size=2", "client.share=delta", "client.precision=float16"))
    lost = [False, True]

    class LosesTheSecond(Defense):
        def transform_batch(self, batch, rng):
            return replace(batch, images=batch.images * (math.inf if lost.pop(0) else 1.0))

    def result():
        seen = TensorImages(images, labels, ["a", "b", "c", "d"])
        draws = torch_generator(0, "order"), torch_generator(0, "defense")
        normaliser = Normaliser(model)
        return train_locally(LocalModel(copy.deepcopy(model)), seen, client, LosesTheSecond(), normaliser, *draws)

    client = replace(config.client, local_steps=2)
    both = result()
    client, lost = replace(client, local_steps=1), [False]
    alone = result()
    assert (both.skipped, alone.skipped) == (1, 0)
    assert math.isfinite(both.loss)
    assert both.loss == alone.loss
    assert both.tensors.keys() == alone.tensors.keys()
    assert all(torch.equal(both.tensors[name], tensor) for name, tensor in alone.tensors.items())
    assert all(torch.equal(both.buffers[name], tensor) for name, tensor in alone.buffers.items())


def linear_observation(steps):
    """One picture a batch, whose gradients overflow at the first scale; also the pictures in the client's order."""
    rng = torch.Generator().manual_seed(0)
    with seeded_globals(0, "weights"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    with torch.no_grad():
        model[1].weight.mul_(30.0)
    images, labels = torch.rand(6, 3, 4, 4, generator=rng), torch.tensor([0, 1, 2, 3, 4, 0])
    scale = {"mean": [0.0, 0.0, 0.0], "std": [0.3, 0.3, 0.3]}
    sharing = {"share": "delta", "batch_size": 1, "local_steps": steps, "precision": "float16"}
    seen = fedsim.observe(model, images, labels, **sharing, **scale)
    order = torch.cat(list(batches(6, 1, 1, steps, torch_generator(0, "client", 0, 0))))
    return model, seen, images[order] / 0.3, labels[order]


@pytest.mark.parametrize("steps", [1, 6])
def test_a_client_of_few_steps_learns_from_each_and_its_protocol_says_how(steps):
    model, seen, images, labels = linear_observation(steps)
    assert seen.protocol.steps == steps
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for image, label in zip(images, labels, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(expected(image[None]), label[None]).backward()
        optimizer.step()
    victim = make_victim(seen, seen.update.tensors, torch.device("cpu"), fused_attention=False)
    simulated = UnrolledSteps(victim, seen.protocol)({"images": images, "labels": labels})
    for name, parameter in expected.named_parameters():
        change = parameter.detach() - model.get_parameter(name).detach()
        assert float(change.norm()) > 0.1
        for found in (seen.update.tensors[name], -update_scale(seen.protocol) * simulated[name]):
            assert float((found - change).norm() / change.norm()) < 0.01, name


def test_a_gradient_that_overflows_is_taken_again_with_half_the_scale():
    client = client_of("client.precision=float16")
    expected = by_hand(client, (5, 9, 2), "float16", INITIAL / 2)
    biggest = float(expected["head.bias"].abs().max()) * INITIAL
    handle = overflowing(client, 0.9 * biggest)
    result = trained(client)
    handle.remove()
    assert result.skipped == 0
    for name, gradient in expected.items():
        assert torch.equal(result.tensors[name], gradient), name


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("local_steps", [None, 2])
def test_it_replays_to_the_bit_and_keeps_its_precision_on_disk(precision, local_steps, tmp_path, tiny_vit):
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    share = {} if local_steps is None else {"share": "delta", "local_steps": local_steps}
    seen = fedsim.observe(tiny_vit, images, [1, 2], precision=precision, training_mode=False, **share)
    order = torch.tensor([0, 1])
    again = [seen.replay(images[o], torch.tensor([1, 2])[o]) for o in (order, order.flip(0))]
    assert any(
        all(torch.equal(one.tensors[name], shared) for name, shared in seen.update.tensors.items()) for one in again
    )
    seen.save(tmp_path / "seen")
    loaded = fedsim.Observation.load(tmp_path / "seen", tiny_vit)
    assert loaded.protocol == seen.protocol
    assert loaded.eps == torch.finfo(getattr(torch, precision)).eps


def test_old_files_were_computed_in_float32():
    record = LocalProtocol(batch_size=1).to_dict()
    del record["precision"]
    assert LocalProtocol.from_dict(json.loads(json.dumps(record))) == LocalProtocol(batch_size=1)


@pytest.mark.parametrize("precision", HALVES)
def test_nothing_is_certified_and_errors_are_of_the_size_that_is_said(precision, tiny_vit):
    images = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).mul(255).round() / 255
    exact = fedsim.observe(tiny_vit, images, [3], training_mode=False)
    rounded = fedsim.observe(tiny_vit, images, [3], training_mode=False, precision=precision)
    said = autocast_of(rounded, rounded.gradient)
    pairs = [(name, rounded.gradient[name] - exact.gradient[name]) for name in exact.gradient]
    whole = torch.cat([off.flatten() for _, off in pairs]).norm()
    expected = torch.cat([said[name].flatten() for name, _ in pairs]).norm()
    assert 0.2 < float(whole / expected) < 2.0
    assert not any(bool(one.any()) for one in autocast_of(exact, exact.gradient).values())
    for attack in ("patch_gradient", "labels"):
        assert fedsim.attack(attack, exact).certificate.status == "certified"
        assert fedsim.attack(attack, rounded).certificate.status == "uncertified"


def test_dp_sgd_takes_bfloat16_example_by_example_and_refuses_float16():
    dp = ("defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=0.0", "defense.dp_sgd.max_grad_norm=1e6")
    clipped, free = (trained(client_of("client.precision=bfloat16", *more)) for more in (dp, ()))
    whole = torch.cat([tensor.flatten() for tensor in free.tensors.values()]).norm()
    off = torch.cat([(clipped.tensors[name] - free.tensors[name]).flatten() for name in free.tensors]).norm()
    assert float(off / whole) < 3 * torch.finfo(torch.bfloat16).eps
    client = client_of("client.precision=float16", *dp)
    chain = client.defenses
    with pytest.raises(ConfigError, match=r"^client\.precision=float16: must be float32 or bfloat16 beside dp_sgd"):
        chain.check(Plan(client.model, plain(client.settings), {}, chain.defenses))


def test_another_precision_names_those_that_there_are():
    with pytest.raises(ConfigError, match=r"^client\.precision=half: must be one of float32, bfloat16, float16"):
        config_of(settings("audit", "client.precision=half"))


@pytest.mark.parametrize("precision", HALVES)
def test_float64_weights_which_autocast_leaves_alone_are_refused(precision):
    said = rf"client\.precision={precision}: must be float32 beside float64 weights"
    with pytest.raises(ConfigError, match=said):
        prepare(
            settings("audit", "data=digits", "model=vit_nano", "model.dtype=float64", f"client.precision={precision}")
        )
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).double()
    with pytest.raises(ConfigError, match=said):
        fedsim.observe(model, torch.rand(1, 3, 4, 4), [3], precision=precision)
