"""What fedsim's own clients send, as observations of those that the policy names."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from logging import getLogger

from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.observation_factory import ObservationFactory
from fedsim.settings.groups import ObserveSettings
from fedsim.update import State
from fedsim.wire.records import Contribution
from server.sums.summing import RunningSum, Sums, in_groups

logger = getLogger(__name__)

OnObservation = Callable[[Observation, GroundTruth | None], None]
AuxiliaryProbs = Callable[[State], Tensor | None]


class FederationReplies:
    """Makes observations of what clients share, and hands them on with the truth.

    Args:
        on_observation: called for each observed update; it must not block training.
        auxiliary_probs: p̂ of a global state, or None where no attack asks for it; called once a round.
        sums: secure aggregation: each observation is a sum over a group of clients, under the lowest id in the group,
            and none is ever made of one client's update. None: each client is seen by itself.

    Raises:
        ConfigError: single clients are to be observed, where only sums are seen.
    """

    def __init__(
        self,
        factory: ObservationFactory,
        policy: ObserveSettings,
        on_observation: OnObservation,
        auxiliary_probs: AuxiliaryProbs | None = None,
        sums: Sums | None = None,
    ) -> None:
        if sums is not None:
            sums.check_observed(policy.clients)
        self._factory = factory
        self._policy = policy
        self._on_observation = on_observation
        self._auxiliary_probs = auxiliary_probs
        self._sums = sums

    def looks_at(self, server_round: int, clients: Collection[int]) -> set[int]:
        """Of a round's clients those of whom it wants to see something: all of them, where it sees sums."""
        if not self.wants(server_round):
            return set()
        return set(clients) if self._sums is not None else self._policy.choose(clients)

    def wants(self, server_round: int) -> bool:
        return self._policy.wants_round(server_round)

    def observe(self, state: State, sent: Iterable[Contribution], asked: Iterable[int] = ()) -> None:
        """A round's updates.

        Args:
            state: the global one that the round began with.
            sent: as it was read; what is observed of it is copied.
            asked: the round's clients, whose first ones are chosen whether they answer or not; none: those that did.
        """
        clients = {one.client: one for one in sent}
        groups = in_groups(clients, 1 if self._sums is None else self._sums.clients)
        asked = () if self._sums is not None else tuple(asked)  # sums are of those that answer
        chosen = self._policy.choose(asked or (group[0] for group in groups))
        groups = [group for group in groups if group[0] in chosen]
        if not groups:
            return
        probs = self._auxiliary_probs(state) if self._auxiliary_probs else None
        for group in groups:
            members = [clients[client] for client in group]
            seen = _copied(*members) if self._sums is None else _summed(members, self._sums.by)
            if seen is not None:
                self._on_observation(self._factory.make(seen, state, probs), seen.truth)


def _copied(one: Contribution) -> Contribution:
    """With tensors of its own: those of a reply may be read-only, and a write into them the end of the process."""
    update = one.update
    tensors, buffers = ({name: t.clone() for name, t in part.items()} for part in (update.tensors, update.buffers))
    return replace(one, update=replace(update, tensors=tensors, buffers=buffers))


def _summed(sent: Iterable[Contribution], by: str) -> Contribution | None:
    total = RunningSum(by)
    try:
        for one in sent:
            total.add(one)
        return total.result()
    except ValueError as error:
        logger.warning("no sum was observed: %s", error)
        return None
