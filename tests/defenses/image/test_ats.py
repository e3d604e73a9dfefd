import re

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

import fedsim
from clients.training import LossGradient
from defenses import AutomaticTransformation, Batch, DefenseChain
from defenses.image.ats import EITHER_WAY, LIBRARY, RANGES, apply, shifted, transformed
from defenses.image.pixels import to_bytes
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec, Normaliser
from tests.defenses.as_configured import configured

SPEC = ModelSpec("resnet18_cifar_32", 5)  # its normalisation differs by channel
VIT = ModelSpec("vit_tiny_patch16_224", 5, 16, 4, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 3})
NORMALISERS = {}


def normaliser(spec):
    if spec.name not in NORMALISERS:
        NORMALISERS[spec.name] = Normaliser(spec.build(0))
    return NORMALISERS[spec.name]


def picture(height=24, width=32):
    """Smooth colours with an edge, 8 bits."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    red, green, blue = 0.2 + 0.6 * rows * columns, 0.1 + 0.7 * columns, torch.where(rows > 0.4, 0.8 * rows, 0.15)
    return to_bytes(torch.stack([red, green, blue]))


def by_pil(operation, magnitude, source):
    """The authors' operations, on PIL pictures."""
    image = Image.fromarray(source.permute(1, 2, 0).numpy())
    match operation:
        case "shear_y":
            size, matrix = image.size, (1, 0, 0, magnitude, 1, 0)
            result = image.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        case "translate_x":
            result = image.transform(image.size, Image.Transform.AFFINE, (1, 0, magnitude * image.size[0], 0, 1, 0))
        case "translate_y":
            result = image.transform(image.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, magnitude * image.size[1]))
        case "rotate":
            turned = image.convert("RGBA").rotate(magnitude)
            grey = Image.new("RGBA", turned.size, (128,) * 4)
            result = Image.composite(turned, grey, turned).convert("RGB")
        case "color":
            result = ImageEnhance.Color(image).enhance(1 + magnitude)
        case "contrast":
            result = ImageEnhance.Contrast(image).enhance(1 + magnitude)
        case "sharpness":
            result = ImageEnhance.Sharpness(image).enhance(1 + magnitude)
        case "brightness":
            result = ImageEnhance.Brightness(image).enhance(1 + magnitude)
        case "posterize":
            result = ImageOps.posterize(image, round(magnitude))
        case "solarize":
            result = ImageOps.solarize(image, magnitude)
        case "autocontrast" | "equalize" | "invert":
            result = getattr(ImageOps, operation)(image)
    return torch.from_numpy(np.array(result)).permute(2, 0, 1)


def batch_of(count=3, model=SPEC, side=16):
    rng = torch.Generator().manual_seed(1)
    pictures = torch.randint(256, (count, 3, side, side), generator=rng).float() / 255
    return Batch(normaliser(model)(pictures), torch.arange(count))


def after(defense, batch, seed=0, model=SPEC):
    defense.wrap_model(model.build(0))
    return defense.transform_batch(batch, torch.Generator().manual_seed(seed))


def bytes_of(images, model=SPEC):
    return to_bytes(normaliser(model).inverse(images))


def magnitude_of(operation, level):
    low, high = RANGES.get(operation, (0.0, 0.0))
    return low + (high - low) * level / 9


@pytest.mark.parametrize(("operation", "level"), sorted(set(LIBRARY)))
def test_every_transformation_of_the_library_against_pil(operation, level):
    magnitude, source = magnitude_of(operation, level), picture()
    for sign in (1, -1) if operation in EITHER_WAY else (1,):
        found = transformed(operation, sign * magnitude, source).int()
        expected = by_pil(operation, sign * magnitude, source).int()
        off = (found - expected).abs()
        if operation == "rotate":  # nearest pixels at other sides of a tie
            assert float((off > 0).float().mean()) < 0.02
        elif operation == "shear_y":  # PIL darkens the border differently
            assert float((off > 2).float().mean()) < 0.08
        else:
            assert int(off.max()) <= (1 if operation in EITHER_WAY or operation == "autocontrast" else 0)


def test_the_library_has_fifty_of_known_operations():
    assert len(LIBRARY) == 50
    assert {LIBRARY[i] for i in (3, 1, 7)} == {("translate_x", 9), ("contrast", 6), ("translate_y", 2)}
    assert (LIBRARY[43], LIBRARY[18]) == (("translate_y", 3), ("contrast", 7))
    with pytest.raises(ValueError, match="zoom"):
        transformed("zoom", 1.0, picture())


def test_both_signs_are_drawn(rng):
    drawn = {apply("translate_x", 9, picture(), rng).numpy().tobytes() for _ in range(20)}
    assert len(drawn) == 2
    assert len({apply("rotate", 5, picture(), rng).numpy().tobytes() for _ in range(5)}) == 1


@pytest.mark.parametrize(("down", "right"), [(0, 0), (3, -5), (-3, 5), (24, 0), (0, -40)])
def test_shifts_against_a_loop(down, right):
    source = picture()
    expected = torch.zeros_like(source)
    for y in range(24):
        for x in range(32):
            if 0 <= y - down < 24 and 0 <= x - right < 32:
                expected[:, y, x] = source[:, y - down, x - right]
    assert torch.equal(shifted(source, down, right), expected)


@pytest.mark.parametrize("model", [SPEC, VIT])
def test_without_policies_it_is_the_identity(model):
    batch = batch_of(model=model)
    assert after(AutomaticTransformation([]), batch, model=model) is batch
    assert AutomaticTransformation([]).effects() == ()
    assert all(AutomaticTransformation([], **changing).effects() for changing in ({"flip": True}, {"crop_padding": 1}))


@pytest.mark.parametrize("model", [SPEC, VIT])
def test_what_a_transformation_leaves_alone_comes_back_bit_by_bit(model):
    batch = batch_of(model=model)
    assert LIBRARY[28] == ("solarize", 0)  # inverts from 256 on: nothing
    assert torch.equal(after(AutomaticTransformation([[28, 28, 28]]), batch, model=model).images, batch.images)


def test_a_policy_is_its_transformations_in_order():
    batch = batch_of()
    found = bytes_of(after(AutomaticTransformation([[29, 37, 9]]), batch).images)  # without a random sign
    for result, source in zip(found, bytes_of(batch.images), strict=True):
        expected = by_pil("equalize", 0, by_pil("solarize", magnitude_of("solarize", 4), by_pil("invert", 0, source)))
        assert torch.equal(result, expected)


def test_a_hybrid_draws_one_policy_for_each_picture():
    batch = batch_of(40)
    found, sources = bytes_of(after(AutomaticTransformation([[29], [28]]), batch).images), bytes_of(batch.images)
    inverted = sum(torch.equal(result, 255 - source) for result, source in zip(found, sources, strict=True))
    untouched = sum(torch.equal(result, source) for result, source in zip(found, sources, strict=True))
    assert inverted + untouched == 40
    assert 10 < inverted < 30


def test_crop_and_flip():
    batch = batch_of(30)
    sources, found = bytes_of(batch.images), bytes_of(after(AutomaticTransformation([], 2, True), batch).images)
    shifts, flips = set(), 0
    for result, source in zip(found, sources, strict=True):
        match = [
            (down, right, mirrored)
            for down in range(-2, 3)
            for right in range(-2, 3)
            for mirrored in (False, True)
            if torch.equal(result, shifted(source, down, right).flip(-1) if mirrored else shifted(source, down, right))
        ]
        assert len(match) == 1
        shifts.add(match[0][:2])
        flips += match[0][2]
    assert len(shifts) > 10
    assert 5 < flips < 25


def test_random_policies_and_replay():
    defense, batch = AutomaticTransformation("random"), batch_of(8)
    first, again, other = (after(defense, batch, seed).images for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not any(torch.equal(new, old) for new, old in zip(first[:3], batch.images, strict=False))


def test_changes_the_gradient_and_keeps_the_labels():
    batch, model = batch_of(model=VIT), VIT.build(0)
    stock = {n: g.clone() for n, g in LossGradient(model, DefenseChain(), 0.0)(batch).items()}
    moved = after(AutomaticTransformation(), batch, model=VIT)
    assert torch.equal(moved.labels, batch.labels)
    shared = LossGradient(model, DefenseChain(), 0.0)(moved)
    assert not torch.allclose(shared["patch_embed.proj.weight"], stock["patch_embed.proj.weight"], rtol=1e-3)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"policies": [3, 1, 7]}, "policies"),
        ({"policies": [[50]]}, "policies"),
        ({"policies": [[-1]]}, "policies"),
        ({"policies": [[]]}, "policies"),
        ({"policies": [["3"]]}, "policies"),
        ({"policies": [[True]]}, "policies"),
        ({"policies": "best"}, "policies"),
        ({"policies": 3}, "policies"),
        ({"crop_padding": -1}, "crop_padding"),
        ({"crop_padding": 1.5}, "crop_padding"),
        ({"flip": "yes"}, "flip"),
    ],
)
def test_refuses_settings(settings, key):
    with pytest.raises(ConfigError, match=rf"defense\.ats\.{key}="):
        configured(AutomaticTransformation, **settings)


@pytest.mark.parametrize(("policies", "first"), [([[6, 1]], "1 (contrast)"), ("random", "1 (contrast)")])
def test_transformations_of_colours_are_refused_for_images_of_more_channels(policies, first):
    model, images = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 64, 3)), torch.rand(2, 4, 8, 8)
    with pytest.raises(ConfigError, match=rf"{re.escape(first)} for images of 4 channels"):
        fedsim.observe(model, images, [0, 1], defense=[AutomaticTransformation(policies)])
    assert fedsim.observe(model, images, [0, 1], defense=[AutomaticTransformation([[6, 3]])]).update.tensors


def test_before_wrap_model(rng):
    with pytest.raises(RuntimeError, match="wrap_model"):
        AutomaticTransformation().transform_batch(batch_of(), rng)
