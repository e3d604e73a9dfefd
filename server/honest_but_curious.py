"""A server that aggregates exactly as it should, and keeps what each client sent."""

from collections.abc import Callable, Iterable
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.records import AUDITED, UPDATE, from_arrays, from_reply, take_ground_truth
from fedsim.update import State
from server.observing import ObservationFactory, ObservePolicy
from server.wrapping import StrategyWrapper

logger = getLogger(__name__)

OnObservation = Callable[[Observation, GroundTruth | None], None]
AuxiliaryProbs = Callable[[State], Tensor | None]


class HonestButCurious(StrategyWrapper):
    """Wraps any Flower strategy: `inner` gets the replies that it would have got without the observer.

    The one thing taken from a reply is the audit record, before anything else reads it; only
    `on_observation` receives it, for the scorer.

    Args:
        on_observation: called for each observed update; it must not block training.
        auxiliary_probs: p̂ of a global state, or None where no attack asks for it; called once a round.
    """

    def __init__(
        self,
        inner: Strategy,
        factory: ObservationFactory,
        policy: ObservePolicy,
        on_observation: OnObservation,
        auxiliary_probs: AuxiliaryProbs | None = None,
    ) -> None:
        super().__init__(inner)
        self._factory = factory
        self._policy = policy
        self._on_observation = on_observation
        self._auxiliary_probs = auxiliary_probs
        self._arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._arrays = arrays
        config[AUDITED] = self._policy.wants_round(server_round)
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        truths = {
            reply.metadata.src_node_id: take_ground_truth(reply.content) for reply in replies if not reply.has_error()
        }
        if self._policy.wants_round(server_round):
            self._observe(server_round, [reply for reply in replies if not reply.has_error()], truths)
        return self.inner.aggregate_train(server_round, replies)

    def _observe(self, server_round: int, replies: list[Message], truths: dict[int, GroundTruth | None]) -> None:
        clients = {}
        for reply in replies:
            try:
                clients[int(reply.content.config_records[UPDATE]["partition-id"])] = reply  # type: ignore[arg-type]
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("node %s sent no fedsim update: %s", reply.metadata.src_node_id, error)
        chosen = sorted(self._policy.choose(clients))
        if not chosen:
            return
        state = from_arrays(self._arrays)
        probs = self._auxiliary_probs(state) if self._auxiliary_probs else None
        for client in chosen:
            reply = clients[client]
            try:
                update, protocol, _ = from_reply(reply.content)
            except (KeyError, TypeError, ValueError) as error:
                logger.warning("client %s sent an update that cannot be read: %s", client, error)
                continue
            observation = self._factory.make(server_round, client, state, update, protocol, probs)
            self._on_observation(observation, truths[reply.metadata.src_node_id])
