"""A server that aggregates exactly as it should, and keeps what each client sent."""

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim.observation import Observation, Replayer
from fedsim.settings.composition import NamedFinetune
from fedsim.update import Kind, LocalProtocol
from server.curious.own_replies import OwnReplies


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
        mean, std: per channel, where clients normalise images in [0, 1]; None: timm's where it is timm's model, else
            none.
        replayer: `fedsim.replay` where clients do nothing but what `protocol` says; without it no result is certified.
        finetune: what clients train, as for `fedsim.observe`; frozen parameters need not be sent.

    Raises:
        ConfigError: the model does not read such images, or has another number of outputs.
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
        self.strategy = strategy
        about = mean, std, replayer, finetune
        self._replies = OwnReplies(model, protocol, image_shape, num_classes, share, *about)
        self.observations: list[Observation] = self._replies.observations
        self._arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._arrays = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._replies.observe(server_round, self._arrays, replies)
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()
