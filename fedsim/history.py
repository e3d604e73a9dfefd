"""One client over several rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedsim.errors import ConfigError, NotApplicable
from fedsim.observation import Observation

T = TypeVar("T")


@dataclass(frozen=True)
class History:
    """One client's observations, in each of which it trained on the same images.

    A plain sequence of observations is several victims; a History is one, of whom more is known. Noise that a client
    draws anew in each round averages away, and what one round leaves open another may tell.

    Attributes:
        observations: of one client, by round; every round once.

    Raises:
        ConfigError: none, two of one round, or observations that cannot be of the same images.

    >>> import fedsim, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    >>> image = torch.rand(1, 3, 4, 4)
    >>> rounds = [fedsim.observe(model, image, [3], defense=["gradient_noise"], server_round=r) for r in (1, 2)]
    >>> fedsim.History(rounds).name
    'client-00000-rounds-00001-00002'
    """

    observations: Sequence[Observation]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.observations, key=lambda one: one.server_round))
        object.__setattr__(self, "observations", ordered)
        if not ordered:
            raise ConfigError("history", "[]", "one observation or more")
        rounds = [one.server_round for one in ordered]
        if len(set(rounds)) < len(rounds):
            raise ConfigError("history", rounds, "observations of different rounds; several victims are a plain list")
        for key in ("client", "summed", "image_shape", "num_classes"):
            values = {getattr(one, key) for one in ordered}
            if len(values) > 1:
                raise ConfigError("history", f"{key} {sorted(values)}", "observations of one client with one model")
        sizes = {one.num_images for one in ordered}
        if len(sizes) > 1:
            raise ConfigError("history", f"{sorted(sizes)} images", "updates of the same images, as many in each round")

    def each(self, attempt: Callable[[Observation], T]) -> list[T | None]:
        """What every round gives, None where one refuses.

        Raises:
            NotApplicable: all rounds do; the last one's reason.
        """
        found: list[T | None] = []
        reason = None
        for observation in self.observations:
            try:
                found.append(attempt(observation))
            except NotApplicable as refusal:
                found.append(None)
                reason = refusal
        if reason is not None and all(one is None for one in found):
            raise reason
        return found

    @property
    def name(self) -> str:
        """What it is called in results."""
        first, last = self.observations[0], self.observations[-1]
        return f"client-{first.client:05d}-rounds-{first.server_round:05d}-{last.server_round:05d}"
