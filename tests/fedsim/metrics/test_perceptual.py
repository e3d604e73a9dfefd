"""LPIPS is used where its weights are and never fetched where they are not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torchvision.models import alexnet

from fedsim.metrics import perceptual
from fedsim.metrics.perceptual import lpips, lpips_hint


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Path]:
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(tmp_path))
    perceptual._network.cache_clear()
    yield tmp_path
    torch.hub.set_dir(before)
    perceptual._network.cache_clear()


def write_random_weights(hub: Path) -> None:
    """Random filters; the classifier, which LPIPS does not use, as one number spread over its shape."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in alexnet().state_dict().items()}
    rng = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(shape, generator=rng) * 0.05 if name.startswith("features") else torch.zeros(1).expand(shape)
        for name, shape in shapes.items()
    }
    perceptual.weights_file().parent.mkdir(parents=True)
    torch.save(state, perceptual.weights_file())


def test_without_weights_there_is_a_hint_and_no_download(hub: Path) -> None:
    assert lpips(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)) is None
    hint = lpips_hint()
    assert hint is not None
    assert "\n" not in hint
    assert "alexnet-owt" in hint
    assert list(hub.rglob("*.pth")) == []


def test_with_weights_it_tells_pictures_apart(hub: Path, rng: torch.Generator) -> None:
    write_random_weights(hub)
    assert lpips_hint() is None
    for shape in [(1, 8, 8), (3, 32, 32), (3, 80, 64)]:
        originals = torch.rand(2, *shape, generator=rng, dtype=torch.float64)
        same = lpips(originals, originals)
        other = lpips(1 - originals, originals)
        assert same is not None
        assert other is not None
        assert same.tolist() == [0.0, 0.0]
        assert other.shape == (2,)
        assert other.abs().min().item() > 0
