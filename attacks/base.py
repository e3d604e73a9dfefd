"""What every attack is: from an Observation to a Reconstruction, and no other way in."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from attacks.session import Session
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

__all__ = ["Attack", "Certificate", "Frame", "Needs", "NotApplicable", "Reconstruction", "finished"]

Status = Literal["certified", "uncertified", "none"]


@dataclass(frozen=True)
class Certificate:
    """What the attack itself can tell about its result, without the truth.

    `values` holds residuals, ranks and condition numbers by name; `none` means that the method
    has no test of its own.
    """

    status: Status = "none"
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
class Reconstruction:
    """What an attack rebuilt.

    Attributes:
        images: [B,C,H,W] in [0, 1], or None where the attack recovers no pictures.
        labels: [B], a multiset where the order cannot be known, or None.
        trace: rows of whatever the attack measured on its way; those with a `step` become a curve in the report.
        seconds: filled in by `Attack.__call__`.
        frames: pictures from the way, in the order of their steps.
    """

    images: Tensor | None = None
    labels: Tensor | None = None
    certificate: Certificate = field(default_factory=Certificate)
    trace: tuple[dict[str, float], ...] = ()
    seconds: float = 0.0
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What an attack cannot do without; checked before it runs.

    Attributes:
        roles: names of `ViTRoles` that hold parameters, all of whose gradients must have been shared.
        max_batch_size: the largest batch that makes sense, None for any.
        auxiliary: wants `Observation.auxiliary_probs` where the server can compute them.
    """

    roles: tuple[str, ...] = ()
    max_batch_size: int | None = None
    auxiliary: bool = False


class Attack(ABC):
    """Subclass it, set `needs`, write `run`, and add `conf/attack/NAME.yaml` with its `_target_` and what it
    `knows` beside the shared tensors and the protocol.

    A long attack may use `self.session`: `load()` once before its first step, `save()` every so many steps and
    `progress()` every few. Its worker may be killed at any time; the next try then goes on from what was saved, and
    must come to the same bits: save the state of the generators too. One that serves several victims faster together
    than one by one overrides `run_many`; one that searches several times in a run gives each search its own
    `session.part(name)`.

    Attributes:
        session: set by whoever runs the attack; does nothing outside a run.
        baseline: it never reads what was shared, but for labels that it is given: report, comparison and matrix mark
            it, and leave it out of every verdict.
        cost: how long it takes in comparison, in any unit: of the attacks that wait for a worker the cheapest go first.
    """

    needs: Needs = Needs()
    session: Session = Session()
    baseline: bool = False
    cost: float = 0.0

    @abstractmethod
    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Rebuild what can be rebuilt.

        Args:
            rng: the only source of randomness, on the CPU.
            device: where to compute; results may stay there.

        Raises:
            NotApplicable: the observation cannot be served, and why. The report shows it.
        """

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[torch.Generator], device: torch.device
    ) -> list[Reconstruction | NotApplicable]:
        """One result or refusal for each observation, the same as one by one; audits call it with `audit.victims`.

        An override checks each observation itself (`self.check`), and gives refusals back instead of raising them.
        """
        results: list[Reconstruction | NotApplicable] = []
        for observation, rng in zip(observations, rngs, strict=True):
            try:
                results.append(self(observation, rng, device))
            except NotApplicable as refusal:
                results.append(refusal)
        return results

    def shrink(self, device: torch.device) -> str:
        """Take less memory from now on, as after running out of it on `device`.

        Returns:
            The setting that it now has, such as `memory_gib=2`; empty where it cannot do with less.
        """
        return ""

    def __call__(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Check `needs`, run, and put the seconds into the result."""
        self.check(observation)
        start = time.perf_counter()
        result = self.run(observation, rng, device)
        if not isinstance(result, Reconstruction):
            raise TypeError(f"{type(self).__name__}.run gave a {type(result).__name__}: a Reconstruction is wanted")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return finished(result, time.perf_counter() - start)

    def check(self, observation: Observation) -> None:
        """Refuse an observation that lacks what `needs` names.

        Raises:
            NotApplicable: with the reason.
        """
        for role in self.needs.roles:
            observation.gradients_of(role)
        limit = self.needs.max_batch_size
        if limit is not None and observation.protocol.batch_size > limit:
            raise NotApplicable(f"batches of {observation.protocol.batch_size}: at most {limit} can be served")


def finished(result: Reconstruction, seconds: float) -> Reconstruction:
    """The result as it leaves the worker: on the CPU, without a graph, with its seconds.

    Raises:
        ValueError: the pictures are no batch of pictures, or none of them has finite values alone; a frame has other
            pictures than the result.
    """
    images = result.images
    if images is not None and images.ndim != 4:
        raise ValueError(f"pictures of shape {tuple(images.shape)}: [B,C,H,W] is wanted, for one picture too")
    if images is not None and len(images) and not images.isfinite().flatten(1).all(dim=1).any():
        raise ValueError("each of its pictures holds NaN or infinity")
    for frame in result.frames:
        if result.images is None or frame.images.shape != result.images.shape:
            expected = "none" if result.images is None else tuple(result.images.shape)
            shape = tuple(frame.images.shape)
            raise ValueError(f"the frame of step {frame.step} is of shape {shape}, the result {expected}")
    return replace(
        result,
        images=None if result.images is None else result.images.detach().cpu(),
        labels=None if result.labels is None else result.labels.detach().cpu(),
        frames=tuple(replace(frame, images=frame.images.detach().cpu()) for frame in result.frames),
        seconds=seconds,
    )
