"""Scores as records: numbers about a result, without the truth that they were held against."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

MEASURES = ("mse", "psnr", "ssim", "fft2d", "fft2d_mjp")
"""Functions of `fedsim.metrics.image` that every rebuilt image is measured by; each has its fields in `ImageScore`."""

SHOWN = {"ssim": "SSIM", "lpips": "LPIPS"}
"""What a report shows beside PSNR where a result has it, by its title."""

TABLE = ("mse", "psnr", "ssim", "fft2d", "lpips", "private_psnr", "private_ssim", "private_lpips")
"""Columns of `scores.csv`."""


@dataclass(frozen=True)
class ImageScore:
    """One original picture and what an attack made of it; None where there is nothing to compare.

    Attributes:
        image: name of the original.
        reconstruction: index of the matched reconstruction in the attack's result.
        psnr: dB, at most `PSNR_CAP`. As all measures without a prefix, of what the model saw.
        private_psnr: the same of the client's own picture, before anything changed it: what there is to protect.
            Matched by itself, and once: all forms in which the model saw one picture share its value.
        changed: the model saw the picture changed, whatever the scores say of it.
    """

    image: str
    reconstruction: int | None = None
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    fft2d: float | None = None
    fft2d_mjp: float | None = None
    lpips: float | None = None
    private_mse: float | None = None
    private_psnr: float | None = None
    private_ssim: float | None = None
    private_fft2d: float | None = None
    private_fft2d_mjp: float | None = None
    private_lpips: float | None = None
    label: int | None = None
    label_recovered: int | None = None
    changed: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ImageScore":
        """A score from JSON; what another version wrote besides is left out."""
        kinds: dict[str, Any] = {one.name: int | float for one in fields(cls) if one.name != "image"}
        kinds |= dict.fromkeys(("reconstruction", "label", "label_recovered"), int) | {"changed": bool}
        known: dict[str, Any] = {k: v for k, v in values.items() if k in kinds and isinstance(v, kinds[k])}
        return cls(str(values.get("image", "")), **known)


@dataclass(frozen=True)
class LabelScore:
    """A batch's labels as multisets: all of them right, and the share Σ_c min(n̂_c, n_c)/B."""

    exact: bool
    share: float


@dataclass(frozen=True)
class Scores:
    """Scores per picture of the update, and of its labels as a whole.

    Attributes:
        frames: for each picture the PSNR in dB of each frame, None for one that is no picture.
    """

    images: list[ImageScore]
    labels: LabelScore | None
    frames: list[list[float | None]] = field(default_factory=list)
