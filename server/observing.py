"""From a reply to an Observation: everything the server knows, captured together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedsim.models import Architecture, find_roles, normalisation
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, State, Update


@dataclass(frozen=True)
class ObservePolicy:
    """`cfg.observe`: whose updates are kept and attacked.

    Attributes:
        every: attack in round 1 and each multiple of this number; 0 observes nothing.
        clients: how many of a round's clients (those with the lowest partition ids), a list of
            partition ids, or `all`.
        save: write observations to disk, so that they can be attacked again later.
    """

    every: int = 1
    clients: Any = "all"
    save: bool = True

    def wants_round(self, server_round: int) -> bool:
        return self.every > 0 and (server_round == 1 or server_round % self.every == 0)

    def choose(self, candidates: Iterable[int]) -> set[int]:
        """The partition ids to observe among those that replied."""
        ordered = sorted(candidates)
        if self.clients == "all":
            return set(ordered)
        if isinstance(self.clients, int):
            return set(ordered[: self.clients])
        return set(ordered) & {int(client) for client in self.clients}


class ObservationFactory:
    """Adds to an update what the server knows of every client: the architecture and the public settings."""

    def __init__(
        self, architecture: Architecture, model: nn.Module, image_side: int, defenses: Iterable[dict[str, Any]] = ()
    ) -> None:
        self._architecture = architecture
        self._roles = find_roles(model)
        self._mean, self._std = normalisation(model)
        self._image_shape = (3, image_side, image_side)
        self._defenses = tuple(defenses)

    def make(
        self,
        server_round: int,
        client: int,
        state: State,
        update: Update,
        protocol: LocalProtocol,
        auxiliary_probs: Tensor | None,
    ) -> Observation:
        return Observation(
            server_round=server_round,
            client=client,
            global_state=state,
            update=update,
            protocol=protocol,
            architecture=self._architecture,
            roles=self._roles,
            image_shape=self._image_shape,
            mean=self._mean,
            std=self._std,
            num_classes=self._architecture.spec.num_classes,
            defenses=self._defenses,
            auxiliary_probs=auxiliary_probs,
        )
