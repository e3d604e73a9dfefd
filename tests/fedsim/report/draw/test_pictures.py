"""Pictures are written with 256 levels and read from inside the run folder only."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from fedsim.report.draw.pictures import LARGEST_PNG, as_levels, embed_image, path_inside, save_png


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_comes_back_to_half_a_level(channels: int, tmp_path: Path, rng: torch.Generator) -> None:
    image = torch.rand(channels, 5, 7, generator=rng)
    save_png(image, tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as picture:
        assert (pil_to_tensor(picture) / 255 - image).abs().max().item() <= 0.5 / 255 + 1e-6
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "a.png"]


def test_values_that_no_picture_has(tmp_path: Path) -> None:
    image = torch.tensor([[[-1.0, 2.0, torch.nan, torch.inf]]])
    save_png(image, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert pil_to_tensor(picture).flatten().tolist() == [0, 255, 0, 255]


@pytest.mark.parametrize(("channels", "shown"), [(2, 1), (4, 3), (13, 3)])
def test_of_other_numbers_of_channels_the_first_are_shown(channels, shown, rng: torch.Generator) -> None:
    image = torch.rand(channels, 5, 7, generator=rng)
    assert np.array_equal(as_levels(image), as_levels(image[:shown]))


@pytest.mark.parametrize(
    "name",
    [
        "../outside.png",
        "a/../../outside.png",
        "/etc/hostname",
        "..\\outside.png",
        "C:\\x.png",
        "link.png",
        "loop.png",
        "x" * 300 + ".png",
        "\ud800.png",
        "",
        None,
        "a",
    ],
)
def test_names_that_leave_the_folder_are_refused(name: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "a").mkdir(parents=True)
    save_png(torch.rand(3, 4, 4), tmp_path / "outside.png")
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    assert path_inside(folder, name) is None
    assert embed_image(folder, name) is None
    if name and name.startswith("/"):
        absolute = str(tmp_path / "outside.png")
        assert path_inside(folder, absolute) is None


def test_a_small_picture_is_embedded_as_it_is(tmp_path: Path) -> None:
    save_png(torch.rand(1, 8, 8), tmp_path / "a.png")
    shown = embed_image(tmp_path, "a.png")
    assert shown is not None
    assert shown.tiny
    assert (shown.width, shown.height) == (8, 8)
    prefix, content = shown.uri.split(",")
    assert prefix == "data:image/png;base64"
    assert base64.b64decode(content) == (tmp_path / "a.png").read_bytes()


def test_a_large_picture_is_embedded_smaller(tmp_path: Path) -> None:
    save_png(torch.rand(3, 300, 400), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > LARGEST_PNG
    shown = embed_image(tmp_path, "a.png")
    assert shown is not None
    assert not shown.tiny
    prefix, content = shown.uri.split(",")
    assert prefix == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        assert picture.size == (224, 168)


@pytest.mark.parametrize("content", [b"", b"<script>alert(1)</script>", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_what_is_no_picture_is_left_out(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    assert embed_image(tmp_path, "a.png") is None


def test_a_truncated_picture_is_left_out(tmp_path: Path) -> None:
    for side in (8, 300):
        save_png(torch.rand(3, side, side), tmp_path / "a.png")
        content = (tmp_path / "a.png").read_bytes()
        (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
        assert embed_image(tmp_path, "a.png") is None
