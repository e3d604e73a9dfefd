"""Autocast on a client, against torch written out, and what attacks take it for."""

import json

import pytest
import timm
import torch
from torch.nn import functional as F

import fedsim
from attacks.optimization.second_order.errors import autocast_of
from clients.app import ClientRuntime
from clients.precision import GROWTH_INTERVAL, INITIAL, LossScale
from defenses.base import Plan
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError
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


def test_an_overflow_skips_the_step_and_nothing_else():
    sharing = ("client.share=delta", "client.local_steps=3", "client.precision=float16")
    sharing += ("+client.optimizer.momentum=0.9",)
    client = client_of(*sharing)
    whole = trained(client, audit=True)
    biggest = float(by_hand(client, (5, 9, 2), "float16", INITIAL)["head.bias"].abs().max()) * INITIAL
    handle = overflowing(client, 0.9 * biggest)
    skipping = trained(client, audit=True)
    handle.remove()
    assert (whole.skipped, skipping.skipped) == (0, 1)
    assert (whole.protocol.steps, skipping.protocol.steps) == (3, 2)
    assert skipping.protocol.lrs == whole.protocol.lrs[:2]
    two = trained(client_of(*sharing, "client.local_steps=2"))
    for name, tensor in two.tensors.items():  # half the scale: the same but for what underflows
        torch.testing.assert_close(skipping.tensors[name], tensor, rtol=0.05, atol=1e-4)
    handle = overflowing(client, 0.0)
    never = trained(client, audit=True)
    handle.remove()
    assert never.skipped == 3
    assert never.protocol.lrs == (0.0,)
    assert never.truth is None
    assert not any(bool(tensor.any()) for tensor in never.tensors.values())


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
