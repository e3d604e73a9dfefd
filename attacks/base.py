"""What every attack is: from an Observation to a Reconstruction, and no other way in."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedsim.errors import NotApplicable
from fedsim.observation import Observation

__all__ = ["Attack", "Certificate", "Needs", "NotApplicable", "Reconstruction"]

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
class Reconstruction:
    """What an attack rebuilt.

    Attributes:
        images: [B,C,H,W] in [0, 1], or None where the attack recovers no pictures.
        labels: [B], a multiset where the order cannot be known, or None.
        trace: rows of whatever the attack measured on its way.
        seconds: filled in by `Attack.__call__`.
    """

    images: Tensor | None = None
    labels: Tensor | None = None
    certificate: Certificate = field(default_factory=Certificate)
    trace: tuple[dict[str, float], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Needs:
    """What an attack cannot do without; checked before it runs.

    Attributes:
        roles: names of `ViTRoles` whose gradient must have been shared.
        max_batch_size: the largest batch that makes sense, None for any.
        auxiliary: wants `Observation.auxiliary_probs` where the server can compute them.
    """

    roles: tuple[str, ...] = ()
    max_batch_size: int | None = None
    auxiliary: bool = False


class Attack(ABC):
    """Subclass it, set `needs`, write `run`, and add `conf/attack/NAME.yaml` with its `_target_`."""

    needs: Needs = Needs()

    @abstractmethod
    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Rebuild what can be rebuilt.

        Args:
            rng: the only source of randomness, on the CPU.
            device: where to compute; results may stay there.

        Raises:
            NotApplicable: the observation cannot be served, and why. The report shows it.
        """

    def __call__(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Check `needs`, run, and put the seconds into the result."""
        self.check(observation)
        start = time.perf_counter()
        result = self.run(observation, rng, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return Reconstruction(
            images=None if result.images is None else result.images.detach().cpu(),
            labels=None if result.labels is None else result.labels.detach().cpu(),
            certificate=result.certificate,
            trace=result.trace,
            seconds=time.perf_counter() - start,
        )

    def check(self, observation: Observation) -> None:
        """Refuse an observation that lacks what `needs` names.

        Raises:
            NotApplicable: with the reason.
        """
        for role in self.needs.roles:
            observation.gradient_of(role)
        limit = self.needs.max_batch_size
        if limit is not None and observation.protocol.batch_size > limit:
            raise NotApplicable(f"batches of {observation.protocol.batch_size}: at most {limit} can be served")
