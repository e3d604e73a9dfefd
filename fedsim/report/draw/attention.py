"""What the class token looks at in the last layer, as in Fig. 8 of the MJP paper (Ren et al. 2023)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.errors import NotApplicable
from fedsim.report.draw.png import MUTED, drawing, shorten


@contextmanager
def last_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the last layer's attention [b, heads, tokens, tokens] of every forward pass in the block.

    timm's fused attention never holds these numbers, so it is off for that layer within the block.

    Raises:
        NotApplicable: the model has no blocks with timm's global attention.
    """
    blocks = getattr(model, "blocks", None)
    attention = getattr(blocks[-1], "attn", None) if isinstance(blocks, nn.Sequential | nn.ModuleList) else None
    dropout = getattr(attention, "attn_drop", None)
    if (
        not isinstance(attention, nn.Module)
        or not isinstance(dropout, nn.Module)
        or not hasattr(attention, "fused_attn")
    ):
        raise NotApplicable(f"{type(model).__name__} has no last layer of timm's attention")
    taken: list[Tensor] = []

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        taken.append(inputs[0].detach())

    fused, handle = attention.fused_attn, dropout.register_forward_pre_hook(take)
    attention.fused_attn = False  # type: ignore[assignment]
    try:
        yield taken
    finally:
        attention.fused_attn = fused
        handle.remove()


def attention_maps(
    attention: Float[Tensor, "b heads tokens tokens"], grid: tuple[int, int], prefix: int, has_class_token: bool
) -> Float[Tensor, "b heads rows columns"]:
    """What the class token gives each patch; without one, what a patch gets from all patches on average.

    Args:
        prefix: how many class, distillation and register tokens stand before the patches.
        has_class_token: the first of them is one.
    """
    queries = attention[:, :, :1] if has_class_token else attention[:, :, prefix:]
    maps: Tensor = queries[..., prefix:].mean(dim=2).unflatten(2, grid)
    return maps


@dataclass(frozen=True)
class AttentionView:
    """One model's maps, the mean over its heads, of the same pictures whole and jigsawed."""

    name: str
    whole: Float[Tensor, "b rows columns"]
    jigsawed: Float[Tensor, "b rows columns"]


def draw_attention(
    whole: Float[Tensor, "b 3 h w"], jigsawed: Float[Tensor, "b 3 h w"], views: Sequence[AttentionView], path: Path
) -> None:
    """A row for each picture: x and each model's map of it, then x̃ and each model's map of that.

    A map's colours go from its least to its greatest value.
    """
    columns = 1 + len(views)
    with drawing(path, 1.25 * (2 * columns) + 0.3, 1.28 * len(whole) + 0.45) as figure:
        ratios = [1.0] * columns + [0.15] + [1.0] * columns
        panels = figure.subplots(len(whole), 2 * columns + 1, squeeze=False, width_ratios=ratios)
        for row, line in enumerate(panels):
            for axes in line:
                axes.set_axis_off()
            halves = ((0, whole, "whole", "x"), (columns + 1, jigsawed, "jigsawed", "x̃"))
            for first, images, which, symbol in halves:
                line[first].imshow(images[row].permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
                if row == 0:
                    line[first].set_title(f"{which}, {symbol}", color=MUTED)
                for number, view in enumerate(views, start=first + 1):
                    maps = (view.whole if which == "whole" else view.jigsawed)[row]
                    line[number].imshow(overlay(images[row], maps), interpolation="nearest")
                    if row == 0:
                        line[number].set_title(shorten(view.name, 18))


def overlay(image: Float[Tensor, "3 h w"], attention: Float[Tensor, "rows columns"]) -> Float[np.ndarray, "h w 3"]:
    """The picture in grey under the map, enlarged patch by patch; bright is much attention."""
    height, width = image.shape[1:]
    low, high = float(attention.min()), float(attention.max())
    scaled = (attention - low) / (high - low) if high > low else torch.zeros_like(attention)
    large = nn.functional.interpolate(scaled[None, None].float(), size=(height, width), mode="nearest")[0, 0]
    heat = mpl.colormaps["inferno"](large.cpu().numpy())[..., :3]
    grey = image.mean(dim=0).clamp(0, 1).cpu().numpy()[..., None]
    mixed: Float[np.ndarray, "h w 3"] = 0.72 * heat + 0.28 * grey
    return mixed
