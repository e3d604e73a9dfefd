"""A curious server for any Flower app: its strategy, its model and its clients stay as they are."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim.contents import array_records, metric_records
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.observation import Observation, Replayer
from fedsim.records import NUM_EXAMPLES, from_arrays
from fedsim.update import Kind, LocalProtocol, State, Update
from server.wrapping import StrategyWrapper

logger = getLogger(__name__)


@dataclass(frozen=True)
class OwnArchitecture(Architecture):
    """A module that timm does not know, as a recipe: every build is a copy. It lives in this process alone."""

    module: nn.Module | None = None

    def build(self, keep: bool = False) -> nn.Module:
        assert self.module is not None
        return copy.deepcopy(self.module)


class Eavesdropper(StrategyWrapper):
    """Wraps the strategy of an app that knows nothing of fedsim, and keeps what each client sent.

    `inner` gets the replies as they came. What a server knows of its own app is given here; clients send Flower's
    usual reply, one ArrayRecord named as the model's state and one MetricRecord.

    Args:
        model: the app's own, in any state; it reads [B, *image_shape].
        image_shape: (channels, height, width).
        protocol: how clients train, which a server prescribes.
        share: what clients send: whole weights after training, a change of them, or a gradient.
        mean, std: per channel, where clients normalise pictures in [0, 1].
        replayer: how clients compute, such as `clients.replay.replay` where they do nothing but what `protocol` says;
            without one no result is certified.

    Attributes:
        observations: one for each reply that could be read, round by round, in the order of node ids: in that order
            a round's clients are numbered from 0.
    """

    def __init__(
        self,
        inner: Strategy,
        model: nn.Module,
        image_shape: tuple[int, int, int],
        num_classes: int,
        protocol: LocalProtocol,
        share: Kind = "weights",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        replayer: Replayer | None = None,
    ) -> None:
        super().__init__(inner)
        self.observations: list[Observation] = []
        self._architecture = OwnArchitecture(ModelSpec(type(model).__name__, num_classes), module=copy.deepcopy(model))
        self._roles = find_roles(model)
        self._trainable = {name: tensor.shape for name, tensor in model.named_parameters() if tensor.requires_grad}
        self._floating = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self._image_shape, self._num_classes = image_shape, num_classes
        self._protocol, self._share = protocol, share
        self._mean = tuple(mean or (0.0,) * image_shape[0])
        self._std = tuple(std or (1.0,) * image_shape[0])
        self._replayer = replayer
        self._state: State = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._state = from_arrays(arrays)
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        answered = [reply for reply in replies if not reply.has_error()]
        for client, reply in enumerate(sorted(answered, key=lambda reply: reply.metadata.src_node_id)):
            try:
                self.observations.append(self._observe(server_round, client, reply))
            except (KeyError, OverflowError, StopIteration, TypeError, ValueError) as error:
                logger.warning("node %s sent what cannot be read: %r", reply.metadata.src_node_id, error)
        return self.inner.aggregate_train(server_round, replies)

    def _observe(self, server_round: int, client: int, reply: Message) -> Observation:
        sent = from_arrays(next(iter(array_records(reply.content).values())))
        if missing := self._trainable.keys() - sent.keys():
            raise ValueError(f"no {', '.join(sorted(missing))} in the reply")
        if strange := [name for name, shape in self._trainable.items() if sent[name].shape != shape]:
            raise ValueError(f"{', '.join(strange)} of another shape than the model's")
        metrics = next(iter(metric_records(reply.content).values()), None)
        examples = (
            self._protocol.batch_size if metrics is None else metrics.get(NUM_EXAMPLES, self._protocol.batch_size)
        )
        update = Update(
            tensors={name: tensor for name, tensor in sent.items() if name in self._trainable},
            kind=self._share,
            num_examples=int(examples),  # type: ignore[arg-type]
            buffers={name: tensor for name, tensor in sent.items() if name in self._floating},
        )
        return Observation(
            server_round=server_round,
            client=client,
            global_state=self._state,
            update=update,
            protocol=self._protocol,
            architecture=self._architecture,
            roles=self._roles,
            image_shape=self._image_shape,
            mean=self._mean,
            std=self._std,
            num_classes=self._num_classes,
            replayer=self._replayer,
        )
