"""Position embeddings drawn: projections as in Fig. 1 and 7 of the MJP paper (Ren et al. 2023), energy, similarity."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.metrics.position import cosine_similarities, explained_variance, svd_energy
from fedsim.report.draw.png import COLOURS, INK, MARKERS, MUTED, drawing, shorten

METHODS = ("pca", "tsne", "umap")
TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
DIRECTIONS_SHOWN = 32
MAPS_SHOWN = 8
"""Similarity maps along each side of the grid."""

Points = Float[np.ndarray, "points dimensions"]


@dataclass(frozen=True)
class EmbeddingView:
    """The position embeddings of one model.

    Attributes:
        patches: one for each position of the grid, row by row.
        prefix: those of class and register tokens; may have no rows.
        unknown: what masked positions share, where the model has it.
        class_token: whether the first of the prefix is the class token; else all are registers.
    """

    name: str
    patches: Float[Tensor, "tokens width"]
    grid: tuple[int, int]
    prefix: Float[Tensor, "prefix width"]
    unknown: Float[Tensor, " width"] | None = None
    class_token: bool = True


def project(view: EmbeddingView, dimensions: int, method: str, seed: int = 0) -> Points:
    """Coordinates of the patches', then the prefix', then the unknown embedding.

    PCA is that of the patches, onto which the others are projected; t-SNE and UMAP lay all out together.

    Raises:
        ConfigError: an unknown method, or UMAP without umap-learn.
    """
    rows = [view.patches, view.prefix, *([] if view.unknown is None else [view.unknown[None]])]
    points = np.concatenate([part.detach().cpu().double().numpy() for part in rows])
    tokens = len(view.patches)
    if method == "pca":
        fitted = PCA(dimensions, svd_solver="full").fit(points[:tokens])
        coordinates: Points = fitted.transform(points)
        return coordinates
    if method == "tsne":
        perplexity = min(30.0, (len(points) - 1) / 3)
        return np.asarray(TSNE(dimensions, perplexity=perplexity, init="pca", random_state=seed).fit_transform(points))
    if method == "umap":
        return _umap(points, dimensions, seed)
    raise ConfigError("measure.projections", method, f"one of {', '.join(METHODS)}")


def check_methods(methods: Sequence[str]) -> None:
    """Refuse what cannot be drawn before anything is measured.

    Raises:
        ConfigError: an unknown method, or UMAP without umap-learn.
    """
    for method in methods:
        if method not in METHODS:
            raise ConfigError("measure.projections", method, f"one of {', '.join(METHODS)}")
        if method == "umap":
            _import_umap()


def draw_projections(views: Sequence[EmbeddingView], method: str, path: Path, seed: int = 0) -> None:
    """Two dimensions at the left, three at the right, a row for each model."""
    with drawing(path, 8.2, 3.7 * len(views) + 0.4) as figure:
        cells = figure.add_gridspec(len(views), 2, width_ratios=[1, 1.1])
        for number, view in enumerate(views):
            flat = figure.add_subplot(cells[number, 0])
            _scatter(flat, view, project(view, 2, method, seed))
            flat.set_title(f"{shorten(view.name)}: {TITLES[method]} in 2D", loc="left")
            flat.set(xticks=[], yticks=[])
            flat.spines[:].set_visible(False)
            deep = figure.add_subplot(cells[number, 1], projection="3d")
            _scatter(deep, view, project(view, 3, method, seed))
            deep.set_title("3D", loc="left")
            deep.tick_params(labelbottom=False, labelleft=False, labelright=False)
        handles, labels = {}, {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles[label], labels[label] = handle, label
        if handles:
            figure.legend(handles.values(), labels.values(), loc="outside lower center", ncols=3)


def _scatter(axes: Any, view: EmbeddingView, points: Points) -> None:
    """On axes of two or three dimensions: red grows to the right, blue downwards; thin lines join neighbours."""
    rows, columns = view.grid
    tokens = rows * columns
    patches, others = points[:tokens].reshape(rows, columns, -1), points[tokens:]
    for line in (*patches, *patches.swapaxes(0, 1)):
        axes.plot(*line.T, color=MUTED, linewidth=0.5, alpha=0.45, zorder=1)
    down, right = np.indices(view.grid).reshape(2, -1) / np.maximum(np.array(view.grid)[:, None] - 1, 1)
    colours = np.stack([0.15 + 0.8 * right, 0.25 + 0.35 * (1 - down), 0.15 + 0.8 * down], axis=1)
    axes.scatter(*points[:tokens].T, c=colours, s=18 if tokens > 100 else 30, linewidths=0, zorder=2)
    for row in {0, rows - 1}:
        for column in {0, columns - 1}:
            axes.text(*patches[row, column], f" {row * columns + column + 1}", fontsize=7.5, color=INK, zorder=4)
    prefix = len(view.prefix)
    if prefix:
        label = "class token" if prefix == 1 else "class and other prefix tokens"
        label = label if view.class_token else "prefix tokens"
        axes.scatter(*others[:prefix].T, marker="*", c="#e00000", s=110, label=label, zorder=3)
    if len(others) > prefix:
        axes.scatter(*others[prefix:].T, marker="X", c="black", s=60, label="unknown embedding", zorder=3)


def draw_energy(views: Sequence[EmbeddingView], path: Path) -> None:
    """Cumulative SVD energy and PCA variance over the number of directions, a line for each model."""
    with drawing(path, 8.2, 3.2) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for number, view in enumerate(views):
            look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 3}
            energy = 100.0 * svd_energy(view.patches)[:DIRECTIONS_SHOWN]
            counts = np.arange(1, len(energy) + 1)
            variance = explained_variance(view.patches, counts.tolist())
            left.plot(counts, energy, label=shorten(view.name), **look)
            right.plot(counts, [100.0 * share for share in variance.values()], **look)
        left.set(title="SVD energy", xlabel="Singular directions", ylabel="Within them (%)", ylim=(0, 103))
        right.set(title="Explained variance (PCA)", xlabel="Principal components")
        for axes in (left, right):
            axes.grid(True)
        figure.legend(loc="outside lower center", ncols=min(3, len(views)))


def draw_similarity(view: EmbeddingView, path: Path) -> None:
    """Cosine similarity maps of up to 8 × 8 positions: each tile is the grid, as seen from one position of it."""
    maps = cosine_similarities(view.patches, view.grid)
    rows, columns = (
        np.unique(np.linspace(0, side - 1, min(side, MAPS_SHOWN)).round().astype(int)) for side in view.grid
    )
    tiles = np.full((len(rows), len(columns), view.grid[0] + 1, view.grid[1] + 1), np.nan)
    tiles[:, :, :-1, :-1] = maps[np.ix_(rows, columns)]
    mosaic = tiles.swapaxes(1, 2).reshape(len(rows) * (view.grid[0] + 1), -1)[:-1, :-1]
    with drawing(path, 4.8, 4.4) as figure:
        axes = figure.subplots()
        image = axes.imshow(mosaic, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        for axis, chosen, side in ((axes.xaxis, columns, view.grid[1]), (axes.yaxis, rows, view.grid[0])):
            axis.set_ticks([(side + 1) * place + (side - 1) / 2 for place in range(len(chosen))], chosen + 1)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(title=shorten(view.name, 60), xlabel="Column", ylabel="Row")
        bar = figure.colorbar(image, ax=axes, shrink=0.85, label="Cosine similarity")
        bar.outline.set_visible(False)


def _umap(points: Points, dimensions: int, seed: int) -> Float[np.ndarray, "points fewer"]:
    reducer = _import_umap()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a seed means one thread
        neighbours = min(15, len(points) - 1)
        model = reducer.UMAP(n_components=dimensions, n_neighbors=neighbours, random_state=seed, n_jobs=1)
        laid_out: Float[np.ndarray, "points fewer"] = np.asarray(model.fit_transform(points), dtype=np.float64)
    return laid_out


def _import_umap() -> ModuleType:
    try:
        return import_module("umap")
    except ImportError as error:
        expected = "pca or tsne, or install umap-learn first: pip install -e '.[umap]' in the clone"
        raise ConfigError("measure.projections", "umap", expected) from error
