"""Whether the layer whose equations are solved is given the image itself, or what the model has made of it."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.determinism import seeded_globals, torch_generator
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

ROUNDINGS = 8.0
"""Of the client's precision, relative to the largest number, up to which what is read counts as the image."""

CHANGES = (1e-6, 1e-1)
"""Least and largest change of a pixel near the result: finer than float16 rounds, coarser than four bits do."""


def require_image(observation: Observation, images: Float[Tensor, "batch c h w"], layer: str) -> None:
    """Refuse where the layer reads anything but the image that the model is given.

    Solved is for what the layer reads. Where the model first makes something else of the image, and the same once more
    of that (greys it, clamps, masks or quantises it), the result goes through the client's computation as the image
    does. Tested in the client's precision and mode, in as large a batch as the client's: on the result itself, near it,
    and on random images in [0, 1], some of zeros and ones alone. Every call of the layer counts near the result, where
    the whole model runs; elsewhere it stops at the first.

    Args:
        images: the result, in [0, 1].
        layer: the module's name.

    Raises:
        NotApplicable: it reads something else, or is not called.
    """
    with seeded_globals(0, "input"), torch.no_grad():
        model = observation.build_model().cpu()
        like = next(model.parameters())
        for what, probe in _probes(images.detach().cpu()):
            given = observation.from_unit_range(probe.to(like))
            read = _reads(model, layer, given, once=what != NEAR)
            if not read:
                raise NotApplicable(f"{layer} is not called: what it reads of an image cannot be tested")
            off = max(_off(one, given) for one in read)
            if not off <= ROUNDINGS * torch.finfo(given.dtype).eps:
                how = f"by {off:.1g} of its largest number" if math.isfinite(off) else "in shape"
                raise NotApplicable(
                    f"the model changes its input before {layer} reads it ({how}, {what}): "
                    "other images may give the same update"
                )


NEAR = "near the result"


def _probes(images: Float[Tensor, "batch c h w"]) -> Iterator[tuple[str, Float[Tensor, "batch c h w"]]]:
    """Images in [0, 1] in the result's own precision, and what they are."""
    rng = torch_generator(0, "input")
    least, largest = (math.log10(one) for one in CHANGES)
    size = 10.0 ** (least + (largest - least) * torch.rand(images.shape, generator=rng, dtype=images.dtype))
    sign = torch.randint(0, 2, images.shape, generator=rng) * 2 - 1
    yield "at a random image", torch.rand(images.shape, generator=rng, dtype=images.dtype)
    yield "at an image of zeros and ones", torch.randint(0, 2, images.shape, generator=rng).to(images.dtype)
    yield "at the result", images
    yield NEAR, (images + sign * size).clamp(0.0, 1.0)


class _ReadEnough(Exception):  # noqa: N818 - ends a forward pass, and is no error
    pass


def _reads(model: nn.Module, layer: str, given: Float[Tensor, "batch c h w"], once: bool) -> list[Tensor]:
    """What the layer is given in each of its calls, or in the first alone."""
    found: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.append((inputs[0] if inputs else next(iter(named.values()))).clone())
        if once:
            raise _ReadEnough

    hook = model.get_submodule(layer).register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with suppress(_ReadEnough):
            model(given.clone())
    finally:
        hook.remove()
    return found


def _off(read: Tensor, given: Float[Tensor, "batch c h w"]) -> float:
    """The largest difference over the largest number; infinite where they are not the same numbers in one order."""
    if read.numel() != given.numel() or len(read) != len(given) or (read.ndim == 4 and read.shape != given.shape):
        return math.inf
    largest = float(given.abs().max().clamp(min=1e-300 if given.dtype == torch.float64 else 1e-30))
    return float((read.double().flatten() - given.double().flatten()).abs().max()) / largest
