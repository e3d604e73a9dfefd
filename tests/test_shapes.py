"""Every module that states shapes has them checked while the tests run."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_modules_with_shapes_are_checked():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    (listed,) = (word for word in options["addopts"].split() if word.startswith("--jaxtyping-packages="))
    checked = tuple(f"{name}." for name in listed.partition("=")[2].split(",")[:-1])
    paths = [
        path for room in ("fedsim", "attacks", "defenses", "clients", "server") for path in ROOT.glob(f"{room}/**/*.py")
    ]
    stated = [path.relative_to(ROOT) for path in paths if "jaxtyping import" in path.read_text(encoding="utf-8")]
    assert len(stated) > 80
    assert [path for path in stated if not f"{'.'.join(path.with_suffix('').parts)}.".startswith(checked)] == []


def test_a_shape_that_is_not_as_stated_is_an_error():
    import jaxtyping
    import torch

    from fedsim.data.pictures import ImageCache
    from fedsim.metrics.image import psnr

    with pytest.raises(jaxtyping.TypeCheckError, match="psnr"):
        psnr(torch.zeros(4, 4), torch.zeros(4, 4))
    with pytest.raises(jaxtyping.TypeCheckError, match="put"):
        ImageCache(1).put(("train", 0), torch.zeros(3, 4, 4))
