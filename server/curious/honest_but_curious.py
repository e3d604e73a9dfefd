"""A server that aggregates exactly as it should, and keeps what each client sent."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim.models import own_architecture
from fedsim.observation import Observation, Replayer
from fedsim.observation_factory import ObservationFactory
from fedsim.settings.composition import NamedFinetune, finetune_of
from fedsim.update import Kind, LocalProtocol, Shared, Update, check_protocol
from fedsim.wire.contents import array_records, metric_records
from fedsim.wire.records import NUM_EXAMPLES, from_arrays

logger = getLogger(__name__)


class HonestButCurious(Strategy):
    """Wraps any Flower strategy, which gets the replies that it would have got without: same weights, to the bit.

    What a server knows of its own app is given here; clients send Flower's usual reply, one ArrayRecord named as the
    model's state and one MetricRecord.

    Args:
        strategy: the app's own.
        model: the app's own, in any state; it reads [B, *image_shape].
        protocol: how clients train, which a server prescribes.
        image_shape: (channels, height, width); None asks a model of timm's.
        share: what clients send: whole `weights` after training, a `delta` of them, or a `gradient`.
        mean, std: per channel, where clients normalise images in [0, 1]; None: those that `timm.create_model` gave
            the model, else none.
        replayer: `fedsim.replay` where clients do nothing but what `protocol` says; without it no result is certified.
        finetune: what clients train, as for `fedsim.observe`; frozen parameters need not be sent.

    Attributes:
        observations: one for each reply that could be read, round by round, in the order of node ids: in that order
            nodes are numbered from 0 when they first answer, and each keeps its number.

    Raises:
        ConfigError: the model does not read such images, or has another number of outputs, or no client can train by
            this protocol.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        protocol: LocalProtocol,
        image_shape: Sequence[int] | None = None,
        num_classes: int | None = None,
        share: Kind = "weights",
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        replayer: Replayer | None = None,
        finetune: NamedFinetune = "full",
    ) -> None:
        check_protocol(protocol, share)
        self.strategy, self._protocol, self._share = strategy, protocol, share
        self.observations: list[Observation] = []
        own = own_architecture(model, image_shape, num_classes, mean, std)
        architecture = replace(own, finetune=finetune_of(finetune))
        module = architecture.build()
        kept = module.state_dict(keep_vars=True)
        self._resting = {name: tensor.detach().clone() for name, tensor in kept.items() if not tensor.requires_grad}
        self._factory = ObservationFactory(architecture, module, architecture.image_shape, replayer=replayer)
        self._trainable = {name: tensor.shape for name, tensor in module.named_parameters() if tensor.requires_grad}
        self._floating = {name for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        self._arrays = ArrayRecord()
        self._clients: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._arrays = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.observe(server_round, self._arrays, replies)
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def observe(self, server_round: int, arrays: ArrayRecord, replies: list[Message]) -> None:
        state = {**self._resting, **from_arrays(arrays)}  # an app may send what is trained alone
        answered = [reply for reply in replies if not reply.has_error()]
        for reply in sorted(answered, key=lambda reply: reply.metadata.src_node_id):
            node = reply.metadata.src_node_id
            client = self._clients.setdefault(node, len(self._clients))
            try:
                update = self._read(reply)
            except (KeyError, OverflowError, StopIteration, TypeError, ValueError) as error:
                logger.warning("node %s sent what cannot be read: %r", node, error)
                continue
            self.observations.append(self._factory.make(Shared(update, self._protocol, client, server_round), state))

    def _read(self, reply: Message) -> Update:
        sent = from_arrays(next(iter(array_records(reply.content).values())))
        if missing := self._trainable.keys() - sent.keys():
            raise ValueError(f"no {', '.join(sorted(missing))} in the reply")
        if strange := [name for name, shape in self._trainable.items() if sent[name].shape != shape]:
            raise ValueError(f"{', '.join(strange)} of another shape than the model's")
        metrics = next(iter(metric_records(reply.content).values()), None)
        examples = (
            self._protocol.batch_size if metrics is None else metrics.get(NUM_EXAMPLES, self._protocol.batch_size)
        )
        return Update(
            tensors={name: tensor for name, tensor in sent.items() if name in self._trainable},
            kind=self._share,
            num_examples=int(examples),  # type: ignore[arg-type]
            buffers={name: tensor for name, tensor in sent.items() if name in self._floating},
        )
