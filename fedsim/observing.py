"""From an update to an Observation: everything an onlooker knows, captured together."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from fedsim.models import Architecture, find_roles, normalisation
from fedsim.observation import Observation, Replayer
from fedsim.update import LocalProtocol, State, Update


class ObservationFactory:
    """Adds to an update what is known of every client: the architecture and the public settings."""

    def __init__(
        self,
        architecture: Architecture,
        model: nn.Module,
        image_side: int,
        defenses: Iterable[dict[str, Any]] = (),
        replayer: Replayer | None = None,
    ) -> None:
        self._architecture = architecture
        self._roles = find_roles(model)
        self._mean, self._std = normalisation(model)
        self._image_shape = (3, image_side, image_side)
        self._defenses = tuple(defenses)
        self._replayer = replayer

    def make(
        self,
        server_round: int,
        client: int,
        state: State,
        update: Update,
        protocol: LocalProtocol,
        auxiliary_probs: Tensor | None,
        summed: int = 1,
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
            summed=summed,
            replayer=self._replayer,
        )
