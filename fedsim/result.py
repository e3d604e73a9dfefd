"""The one record after an attack: what became of it, what it rebuilt, and how close that came."""

import html
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from torch import Tensor

from fedsim.metrics.records import ImageScore, LabelScore, Scores
from fedsim.report.thresholds import vouched
from fedsim.storage.values import items, number, numbers, whole

if TYPE_CHECKING:
    from fedsim.observation import Observation

CertificateStatus = Literal["certified", "uncertified", "none"]
Status = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Certificate:
    """What is known of a result without the truth; `none` where the method has no test of its own.

    `certified` is a claim in what `Attack.run` returns, that the attack's own equations hold. It is a certificate in
    what `Attack.__call__` returns: `Attack.confirm` has granted it.

    Attributes:
        values: residuals, ranks and condition numbers by name; `expected_psnr` by the attack's own estimate, and
            `promised_psnr`, the bound, of certified images, both in dB.
    """

    status: CertificateStatus = "none"
    reason: str = ""
    values: dict[str, float] = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        return self.status == "certified"


@dataclass(frozen=True)
class Frame:
    """Where a search was after so many steps; the report plays them.

    Attributes:
        images: [B,C,H,W] in [0, 1], in the order of the result's pictures.
        values: what the attack measured then, such as its objective; finite.
    """

    step: int
    images: Tensor
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AttackResult:
    """What became of one attack on one observation.

    Attributes:
        observation: its name, `round-00001-client-00003`.
        attack: the attack's name.
        status: `refused` where the attack does not apply, `failed` where it raised; `reason` says why. Of one that is
            `done` it says what else is to be known.
        server_round, client, summed: as the observation says.
        batch_size: images behind the update, those of all local steps.
        target: what the attack is after: `images`, `labels`, or whatever else an attack of one's own says.
        baseline: it read nothing of what was shared.
        images: [B,C,H,W] in [0, 1], as the model saw them, or None.
        own_images: the same as the client held them, as well as public images tell, where defenses change what the
            model sees; None: as `images`.
        labels: [B], a multiset where the order cannot be known, or None: none were found, or they were given.
        scores: how close it came; None until `fedsim.score` has compared it with the originals.
        attempts: how often a worker began it.
        trace: what the attack measured on its way, one row a step.
        frames: images from the way.
        fault: the traceback of an attack that raised.
    """

    observation: str
    attack: str
    status: Status
    reason: str = ""
    server_round: int = 0
    client: int = 0
    batch_size: int = 0
    summed: int = 1
    target: str = "images"
    baseline: bool = False
    certificate: Certificate = field(default_factory=Certificate)
    images: Tensor | None = field(default=None, repr=False)
    own_images: Tensor | None = field(default=None, repr=False)
    labels: Tensor | None = field(default=None, repr=False)
    scores: Scores | None = field(default=None, repr=False)
    seconds: float = 0.0
    attempts: int = 1
    trace: tuple[dict[str, float], ...] = field(default=(), repr=False)
    frames: tuple[Frame, ...] = field(default=(), repr=False)
    fault: str = field(default="", repr=False)

    @classmethod
    def of(
        cls, observation: "Observation", attack: str, status: Status, reason: str = "", **known: Any
    ) -> "AttackResult":
        """What became of an attack on this observation."""
        whose = observation.server_round, observation.client, observation.num_images, observation.summed
        return cls(observation.name, attack, status, reason, *whose, **known)

    @property
    def certified(self) -> bool:
        """Whether the result is known to be right without the truth."""
        return self.certificate.certified

    @property
    def psnr(self) -> list[float | None]:
        """dB for each original image, against what the model saw; empty until it is scored."""
        return [] if self.scores is None else [one.psnr for one in self.scores.images]

    def to_json(self) -> dict[str, Any]:
        """Everything but the images, as a line of `attacks.jsonl` has it."""
        scores = self.scores or Scores([], None)
        images = [one.to_dict() for one in scores.images]
        for image, curve in zip(images, scores.frames, strict=False):
            image |= {"frames": {"psnr": curve}} if curve else {}
        return {
            "observation": self.observation,
            "round": self.server_round,
            "client": self.client if self.summed == 1 else f"{self.client} (sum of {self.summed} clients)",
            "attack": self.attack,
            "status": self.status,
            "target": self.target,
            "baseline": self.baseline,
            "reason": self.reason,
            "certificate": asdict(self.certificate) if self.status == "done" else None,
            # Of its frames where the attack measured nothing else.
            "trace": list(self.trace) or [{"step": float(frame.step), **frame.values} for frame in self.frames],
            "seconds": self.seconds,
            "batch_size": self.batch_size,
            "attempts": self.attempts,
            "labels": None if self.labels is None else self.labels.tolist(),
            "label_exact": None if scores.labels is None else scores.labels.exact,
            "label_share": None if scores.labels is None else scores.labels.share,
            "scored": self.scores is not None,
            "images": images,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "AttackResult":
        """Back from JSON, without images; what is missing or of another type has its default, the rest is left out.

        Raises:
            ValueError: no name of an observation or an attack, or a status that does not exist.
        """
        import torch

        status = record.get("status")
        names = [record.get(key) for key in ("observation", "attack")]
        if status not in get_args(Status) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"no attack's result: observation, attack, status = {[*names, status]}")
        certificate = record.get("certificate")
        certificate = certificate if isinstance(certificate, Mapping) else {}
        client = re.fullmatch(r"(\d+)(?: \(sum of (\d+) clients\))?", str(record.get("client")))
        labels = [
            label for label in map(whole, items(record.get("labels"))) if label is not None and abs(label) < 2**63
        ]
        return cls(
            observation=str(names[0]),
            attack=str(names[1]),
            status=cast(Status, status),
            reason=str(record.get("reason") or ""),
            target=str(record.get("target") or "images"),
            baseline=record.get("baseline") is True,
            certificate=Certificate(
                cast(CertificateStatus, str(certificate.get("status") or "none")),
                str(certificate.get("reason") or ""),
                numbers(certificate.get("values")),
            ),
            labels=torch.tensor(labels, dtype=torch.int64) if isinstance(record.get("labels"), list) else None,
            scores=_scores(record),
            seconds=number(record.get("seconds")) or 0.0,
            attempts=whole(record.get("attempts")) or 1,
            trace=tuple(numbers(row) for row in items(record.get("trace")) if isinstance(row, Mapping)),
            server_round=whole(record.get("round")) or 0,
            client=int(client[1]) if client else 0,
            batch_size=whole(record.get("batch_size")) or 0,
            summed=int(client[2] or 1) if client else 1,
        )

    def __str__(self) -> str:
        """One line: the attack, what became of it, how close it came, the certificate, the seconds."""
        from fedsim.report.run.summary import mean_psnr  # which reads results

        if self.status != "done":
            return f"{self.attack}: {self.status}: {self.reason}"
        parts = [self._rebuilt()]
        measured = [value for value in self.psnr if value is not None]
        if (mean := mean_psnr(measured)) is not None:
            least = f", {min(measured):.1f} dB least" if len(measured) > 1 else ""
            if len(measured) < len(self.psnr):
                parts.append(f"compared with {len(measured)} of {len(self.psnr)} originals")
            parts.append(f"{mean:.1f} dB{' on average' if least else ''}{least}")
        if self.scores is not None and self.scores.labels is not None:
            share = self.scores.labels
            parts.append("all labels right" if share.exact else f"{100 * share.share:.0f} % of the labels right")
        if self.certificate.status != "none":
            promised = self.certificate.values.get("promised_psnr")
            words = f"certified (at least {promised:.0f} dB)" if self.certified and promised else None
            why = f" ({self.certificate.reason})" if self.certificate.reason and not self.certified else ""
            parts.append(words or f"{self.certificate.status}{why}")
        if self._contradicted():
            parts.append("the score contradicts the certificate: are these its originals?")
        if self.reason:
            parts.append(self.reason)
        return f"{self.attack}: {', '.join(parts)}, {self.seconds:.2g} s"

    def _contradicted(self) -> bool:
        """Whether what it was compared with cannot be what a certificate promises."""
        if not self.certified or self.scores is None:
            return False
        if self.images is None:
            return self.scores.labels is not None and not self.scores.labels.exact
        least = vouched(self.certificate.values.get("promised_psnr"))
        return any(value < least for value in self.psnr if value is not None)

    def _rebuilt(self) -> str:
        if self.images is not None:
            count = len(self.images)
            return f"{count} image{'s' * (count != 1)}"
        return f"labels {self.labels.tolist()}" if self.labels is not None else "nothing rebuilt"

    def _repr_html_(self) -> str:
        """The line and the images, for a notebook."""
        from fedsim.report.inline import inline_images

        return f"<p>{html.escape(str(self))}</p>{inline_images(self.images)}"


def _scores(record: Mapping[str, Any]) -> Scores | None:
    if record.get("scored") is not True:
        return None
    rows = [one for one in items(record.get("images")) if isinstance(one, Mapping)]
    share = number(record.get("label_share"))
    curves = [items(one["frames"].get("psnr")) if isinstance(one.get("frames"), Mapping) else [] for one in rows]
    return Scores(
        [ImageScore.from_dict(one) for one in rows],
        None if share is None else LabelScore(record.get("label_exact") is True, share),
        curves if any(curves) else [],
    )
