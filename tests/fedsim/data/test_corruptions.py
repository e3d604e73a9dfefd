import io
import math

import numpy as np
import PIL.Image
import pytest
from skimage.color import hsv2rgb, rgb2hsv

from fedsim.data.corruption_levels import CIFAR, IMAGENET, table_for
from fedsim.data.corruptions import CORRUPTIONS, NAMES, corrupt, disc, load_frost, plasma, smear, zoom_in
from fedsim.errors import ConfigError


def picture(side=32, seed=0):
    """Smooth shapes and some texture, on 256 levels."""
    rows, columns = np.meshgrid(np.linspace(0, 3, side), np.linspace(0, 3, side), indexing="ij")
    smooth = np.stack([np.sin(rows * columns), np.cos(2 * rows), np.sin(rows - 2 * columns)], axis=-1) * 0.35 + 0.5
    noisy = smooth + np.random.default_rng(seed).normal(0, 0.05, smooth.shape)
    return np.rint(noisy.clip(0, 1) * 255) / 255


def corrupted(x, name, severity, table="cifar", seed=3, **settings):
    return corrupt(x, name, severity, np.random.default_rng(seed), table, **settings)


@pytest.mark.parametrize("table", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_changes_a_picture_and_repeats(name, table):
    x = picture()
    before = x.copy()
    for severity in (1, 5):
        y = corrupted(x, name, severity, table)
        assert y.shape == x.shape
        assert y.min() >= 0
        assert y.max() <= 1
        np.testing.assert_allclose(y * 255, np.rint(y * 255), atol=1e-9)
        assert np.abs(y - x).mean() > 1e-3
        np.testing.assert_array_equal(y, corrupted(x, name, severity, table))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("table", [IMAGENET, CIFAR])
def test_five_severities_of_fifteen(table):
    assert tuple(table) == NAMES
    assert len(NAMES) == 15
    assert {len(levels) for levels in table.values()} == {5}
    assert all(len({len(level) for level in levels}) == 1 for levels in table.values())


@pytest.mark.parametrize(
    "name", ["gaussian_noise", "shot_noise", "impulse_noise", "brightness", "contrast", "pixelate", "jpeg_compression"]
)
@pytest.mark.parametrize("table", ["cifar", "imagenet"])
def test_severity_grows(name, table):
    x = picture(64)
    changes = [np.abs(corrupted(x, name, severity, table) - x).mean() for severity in (1, 2, 3, 4, 5)]
    assert changes == sorted(changes)


def test_noise_has_the_published_size():
    grey = np.full((200, 200, 3), 0.5)
    assert corrupted(grey, "gaussian_noise", 3, "imagenet").std() == pytest.approx(0.18, rel=0.02)
    assert corrupted(grey, "shot_noise", 1, "imagenet").std() == pytest.approx(math.sqrt(0.5 / 60), rel=0.02)
    salted = corrupted(grey, "impulse_noise", 5, "imagenet")
    assert (salted == 1.0).mean() == pytest.approx(0.27 / 2, rel=0.05)
    assert (salted == 0.0).mean() == pytest.approx(0.27 / 2, rel=0.05)


def test_brightness_against_hsv():
    x = picture()
    x[0, 0] = 0.0
    hsv = rgb2hsv(x)
    hsv[..., 2] = (hsv[..., 2] + 0.3).clip(0, 1)
    np.testing.assert_allclose(corrupted(x, "brightness", 3, "imagenet"), hsv2rgb(hsv), atol=0.51 / 255)


def test_contrast_about_the_mean_of_each_colour():
    x = picture()
    y = corrupted(x, "contrast", 2, "cifar")
    np.testing.assert_allclose(y.mean((0, 1)), x.mean((0, 1)), atol=0.002)
    assert y.std((0, 1)) == pytest.approx(0.5 * x.std((0, 1)), rel=0.02)


def test_disc_is_round_and_sums_to_one():
    kernel = disc(3.0, 0.1)
    middle = len(kernel) // 2
    expected = sum((r - middle) ** 2 + (c - middle) ** 2 <= 9 for r in range(len(kernel)) for c in range(len(kernel)))
    assert kernel.sum() == pytest.approx(1.0)
    assert np.count_nonzero(kernel > 1e-6) == expected == 29
    np.testing.assert_allclose(kernel, kernel.T)
    assert np.count_nonzero(disc(10.0, 0.5) > 1e-9) > np.count_nonzero(disc(10.0, 0.1) > 1e-9)


def test_defocus_pixel_by_pixel():
    x, kernel = picture(24), disc(3.0, 0.1)
    y = corrupted(x, "defocus_blur", 1, "imagenet")
    reach = len(kernel) // 2
    for row, column in ((12, 12), (10, 15)):
        window = x[row - reach : row + reach + 1, column - reach : column + reach + 1]
        expected = (window * kernel[..., None]).sum((0, 1))
        np.testing.assert_allclose(y[row, column], expected, atol=0.51 / 255)


@pytest.mark.parametrize("degrees", [0, 30, -45, -90])
def test_smear_against_a_loop(degrees):
    x, radius, sigma, angle = picture(12), 3, 2.0, math.radians(degrees)
    weights = [math.exp(-(tap**2) / (2 * sigma**2)) for tap in range(2 * radius + 1)]
    expected = np.zeros_like(x)
    for row in range(12):
        for column in range(12):
            for tap, weight in enumerate(weights):
                down, right = math.ceil(tap * math.sin(angle) - 0.5), math.ceil(tap * math.cos(angle) - 0.5)
                source = x[min(max(row + down, 0), 11), min(max(column + right, 0), 11)]
                expected[row, column] += weight / sum(weights) * source
    np.testing.assert_allclose(smear(x, radius, sigma, angle), expected, atol=1e-12)


def test_zoom_keeps_the_middle_and_stretches_a_ramp():
    ramp = np.broadcast_to(np.linspace(0, 1, 40)[None, :, None], (40, 40, 3))
    assert np.array_equal(zoom_in(ramp, 1.0), ramp)
    large = zoom_in(ramp, 2.0)
    assert large.shape == ramp.shape
    assert large.mean() == pytest.approx(0.5, abs=0.01)
    slopes = np.diff(large[:, :, 0], axis=1)
    assert slopes.mean() == pytest.approx(np.diff(ramp[0, :, 0]).mean() / 2, rel=0.06)


def test_glass_copies_pixel_after_pixel():
    x, reach = picture(20), 2
    moved = CORRUPTIONS["glass_blur"](x, (0.0, float(reach), 1.0), np.random.default_rng(0))
    places = [(row, column) for row in range(18, 2, -1) for column in range(18, 2, -1)]
    expected = x.copy()
    for (row, column), (down, right) in zip(places, np.random.default_rng(0).integers(-2, 2, (256, 2)), strict=True):
        expected[row, column] = expected[row + down, column + right]
    np.testing.assert_array_equal(moved, expected)


def test_an_elastic_transform_of_nothing_is_the_identity():
    x = picture()
    np.testing.assert_allclose(
        CORRUPTIONS["elastic_transform"](x, (0.0, 0.0, 0.0), np.random.default_rng(0)), x, atol=1e-9
    )


def test_pixelate_takes_means_of_blocks():
    x = picture(32)
    y = corrupted(x, "pixelate", 2, "imagenet")  # half the size and back
    blocks = x.reshape(16, 2, 16, 2, 3).mean((1, 3))
    np.testing.assert_allclose(y[::2, ::2], blocks, atol=1.01 / 255)  # Pillow rounds rows, then columns
    np.testing.assert_array_equal(y[::2], y[1::2])


def test_jpeg_is_pillows():
    x = picture()
    content = io.BytesIO()
    PIL.Image.fromarray((x * 255).round().astype(np.uint8)).save(content, "JPEG", quality=15)
    expected = np.asarray(PIL.Image.open(content)) / 255
    np.testing.assert_allclose(corrupted(x, "jpeg_compression", 3, "imagenet"), expected)


def test_plasma_is_a_cloud_that_decay_smooths():
    rough, smooth = (plasma(50, decay, np.random.default_rng(0)) for decay in (1.3, 3.0))
    assert rough.shape == (64, 64)
    assert rough.min() == 0
    assert rough.max() == 1
    assert np.abs(np.diff(smooth, axis=0)).mean() < 0.5 * np.abs(np.diff(rough, axis=0)).mean()
    # It has no seam: the last row is as near to the first as rows are to each other.
    assert np.abs(smooth[-1] - smooth[0]).mean() < 3 * np.abs(np.diff(smooth, axis=0)).mean()


def test_fog_and_frost_are_laid_over_in_the_published_shares():
    black = np.zeros((32, 32, 3))
    white = np.ones((32, 32, 3))
    assert corrupted(black, "fog", 5).max() == 0
    assert corrupted(white, "fog", 5, "imagenet").min() == pytest.approx(1 / (1 + 3), abs=0.02)
    ice = [np.full((40, 40, 3), 0.5)]
    np.testing.assert_allclose(
        corrupted(white * 0.5, "frost", 2, "imagenet", frost=ice), 0.8 * 0.5 + 0.6 * 0.5, atol=0.003
    )


def test_frost_from_photographs(tmp_path, monkeypatch):
    PIL.Image.new("RGB", (300, 200), (0, 255, 0)).save(tmp_path / "a.png")
    (large,) = load_frost(tmp_path, "imagenet", 32)
    (small,) = load_frost(tmp_path, "cifar", 32)
    (enough,) = load_frost(tmp_path, "cifar", 64)
    assert (large.shape, small.shape, enough.shape) == ((200, 300, 3), (40, 60, 3), (64, 96, 3))
    assert corrupted(picture(), "frost", 5, frost=[small])[..., 1].mean() > 0.8
    (tmp_path / "b.png").write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"b\.png"):
        load_frost(tmp_path, "cifar", 32)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ConfigError, match=r"a\.png.*decompression bomb"):
        load_frost(tmp_path, "cifar", 32)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="frost"):
        load_frost(tmp_path / "empty", "cifar", 32)


@pytest.mark.parametrize(
    ("name", "severity", "table"), [("rain", 1, "cifar"), ("fog", 6, "cifar"), ("fog", 1, "mnist")]
)
def test_refuses(name, severity, table):
    with pytest.raises(ValueError, match=f"{name} at severity {severity}"):
        corrupted(picture(), name, severity, table)


def test_whose_numbers():
    assert (table_for(32), table_for(224)) == ("cifar", "imagenet")
