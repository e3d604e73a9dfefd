"""`client.augment`: torchvision's transforms on each image of a batch, as trainers draw them. No defense."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from defenses.base import Batch, Defense, Plan
from defenses.image.pixels import Normalisation, on_bytes
from fedsim.determinism import seeded_globals
from fedsim.effects import Effect, TransformsImages
from fedsim.errors import ConfigError
from fedsim.models.architecture import normalisation
from fedsim.settings.components import check_arguments
from fedsim.settings.local.augment import KEY, named

Settings = str | Mapping[str, Mapping[str, Any]]


class Augmentation(Defense):
    """Each image of each batch passes the transforms in their order, with draws of its own.

    It stands before every defense. torchvision draws from torch's global generator: that is seeded for a batch from the
    client's own draws, and restored. Images are rounded to 8 bits first, which is what the transforms are made for.

    Args:
        transforms: names of `fedsim.settings.local.augment.TRANSFORMS`, with
            settings as `{"RandomCrop": {"size": 32}}`.

    Attributes:
        per_picture: each image is changed by itself, from draws that know none; see `defenses.privacy.dp_sgd`.
    """

    repeatable = True
    per_picture = True

    def __init__(self, transforms: Sequence[Settings]) -> None:
        self.transforms = [_built(name, settings) for name, settings in named(transforms)]
        self._normalisation: Normalisation | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (TransformsImages(),) if self.transforms else ()

    def check(self, plan: Plan) -> None:
        """Raises ConfigError where torchvision refuses images of the model's size, or makes others of them."""
        if plan.image_shape is None:
            return
        image = torch.zeros(plan.image_shape, dtype=torch.uint8)
        for transform in self.transforms:
            name, (height, width) = type(transform).__name__, image.shape[1:]
            try:
                with seeded_globals(0, "trial"):
                    found = transform(image)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ConfigError(KEY, name, f"one for images of {height}x{width} ({error})") from error
            if found.shape != image.shape or found.dtype != image.dtype:
                expected = f"one that leaves images of {height}x{width} as large: it made {tuple(found.shape[1:])}"
                raise ConfigError(KEY, name, expected)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """The model stays; its normalisation is what images are taken back by."""
        self._normalisation = normalisation(model)
        return model

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        if self._normalisation is None:
            raise RuntimeError("an augmentation learns the model's normalisation in wrap_model: call it first")
        if not self.transforms:
            return batch
        drawn = int(torch.randint(2**62, (), generator=rng))
        with seeded_globals(drawn, "augment"):
            return on_bytes(batch, self._normalisation, self._transformed)

    def _transformed(self, image: UInt8[Tensor, "c h w"]) -> UInt8[Tensor, "c h w"]:
        return functools.reduce(lambda found, transform: transform(found), self.transforms, image)


def _built(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A transform of torchvision's; words stand for its enumerations.

    Raises:
        ConfigError: a setting that it lacks or has not, or that it refuses.
    """
    from torchvision.transforms import v2

    key, kind = f"{KEY}.{name}", getattr(v2, name)
    words = {"interpolation": v2.InterpolationMode, "policy": v2.AutoAugmentPolicy}
    given = dict(settings)
    for setting, meanings in words.items():
        if isinstance(word := given.get(setting), str):
            known = [one.value for one in meanings]
            if word not in known:
                raise ConfigError(f"{key}.{setting}", word, f"one of {', '.join(known)}")
            given[setting] = meanings(word)
    if isinstance(given.get("value"), str):
        raise ConfigError(f"{key}.value", given["value"], "levels from 0 to 255: images are bytes here")
    check_arguments(key, given, kind)
    try:
        built: nn.Module = kind(**given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(key, dict(settings), f"settings that torchvision takes ({error})") from error
    return built
