"""ATS (Gao et al., CVPR 2021): pictures pass transformations that a search found to leave attacks little."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from defenses.base import Batch, Defense, Plan
from defenses.image.pixels import Normalisation, on_bytes
from defenses.settings import flag, whole
from fedsim.effects import Effect, TransformsImages
from fedsim.errors import ConfigError
from fedsim.models.architecture import normalisation

RANDOM = "random"
POLICY_LENGTH = 3

LIBRARY: tuple[tuple[str, int], ...] = (
    *(("invert", 7), ("contrast", 6), ("rotate", 2), ("translate_x", 9), ("sharpness", 1)),
    *(("sharpness", 3), ("shear_y", 2), ("translate_y", 2), ("autocontrast", 5), ("equalize", 2)),
    *(("shear_y", 5), ("posterize", 5), ("color", 3), ("brightness", 5), ("sharpness", 9)),
    *(("brightness", 9), ("equalize", 5), ("equalize", 1), ("contrast", 7), ("sharpness", 5)),
    *(("color", 5), ("translate_x", 5), ("equalize", 7), ("autocontrast", 8), ("translate_y", 3)),
    *(("sharpness", 6), ("brightness", 6), ("color", 8), ("solarize", 0), ("invert", 0)),
    *(("equalize", 0), ("autocontrast", 0), ("equalize", 8), ("equalize", 4), ("color", 5)),
    *(("equalize", 5), ("autocontrast", 4), ("solarize", 4), ("brightness", 3), ("color", 0)),
    *(("solarize", 1), ("autocontrast", 0), ("translate_y", 3), ("translate_y", 3), ("autocontrast", 1)),
    *(("solarize", 1), ("equalize", 5), ("invert", 0), ("translate_y", 3), ("autocontrast", 1)),
)
"""The 50 transformations by number: operation and level 0 to 9, as the authors' `policy.py` lists them."""

RANGES: dict[str, tuple[float, float]] = {
    "shear_y": (0.0, 0.3),  # rows a column
    "translate_x": (0.0, 150 / 331),  # of the width
    "translate_y": (0.0, 150 / 331),  # of the height
    "rotate": (0.0, 30.0),  # degrees, counter-clockwise
    "color": (0.0, 0.5),
    "contrast": (0.0, 0.5),
    "sharpness": (0.0, 0.5),
    "brightness": (0.0, 0.5),
    "posterize": (8.0, 4.0),  # bits that are kept
    "solarize": (256.0, 0.0),  # the least value that is inverted
}
"""Magnitude at level 0 and at level 9; linear between."""

EITHER_WAY = ("shear_y", "translate_x", "translate_y", "color", "contrast", "sharpness", "brightness")
"""Operations whose magnitude gets a random sign."""


class AutomaticTransformation(Defense):
    """Each picture passes one of the policies, drawn at random: transformations of `LIBRARY`, one after the other.

    The library, its magnitudes and the draw of a policy are those of the authors' code, which ignores the
    probabilities that its list carries: every transformation always acts. It shears with bicubic interpolation, here it
    is bilinear. Pictures are rounded to 8 bits first, as PIL works on bytes. The published policies: for CIFAR-100
    3-1-7 and 43-18-18 (ResNet-20), 21-13-3 and 7-4-15 (ConvNet); for Fashion-MNIST 19-15-45 and 2-43-21 (ResNet-20),
    42-28-42 and 14-48-48 (ConvNet); two together are the paper's hybrid. Its search, by a privacy and an accuracy
    score of randomly drawn policies, is not built. Against an attacker who knows the policy the published ones protect
    far less (Warmerdam et al., ReScience C 2022; Balunović et al., ICLR 2022).

    Args:
        policies: lists of numbers 0 to 49; none: no transformation; `random`: three drawn anew for each picture.
        crop_padding: black pixels on each side before a random crop back to size (the authors: 4 on CIFAR).
        flip: mirror each picture with probability 1/2, before the policy (the authors: true on CIFAR).

    Attributes:
        per_picture: each picture is changed by itself, from draws that know none; see `defenses.privacy.dp_sgd`.
    """

    repeatable = True
    per_picture = True

    def __init__(
        self,
        policies: Sequence[Sequence[int]] | str = ((3, 1, 7), (43, 18, 18)),
        crop_padding: int = 0,
        flip: bool = False,
    ) -> None:
        _check_policies(policies)
        self.policies = policies if isinstance(policies, str) else [list(policy) for policy in policies]
        self.crop_padding = whole("defense.ats.crop_padding", crop_padding, "0 or more", lambda v: v >= 0)
        self.flip = flag("defense.ats.flip", flip)
        self._normalisation: Normalisation | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (TransformsImages(),) if self._changes else ()

    @property
    def _changes(self) -> bool:
        return bool(self.policies or self.crop_padding or self.flip)

    def check(self, plan: Plan) -> None:
        """Raises ConfigError where a transformation takes no images of the model's channels."""
        channels = 3 if plan.image_shape is None else plan.image_shape[0]
        image = torch.zeros(channels, 8, 8, dtype=torch.uint8)
        for number in range(len(LIBRARY)) if isinstance(self.policies, str) else itertools.chain(*self.policies):
            try:
                apply(*LIBRARY[number], image, torch.Generator())
            except TypeError as error:
                expected = f"without {number} ({LIBRARY[number][0]}) for images of {channels} channels ({error})"
                raise ConfigError("defense.ats.policies", self.policies, expected) from error

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """The model stays; its normalisation is what pictures are taken back by."""
        self._normalisation = normalisation(model)
        return model

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        if self._normalisation is None:
            raise RuntimeError("ats learns the model's normalisation in wrap_model: call it first")
        if not self._changes:
            return batch
        return on_bytes(batch, self._normalisation, lambda image: self._transformed(image, rng))

    def _transformed(self, image: Tensor, rng: torch.Generator) -> Tensor:
        if self.crop_padding:
            top, left = torch.randint(2 * self.crop_padding + 1, (2,), generator=rng).tolist()
            image = shifted(image, self.crop_padding - top, self.crop_padding - left)
        if self.flip and bool(torch.randint(2, (), generator=rng)):
            image = image.flip(-1)
        for number in self._draw_policy(rng):
            image = apply(*LIBRARY[number], image, rng)
        return image

    def _draw_policy(self, rng: torch.Generator) -> list[int]:
        if isinstance(self.policies, str):
            drawn: list[int] = torch.randint(len(LIBRARY), (POLICY_LENGTH,), generator=rng).tolist()
            return drawn
        return self.policies[int(torch.randint(len(self.policies), (), generator=rng))] if self.policies else []


def apply(operation: str, level: int, picture: UInt8[Tensor, "c h w"], rng: torch.Generator) -> UInt8[Tensor, "c h w"]:
    """One transformation of the library, drawing its sign where it has one."""
    low, high = RANGES.get(operation, (0.0, 0.0))
    magnitude = low + (high - low) * level / 9
    if operation in EITHER_WAY:
        magnitude *= 1 - 2 * int(torch.randint(2, (), generator=rng))
    return transformed(operation, magnitude, picture)


def transformed(operation: str, magnitude: float, picture: UInt8[Tensor, "c h w"]) -> UInt8[Tensor, "c h w"]:
    """What PIL makes of the picture in the authors' code, but for the interpolation of shear."""
    from torchvision.transforms.v2 import functional as transform

    height, width = picture.shape[-2:]
    result: Tensor
    match operation:
        case "shear_y":
            shear = [0.0, math.degrees(math.atan(magnitude))]
            bilinear = transform.InterpolationMode.BILINEAR
            result = transform.affine(picture, 0.0, [0, 0], 1.0, shear, bilinear, center=[0, 0])
        case "translate_x":
            result = shifted(picture, 0, -math.floor(magnitude * width + 0.5))
        case "translate_y":
            result = shifted(picture, -math.floor(magnitude * height + 0.5), 0)
        case "rotate":
            result = transform.rotate(picture, magnitude, fill=128)
        case "color":
            result = transform.adjust_saturation(picture, 1 + magnitude)
        case "contrast":
            result = transform.adjust_contrast(picture, 1 + magnitude)
        case "sharpness":
            result = transform.adjust_sharpness(picture, 1 + magnitude)
        case "brightness":
            result = transform.adjust_brightness(picture, 1 + magnitude)
        case "posterize":
            result = transform.posterize(picture, round(magnitude))
        case "solarize":
            result = torch.where(picture >= magnitude, 255 - picture, picture)
        case "autocontrast":
            result = transform.autocontrast(picture)
        case "equalize":
            result = transform.equalize(picture)
        case "invert":
            result = 255 - picture
        case _:
            raise ValueError(f"{operation}: no transformation of that name")
    return result


def shifted(picture: UInt8[Tensor, "c h w"], down: int, right: int) -> UInt8[Tensor, "c h w"]:
    """The picture moved by whole pixels; black comes in."""
    height, width = picture.shape[-2:]
    moved = torch.zeros_like(picture)
    target = (..., slice(max(0, down), height + min(0, down)), slice(max(0, right), width + min(0, right)))
    source = (..., slice(max(0, -down), height - max(0, down)), slice(max(0, -right), width - max(0, right)))
    if abs(down) < height and abs(right) < width:
        moved[target] = picture[source]
    return moved


def _check_policies(policies: object) -> None:
    valid = policies == RANDOM or (
        isinstance(policies, list | tuple)
        and all(isinstance(policy, list | tuple) and policy and all(map(_is_number, policy)) for policy in policies)
    )
    if not valid:
        expected = f"{RANDOM}, or lists of numbers 0 to {len(LIBRARY) - 1}, as in [[3,1,7],[43,18,18]]"
        raise ConfigError("defense.ats.policies", policies, expected)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(LIBRARY)
