"""One round: the only place that knows in which order things happen."""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.determinism import seed_again, seeded_globals
from fedsim.simulation.traffic import Traffic
from fedsim.storage.run_folder import UNCHANGED
from fedsim.wire.contents import array_records, config_records
from fedsim.wire.partial_sums import sum_size
from fedsim.wire.records import AUDITED, CONFIG, SERVER_ROUND, from_arrays, instruct
from fedsim.wire.tensor_records import TensorArray
from server.aggregation import aggregate
from server.curious.federation_replies import FederationReplies
from server.privacy_budget import PrivacyBudget
from server.resume.strategy_state import restore_strategy, strategy_state
from server.sampling import SeededGrid
from server.screening import Screening
from server.sums.on_workers import ask_for_sums
from server.sums.summing import Sums
from server.timing import Stopwatch

CYCLES_WORTH = 2**26
"""Bytes of updates in a round from which a search for cycles pays: Flower's strategies leave them in some."""

Observed = Callable[[int, list[int]], Iterable[int]]
"""Of a round's nodes those whose updates the server wants to see."""


@dataclass
class RoundRecord:
    """One round as the server saw it; `seconds` and `traffic` are kept apart from what a seed reproduces."""

    metrics: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traffic: Traffic | None = None


@dataclass(frozen=True)
class WorkerSums:
    """Updates that nobody looks at are added up where they are made.

    Attributes:
        observed: whose updates travel besides.
        size: clients in a group; None: a function of their number.
    """

    observed: Observed = lambda server_round, nodes: ()
    size: int | None = None


class Rounds:
    """Rounds of federated training around a user's strategy; only that speaks Flower.

    Flower samples nodes with Python's global generator and sums in the order of arrival. Here both are functions of the
    seed: equal seeds give equal bits.

    Args:
        seed: of the sampling of clients, and of what the strategy draws.
        whole_weights: the strategy averages whole weights; False: it takes what clients share (FedSGD).
        screening: reads replies; None: every one is taken as it is.
        observer: None: a server that does not look. The model is the same either way, to the bit.
        sums: secure aggregation.
        worker_sums: where the strategy takes a weighted mean (`is_weighted_mean`).
        client_of: a client's number from its node id, for the record.
        attacks: runs while updates are handed to attacks, which is no part of aggregation.
        holders: clients that hold one image, at most; None: not known.

    Attributes:
        aggregated: in how many rounds the model changed hands.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        seed: int = 0,
        whole_weights: bool = True,
        screening: Screening | None = None,
        observer: FederationReplies | None = None,
        sums: Sums | None = None,
        worker_sums: WorkerSums | None = None,
        client_of: Callable[[int], int] = int,
        attacks: Stopwatch | None = None,
        holders: int | None = None,
    ) -> None:
        self.strategy, self._seed, self._whole_weights = strategy, seed, whole_weights
        self._screening = screening or Screening()
        self._observer, self._sums, self._worker_sums = observer, sums, worker_sums
        self._client_of = client_of
        self.attacks = attacks or Stopwatch()
        self.budget = PrivacyBudget(holders)
        self.aggregated = 0
        self.record = RoundRecord()
        self._asked: list[int] = []
        self._mark = time.perf_counter()

    def train(self, server_round: int, start: ArrayRecord, grid: Grid, timeout: float | None = None) -> ArrayRecord:
        """Configure, send, and aggregate what comes back; the model that follows, `start` where nothing did."""
        self._mark = time.perf_counter()
        messages = self.configure(server_round, start, grid)
        checked = _checked(messages, grid)
        self._lap("configure")
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        del messages
        self._lap("train")
        self.record.traffic = getattr(grid, "traffic", None)
        large = _bytes_of(replies) > CYCLES_WORTH
        arrays = self.aggregate(server_round, start, replies, checked)
        del replies  # or this round's updates would be there until the next one's are
        if large:
            gc.collect()
        return start if arrays is None else arrays

    def configure(self, server_round: int, start: ArrayRecord, grid: Grid) -> list[Message]:
        """The instructions, new in each round: nothing that an earlier round wrote into them is left."""
        config = ConfigRecord()
        drawn = self._seed, "sample-train", server_round
        with seeded_globals(*drawn):
            seeded = SeededGrid(grid, partial(seed_again, *drawn))
            messages = list(self.strategy.configure_train(server_round, start, config, seeded))
        nodes = sorted(message.metadata.dst_node_id for message in messages)
        self._asked = [self._client_of(node) for node in nodes]
        instruct(messages, {SERVER_ROUND: server_round})  # which clients draw by; not every strategy says it
        if self._observer is not None:
            instruct(messages, {AUDITED: sorted(self._observer.looks_at(server_round, self._asked))})
        alike = len({id(message.content) for message in messages}) == 1  # a group is sent one content
        if self._worker_sums is not None and alike:
            ask_for_sums(messages, self._worker_sums.observed(server_round, nodes), self._worker_sums.size)
        return _in_order(messages)

    def aggregate(
        self, server_round: int, start: ArrayRecord, messages: Iterable[Message], checked: bool = False
    ) -> ArrayRecord | None:
        """Read the replies, observe them, account for privacy, aggregate, record; None where nothing came of it.

        Args:
            checked: the Grid has checked them already, as it must where workers add up updates.
        """
        replies = self._screening.train(messages, start, server_round, checked)
        self._note_failures(reply.message for reply in replies)
        replies.sort(key=lambda reply: reply.message.metadata.src_node_id)
        if self._observer is not None and self._observer.wants(server_round):
            sent = [reply.sent for reply in replies if reply.sent is not None]
            self._observer.observe(from_arrays(start), sent, self._asked)
        answers = [reply.message for reply in replies]
        self.record.metrics["clients"] = sum(not answer.has_error() for answer in answers)
        self.budget.hear(server_round, answers, [reply.refused for reply in replies if reply.refused is not None])
        with seeded_globals(self._seed, "aggregate", server_round):  # a strategy may add noise
            arrays, metrics = aggregate(
                self.strategy, server_round, start, answers, whole_weights=self._whole_weights, sums=self._sums
            )
        self.record.metrics |= dict(self.budget.put_into(metrics) or {})
        if arrays is None:
            self.record.failures.append({"client": None, "error": UNCHANGED})
        else:
            self.aggregated += 1
        self._lap("aggregate")
        self.record.seconds["attacks"] = self.attacks.take()
        self.record.seconds["aggregate"] -= self.record.seconds["attacks"]
        return arrays

    def evaluate(self, server_round: int, arrays: ArrayRecord, grid: Grid, timeout: float | None = None) -> None:
        """Ask clients how good the model is, as the strategy wants it, and keep what they say in the record."""
        self._mark = time.perf_counter()
        drawn = self._seed, "sample-evaluate", server_round
        with seeded_globals(*drawn):
            seeded = SeededGrid(grid, partial(seed_again, *drawn))
            messages = list(self.strategy.configure_evaluate(server_round, arrays, ConfigRecord(), seeded))
        instruct(messages, {SERVER_ROUND: server_round})
        self.heard(server_round, grid.send_and_receive(_in_order(messages), timeout=timeout))

    def heard(self, server_round: int, replies: Iterable[Message]) -> None:
        """What clients say of the model."""
        replies = self._screening.evaluate(replies)
        self._note_failures(replies)
        metrics = self.strategy.aggregate_evaluate(
            server_round, sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        )
        self.record.metrics |= {f"client_{name}": value for name, value in (metrics or {}).items()}
        if replies:
            self._lap("client_evaluate")

    def take(self) -> RoundRecord:
        """The record since the last call."""
        record, self.record = self.record, RoundRecord()
        return record

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on: what the strategy has become, the privacy budget, the count of rounds.

        Raises:
            TypeError: the strategy holds what nobody could bring back.
        """
        strategy = strategy_state(self.strategy)
        return {"strategy": strategy, "budget": self.budget.state_dict(), "aggregated": self.aggregated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError: the state is of another strategy, or of another version."""
        if missing := {"strategy", "budget", "aggregated"} - state.keys():
            raise ValueError(f"a state without {', '.join(sorted(missing))}")
        restore_strategy(self.strategy, state["strategy"])
        self.budget.load_state_dict(state["budget"])
        self.aggregated = state["aggregated"]

    def _note_failures(self, replies: Iterable[Message]) -> None:
        self.record.failures += [
            {"client": self._client_of(reply.metadata.src_node_id), "error": reply.error.reason}
            for reply in replies
            if reply.has_error()
        ]

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.record.seconds[name] = now - self._mark
        self._mark = now


def _checked(messages: list[Message], grid: Grid) -> bool:
    """Whether the Grid checks replies where it sums them; in such a round its word is taken."""
    instructions = config_records(messages[0].content).get(CONFIG) if messages else None
    return instructions is not None and sum_size(instructions) > 0 and bool(getattr(grid, "checks_replies", False))


def _in_order(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.metadata.dst_node_id)


def _bytes_of(replies: Iterable[Message]) -> int:
    """Of the tensors that travelled as they are."""
    contents = (reply.content for reply in replies if not reply.has_error())
    arrays = (array for content in contents for record in array_records(content).values() for array in record.values())
    return sum(array.values.nbytes for array in arrays if isinstance(array, TensorArray))
