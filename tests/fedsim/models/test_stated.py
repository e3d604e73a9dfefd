"""Roles that the owner of a module states: `patch_gradient` then reads it as one of timm's, and mistakes are told."""

import pytest
import torch
from torch import nn

import fedsim
from fedsim.errors import ConfigError
from fedsim.models import find_roles, own_architecture
from fedsim.models.stated import check_stated

ROLES = {"patch_weight": "embed.weight", "pos_embed": "positions", "class_token": "start"}
SHAPE = (3, 16, 16)


class OwnViT(nn.Module):
    PROJECTION = "embed"

    def __init__(self, token: bool = True, padding: int = 0, width: int = 48) -> None:
        super().__init__()
        self.add_module(self.PROJECTION, nn.Conv2d(3, width, 4, stride=4, padding=padding))
        self.start = nn.Parameter(torch.zeros(1, 1, width)) if token else None
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16 + token, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.get_submodule(self.PROJECTION)(images).flatten(2).transpose(1, 2)
        if self.start is not None:
            tokens = torch.cat([self.start.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.head(self.block(tokens + self.positions).mean(dim=1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("token", [True, False])
def test_the_image_comes_back_once_the_roles_are_stated(token, tmp_path):
    model, images = OwnViT(token), torch.rand(1, *SHAPE)
    roles = {role: name for role, name in ROLES.items() if token or role != "class_token"}
    refused = fedsim.attack("patch_gradient", fedsim.observe(model, images, [3]))
    assert refused.reason.startswith("OwnViT has no patch embedding: a Conv2d at `patch_embed.proj`")
    assert "roles={'patch_weight': NAME, 'pos_embed': NAME" in refused.reason
    seen = fedsim.observe(model, images, [3], roles=roles)
    result = fedsim.score(fedsim.attack("patch_gradient", seen), images, [3])
    assert result.certified
    assert result.psnr[0] > 60
    assert seen.roles.embedded_prefix_tokens == seen.roles.prefix_tokens == int(token)
    assert (seen.roles.grid, seen.roles.patch, seen.roles.patch_bias) == ((4, 4), (4, 4), "embed.bias")
    seen.save(tmp_path / "seen")
    again = fedsim.Observation.load(tmp_path / "seen", model=model, replayer=fedsim.replay)
    assert torch.equal(fedsim.attack("patch_gradient", again).images, result.images)


class NamedAsTimm(OwnViT):
    """One part has the name that timm's ViTs have for it, whose usual normalisation is none of its own."""

    PROJECTION = "patch_embed"


@pytest.mark.parametrize("kind", [OwnViT, NamedAsTimm])
def test_a_gradient_from_elsewhere_an_audit_and_a_defense_read_the_roles_too(kind, tmp_path):
    model, images, labels = kind(), torch.rand(2, *SHAPE), torch.tensor([1, 3])
    roles = ROLES if kind is OwnViT else {**ROLES, "patch_weight": "patch_embed.weight"}
    loss = nn.functional.cross_entropy(model(images[:1]), labels[:1])
    shared = torch.autograd.grad(loss, list(model.parameters()))
    seen = fedsim.Observation.of(model, shared, image_shape=SHAPE, roles=roles)
    assert fedsim.score(fedsim.attack("patch_gradient", seen), images[:1], labels[:1]).psnr[0] > 60
    hidden = fedsim.observe(model, images[:1], labels[:1], defense=["withhold_pe"], roles=roles)
    assert fedsim.attack("patch_gradient", hidden).reason == "positions's gradient is withheld by withhold_pe"
    found = fedsim.audit(model, (images, labels), ["patch_gradient"], num_images=2, roles=roles, run_dir=tmp_path)
    assert found.table.loc[0, "certified"] == 2
    with pytest.raises(ConfigError, match="run_dir"):
        fedsim.audit(model, (images, labels), ["patch_gradient"], num_images=2, run_dir=tmp_path)


def test_without_a_removed_parameter_its_role_is_empty():
    seen = fedsim.observe(OwnViT(), torch.rand(1, *SHAPE), [3], defense=["no_pe"], roles=ROLES)
    assert (seen.roles.pos_embed, seen.roles.patch_weight) == (None, "embed.weight")
    assert fedsim.attack("patch_gradient", seen).reason == "the model has no pos_embed: removed by no_pe"


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize(("name", "settings"), [("inverting_gradients", {}), ("gauss_newton", {"starts": ["mean"]})])
def test_torchs_own_attention_is_searched_twice_differentiated(name, settings):
    seen = fedsim.observe(OwnViT(width=16), torch.rand(1, *SHAPE), [3], roles=ROLES)
    assert fedsim.attack(name, seen, steps=2, **settings).status == "done"


def test_who_states_one_role_is_told_of_the_other():
    seen = fedsim.observe(OwnViT(), torch.rand(1, *SHAPE), [3], roles={"patch_weight": "embed.weight"})
    expected = "the model has no pos_embed: state it, roles={'pos_embed': NAME}, where it has another name"
    assert fedsim.attack("patch_gradient", seen).reason == expected


def test_what_stands_in_the_way_is_found_at_the_stated_place():
    model = OwnViT(padding=2)
    model.positions = nn.Parameter(torch.zeros(1, 26, 48))
    module = own_architecture(model, SHAPE, roles={"patch_weight": "embed.weight"}).build()
    assert find_roles(module).obstacles == ("the patch projection pads the picture",)


def test_roles_are_a_mapping():
    with pytest.raises(ConfigError, match=r"roles=embed.weight: must be parameter names by role"):
        check_stated(OwnViT(), "embed.weight", 3)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"patch_wieght": "embed.weight"}, "Did you mean 'patch_weight'"),
        ({"patch_weight": "embed.wieght"}, "roles.patch_weight=embed.wieght: .* Did you mean 'embed.weight'"),
        ({"patch_weight": "head.weight"}, r"head.weight \(5, 48\): must be the weight of a Conv2d on images:"),
        ({"pos_embed": "positions"}, "patch_weight too"),
        ({**ROLES, "pos_embed": "head.weight"}, r"head.weight \(5, 48\): must be a row of 48 numbers for each of 16"),
        ({"patch_weight": "embed.weight", "pos_embed": "positions"}, "a row of 48 numbers for each of 16 patches"),
        ({**ROLES, "class_token": "block.linear2.weight"}, "roles.class_token=.*so many numbers as the model is wide"),
    ],
)
def test_a_mistake_is_told_at_once(roles, words):
    with pytest.raises(ConfigError, match=words):
        fedsim.observe(OwnViT(), torch.rand(1, *SHAPE), [3], roles=roles)


class ReadAtTheClassToken(OwnViT):
    """Gradients of patches come through keys and values alone where norms stand last."""

    def __init__(self, heads: int, norm_first: bool) -> None:
        super().__init__(width=96)
        self.block = nn.TransformerEncoderLayer(96, heads, 64, dropout=0.0, batch_first=True, norm_first=norm_first)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.start.expand(len(tokens), -1, -1), tokens], dim=1)
        return self.head(self.block(tokens + self.positions)[:, 0])


@pytest.mark.parametrize("heads", [2, 3])
def test_a_class_token_behind_one_block_with_norms_last_leaves_two_directions_a_head(heads):
    image, ranks = torch.rand(1, *SHAPE).double(), []
    for norm_first in (False, True):
        seen = fedsim.observe(ReadAtTheClassToken(heads, norm_first).double(), image, [3], roles=ROLES)
        ranks.append(int(torch.linalg.matrix_rank(seen.update.tensors["positions"][0, 1:])))
    assert ranks == [2 * heads, 16]
