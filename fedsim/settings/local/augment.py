"""`client.augment`: which transforms of torchvision's there are for it, and how they are written."""

from collections.abc import Mapping
from typing import Any

from fedsim.errors import ConfigError, nearest

KEY = "client.augment"
STAGE = "augmentation"
"""What it is called among the hooks of a client, where observations record it."""

TRANSFORMS = (
    *("AugMix", "AutoAugment", "ColorJitter", "GaussianBlur", "RandAugment", "RandomAdjustSharpness", "RandomAffine"),
    *("RandomAutocontrast", "RandomCrop", "RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip"),
    *("RandomInvert", "RandomPerspective", "RandomPosterize", "RandomResizedCrop", "RandomRotation", "RandomSolarize"),
    *("RandomVerticalFlip", "TrivialAugmentWide"),
)
"""Of `torchvision.transforms.v2`: they change the pixels of one image, and can leave its size."""


def named(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The transforms by name with their settings.

    Raises:
        ConfigError: it is no list of names and of settings by a name, or torchvision has no such transform for it.
    """
    words = "a list of transforms, as in [{RandomCrop: {size: 32, padding: 4}}, RandomHorizontalFlip]"
    if not isinstance(value, list | tuple):
        raise ConfigError(KEY, value, words)
    found: list[tuple[str, Mapping[str, Any]]] = []
    for one in value:
        pairs = [(one, {})] if isinstance(one, str) else list(one.items()) if isinstance(one, Mapping) else []
        if len(pairs) != 1:
            raise ConfigError(KEY, one, words)
        ((name, settings),) = pairs
        if name not in TRANSFORMS:
            raise ConfigError(KEY, name, f"one of {', '.join(TRANSFORMS)}.{nearest(str(name), TRANSFORMS)}")
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(f"{KEY}.{name}", settings, "its settings by name")
        found.append((name, settings or {}))
    return found


def stage(augment: list[Any]) -> dict[str, dict[str, Any]]:
    """The hook that does it, by its name, as a defense is written; empty for no transforms."""
    target = "defenses.image.augmentation.Augmentation"
    return {STAGE: {"_target_": target, "transforms": list(augment)}} if augment else {}
