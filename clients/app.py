"""The Flower ClientApp: train, evaluate, share."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from clients.local_model import LocalModel
from clients.replay import replay
from clients.training import LocalResult, Rate, check_steps, train_locally
from defenses.base import ClientRound, DefenseChain
from defenses.compose import build_chain
from fedsim.data import FederatedData, ImageSet
from fedsim.data.federated import CACHE_BYTES
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.metrics.accuracy import evaluate
from fedsim.models import Architecture, Normaliser, OwnArchitecture, architecture_seed
from fedsim.models.buffers import Buffers
from fedsim.models.finetune import Finetune
from fedsim.observation import Observation
from fedsim.observation_factory import ObservationFactory
from fedsim.settings.commands import LocalConfig, config_of
from fedsim.settings.composition import build_data, build_finetune, build_spec, image_side
from fedsim.update import LocalProtocol, Shared, State, Update
from fedsim.wire.blocks import copied
from fedsim.wire.contents import array_records, config_records
from fedsim.wire.records import (
    ARRAYS,
    AUDITED,
    CONFIG,
    METRICS,
    NUM_EXAMPLES,
    SERVER_ROUND,
    SKIPPED_STEPS,
    TRAIN_LOSS,
    Contribution,
    DecodedState,
    from_arrays,
    to_arrays,
    to_reply,
)

AnyConfig = LocalConfig | Mapping[str, Any]
"""Settings, or as a message to another process holds them."""

MEMORY = "fedsim.memory"
"""Where a client's context keeps what its defenses remember between rounds."""

OWN = "fedsim.own"
"""And where the parameters that it trains for itself alone (`Finetune.personalise`)."""


class ClientRuntime:
    """What a worker keeps between clients: the data, the model and the defenses, built on first use.

    Args:
        data: pictures that this process holds already; None loads those of the configuration.
        given: a module of the user's own, with its defenses, in place of `cfg.model` and `cfg.defense`.
    """

    def __init__(
        self, config: AnyConfig, data: FederatedData | None = None, given: OwnArchitecture | None = None
    ) -> None:
        self.config = config_of(config)
        self.settings = self.config.client
        self.seed = self.config.seed
        self._data = data
        self._given = given
        self._sent: tuple[tuple[LocalProtocol, int, int], State] | None = None

    @cached_property
    def data(self) -> FederatedData:
        return self._data or build_data(self.config)

    @cached_property
    def defenses(self) -> DefenseChain:
        return self._chain()

    @cached_property
    def model(self) -> nn.Module:
        return self._personal[0]

    @property
    def own(self) -> State:
        """The parameters that a client trains and keeps, by name, as every client begins with them."""
        return self._personal[1]

    @cached_property
    def _personal(self) -> tuple[nn.Module, State, Buffers]:
        """The model, what each client keeps of its own, and the buffers, as they were built."""
        architecture = self._architecture(self.defenses)
        model = architecture.build()
        names = architecture.finetune.personalise(model, architecture.seed)
        model = model.to(self.device)
        own = {name: model.get_parameter(name).detach().clone() for name in sorted(names)}
        return model, own, Buffers(model)

    def _chain(self) -> DefenseChain:
        """The defenses as nobody has used them."""
        if self._given is None:
            return build_chain(self.config.hooks)
        (chain,) = self._given.wrappers
        assert isinstance(chain, DefenseChain)
        return copy.deepcopy(chain)

    def _architecture(self, defenses: DefenseChain) -> Architecture:
        if self._given is not None:
            return replace(self._given, wrappers=(defenses,))
        spec = build_spec(self.config.model, self.data)
        return Architecture(spec, (defenses,), architecture_seed(self.config.seed), self._finetune)

    @cached_property
    def _local(self) -> LocalModel:
        return LocalModel(self.model, self.settings.compile)

    @cached_property
    def _tensors(self) -> State:
        """The model's own memory, by name; a walk through its modules for each client would cost more than loading."""
        return self.model.state_dict(keep_vars=True)

    @cached_property
    def _resting(self) -> frozenset[str]:
        """Parameters that the state may lack: they are as they were built."""
        return frozenset(self._finetune.resting(self.model))

    @property
    def _finetune(self) -> Finetune:
        return build_finetune(self.config.finetune) if self._given is None else self._given.finetune

    @cached_property
    def device(self) -> torch.device:
        return resolve_device(self.settings.device)

    @cached_property
    def normaliser(self) -> Normaliser:
        return Normaliser(self.model)

    @cached_property
    def onlooker(self) -> ObservationFactory:
        """The server's view of this client. Its defenses are not those at work: an attack builds models with them."""
        described = [{"name": name, **settings} for name, settings in self.config.hooks.items()]
        architecture = self._architecture(self._chain())
        return ObservationFactory(architecture, self.model, self._image_shape, described, replay)

    @property
    def _image_shape(self) -> tuple[int, int, int]:
        if self._given is not None:
            return self._given.image_shape
        side = image_side(self.config.model)
        return 3, side, side

    def load(self, state: State, own: State | None = None) -> None:
        """Put the global state into the model, in place, and what the client has kept of its own.

        Buffers that no state holds are as they were built: nothing passes from one client to the next.

        Raises:
            KeyError: the state lacks a tensor of this model's.
        """
        self._personal[2].restore()
        state = {**state, **(own or self.own)}
        names = [name for name in self._tensors if name in state or name not in self._resting]
        with torch.no_grad():
            torch._foreach_copy_([self._tensors[name] for name in names], [state[name] for name in names])

    def kept(self) -> State:
        """What the client whose turn ends keeps of its own."""
        return copied({name: self._tensors[name] for name in self.own})

    def train(
        self,
        pictures: ImageSet,
        client: int,
        server_round: int,
        proximal_mu: float = 0.0,
        audit: bool = False,
        memory: State | None = None,
        changes: bool = True,
    ) -> LocalResult:
        """Train the loaded model on one client's pictures; draws depend on (seed, round, client) alone.

        Args:
            memory: what the defenses kept on this client from its earlier rounds.
            changes: False leaves out what was added to the weights, where `shares_trained`.
        """
        self._sent, observe = None, partial(_observed, ref(self))
        this_round = ClientRound(server_round, len(pictures), dict(memory or {}), self.model, pictures, observe)
        self.defenses.begin(this_round)
        rng = torch_generator(self.seed, "client", server_round, client)
        defense_rng = torch_generator(self.seed, "client-defense", server_round, client) if self._defended else rng
        with seeded_globals(self.seed, "model-noise", server_round, client):
            result = train_locally(
                self._local,
                pictures,
                self.settings,
                self.defenses,
                self.normaliser,
                rng,
                defense_rng,
                proximal_mu,
                audit,
                self._rate(server_round),
                changes or not self.shares_trained,
            )
        if not self.own:
            return result
        apart = tuple(name for name in result.protocol.undecayed if name not in self.own)
        shared = {name: one for name, one in result.tensors.items() if name not in self.own}
        return replace(result, tensors=shared, protocol=replace(result.protocol, undecayed=apart))

    @property
    def _defended(self) -> bool:
        """Whether anything may draw: without defenses no generator is seeded for them."""
        return bool(self.defenses.defenses)

    @cached_property
    def shares_trained(self) -> bool:
        """Whole weights as they were trained: no defense acts on what was added to them."""
        return self.settings.share == "weights" and not self.defenses.changes_updates

    def _rate(self, server_round: int) -> Rate | None:
        schedule = self.settings.schedule
        if schedule.constant:
            return None
        rounds = getattr(self.config, "num_rounds", 1)
        return lambda step, steps: schedule.factor(step, steps, max(1, server_round), rounds)

    def defended(self, result: LocalResult, num_examples: int, client: int, server_round: int) -> Update:
        """The client's gradient or change of the weights after its defenses; draws depend on (seed, round, client)."""
        rng = torch_generator(self.seed, "defense", server_round, client)
        return self.defenses.transform_update(result.as_update(self.settings.share, num_examples), rng)

    def share(
        self, result: LocalResult, state: State, num_examples: int, client: int, server_round: int
    ) -> Contribution:
        """What leaves the client: its gradient or delta after the defenses, or weights made from it.

        Defenses act on the change, never on whole weights. A tensor that they leave alone is sent as it
        was trained, so that the undefended run and the identity setting share the same bits.
        """
        whose = result.protocol, client, server_round
        if self.shares_trained:
            trained = self._local.trained
            if self.own:
                trained = {name: tensor for name, tensor in trained.items() if name not in self.own}
            update = Update(copied(trained, self._local.alike), "weights", num_examples, buffers=result.buffers)
            if not self._defended:
                return Contribution(update, *whose, truth=result.truth)
            rng = torch_generator(self.seed, "defense", server_round, client)
            return Contribution(self.defenses.transform_update(update, rng), *whose, truth=result.truth)
        self._sent = whose, state
        update = self.defended(result, num_examples, client, server_round)
        if self.settings.share == "weights":
            weights: State = {}
            for name, delta in update.tensors.items():
                untouched = delta is result.tensors[name] or torch.equal(delta, result.tensors[name])
                weights[name] = self._tensors[name].detach().cpu().clone() if untouched else state[name] + delta
            update = replace(update, tensors=weights, kind="weights")
        return Contribution(update, *whose, truth=result.truth)

    def answer(self, images: ImageSet, state: State, client: int, server_round: int = 0) -> Contribution:
        """What a client with these images shares of that state, and what its model saw."""
        self.load(state)
        result = self.train(images, client, server_round, audit=True)
        return self.share(result, state, len(images), client, server_round)

    def observe(self, update: Update) -> Observation:
        """What the server would know of an update of the turn at hand.

        Raises:
            RuntimeError: training is not over yet.
        """
        if self._sent is None:
            raise RuntimeError("an update is observed once training is over: in transform_update")
        whose, state = self._sent
        return self.onlooker.make(Shared(update, *whose), state)


def _observed(runtime: "ReferenceType[ClientRuntime]", update: Update) -> Observation:
    """By a defense that its runtime holds: a cycle would keep the model until Python looks for cycles."""
    held = runtime()
    assert held is not None
    return held.observe(update)


def resolve_device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def build_client_app(config: AnyConfig, data: FederatedData | None = None) -> ClientApp:
    """A ClientApp for this configuration; the Grid that carries it is not its business.

    Args:
        data: pictures that this process holds already; None loads them on first use.
    """
    app = ClientApp()
    runtime = ClientRuntime(config, data)
    decoded = DecodedState()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        state, instructions = _open(message, decoded)
        server_round = int(instructions.get(SERVER_ROUND, 0))  # type: ignore[arg-type]
        images = runtime.data.client(partition_id)
        check_steps(runtime.settings, len(images))
        runtime.load(state, _kept(context, OWN))
        proximal_mu = float(instructions.get("proximal-mu", 0.0))  # type: ignore[arg-type]
        # Asked for by the operator of the simulation, and only of clients that the server observes.
        observed: list[int] = instructions.get(AUDITED, [])  # type: ignore[assignment]
        audit = runtime.config.audit is True and partition_id in observed
        memory = _kept(context, MEMORY)
        result = runtime.train(images, partition_id, server_round, proximal_mu, audit, memory, changes=False)
        num_examples = result.protocol.batch_size if runtime.settings.share == "gradient" else len(images)
        sent = runtime.share(result, state, num_examples, partition_id, server_round)
        metrics = {TRAIN_LOSS: result.loss, **runtime.defenses.measurements()}
        if runtime.settings.precision == "float16":
            metrics[SKIPPED_STEPS] = float(result.skipped)
        if kept := runtime.defenses.memory():
            context.state[MEMORY] = to_arrays(kept)
        if own := runtime.kept():
            context.state[OWN] = to_arrays(own)
        return Message(to_reply(replace(sent, metrics=metrics)), reply_to=message)

    @app.evaluate()
    def evaluate_locally(message: Message, context: Context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        state, instructions = _open(message, decoded)
        runtime.load(state, _kept(context, OWN))
        images = runtime.data.client(partition_id)
        server_round = int(instructions.get(SERVER_ROUND, 0))  # type: ignore[arg-type]
        runtime.defenses.begin(ClientRound(server_round, len(images), _kept(context, MEMORY), runtime.model, images))
        scores = evaluate(runtime.model, images, runtime.normaliser)
        record: dict[str, Any] = {NUM_EXAMPLES: len(images), "loss": scores.loss, "accuracy": scores.accuracy}
        return Message(RecordDict({METRICS: MetricRecord(record)}), reply_to=message)

    return app


def with_data(
    build: Callable[[AnyConfig, FederatedData], ClientApp],
    divided: Sequence[list[int]],
    config: AnyConfig,
    beside: int,
) -> ClientApp:
    """A ClientApp with its data loaded: a worker that lacks them fails as it starts, not in a round.

    Args:
        divided: `FederatedData.partitions` of the process that starts the workers.
        beside: workers on a machine.
    """
    return build(config, build_data(config, divided, cache_bytes(beside)))


def cache_bytes(beside: int) -> int:
    """Of decoded pictures that one of so many workers keeps: a quarter of a machine's memory is for all of them."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(CACHE_BYTES, memory // 4 // max(1, beside))


def _kept(context: Context, name: str) -> State:
    record = context.state.get(name)
    return from_arrays(record) if isinstance(record, ArrayRecord) else {}


def _open(message: Message, decoded: DecodedState) -> tuple[State, ConfigRecord]:
    content = message.content
    return decoded.get(array_records(content)[ARRAYS]), config_records(content).get(CONFIG, ConfigRecord())
