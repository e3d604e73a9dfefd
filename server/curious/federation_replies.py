"""What fedsim's own clients send, as observations of those that the policy names."""

from collections.abc import Callable, Iterable, Iterator
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.observing import ObservationFactory
from fedsim.settings.groups import ObserveSettings
from fedsim.update import State
from fedsim.wire.contents import array_records, config_records
from fedsim.wire.records import ARRAYS, AUDIT, AUDITED, UPDATE, Contribution, from_arrays, from_reply
from server.sums.summing import RunningSum, Sums, in_groups

logger = getLogger(__name__)

OnObservation = Callable[[Observation, GroundTruth | None], None]
AuxiliaryProbs = Callable[[State], Tensor | None]


class FederationReplies:
    """Takes the audit record out of each reply, and hands observations on with it.

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

    def instruct(self, server_round: int, config: ConfigRecord) -> None:
        config[AUDITED] = self._policy.wants_round(server_round)

    def observe(self, server_round: int, arrays: ArrayRecord, replies: list[Message]) -> None:
        if self._policy.wants_round(server_round):
            self._observe(server_round, arrays, [reply for reply in replies if _has_update(reply)])
        for reply in replies:
            if not reply.has_error():
                reply.content.pop(AUDIT, None)  # nothing later can read it

    def _observe(self, server_round: int, arrays: ArrayRecord, replies: list[Message]) -> None:
        clients = {}
        for reply in replies:
            try:
                clients[int(config_records(reply.content)[UPDATE]["partition-id"])] = reply  # type: ignore[arg-type]
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("node %s sent no fedsim update: %s", reply.metadata.src_node_id, error)
        groups = in_groups(clients, 1 if self._sums is None else self._sums.clients)
        chosen = self._policy.choose(group[0] for group in groups)
        groups = [group for group in groups if group[0] in chosen]
        if not groups:
            return
        state = from_arrays(arrays)
        probs = self._auxiliary_probs(state) if self._auxiliary_probs else None
        for group in groups:
            sent = _read({client: clients[client] for client in group}, server_round)
            seen = next(sent, None) if self._sums is None else _summed(sent, self._sums.by)
            if seen is not None:
                self._on_observation(self._factory.make(seen, state, probs), seen.truth)


def _has_update(reply: Message) -> bool:
    """Whether the client's own update is in the reply: there is none after an error, and none where it was summed."""
    return not reply.has_error() and ARRAYS in array_records(reply.content)


def _read(replies: dict[int, Message], server_round: int) -> Iterator[Contribution]:
    """What clients sent, one at a time; a reply that cannot be read is left out."""
    for client, reply in replies.items():
        try:
            yield from_reply(reply.content, server_round)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("client %s sent an update that cannot be read: %s", client, error)


def _summed(sent: Iterable[Contribution], by: str) -> Contribution | None:
    total = RunningSum(by)
    try:
        for one in sent:
            total.add(one)
        return total.result()
    except ValueError as error:
        logger.warning("no sum was observed: %s", error)
        return None
