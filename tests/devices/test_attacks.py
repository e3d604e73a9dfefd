"""Every attack of conf/attack that needs nothing trained before, as an audit runs and scores it, with its tensors on
one device."""

from pathlib import Path

import pytest
import torch

from attacks.analytic.patch_bag.attention import _weights as solved_weights
from attacks.generative import Generator
from attacks.running import run_attack_on_many
from experiments.audit.worker import AuditBatch, AuditWorker
from experiments.engine.setup import prepare
from fedsim.errors import ConfigError
from fedsim.models.generator import ConvGenerator
from tests.devices.strict_device import counted
from tests.support.federation import settings

CONF = Path(__file__).resolve().parents[2] / "conf"
TRAINED = {"generator_samples", "ggl", "gias", "gifd", "lti", "lti_mean"}
"""They ask for a checkpoint."""
BATCHES = {"row_space_batch": 2, "labels_certified": 2}
NARROW = "+model.kwargs.embed_dim=32"
CLIENTS = {
    "gauss_newton": ["attack.gauss_newton.starts=[closed_form,prior]", "attack.gauss_newton.steps=1", NARROW],
    "april": ["model.variant=april"],
    "fc_bias": ["model=mlp", "model.img_size=8", "model.kwargs.hidden=[256]"],
    "rgap": ["model=cnn_rgap", "model.img_size=8"],
    "mjp_adaptive": ["defense=[mjp]"],
    "patch_bag": ["defense=[no_pe]"],
    "sme": ["client.share=delta", "client.local_steps=2"],
    "gradvit": ["attack.gradvit.priors.image_prior=null"],
    "gradinversion": ["attack.gradinversion.priors.batch_norm=null"],
}
SHORT = {"steps": 2, "restarts": 2, "first_order": 1, "inner": 1, "every": 2, "starts": 2, "draws": 2}
ONE = ["attack.gauss_newton.starts=[mean]", "attack.gauss_newton.steps=1"]
SMALL = ["model=mlp", "model.img_size=8", "model.kwargs.hidden=[16]"]
MORE = {
    "local steps": ("inverting_gradients", ["client.share=delta", "client.local_steps=2"]),
    "unknown positions": ("april_optimization", ["defense=[mjp]"]),
    "noise": ("patch_gradient", ["defense=[gradient_noise]"]),
    "products": ("gauss_newton", ["attack.gauss_newton.memory_gib=1e-4", *ONE, *SMALL]),
    "a posterior": ("gauss_newton", ["defense=[local_dp]", *ONE, *SMALL]),
}
"""What else an attack does where there is something to know of the client."""


def shorter(given, key=""):
    if isinstance(given, dict):
        return {name: shorter(value, name) for name, value in given.items()}
    return min(given, SHORT[key]) if key in SHORT and isinstance(given, int) else given


def computed(device):
    """Kernels of the stand-in so far, or tensors that were made on the GPU."""
    return counted["kernels"] if device.type != "cuda" else torch.cuda.memory_stats()["allocation.all.allocated"]


def check(device, monkeypatch, name, overrides, batch=1):
    """It is done and scored, and whatever rebuilds images computes them on the device."""
    kernels = []

    def attacked(*given):
        before = computed(device)
        results = run_attack_on_many(*given)
        kernels.append(computed(device) - before)
        return results

    monkeypatch.setattr("experiments.audit.worker.attack_device", lambda _: device)
    monkeypatch.setattr("experiments.audit.worker.run_attack_on_many", attacked)
    config = settings(
        "audit", "data=digits", "model=vit_nano", f"attack=[{name}]", f"audit.batch_size={batch}", *overrides
    )
    config["attack"] = shorter(config["attack"])
    probs = torch.full((10,), 0.1, dtype=torch.float64)
    worker = AuditWorker(config, auxiliary_probs=probs, setup=prepare(config))
    (found,) = worker.run([AuditBatch(0, tuple(range(batch)), (name,), 0)])
    result = found.result
    assert result.status == "done", result.reason + result.fault
    assert result.scores is not None
    assert result.target != "images" or kernels[0] > 100


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("name", sorted({path.stem for path in (CONF / "attack").glob("*.yaml")} - TRAINED))
def test_an_attack_keeps_to_its_device(device, monkeypatch, name):
    check(device, monkeypatch, name, CLIENTS.get(name, []), BATCHES.get(name, 1))


def test_a_generator_on_the_device_tells_its_shape(device):
    generator = Generator(module=ConvGenerator(8, 16, (8,))).to(device)
    generator.check_image_shape((3, 16, 16))
    with pytest.raises(ConfigError, match="this one makes 3×16×16"):
        generator.check_image_shape((3, 8, 8))


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("what", MORE)
def test_so_it_does_with(device, monkeypatch, what):
    check(device, monkeypatch, *MORE[what])


def test_who_attends_to_whom_is_solved_anywhere(device, rng):
    told, values = torch.rand(2, 4, 5, generator=rng).softmax(dim=2), torch.randn(2, 5, 8, generator=rng)
    found = solved_weights(values.to(device), (told @ values).to(device))
    assert found.device.type == device.type
    torch.testing.assert_close(found.cpu(), told, atol=1e-5, rtol=1e-4)
