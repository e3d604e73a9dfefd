"""Observations on disk: the same after a year, refused when damaged."""

import json

import pytest
import torch

from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.observation import Observation
from fedsim.public_images import PublicImages
from fedsim.storage.observation_files import load_observation, save_observation
from fedsim.update import LocalProtocol, Update


@pytest.fixture
def observation(rng):
    architecture = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), seed=3)
    model = architecture.build()
    gradient = {n: torch.randn(p.shape, generator=rng) for n, p in model.named_parameters() if n != "head.bias"}
    return Observation(
        server_round=4,
        client=2,
        global_state=dict(model.state_dict()),
        update=Update(gradient, "gradient", 1, {"head.bias": "secrecy"}),
        protocol=LocalProtocol(batch_size=1),
        architecture=architecture,
        roles=find_roles(model),
        image_shape=(3, 8, 8),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        num_classes=10,
        defenses=({"name": "secrecy", "_target_": "a.B"},),
        auxiliary_probs=torch.full((10,), 0.1, dtype=torch.float64),
        image_prior=PublicPrior.of(torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)),
        public_images=PublicImages.of(torch.rand(4, 3, 8, 8), torch.tensor([0, 3, 3, 9])),
    )


def test_disk_round_trip(observation, tmp_path):
    save_observation(observation, tmp_path / "observations" / "o1")
    save_observation(observation, tmp_path / "observations" / "o2")
    assert len(list((tmp_path / "observations").glob("global-*.safetensors"))) == 1, "one global state a round"
    assert len(list((tmp_path / "observations").glob("public-*.safetensors"))) == 1, "public images once"
    back = load_observation(tmp_path / "observations" / "o1")
    for name, tensor in observation.public_images.tensors().items():
        assert torch.equal(getattr(back.public_images, name), tensor)
    for name, tensor in observation.global_state.items():
        assert torch.equal(back.global_state[name], tensor)
    for name, tensor in observation.gradient.items():
        assert torch.equal(back.gradient[name], tensor)
    assert torch.equal(back.auxiliary_probs, observation.auxiliary_probs)
    for name, tensor in observation.image_prior.tensors().items():
        assert torch.equal(getattr(back.image_prior, name), tensor)
    same = ("server_round", "client", "protocol", "roles", "image_shape", "mean", "std", "num_classes", "defenses")
    assert all(getattr(back, field) == getattr(observation, field) for field in same)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(back.build_model()(x), observation.build_model()(x))


def test_withheld_and_missing_parts_say_why(observation):
    with pytest.raises(NotApplicable, match=r"the model has no pos_embed"):
        Observation(**{**observation.__dict__, "roles": type(observation.roles)()}).gradient_of("pos_embed")
    del observation.update.tensors["pos_embed"]
    with pytest.raises(NotApplicable, match="pos_embed's gradient is withheld by the client"):
        observation.gradient_of("pos_embed")


def test_an_unfinished_or_damaged_folder_is_one_clear_line(observation, tmp_path):
    with pytest.raises(ConfigError, match="no complete observation"):
        load_observation(tmp_path)
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    (folder / "observation.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="damaged"):
        load_observation(folder)
    (folder / "observation.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 1, not 99"):
        load_observation(folder)


def test_a_truncated_tensor_file_is_one_clear_line(observation, tmp_path):
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    path = folder / "update.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="damaged"):
        load_observation(folder)


def test_names_in_the_record_never_become_paths(observation, tmp_path):
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    record = json.loads((folder / "observation.json").read_text())
    (tmp_path / "secret.safetensors").write_bytes((folder / "update.safetensors").read_bytes())
    record["global_state"] = "../secret.safetensors"
    (folder / "observation.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="missing"):
        load_observation(folder)
