"""Updates that nobody looks at are added up where they are made."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from logging import getLogger

from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from fedsim.wire.contents import array_records
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_UPDATE, SUM_WANTED, WHOLE, mean_reply
from fedsim.wire.records import ARRAYS, NUM_EXAMPLES, instruct

logger = getLogger(__name__)

WEIGHTED_MEANS = (FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi)
GROUPS, LARGEST = 16, 16


def is_weighted_mean(strategy: Strategy) -> bool:
    """Whether the strategy needs no more than the mean of all updates, weighted by examples.

    A subclass may do anything with its replies; one that does not says so itself, by `weighted_mean = True`.
    """
    if getattr(strategy, "weighted_by_key", NUM_EXAMPLES) != NUM_EXAMPLES:
        return False
    return type(strategy) in WEIGHTED_MEANS or vars(type(strategy)).get("weighted_mean") is True


def group_size(clients: int) -> int:
    """Clients whose updates are added up by one worker: enough groups for many workers, few messages for many clients.

    A function of the number of clients alone: the order of additions must not depend on the machine.
    """
    return max(1, min(LARGEST, clients // GROUPS))


def ask_for_sums(messages: Sequence[Message], whole: Iterable[int], size: int | None = None) -> None:
    """Instruct a round's clients that workers add up their updates.

    A round's memory then grows with the workers and the observed clients, not with the clients. A Grid that knows
    nothing of sums brings whole updates.

    Args:
        messages: the instructions to train; written into.
        whole: nodes that are observed, so that their updates travel besides.
        size: clients in a group; None: `group_size`.
    """
    instruct(messages, {SUM_WANTED: size or group_size(len(messages)), WHOLE: sorted(whole)})


def carries_sum(reply: Message) -> bool:
    return not reply.has_error() and SUM in array_records(reply.content)


def means(replies: Iterable[Message]) -> Iterator[Message]:
    """Errors and clients that share nothing as they are, and one reply for each sum, which is taken out of its own."""
    replies = list(replies)
    for reply in replies:
        if reply.has_error() or shares_nothing(reply):
            yield reply
    for reply in replies:
        if carries_sum(reply):
            sums = {name: reply.content.pop(name) for name in (SUM, SUM_OF, SUM_UPDATE)}
            try:
                yield with_content(reply, mean_reply(RecordDict(sums)))
            except ValueError as error:
                logger.warning("a sum of updates is worth nothing: %s", error)


def with_content(reply: Message, content: RecordDict) -> Message:
    """The same reply, of other content."""
    made = copy.copy(reply)
    made.content = content
    return made


def shares_nothing(reply: Message) -> bool:
    """An answer with no tensor in it; one without arrays was summed where it was made: its client shared something."""
    if reply.has_error():
        return False
    records = array_records(reply.content)
    return ARRAYS in records and len(records[ARRAYS]) == 0
