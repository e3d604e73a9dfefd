"""Row spaces of fewer gradients than `row_space` needs."""

import pytest
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from attacks.base import NotApplicable
from clients.replay import replay
from defenses import DefenseChain
from experiments.studies.harness.client import Client
from experiments.studies.withholding.attacks import RowSpaces
from experiments.studies.withholding.search import defended
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, Update

CPU = torch.device("cpu")
QKV, FC1 = "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight"


def observe(spec, shared, pictures=1, seed=0):
    """The named gradients of a batch of random pictures, and the pictures."""
    architecture = Architecture(spec, (DefenseChain(),), seed)
    model = architecture.build().train()
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (pictures, 3, 8, 8), generator=rng).double() / 255
    dtype = next(model.parameters()).dtype
    F.cross_entropy(model(((images - 0.5) / 0.5).to(dtype)), torch.arange(pictures)).backward()
    tensors = {name: p.grad for name, p in model.named_parameters() if shared is None or name in shared}
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    update, protocol = Update(tensors, "gradient", pictures), LocalProtocol(batch_size=pictures)
    mean = (0.5, 0.5, 0.5)
    roles = find_roles(model)
    observation = Observation(
        0, 0, state, update, protocol, architecture, roles, (3, 8, 8), mean, mean, 5, replayer=replay
    )
    return observation, images


def attack(observation, **settings):
    return RowSpaces(**settings)(observation, torch.Generator(), CPU)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_first_attentions_gradient_alone_is_enough(dtype):
    """12 pixels of a patch, 64 - 17 equations; whole levels make it exact from float32 too."""
    observation, images = observe(ModelSpec("vit_nano_patch2_8", 5, dtype=dtype), [QKV])
    found = attack(observation)
    assert (found.images - images).abs().max() < 1e-9
    assert found.certificate.certified == (dtype == "float64"), "the Jacobian bends too much over float32's rounding"


def test_pixels_that_are_no_whole_levels_are_not_certified():
    observation, images = observe(ModelSpec("vit_nano_patch2_8", 5, dtype="float64"), [QKV])
    found = attack(observation, levels=None)
    assert (found.images - images).abs().max() < 1e-4
    assert not found.certificate.certified


def test_aprils_architecture_reads_the_embedding_itself():
    observation, images = observe(ModelSpec("vit_nano_patch2_8", 5, variant="april", dtype="float64"), [QKV])
    assert (attack(observation).images - images).abs().max() < 1e-4


def test_the_first_mlps_gradient_where_the_attentions_is_withheld():
    observation, images = observe(ModelSpec("vit_nano_patch2_8", 5, dtype="float64"), [FC1])
    assert (attack(observation, search=True).images - images).abs().max() < 1e-2
    with pytest.raises(NotApplicable, match="is withheld"):
        attack(observation)


@pytest.mark.parametrize(
    ("shared", "settings", "reason"),
    [
        ([QKV], {"search": True}, "nothing is left to search"),
        (["pos_embed", "patch_embed.proj.weight"], {}, "projections are withheld"),
        (["blocks.1.mlp.fc1.weight"], {"search": True, "projections": 3}, "projections are withheld"),
    ],
)
def test_refusals(shared, settings, reason):
    with pytest.raises(NotApplicable, match=reason):
        attack(observe(ModelSpec("vit_nano_patch2_8", 5), shared)[0], **settings)


def test_batches_and_wide_tokens_are_refused():
    with pytest.raises(NotApplicable, match="one picture"):
        attack(observe(ModelSpec("vit_nano_patch2_8", 5), None, pictures=2)[0])
    narrow = ModelSpec("vit_nano_patch2_8", 5, kwargs={"embed_dim": 16, "num_heads": 2})
    with pytest.raises(NotApplicable, match="17 tokens >= width 16"):
        attack(observe(narrow, None)[0])


def test_a_set_withheld_afterwards_is_what_a_client_would_withhold(audit_client):
    """The defense acts on updates alone, so one gradient serves all sets: bit-equal to the client's own code."""
    withhold = {"withhold": {"_target_": "defenses.Withhold", "patterns": ["qkv_weight", "head*"], "mode": "private"}}
    plain, own = (audit_client(defense).shares([3], 3)[0] for defense in ({}, withhold))
    afterwards = defended(plain, withhold)
    assert afterwards.update.withheld == own.update.withheld
    assert afterwards.update.withheld
    assert afterwards.update.tensors.keys() == own.update.tensors.keys()
    assert all(torch.equal(t, own.update.tensors[name]) for name, t in afterwards.update.tensors.items())
    assert afterwards.defenses == own.defenses
    assert all(torch.equal(t, own.global_state[name]) for name, t in afterwards.global_state.items())


@pytest.fixture
def audit_client():
    with initialize_config_module("conf", version_base=None):
        overrides = ["model=vit_nano", "data=digits", "simulation=inline", "run_dir=unused", "tracker=[]"]
        config = OmegaConf.to_container(compose("audit", overrides=overrides), resolve=True)
    return lambda defense: Client({**config, "defense": defense})
