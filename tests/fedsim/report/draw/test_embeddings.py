import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from fedsim.errors import ConfigError
from fedsim.report.draw.embeddings import (
    EmbeddingView,
    check_methods,
    draw_energy,
    draw_projections,
    draw_similarity,
    project,
)


def view(name="model", grid=(4, 5), width=8, unknown=True, prefix=1):
    rng = torch.Generator().manual_seed(0)
    patches = torch.randn(grid[0] * grid[1], width, generator=rng)
    extra = torch.randn(prefix, width, generator=rng)
    return EmbeddingView(name, patches, grid, extra, torch.randn(width, generator=rng) if unknown else None)


def drawn(path):
    """A figure with something on it."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return min(pixels.shape[:2]) > 100 and pixels.std() > 5


@pytest.mark.parametrize("dimensions", [2, 3])
def test_pca_is_that_of_the_patches(dimensions):
    shown = view()
    points = project(shown, dimensions, "pca")
    mean = shown.patches.double().mean(0)
    directions = torch.linalg.svd(shown.patches.double() - mean)[2][:dimensions]
    everything = torch.cat([shown.patches, shown.prefix, shown.unknown[None]]).double()
    expected = ((everything - mean) @ directions.T).numpy()
    assert points.shape == (22, dimensions)
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-8)


def test_neighbours_on_a_plane_stay_neighbours():
    cells = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)) @ torch.randn(
        2, 9, generator=torch.Generator().manual_seed(1)
    )
    flat = EmbeddingView("grid", cells, (6, 6), torch.zeros(0, 9))
    for method in ("pca", "tsne"):
        points = project(flat, 2, method).reshape(6, 6, 2)
        near = np.linalg.norm(np.diff(points, axis=0), axis=-1).mean()
        far = np.linalg.norm(points[0] - points[-1], axis=-1).mean()
        assert far > 2.5 * near, method


def test_umap_where_it_is_installed():
    pytest.importorskip("umap")
    assert project(view(), 2, "umap", seed=1).shape == (22, 2)


def test_umap_where_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    for call in (lambda: project(view(), 2, "umap"), lambda: check_methods(["pca", "umap"])):
        with pytest.raises(ConfigError, match=r"measure.projections=umap: .*\.\[umap\]"):
            call()


def test_an_unknown_method():
    with pytest.raises(ConfigError, match="pca, tsne, umap"):
        check_methods(["lda"])
    with pytest.raises(ConfigError, match="pca, tsne, umap"):
        project(view(), 2, "lda")


def test_figures_are_drawn_and_repeat_to_the_byte(tmp_path):
    views = [view("$a_b$ <b>"), view("_other", unknown=False, prefix=0)]
    for name in ("first", "second"):
        draw_projections(views, "pca", tmp_path / name / "projection.png")
        draw_energy(views, tmp_path / name / "energy.png")
        draw_similarity(views[0], tmp_path / name / "similarity.png")
    for path in (tmp_path / "first").iterdir():
        assert drawn(path), path
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
    assert len(list((tmp_path / "first").iterdir())) == 3


@pytest.mark.parametrize("grid", [(2, 2), (14, 14), (1, 6)])
def test_any_grid(tmp_path, grid):
    draw_similarity(view(grid=grid), tmp_path / "similarity.png")
    assert drawn(tmp_path / "similarity.png")


@pytest.mark.parametrize(("prefix", "label"), [(1, "class token"), (5, "class and other prefix tokens")])
def test_prefix_tokens_are_named_by_how_many_there_are(tmp_path, monkeypatch, prefix, label):
    named = []
    monkeypatch.setattr(Figure, "legend", lambda figure, handles, labels, **look: named.extend(labels))
    draw_projections([view(prefix=prefix)], "pca", tmp_path / "projection.png")
    assert named == [label, "unknown embedding"]


def test_registers_are_no_class_tokens(tmp_path, monkeypatch):
    named = []
    monkeypatch.setattr(Figure, "legend", lambda figure, handles, labels, **look: named.extend(labels))
    draw_projections([replace(view(prefix=4), class_token=False)], "pca", tmp_path / "projection.png")
    assert named == ["prefix tokens", "unknown embedding"]
