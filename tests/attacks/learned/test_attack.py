import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from attacks.learned import LearnedInversion
from attacks.learned.checkpoint import Trained, load_trained, save_trained
from attacks.learned.circumstances import Circumstances, change
from attacks.learned.hashing import UpdateHash
from attacks.learned.network import InversionNetwork
from attacks.running import run_built
from fedsim.bounds.public_prior import PublicPrior
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec

LENET = ModelSpec("lenet_dlg_32", 10, img_size=16)


@pytest.fixture
def observation(tools):
    pictures = tools.photographs(16)
    seen = tools.observe(LENET, pictures, [3, 5])
    return replace(seen, defenses=({"name": "topk", "_target_": "defenses.TopK", "ratio": 0.1},))


@pytest.fixture
def checkpoint(observation, tmp_path):
    """A network with random weights, for exactly this observation."""
    circumstances = Circumstances.of(observation)
    hashing = UpdateHash({name: t.numel() for name, t in observation.update.tensors.items()}, 32, seed=1)
    with seeded_globals(0, "test"):
        network = InversionNetwork(32, 2, (3, 16, 16), hidden=8, depth=1)
    path = tmp_path / "inversion.safetensors"
    save_trained(Trained(network.eval(), hashing, 1, circumstances), path)
    return path, network, hashing


def test_it_is_one_pass_through_the_network(observation, checkpoint, cpu, rng):
    path, network, hashing = checkpoint
    found = LearnedInversion(str(path))(observation, rng, cpu)
    expected = network(hashing(observation.update.tensors)[None])[0]
    torch.testing.assert_close(found.images, expected.detach().clamp(0, 1))
    mean = LearnedInversion(str(path), output="mean")(observation, rng, cpu)
    assert torch.equal(mean.images, torch.full((2, 3, 16, 16), 0.5))


def test_its_images_are_the_clients_own_already(observation, checkpoint, cpu, rng):
    """It was trained to give them, whatever the model saw: no regression on what it saw comes behind."""
    public = torch.rand(8, 3, 16, 16, generator=rng)
    seen = replace(observation, image_prior=PublicPrior.of(public, public.roll(1, dims=0)))
    (found,) = run_built([seen], "lti", LearnedInversion(str(checkpoint[0])), 0, cpu)
    assert found.status == "done"
    assert found.images is not None
    assert found.own_images is None


def with_tensors(observation, edit):
    tensors = dict(observation.update.tensors)
    edit(tensors)
    return replace(observation, update=replace(observation.update, tensors=tensors))


def with_spec(observation, **settings):
    architecture = observation.architecture
    return replace(observation, architecture=replace(architecture, spec=replace(architecture.spec, **settings)))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda o: with_tensors(o, lambda t: t.pop("fc.bias")), "fc.bias was shared in training and is not now"),
        (lambda o: with_tensors(o, lambda t: t.update(more=torch.zeros(1))), "more was not shared in training"),
        (lambda o: with_tensors(o, lambda t: t.update({"fc.bias": torch.zeros(4)})), r"shape \(10,\), now \(4,\)"),
        (lambda o: replace(o, defenses=()), "defense was topk, now none"),
        (lambda o: replace(o, defenses=({**o.defenses[0], "ratio": 0.5},)), "ratio was 0.1, now 0.5"),
        (lambda o: replace(o, protocol=replace(o.protocol, batch_size=4)), "batch_size was 2, now 4"),
        (lambda o: replace(o, protocol=replace(o.protocol, label_smoothing=0.1)), "label_smoothing was 0.0, now 0.1"),
        (lambda o: with_spec(o, kwargs={"width": 2}), r"the model's kwargs was \{\}, now \{'width': 2\}"),
        (lambda o: replace(o, summed=3), "summed was 1, now 3"),
        (lambda o: replace(o, update=replace(o.update, kind="delta")), "kind was gradient, now delta"),
        (
            lambda o: replace(o, global_state={**o.global_state, "fc.bias": o.global_state["fc.bias"] + 1}),
            r"weights are not those that it was trained for \(drawn ones differ .* or give model\.checkpoint\)",
        ),
    ],
)
def test_whatever_else_it_was_trained_for_is_refused(observation, checkpoint, cpu, rng, edit, reason):
    with pytest.raises(NotApplicable, match=reason):
        LearnedInversion(str(checkpoint[0]))(edit(observation), rng, cpu)


def test_where_the_weights_came_from_is_no_difference(observation, checkpoint, cpu, rng):
    other = with_spec(observation, pretrained=True, checkpoint="elsewhere.safetensors")
    assert LearnedInversion(str(checkpoint[0]))(other, rng, cpu).images is not None


def test_weights_from_a_file_are_not_said_to_be_drawn(observation, checkpoint, cpu, rng):
    moved = {name: tensor + 1 for name, tensor in observation.global_state.items()}
    other = replace(with_spec(observation, checkpoint="elsewhere.safetensors"), global_state=moved)
    with pytest.raises(NotApplicable, match=r"not those that it was trained for$"):
        LearnedInversion(str(checkpoint[0]))(other, rng, cpu)


def test_other_weights_only_where_asked_for(observation, checkpoint, cpu, rng):
    moved = {name: tensor + 1 for name, tensor in observation.global_state.items()}
    other = replace(observation, global_state=moved)
    assert LearnedInversion(str(checkpoint[0]), any_weights=True)(other, rng, cpu).images is not None


def test_whole_weights_are_read_as_their_change(tools):
    pictures = tools.photographs(16)
    delta = tools.observe(LENET, pictures, [3, 5], lr=0.1)
    weights = tools.observe(LENET, pictures, [3, 5], lr=0.1, kind="weights")
    for name, tensor in change(weights).items():
        torch.testing.assert_close(tensor, change(delta)[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("decoder", ["linear", "conv"])
def test_both_decoders_make_pictures_of_the_batch(rng, decoder):
    network = InversionNetwork(12, 3, (3, 16, 16), hidden=8, depth=2, decoder=decoder, code=8)
    updates = torch.randn(5, 12, generator=rng)
    updates[:, 0] = 1.0
    network.standardise_by(updates)
    assert float(network.deviation[0]) == 1.0
    made = network(updates).detach()
    assert made.shape == (5, 3, 3, 16, 16)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1


def test_what_cannot_be_read_is_named(tmp_path, checkpoint):
    with pytest.raises(ConfigError, match="kind=lti"):
        LearnedInversion()
    with pytest.raises(ConfigError, match="no such file"):
        LearnedInversion(str(tmp_path / "nothing"))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(checkpoint[0].read_bytes()[:100])
    with pytest.raises(ConfigError, match="whole"):
        LearnedInversion(str(broken))
    with pytest.raises(ConfigError, match="output"):
        LearnedInversion(str(checkpoint[0]), output="best")


def test_loading_allocates_and_draws_nothing_by_the_header_alone(checkpoint):
    before = torch.get_rng_state()
    loaded = load_trained(checkpoint[0]).network
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())


def claiming(checkpoint, path, edit):
    """The checkpoint with another record in its header."""
    with safe_open(checkpoint, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    record = json.loads(metadata["record"])
    edit(record)
    path.write_bytes(save(tensors, {**metadata, "record": json.dumps(record)}))
    return path


def test_sizes_that_a_header_claims_take_no_memory(checkpoint, tmp_path, observation, cpu, rng):
    path = claiming(
        checkpoint[0], tmp_path / "large", lambda r: r["circumstances"]["tensors"].update({"fc.bias": [10**12]})
    )
    with pytest.raises(NotApplicable, match=r"shape \(1000000000000,\), now \(10,\)"):
        LearnedInversion(str(path))(observation, rng, cpu)
    deep = claiming(checkpoint[0], tmp_path / "deep", lambda r: r["network"].update(depth=10**9))
    with pytest.raises(ConfigError, match="1 layers, where the header names 1000000000"):
        load_trained(deep)
