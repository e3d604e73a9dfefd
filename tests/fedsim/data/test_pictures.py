import io

import numpy as np
import PIL.Image
import pytest
import torch

from clients.app import cache_bytes
from fedsim.data.pictures import ImageCache, _warn_of_few_bits, decode

RAMP = np.tile(np.linspace(0, 255, 40).astype(np.uint8)[:, None], (1, 20))  # 40 rows high, 20 wide


def encoded(picture: PIL.Image.Image, file_format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, file_format, **options)
    return buffer.getvalue()


def test_the_right_size_is_left_alone():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert np.array_equal(decode(encoded(PIL.Image.fromarray(pixels)), 9).permute(1, 2, 0).numpy(), pixels)


def test_the_centre_of_the_longer_side_is_kept():
    picture = decode(encoded(PIL.Image.fromarray(RAMP)), 20)
    assert picture.shape == (3, 20, 20)
    assert np.array_equal(picture[0].numpy(), RAMP[10:30])


@pytest.mark.parametrize("size", [(640, 427), (31, 97), (3, 500), (5, 5)])
def test_any_shape_gives_the_square(size):
    assert decode(encoded(PIL.Image.new("RGB", size)), 32).shape == (3, 32, 32)


def test_shrinking_is_antialiased():
    checks = PIL.Image.fromarray((np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8))
    shrunk = decode(encoded(checks), 8).float()
    assert (shrunk - 127.5).abs().max() < 20


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode):
    grey = PIL.Image.fromarray(RAMP)
    if mode == "I;16":
        picture = PIL.Image.fromarray(RAMP.astype(np.uint16) << 8)
    else:
        picture = grey.convert("RGB").convert(mode) if mode == "CMYK" else grey.convert(mode)
    decoded = decode(encoded(picture, "TIFF" if mode == "CMYK" else "PNG"), 20)
    assert decoded.dtype == torch.uint8
    tolerance = 255 if mode == "1" else 2
    np.testing.assert_allclose(decoded[1].numpy().astype(int), RAMP[10:30], atol=tolerance)


@pytest.mark.parametrize(("kind", "mode"), [(np.uint16, "I;16"), (np.int32, "I")])
def test_eight_bits_in_a_picture_of_more_are_no_lower_byte(kind, mode):
    picture = PIL.Image.fromarray(RAMP.astype(kind))
    assert picture.mode == mode
    assert np.array_equal(decode(encoded(picture, "TIFF"), 20)[0].numpy(), RAMP[10:30])


def test_twelve_and_eight_bits_in_16_are_told_once(caplog):
    _warn_of_few_bits.cache_clear()
    for levels in (RAMP.astype(np.uint16) << shift for shift in (8, 4, 4, 0, 0)):
        decode(encoded(PIL.Image.fromarray(levels)), 20)
    decode(encoded(PIL.Image.fromarray(np.zeros((20, 20), np.uint16))), 20)
    assert [record.message for record in caplog.records] == [
        "a 16-bit grey picture holds 12 bits or fewer and is read as nearly black: stretch it to all 16",
        "a 16-bit grey picture holds 8 bits or fewer and is read as one of 8: stretch a set of more to all 16",
    ]


def test_a_palette_with_transparency_does_not_warn():
    picture = PIL.Image.fromarray(RAMP).convert("P")
    assert decode(encoded(picture, transparency=bytes(range(256))), 20).shape == (3, 20, 20)


def test_exif_orientation_is_undone():
    exif = PIL.Image.Exif()
    exif[0x0112] = 3  # upside down
    turned = decode(encoded(PIL.Image.fromarray(RAMP), exif=exif), 20)
    assert np.array_equal(turned[0].numpy(), RAMP[10:30][::-1])


def test_a_damaged_exif_block_leaves_the_picture_as_it_lies():
    content = encoded(PIL.Image.fromarray(RAMP), "JPEG", dpi=(72, 72), exif=b"Exif\0\0garbage!")
    np.testing.assert_allclose(decode(content, 20)[0].numpy().astype(int), RAMP[10:30], atol=3)


def test_what_is_kept_is_found_in_every_pass_through_more_than_there_is_room_for():
    cache = ImageCache(max_bytes=3 * 12)
    pictures = {row: torch.full((3, 2, 2), row, dtype=torch.uint8) for row in range(4)}
    found = []
    for row in (*range(4), *range(4)):
        found.append(cache.slot(("train", row)))
        cache.put(("train", row), pictures[row])
    assert found == [-1] * 4 + [0, 1, 2, -1]
    assert (len(cache), cache.num_bytes) == (3, 36)


@pytest.mark.parametrize("beside", [1, 16, 100])
def test_workers_share_a_quarter_of_the_memory(beside, monkeypatch):
    pages = {"SC_PHYS_PAGES": 16 * 2**18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.get)
    assert beside * cache_bytes(beside) <= 4 * 2**30
    assert cache_bytes(beside) >= 4 * 2**30 // beside - 1


@pytest.mark.parametrize("slab", [1, 24, 30, 10**6])
def test_a_batch_is_gathered_in_its_order_wherever_its_pictures_lie(monkeypatch, slab):
    monkeypatch.setattr("fedsim.data.pictures.SLAB", slab)
    cache = ImageCache(max_bytes=5 * 12)
    for row in range(6):
        cache.put(("train", row), torch.full((3, 2, 2), row, dtype=torch.uint8))
    assert cache.slot(("train", 5)) == cache.slot(("test", 1)) == -1
    for rows in ([4, 0, 2, 2], [3], [1, 0]):
        batch = cache.at(np.array([cache.slot(("train", row)) for row in rows]))
        assert batch[:, 0, 0, 0].tolist() == rows
        batch.zero_()
    assert cache.at(np.arange(5)).amax(dim=(1, 2, 3)).tolist() == list(range(5))


def test_a_picture_beyond_the_budget_is_not_kept():
    cache = ImageCache(max_bytes=11)
    cache.put(("train", 0), torch.zeros(3, 2, 2, dtype=torch.uint8))
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_picture_put_twice_counts_once():
    cache = ImageCache(max_bytes=100)
    for _ in range(2):
        cache.put(("train", 0), torch.zeros(3, 2, 2, dtype=torch.uint8))
    assert cache.num_bytes == 12


def test_a_floating_point_tiff_is_not_read_as_black():
    with pytest.raises(ValueError, match="floating-point"):
        decode(encoded(PIL.Image.fromarray(RAMP / np.float32(255)), "TIFF"), 20)
