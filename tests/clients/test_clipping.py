"""Clipping in training: against torch's own, its limits, and what a server and attacks make of it."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

import fedsim
from attacks.label.head.gradient import head_is_exact
from attacks.toward_mean import WEIGHED
from clients.app import ClientRuntime
from defenses.base import Plan
from fedsim.effects import Clips
from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.schema import plain
from fedsim.update import LocalProtocol
from tests.support.clients import observe_client
from tests.support.federation import settings

TINY = ("data=digits", "model=vit_nano", "+model.kwargs.depth=1")
STEPS = ("client.share=delta", "client.local_steps=3", "+client.optimizer.momentum=0.9")


def client_of(*overrides):
    config = config_of(settings("audit", *TINY, *overrides))
    return ClientRuntime(config, build_data(config))


def trained(client, ids=(5, 9), **kwargs):
    """What training gives from the weights that the client was built with, which are put back."""
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    result = client.train(client.data.train.subset(ids), 0, 0, **kwargs)
    client.load(state)
    return result


def norm(tensors):
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())


@pytest.mark.parametrize("words", [("audit.batch_size=2",), ("audit.batch_size=2", *STEPS)])
@pytest.mark.parametrize("limit", ["inf", "1e9"])
def test_a_limit_that_nothing_reaches_changes_no_bit(words, limit):
    free, limited = (trained(client_of(*words, f"client.max_grad_norm={one}")) for one in ("null", limit))
    assert all(torch.equal(free.tensors[name], limited.tensors[name]) for name in free.tensors)
    assert limited.protocol.max_grad_norm == (None if limit == "inf" else 1e9)
    assert free.protocol.effects == ()


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_steps_are_torchs_with_its_own_clipping(mu):
    client = client_of("audit.batch_size=2", *STEPS, "client.max_grad_norm=0.5")
    result = trained(client, proximal_mu=mu)
    pictures, model = client.data.train.subset([5, 9]), client.model
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    longest = []
    for _ in range(3):
        optimizer.zero_grad()
        pull = sum((p - start[name]).square().sum() for name, p in model.named_parameters())
        images = (pictures.images([0, 1]) - 0.5) / 0.5
        (F.cross_entropy(model(images), pictures.labels) + mu / 2 * pull).backward()
        longest.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    assert min(longest) > 0.5
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.tensors[name], parameter.detach() - start[name], rtol=1e-4, atol=1e-6)
    assert result.protocol.max_grad_norm == 0.5


def test_a_shared_gradient_is_clipped_and_points_where_it_did():
    free, clipped = (trained(client_of(f"client.max_grad_norm={one}"), [5]) for one in ("null", "0.1"))
    assert norm(free.tensors) > 1.0
    assert norm(clipped.tensors) == pytest.approx(0.1, rel=1e-4)
    for name, tensor in free.tensors.items():
        torch.testing.assert_close(clipped.tensors[name], tensor * 0.1 / norm(free.tensors), rtol=1e-4, atol=1e-9)


def test_the_closed_form_of_a_clipped_gradient_is_exact_and_certified():
    seen, truth = observe_client(*TINY, "client.max_grad_norm=0.5")
    assert norm(seen.gradient) == pytest.approx(0.5, rel=1e-3)
    result = fedsim.attack("patch_gradient", seen)
    assert result.certificate.status == "certified", result.certificate.reason
    assert float((result.images.double() - truth.images.double()).square().mean()) < 1e-8
    assert result.labels.tolist() == truth.labels.tolist()


def test_a_clipped_step_with_weight_decay_is_as_exact_as_rounding_of_the_weights_leaves_it():
    step = ("client.share=delta", "client.optimizer.lr=1", "+client.optimizer.weight_decay=1e-3")
    seen, truth = observe_client(*TINY, *step, "client.max_grad_norm=5")
    assert norm(seen.gradient) == pytest.approx(5.0, rel=1e-3)
    result = fedsim.attack("patch_gradient", seen)
    assert float((result.images.double() - truth.images.double()).square().mean()) < 1e-5
    assert result.labels.tolist() == truth.labels.tolist()


def test_who_reads_the_heads_scale_is_told_that_it_is_lost():
    seen, _ = observe_client(*TINY, "client.max_grad_norm=0.1")
    assert seen.effects == (Clips(0.1, "step"),)
    assert seen.defense_effects == ()
    assert seen.keeps("equations")
    assert not seen.keeps("gradient")
    assert head_is_exact(seen).startswith("clipped in training")
    assert isinstance(seen.effects[0], WEIGHED)
    label = fedsim.attack("labels", seen)
    assert label.certificate.status == "certified", "one example's label stands whatever the scale"
    batch, truth = observe_client(
        *TINY, "audit.batch_size=3", "client.max_grad_norm=0.1", positions=(0, 1, 2), client=1
    )
    assert len(truth.labels) == 3
    assert fedsim.attack("labels", batch).certificate.status == "uncertified"


def test_it_is_kept_once_on_disk_and_old_files_were_not_clipped(tmp_path):
    seen, _ = observe_client(*TINY, "client.max_grad_norm=1", "defense=[gradient_clip]")
    seen.save(tmp_path / "seen")
    loaded = fedsim.Observation.load(tmp_path / "seen")
    assert loaded.protocol == seen.protocol
    assert loaded.effects == seen.effects == (Clips(1.0, "step"), Clips(1.0, "update"))
    record = LocalProtocol(batch_size=1, max_grad_norm=1.0).to_dict()
    whole = {**record, "max_grad_norm": 1}
    assert LocalProtocol.from_dict(json.loads(json.dumps(whole))).max_grad_norm == 1.0
    del record["max_grad_norm"]
    assert LocalProtocol.from_dict(json.loads(json.dumps(record))) == LocalProtocol(batch_size=1)


def test_float16_clips_what_its_scale_was_taken_from():
    free, clipped = (
        trained(client_of("client.precision=float16", f"client.max_grad_norm={one}"), [5]) for one in ("null", "0.1")
    )
    assert norm(clipped.tensors) == pytest.approx(0.1, rel=1e-3)
    for name, tensor in free.tensors.items():
        torch.testing.assert_close(clipped.tensors[name], tensor * 0.1 / norm(free.tensors), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("value", ["0", "-1", "true", "one", ".nan"])
def test_what_is_no_norm_is_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"^client\.max_grad_norm=.*: must be a number above 0 and at most"):
        config_of(settings("audit", f"client.max_grad_norm={value}"))


def test_dp_sgd_clips_by_itself():
    client = client_of("defense=[dp_sgd]", "client.max_grad_norm=1")
    chain = client.defenses
    with pytest.raises(ConfigError, match=r"^client\.max_grad_norm=1: must be null beside dp_sgd"):
        chain.check(Plan(client.model, plain(client.settings), {}, chain.defenses))
    chain.check(Plan(client.model, plain(client.settings) | {"max_grad_norm": math.inf}, {}, chain.defenses))
