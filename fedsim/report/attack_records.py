"""What an attack made of an update and of each picture in it, as a line of `attacks.jsonl` says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 120.0
"""dB from which pictures differ by no more than floating-point numbers do."""


@dataclass(frozen=True)
class FramesRecord:
    """Pictures from the way of a search.

    Attributes:
        strip: file with the frames side by side.
        strip_steps: the step of each frame in it.
        curve: (step, PSNR in dB) of every frame that was scored.
    """

    strip: str
    strip_steps: tuple[int, ...]
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ImageRecord:
    """One observed picture and what an attack made of it. The scores are None without audit.

    Attributes:
        psnr: as all scores without a prefix, of what the model saw.
        private_psnr, private_ssim: of the client's own picture, before any defense changed it.
        guess_psnr: of the client's own picture, what a guess without any gradient reaches.
    """

    image: str
    label: str | None
    label_recovered: str | None
    mse: float | None
    psnr: float | None
    ssim: float | None
    fft2d: float | None
    fft2d_mjp: float | None
    lpips: float | None
    original: str | None
    reconstruction: str | None
    frames: FramesRecord | None = None
    private_psnr: float | None = None
    private_ssim: float | None = None
    guess_psnr: float | None = None

    @property
    def changed(self) -> bool:
        """Whether a defense changed the picture before the model saw it, as far as the scores tell."""
        if self.private_psnr is None:
            return False
        if self.psnr is None:
            return True
        seen, own = (10 ** (-psnr / 20) for psnr in (self.psnr, self.private_psnr))
        if abs(seen - own) > 10 ** (-ROUNDING / 20):
            return True
        if self.ssim is None or self.private_ssim is None:
            return False
        return not math.isclose(self.ssim, self.private_ssim, abs_tol=1e-4)

    @property
    def leaked(self) -> float | None:
        """PSNR against the client's own picture: what an attack gave away of it.

        Where it has no score of its own no defense changed it, and the model saw it as it is.
        """
        return self.private_psnr if self.private_psnr is not None else self.psnr

    @property
    def leaked_ssim(self) -> float | None:
        """SSIM against the client's own picture, as `leaked`."""
        return None if self.leaked is None else self.ssim if self.private_psnr is None else self.private_ssim

    @property
    def rebuilt(self) -> bool:
        """Whether the attack returned a picture at all, good or bad."""
        return any(one is not None for one in (self.psnr, self.private_psnr, self.reconstruction))


@dataclass(frozen=True)
class AttackRecord:
    """One attack on one observation.

    Attributes:
        batch_size: private pictures behind it.
        images: each form in which the model saw one of them.
        labelled: it returned labels.
        seed: which of the seeds that were pooled it is of; 0 in a run by itself.
    """

    observation: str
    number: int | None
    client: str | None
    attack: str
    status: str
    reason: str
    certificate: str
    certificate_reason: str
    seconds: float | None
    batch_size: int
    attempts: int
    label_exact: bool | None
    label_share: float | None
    scored: bool
    images: tuple[ImageRecord, ...]
    trace: tuple[dict[str, float], ...] = ()
    baseline: bool = False
    labelled: bool = False
    seed: int = 0

    @property
    def labels_alone(self) -> bool:
        """Whether it came to an end and was after labels, not after pictures, of which a search keeps a trace."""
        pictures = any(image.rebuilt for image in self.images)
        return self.status == "done" and self.labelled and not self.trace and not pictures

    @property
    def certified(self) -> bool:
        return self.status == "done" and self.certificate == "certified"

    @property
    def pictures(self) -> dict[int, ImageRecord]:
        """The best result for each private picture, by its number among `images`."""
        best: dict[int, ImageRecord] = {}
        for source, image in zip(sources(self.images), self.images, strict=True):
            known = best.setdefault(source, image)
            if image.leaked is not None and (known.leaked is None or image.leaked > known.leaked):
                best[source] = image
        return best


def sources(images: Sequence[ImageRecord]) -> list[int]:
    """For each the number of the first that was made of the same private picture, as `GroundTruth.sources`.

    Several local steps may change one picture anew each. A name alone does not tell: in a sum two clients may have a
    picture of that name. What a guess reaches depends on the client's own picture and on nothing else.
    """
    first: dict[tuple[object, ...], int] = {}
    return [
        first.setdefault((image.image, image.label, image.guess_psnr), number) for number, image in enumerate(images)
    ]
