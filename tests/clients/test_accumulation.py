"""A batch in parts: the batch's own gradient, in the memory of a part, and where that cannot be."""

import json

import pytest
import timm
import torch
from torch.nn import functional as F

import fedsim
from attacks.learned.circumstances import Circumstances
from clients.training import LossGradient
from defenses.base import Batch, Defense
from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.update import LocalProtocol
from tests.support.federation import settings


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 5)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


@pytest.fixture
def images():
    return torch.rand(7, 3, 4, 4, generator=torch.Generator().manual_seed(1))


LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 1])
STEPS = {"share": "delta", "local_steps": 4, "batch_size": 5, "max_grad_norm": 0.5}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_gradient_is_the_batchs_in_float64(model, images, size):
    model.double()
    batch = Batch(images.double(), LABELS)
    compute = LossGradient(model, Defense(), 0.1, micro_batch_size=size)
    found = compute(batch)
    losses = compute.take_losses()
    assert [count for _, count in losses] == [min(size, 7 - begin) for begin in range(0, 7, size)]
    expected = torch.autograd.grad(
        F.cross_entropy(model(batch.images), LABELS, label_smoothing=0.1), list(model.parameters())
    )
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sharing", [{}, STEPS])
def test_parts_as_large_as_the_batch_change_no_bit_and_smaller_ones_rounding(model, images, sharing):
    def seen(size):
        return fedsim.observe(model, images, LABELS, micro_batch_size=size, **sharing)

    plain, whole, parts = seen(None), seen(7), seen(2)
    assert whole.protocol.micro_batch_size == 7
    for name, tensor in plain.update.tensors.items():
        assert torch.equal(whole.update.tensors[name], tensor)
        torch.testing.assert_close(parts.update.tensors[name], tensor, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(parts.update.tensors[name], tensor) for name, tensor in plain.update.tensors.items())


def test_the_model_sees_a_part_at_once(model, images):
    read = []
    model[1].register_forward_hook(lambda _, inputs, output: read.append(len(inputs[0])))
    LossGradient(model, Defense(), 0.0, micro_batch_size=3)(Batch(images, LABELS))
    assert read == [3, 3, 1]


def test_float16_scales_each_part(model, images):
    found, whole = (
        LossGradient(model, Defense(), 0.0, precision="float16", micro_batch_size=size)(Batch(images, LABELS))
        for size in (2, None)
    )
    for name, tensor in whole.items():
        torch.testing.assert_close(found[name], tensor, rtol=0.02, atol=1e-3)


def test_an_attack_takes_it_for_the_batch(images):
    """Parts tell nothing: a network that was trained for the whole batch holds for it, and so does a closed form."""
    torch.manual_seed(0)
    kwargs = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 48, "depth": 1, "num_heads": 3}
    vit = timm.create_model("vit_tiny_patch16_224", **kwargs).eval()
    pictures = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    plain, parts = (fedsim.observe(vit, pictures, [1, 2], micro_batch_size=size) for size in (None, 1))
    assert Circumstances.of(plain).difference(Circumstances.of(parts)) is None
    labels = [fedsim.attack("labels", one).labels.tolist() for one in (plain, parts)]
    assert labels == [[1, 2], [1, 2]]
    record = parts.protocol.to_dict()
    assert LocalProtocol.from_dict(json.loads(json.dumps(record))) == parts.protocol
    del record["micro_batch_size"]
    assert LocalProtocol.from_dict(record) == plain.protocol


def test_batch_norm_in_training_mode_is_refused_by_name(images):
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    model = torch.nn.Sequential(*layers)
    wanted = r"^client\.micro_batch_size=2: must be null, or client\.training_mode=false: 1 \(BatchNorm\)"
    with pytest.raises(ConfigError, match=wanted):
        fedsim.observe(model, images, LABELS, micro_batch_size=2)
    seen = fedsim.observe(model, images, LABELS, micro_batch_size=2, training_mode=False)
    assert seen.protocol.micro_batch_size == 2


@pytest.mark.parametrize("defense", ["dp_sgd", "soteria"])
def test_a_defense_that_reads_the_batch_whole_refuses_it(model, images, defense):
    with pytest.raises(ConfigError, match=rf"^client\.micro_batch_size=2: must be null beside {defense}"):
        fedsim.observe(model, images, LABELS, defense=[defense], micro_batch_size=2)


@pytest.mark.parametrize("value", ["0", "1.5", "all"])
def test_what_is_no_number_of_images_is_refused(value):
    with pytest.raises(ConfigError, match=r"^client\.micro_batch_size=.*: must be a whole number from 1 to"):
        config_of(settings("audit", f"client.micro_batch_size={value}"))
