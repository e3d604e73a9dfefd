"""A closed form solves for what a layer reads: where a model changes its input before that, nothing is certified."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import fedsim
from attacks.analytic.april import April
from attacks.analytic.first_block import FirstBlock
from attacks.analytic.patch_bag import PatchBag
from attacks.analytic.patch_gradient import PatchGradient, patch_layer
from attacks.analytic.row_space.attack import RowSpace
from attacks.base import Reconstruction
from attacks.certificate.input_reached import require_image
from fedsim.errors import NotApplicable

LABEL = torch.tensor([3])
PATCHES = "patch_embed.proj"
PART = "vit.patch_embed.proj"
ROLES = {"patch_weight": f"{PART}.weight", "pos_embed": "vit.pos_embed", "class_token": "vit.cls_token"}


def image(size=16):
    """Eight-bit pixels, some of them 0 and 255."""
    drawn = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    return ((1.2 * drawn - 0.1).clamp(0, 1) * 255).round() / 255


def vit(kind=VisionTransformer):
    torch.manual_seed(0)
    return kind(img_size=16, patch_size=4, num_classes=10, depth=2, embed_dim=64, num_heads=2)


def mlp(*first):
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 5))


class Behind(nn.Module):
    """A vision transformer that sees what a map makes of the image."""

    def __init__(self, change):
        super().__init__()
        self.vit, self.change = vit(), change

    def forward(self, images):
        return self.vit(self.change(images))


def grey(images):
    return images.mean(1, keepdim=True).expand_as(images)


def without_border(images):
    inner = torch.zeros_like(images)
    inner[..., 4:-4, 4:-4] = images[..., 4:-4, 4:-4]
    return inner


CHANGES = {
    "grey": grey,
    "clamp": lambda x: x.clamp(-1, 1),
    "border": without_border,
    "four bits": lambda x: (x * 8).round() / 8,
    "bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "float16": lambda x: x.half().to(x.dtype),
    "offset": lambda x: (x + 1e4) - 1e4,
}


def observed(model, **settings):
    return fedsim.observe(model, image(), LABEL, mean=(0.5,) * 3, std=(0.25,) * 3, **settings)


@pytest.mark.parametrize("change", CHANGES)
def test_a_map_before_the_patches_is_found(change):
    model = Behind(CHANGES[change])
    seen = observed(model, roles=ROLES)
    result = fedsim.attack("patch_gradient", seen)
    given = seen.to_unit_range(model.change(seen.normalised(image()).float()))
    assert float((result.images - given.clamp(0, 1)).abs().max()) < 1e-3, "the equations hold, for what the layer reads"
    assert not result.certified
    assert f"the model changes its input before {PART} reads it" in result.certificate.reason


@pytest.mark.parametrize("harmless", [lambda x: x, lambda x: x.clamp(-2, 2), lambda x: (2.0 * x) / 2.0])
def test_what_changes_no_image_is_certified(harmless):
    """Pixels in [0, 1] are within 2 of what the model reads."""
    result = fedsim.score(fedsim.attack("patch_gradient", observed(Behind(harmless), roles=ROLES)), image(), LABEL)
    assert result.certified, result.certificate.reason
    assert result.psnr[0] >= result.certificate.values["promised_psnr"]


class InTraining(nn.Module):
    def forward(self, images):
        return grey(images) if self.training else images


@pytest.mark.parametrize("first", [(), (nn.Hardtanh(-2, 2),), (nn.Hardtanh(),), (InTraining(),)])
def test_a_fully_connected_layer_in_the_clients_own_mode(first):
    model = mlp(*first).train()
    pixels = image(8)
    seen = fedsim.observe(model, pixels, LABEL, mean=(0.5,) * 3, std=(0.25,) * 3)
    result = fedsim.score(fedsim.attack("fc_bias", seen), pixels, LABEL)
    harmless = not first or (isinstance(first[0], nn.Hardtanh) and first[0].max_val == 2)
    assert result.certified == harmless, result.certificate.reason
    assert harmless or "the model changes its input before 2 reads it" in result.certificate.reason


class Grey(VisionTransformer):
    def forward_features(self, x, **settings):
        return super().forward_features(grey(x), **settings)


@pytest.mark.parametrize("attack", [PatchGradient, RowSpace, FirstBlock, PatchBag, April])
def test_every_closed_form_bounds_nothing_behind_a_map(attack):
    seen = observed(vit(Grey))
    with pytest.raises(NotApplicable, match=r"changes its input before patch_embed\.proj"):
        attack().bound(seen, Reconstruction(grey(image()), LABEL), seen)


class Twice(VisionTransformer):
    """The projection of the image itself counts nothing; that of its grey values does."""

    def forward_features(self, x, **settings):
        self.patch_embed.proj(x)
        return super().forward_features(grey(x), **settings)


class Never(VisionTransformer):
    def forward_features(self, x, **settings):
        tokens = nn.functional.conv2d(x, self.patch_embed.proj.weight, self.patch_embed.proj.bias, stride=4)
        return self.blocks(self._pos_embed(tokens.flatten(2).transpose(1, 2)))


def test_every_call_counts_and_one_there_must_be():
    plain = observed(vit())
    require_image(plain, image(), patch_layer(plain))
    with pytest.raises(NotApplicable, match="changes its input"):
        require_image(observed(vit(Twice)), grey(image()), "patch_embed.proj")
    with pytest.raises(NotApplicable, match="is not called"):
        require_image(observed(vit(Never)), image(), "patch_embed.proj")


def test_several_images_are_given_together():
    """A norm over the batch would change each by the others; a flat model of two images is left alone."""
    both = torch.cat([image(8), image(8).flip(-1)])
    for first, fits in ((nn.Identity(), True), (nn.BatchNorm2d(3, affine=False), False)):
        seen = fedsim.observe(mlp(first).train(), both, torch.tensor([1, 3]))
        if fits:
            require_image(seen, both, "2")
        else:
            with pytest.raises(NotApplicable, match="changes its input before 2"):
                require_image(seen, both, "2")


def test_global_generators_and_the_observation_stay_as_they_were():
    seen = observed(vit())
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in seen.global_state.items()}
    require_image(seen, image(), "patch_embed.proj")
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in seen.global_state.items())


def four_bits(images):
    return images + ((images * 4).round() / 4 - images).detach()


class Conv(nn.Conv2d):
    """A map within the layer's own forward pass."""

    def forward(self, input):
        return nn.functional.conv2d(self.change(input), self.weight, self.bias, self.stride)


class Full(nn.Linear):
    def forward(self, input):
        return nn.functional.linear(self.change(input), self.weight, self.bias)


class Stored(torch.autograd.Function):
    """A linear map whose backward pass reads four bits of its input, as where activations are kept compressed."""

    @staticmethod
    def forward(context, read, weight, bias):
        context.save_for_backward(four_bits(read), weight)
        return nn.functional.linear(read, weight, bias)

    @staticmethod
    def backward(context, back):
        read, weight = context.saved_tensors
        return back @ weight, back.flatten(0, -2).T @ read.flatten(0, -2), back.flatten(0, -2).sum(0)


class Compressed(nn.Linear):
    def forward(self, input):
        return Stored.apply(input, self.weight, self.bias)


class Rewritten(nn.Linear):
    """The same map by another sum."""

    def forward(self, input):
        return (input.unsqueeze(-2) * self.weight).sum(-1) + self.bias


def with_layer(model, name, kind, change=None):
    """The same parameters in a layer of another class."""
    layer = model.get_submodule(name)
    layer.__class__, layer.change = kind, change
    return model


@pytest.mark.parametrize(("change", "attack"), [(four_bits, "patch_gradient"), (grey, "row_space")])
def test_a_patch_projection_that_changes_its_input_itself_is_found(change, attack):
    defense = {"defense": ["withhold_pe"]} if attack == "row_space" else {}
    plain, own = (observed(with_layer(vit(), PATCHES, kind, change), **defense) for kind in (nn.Conv2d, Conv))
    result = fedsim.score(fedsim.attack(attack, own), image(), LABEL)
    assert result.psnr[0] < 45
    assert not result.certified
    assert f"{PATCHES} is no linear map of what it reads" in result.certificate.reason
    assert fedsim.attack(attack, plain).certified


@pytest.mark.parametrize(("kind", "certified"), [(nn.Linear, True), (Rewritten, True), (Full, False)])
def test_a_fully_connected_layer_of_its_own_class(kind, certified):
    pixels = image(8)
    seen = fedsim.observe(with_layer(mlp(), "1", kind, four_bits), pixels, LABEL, mean=(0.5,) * 3, std=(0.25,) * 3)
    result = fedsim.score(fedsim.attack("fc_bias", seen), pixels, LABEL)
    assert result.certified == certified, result.certificate.reason
    assert (result.psnr[0] > 60) == certified
    assert certified or "1 is no linear map of what it reads" in result.certificate.reason


@pytest.mark.parametrize("attack", [RowSpace, FirstBlock, April])
def test_a_first_block_whose_layers_change_their_input_bounds_nothing(attack):
    seen = observed(with_layer(vit(), "blocks.0.attn.qkv", Full, four_bits))
    with pytest.raises(NotApplicable, match=r"blocks\.0\.attn\.qkv is no linear map of what it reads"):
        attack().bound(seen, Reconstruction(image(), LABEL), seen)


def test_a_gradient_of_another_input_than_the_outputs_is_found():
    """Its update computed once more says so too, unless the model's output hardly depends on what was cut off."""
    seen = fedsim.observe(with_layer(mlp(), "1", Compressed), image(8), LABEL)
    with pytest.raises(NotApplicable, match="1 is no linear map"):
        require_image(seen, image(8), "1")


def test_an_offset_hides_no_change():
    model = mlp()
    with torch.no_grad():
        model[1].bias += 1e6
    require_image(fedsim.observe(model, image(8), LABEL), image(8), "1")
    with pytest.raises(NotApplicable, match="1 is no linear map"):
        require_image(fedsim.observe(with_layer(model, "1", Full, four_bits), image(8), LABEL), image(8), "1")
