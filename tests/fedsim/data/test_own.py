"""Pictures of somebody's own data set, as those of a folder are read."""

import io

import numpy as np
import PIL.Image
import pytest
import torch

from fedsim.data.own import own_data
from fedsim.errors import ConfigError

RAMP = np.linspace(0, 255, 16).astype(np.uint8)[:, None].repeat(16, axis=1)


def held(picture, channels):
    (image,) = own_data([(picture, 1)], (channels, 16, 16), 2, 1, "first", 0).train.images([0])
    return (255 * image).round()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "I"])
def test_every_depth_of_grey_is_the_same_picture(mode, channels):
    picture = PIL.Image.fromarray(RAMP).convert("RGB" if mode == "RGB" else "L")
    if mode.startswith("I"):
        picture = PIL.Image.fromarray(RAMP.astype({"I;16": np.uint16, "I": np.int32}[mode]) << 8)
    assert picture.mode == mode
    assert torch.equal(held(picture, channels), torch.from_numpy(RAMP).float().expand(channels, -1, -1))


def test_eight_bits_in_a_picture_of_32_are_no_lower_byte():
    assert torch.equal(held(PIL.Image.fromarray(RAMP.astype(np.int32)), 1)[0], torch.from_numpy(RAMP).float())


def test_a_picture_whose_data_are_broken_is_not_read_half():
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    with pytest.raises(ConfigError, match=r"^dataset\[0\]=.*broken data stream"):
        held(PIL.Image.open(io.BytesIO(content)), 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_exif_orientation_is_undone(channels):
    picture = PIL.Image.fromarray(RAMP)
    picture.getexif()[0x0112] = 3  # upside down
    assert torch.equal(held(picture, channels)[0], torch.from_numpy(RAMP[::-1].copy()).float())


@pytest.mark.parametrize(
    ("pixels", "words"), [(RAMP / np.float32(255), "floating-point"), (RAMP.astype(np.int32) << 16, "more than 16")]
)
def test_pixels_that_eight_bits_cannot_stand_for_are_refused(pixels, words):
    with pytest.raises(ConfigError, match=rf"^dataset\[0\]=a picture of mode [FI]: .*{words}"):
        held(PIL.Image.fromarray(pixels), 1)


def test_bfloat16_is_read_as_it_is():
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    data = own_data([(image, 1)], (3, 16, 16), 2, 1, "first", 0)
    assert torch.equal(data.train.images([0])[0], image.float())
