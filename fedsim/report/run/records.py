"""What an attack made of an update and of each picture in it, as a line of `attacks.jsonl` says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.metrics.records import MEASURES, SHOWN
from fedsim.report.thresholds import ROUNDING, is_recognisable, vouched
from fedsim.result import AttackResult
from fedsim.storage.values import items, number, text, whole

PSNRS = ("psnr", "private_psnr", "guess_psnr", "seen_guess_psnr", "grey_psnr", "seen_grey_psnr")
SCORES = tuple(prefix + name for prefix in ("", "private_") for name in (*MEASURES, *SHOWN))


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
        private_psnr: of the client's own picture, before any defense changed it, as all scores that begin so.
        scores: by every other measure.
        guess_psnr: of the client's own picture, what a guess without any gradient reaches.
        seen_guess_psnr: the same of what the model saw; None in folders of earlier versions.
        grey_psnr, seen_grey_psnr: what mid-grey reaches of the two; None in folders of earlier versions.
        content: a digest of the client's own picture; None in folders of earlier versions.
        seen_changed: the model saw it changed; None where no picture was held against it, and in folders of earlier
            versions.
    """

    image: str
    label: str | None
    label_recovered: str | None
    psnr: float | None
    original: str | None
    reconstruction: str | None
    frames: FramesRecord | None = None
    private_psnr: float | None = None
    guess_psnr: float | None = None
    seen_guess_psnr: float | None = None
    grey_psnr: float | None = None
    seen_grey_psnr: float | None = None
    content: str | None = None
    seen_changed: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the model saw the picture changed; in folders of earlier versions as far as the scores tell."""
        return self._apart if self.seen_changed is None else self.seen_changed

    @property
    def twofold(self) -> bool:
        """Whether it has two scores to tell: the model saw it changed, or the server takes it for changed."""
        return self.changed or self._apart

    @property
    def _apart(self) -> bool:
        """Whether the scores of what the model saw and of the client's own differ by more than rounding."""
        if self.private_psnr is None:
            return False
        if self.psnr is None:
            return True
        seen, own = (10 ** (-psnr / 20) for psnr in (self.psnr, self.private_psnr))
        if abs(seen - own) > 10 ** (-ROUNDING / 20):
            return True
        if not {"ssim", "private_ssim"} <= self.scores.keys():
            return False
        return not math.isclose(self.scores["ssim"], self.scores["private_ssim"], abs_tol=1e-4)

    @property
    def leaked(self) -> float | None:
        """PSNR against the client's own picture: what an attack gave away of it.

        Where it has no score of its own no defense changed it, and the model saw it as it is.
        """
        return self.private_psnr if self.private_psnr is not None else self.psnr

    def leaked_by(self, measure: str) -> float | None:
        """What another measure says against the client's own picture, as `leaked`."""
        name = measure if self.private_psnr is None else f"private_{measure}"
        return None if self.leaked is None else self.scores.get(name)

    @property
    def blind_psnr(self) -> float | None:
        """What the client's own picture is held against: the better of the guess and mid-grey that are known."""
        return max((one for one in (self.guess_psnr, self.grey_psnr) if one is not None), default=None)

    @property
    def recognisable(self) -> bool:
        """Whether the client's own picture can be recognised in it."""
        return is_recognisable(self.leaked, self.blind_psnr)

    @property
    def seen_recognisable(self) -> bool:
        """Whether what the model saw can be recognised in it, mirrored, shuffled or mixed as a defense had left it."""
        guess = self.guess_psnr if self.seen_guess_psnr is None else self.seen_guess_psnr
        return is_recognisable(self.psnr, guess) and is_recognisable(self.psnr, self.seen_grey_psnr)

    @property
    def as_seen(self) -> bool:
        """Whether it can be recognised as the model saw it and not, by PSNR, as the client's own."""
        return self.twofold and self.seen_recognisable and not self.recognisable

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
        target: `images`, `labels` or else, what it was after; None in folders of earlier versions.
        labelled: it returned labels.
        named: how many; None in folders of earlier versions.
        promised: dB of PSNR, against what the model saw, that its certificate promises; None where it names none.
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
    target: str | None = None
    baseline: bool = False
    labelled: bool = False
    named: int | None = None
    promised: float | None = None
    seed: int = 0

    @property
    def only_labels(self) -> bool:
        """Whether it came to an end and was after labels, not after pictures, of which a search keeps a trace."""
        images = any(image.rebuilt for image in self.images)
        return self.status == "done" and self.labelled and not self.trace and not images

    @property
    def certified(self) -> bool:
        return self.status == "done" and self.certificate == "certified"

    def vouches_wrongly(self, image: ImageRecord) -> bool:
        """Whether the certificate is known to be wrong about this picture of its own.

        It promises what the model saw.
        """
        return self.certified and image.psnr is not None and image.psnr < vouched(self.promised)

    @property
    def wrongly_certified(self) -> bool:
        """Whether the audit found its certificate wrong: about an image, or about the labels where it has no other."""
        if any(image.rebuilt for image in self.images):
            return any(map(self.vouches_wrongly, self.images))
        return self.certified and self.label_exact is False

    @property
    def forms(self) -> dict[int, list[ImageRecord]]:
        """Each private picture's results, one for each form in which the model saw it, by its number in `images`."""
        result: dict[int, list[ImageRecord]] = {}
        for source, image in zip(sources(self.images), self.images, strict=True):
            result.setdefault(source, []).append(image)
        return result

    @property
    def pictures(self) -> dict[int, ImageRecord]:
        """The best result for each private picture, by its number among `images`."""
        return {
            source: max(found, key=lambda image: -math.inf if image.leaked is None else image.leaked)
            for source, found in self.forms.items()
        }


def sources(images: Sequence[ImageRecord]) -> list[int]:
    """For each the number of the first that was made of the same private picture, as `GroundTruth.sources`.

    Several local steps may change one picture anew each. A name alone does not tell: in a sum two clients may have a
    picture of that name.
    """
    first: dict[tuple[object, ...], int] = {}
    return [
        first.setdefault((image.image, image.label, image.guess_psnr, image.content), number)
        for number, image in enumerate(images)
    ]


def attack_record(values: Mapping[str, Any]) -> AttackRecord | None:
    try:
        result = AttackResult.from_json({"status": "failed", **values})
    except ValueError:
        return None
    certificate = result.certificate
    images = tuple(_image(row) for row in items(values.get("images")) if isinstance(row, dict))
    exact, share = values.get("label_exact"), number(values.get("label_share"))
    return AttackRecord(
        observation=result.observation,
        number=whole(values.get("round")),
        client=text(values.get("client")),
        attack=result.attack,
        status=result.status,
        reason=result.reason,
        certificate=certificate.status,
        certificate_reason=certificate.reason,
        seconds=number(values.get("seconds")),
        batch_size=_pictures(result.batch_size, images),
        attempts=result.attempts,
        label_exact=exact if isinstance(exact, bool) else None,
        label_share=share,
        scored=result.scores is not None,
        images=images,
        trace=result.trace,
        target=text(values.get("target")),
        baseline=result.baseline,
        promised=certificate.values.get("promised_psnr", certificate.values.get("expected_psnr")),
        named=None if result.labels is None else len(result.labels),
        labelled=(result.labels is not None and len(result.labels) > 0) or share is not None,
    )


def _pictures(stated: int, images: Sequence[ImageRecord]) -> int:
    """How many private ones there are: those that are listed, or as many as stated where that is more than all."""
    return stated if stated > len(images) else len(set(sources(images)))


def _frames(values: object) -> FramesRecord | None:
    if not isinstance(values, dict) or not isinstance(values.get("strip"), str):
        return None
    in_strip, steps, scores = (items(values.get(name)) for name in ("strip_steps", "steps", "psnr"))
    kept = [whole(step) for step in in_strip]
    points = [(whole(step), number(psnr)) for step, psnr in zip(steps, scores, strict=False)]
    steps_kept = tuple(step for step in kept if step is not None)
    if not steps_kept or len(steps_kept) < len(kept):
        return None
    curve = tuple((step, psnr) for step, psnr in points if step is not None and psnr is not None)
    return FramesRecord(values["strip"], steps_kept, curve)


def _image(values: Mapping[str, Any]) -> ImageRecord:
    return ImageRecord(
        image=text(values.get("image")) or "?",
        label=text(values.get("label")),
        label_recovered=text(values.get("label_recovered")),
        content=text(values.get("content")),
        seen_changed=changed if isinstance(changed := values.get("changed"), bool) else None,
        original=text(values.get("original")),
        reconstruction=text(values.get("reconstruction")),
        frames=_frames(values.get("frames")),
        **{name: number(values.get(name)) for name in PSNRS},
        scores={name: score for name in SCORES if (score := number(values.get(name))) is not None},
    )
