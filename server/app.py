"""The Flower ServerApp: rounds, central evaluation, checkpoints, and the curious eye beside them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import Any, Literal

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError, RunError
from fedsim.ground_truth import GroundTruth
from fedsim.memory.kept import settled
from fedsim.memory.peak import PeakMemory
from fedsim.metrics.accuracy import evaluate, mean_softmax
from fedsim.models.checkpoint import REDRAWN
from fedsim.observation import Observation
from fedsim.observation_factory import ObservationFactory
from fedsim.settings.groups import ObserveSettings
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from fedsim.update import State
from fedsim.wire.records import from_arrays, to_arrays
from fedsim.wire.reply.checks import ReplyRules
from server.curious.federation_replies import FederationReplies, OnObservation
from server.resume.points import ResumePoint, ResumePoints
from server.rounds import Rounds, WorkerSums
from server.screening import Screening
from server.sums.on_workers import is_weighted_mean
from server.sums.summing import Sums
from server.timing import Stopwatch, timings

logger = getLogger(__name__)

Normalise = Callable[[Tensor], Tensor]
OnRound = Callable[[int, dict[str, Any]], None]
Gauges = Callable[[], dict[str, int]]


@dataclass
class ServerPlan:
    """Everything the server runs on.

    Attributes:
        strategy: any Flower strategy that averages what clients share.
        resting: parameters that are not trained, as clients have them: no message carries these.
        shares_gradients: the strategy takes gradients itself (FedSGD), not whole weights.
        rules: what every honest reply is like.
        evaluate_every: rounds between central evaluations; the last round is always evaluated.
        checkpoint_mark: what checkpoints carry: `Architecture.redrawn` of the model.
        on_round: called with its metrics after each round, and after its resume point where there is one.
        gauges: asked after each round for what its timings are to hold besides, such as attacks that wait.
        client_of: a client's number from its node id.
        observe: None for a server that does not look.
        sums: secure aggregation: how clients are summed before the server looks; None: it sees each client.
        worker_sums: clients whose updates a worker adds up before they travel, where the strategy takes a weighted
            mean, `sums` has no groups and the Grid knows how: a number, auto, or 0 for none.
        holders: clients that hold one image, at most; None: not known.
        memory: of this process since the run began.
        start: the round after which the run goes on; None: it begins.
        points: where it leaves what it could go on from; None: nowhere.
    """

    model: nn.Module
    strategy: Strategy
    resting: State
    shares_gradients: bool
    rules: ReplyRules
    num_rounds: int
    seed: int
    folder: RunFolder
    trackers: Trackers
    test: ImageSet
    normalise: Normalise
    evaluate_every: int = 1
    round_timeout: float = 3600.0
    checkpoint_every: int = 0
    checkpoint_mark: str = ""
    observe: ObserveSettings | None = None
    sums: Sums | None = None
    worker_sums: int | Literal["auto"] = 0
    factory: ObservationFactory | None = None
    on_observation: OnObservation | None = None
    auxiliary: ImageSet | None = None
    training_mode: bool = True
    on_round: OnRound = field(default=lambda server_round, metrics: None)
    gauges: Gauges = dict
    client_of: Callable[[int], int] = int
    holders: int | None = None
    memory: PeakMemory = field(default_factory=PeakMemory)
    start: ResumePoint | None = None
    points: ResumePoints | None = None


def build_rounds(plan: ServerPlan) -> Rounds:
    """The configured strategy, and what the plan wants around it."""
    attacks, observer, worker_sums = Stopwatch(), None, None
    if plan.observe is not None and plan.factory is not None and plan.on_observation is not None:
        probs = _AuxiliaryProbs(plan) if plan.auxiliary is not None else None
        on_observation = _timed(plan.on_observation, attacks)
        observer = FederationReplies(plan.factory, plan.observe, on_observation, probs, plan.sums)
    # A worker's sum may hold a client that has to be left out: what secure aggregation sums apart travels apart.
    apart = plan.sums is not None and plan.sums.clients is not None
    if plan.worker_sums and is_weighted_mean(plan.strategy) and not apart:
        worker_sums = WorkerSums(
            partial(_observed_nodes, plan), None if plan.worker_sums == "auto" else plan.worker_sums
        )
    return Rounds(
        plan.strategy,
        seed=plan.seed,
        whole_weights=not plan.shares_gradients,
        screening=Screening(plan.rules, plan.client_of),
        observer=observer,
        sums=plan.sums,
        worker_sums=worker_sums,
        client_of=plan.client_of,
        attacks=attacks,
        holders=plan.holders,
    )


def _timed(on_observation: OnObservation, watch: Stopwatch) -> OnObservation:
    def timed(observation: Observation, truth: GroundTruth | None) -> None:
        with watch.running():
            on_observation(observation, truth)

    return timed


def build_server_app(plan: ServerPlan) -> ServerApp:
    """A ServerApp that runs the plan over whatever Grid it is given."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        rounds = build_rounds(plan)
        run_rounds(plan, rounds, grid)
        if rounds.aggregated == 0:
            reason = (
                f"the strategy aggregated nothing in {plan.num_rounds} rounds: every client failed or it needs more"
            )
            raise RunError(f"{reason}; see {plan.folder.log}")

    return app


def run_rounds(plan: ServerPlan, rounds: Rounds, grid: Grid) -> None:
    """All rounds that are left."""
    start = plan.start
    after_round = _AfterRound(plan, rounds, start.seconds if start is not None else 0.0)
    if start is None:
        arrays = to_arrays({n: t for n, t in plan.model.state_dict().items() if n not in plan.resting})
        plan.on_round(0, after_round(0, arrays))
    else:
        arrays = start.arrays
        try:
            rounds.load_state_dict(start.strategy)
        except ValueError as error:
            raise ConfigError("resume", plan.folder.root, f"a run of the same fedsim: {error}") from error
        client_states(grid).update(start.clients)
    with settled():
        for server_round in range(1 if start is None else start.server_round + 1, plan.num_rounds + 1):
            logger.info("round %d of %d", server_round, plan.num_rounds)
            arrays = rounds.train(server_round, arrays, grid, plan.round_timeout)
            rounds.evaluate(server_round, arrays, grid, plan.round_timeout)
            metrics = after_round(server_round, arrays)
            if plan.points is not None:
                make = partial(_point, server_round, arrays, rounds, grid, after_round)
                plan.points.after_round(server_round == plan.num_rounds, make)
            plan.on_round(server_round, metrics)  # a round that is reported can be gone on from


def client_states(grid: Grid) -> dict[int, RecordDict]:
    """What clients keep between rounds, by node id, where the Grid holds it; SuperNodes hold it themselves."""
    states: dict[int, RecordDict] = getattr(grid, "states", {})
    return states


def _point(
    server_round: int, arrays: ArrayRecord, rounds: Rounds, grid: Grid, after_round: "_AfterRound"
) -> ResumePoint:
    return ResumePoint(server_round, arrays, rounds.state_dict(), client_states(grid), after_round.seconds)


def _observed_nodes(plan: ServerPlan, server_round: int, nodes: list[int]) -> set[int]:
    """Of the nodes that take part, those whose updates the server wants to see."""
    if plan.observe is None or not plan.observe.wants_round(server_round):
        return set()
    if plan.sums is not None:
        return set(nodes)  # the sums that the server sees are made of these
    chosen = plan.observe.choose(plan.client_of(node) for node in nodes)
    return {node for node in nodes if plan.client_of(node) in chosen}


class _AuxiliaryProbs:
    """p̂ over pictures that no client holds, under a given global state."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan

    def __call__(self, state: State) -> Tensor | None:
        plan = self._plan
        if plan.auxiliary is None or len(plan.auxiliary) == 0:
            return None
        plan.model.load_state_dict({**plan.resting, **state})
        with seeded_globals(plan.seed, "auxiliary"):
            return mean_softmax(plan.model, plan.auxiliary, plan.normalise, plan.training_mode)


class _AfterRound:
    """Before the first round and after each: evaluate, log, keep a checkpoint.

    Args:
        seconds: that the run took before it was interrupted.
    """

    def __init__(self, plan: ServerPlan, rounds: Rounds, seconds: float) -> None:
        self._plan = plan
        self._rounds = rounds
        self._start = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between its parts."""
        return time.perf_counter() - self._start

    def __call__(self, server_round: int, arrays: ArrayRecord) -> dict[str, Any]:
        """Gives the round's metrics, failures among them."""
        plan = self._plan
        last = server_round == plan.num_rounds
        record = self._rounds.take()
        metrics: dict[str, Any] = {**record.metrics}
        before = time.perf_counter()
        evaluates = last or (plan.evaluate_every > 0 and server_round % plan.evaluate_every == 0)
        keeps = last or (plan.checkpoint_every > 0 and server_round % plan.checkpoint_every == 0)
        state = {**plan.resting, **from_arrays(arrays)} if evaluates or keeps else {}
        if evaluates:
            plan.model.load_state_dict(state)
            scores = evaluate(plan.model, plan.test, plan.normalise)
            metrics |= {"accuracy": scores.accuracy, "loss": scores.loss}
        seconds = {**record.seconds, "evaluate": time.perf_counter() - before}
        if keeps:
            note = (REDRAWN, plan.checkpoint_mark) if plan.checkpoint_mark else None
            plan.folder.save_checkpoint(state, server_round, note=note)
        failures = [{"client": f["client"], "error": f["error"]} for f in record.failures]
        plan.folder.append("metrics", {"round": server_round, **metrics, "failures": failures})
        with self._rounds.attacks.running():
            gauges = plan.gauges()
        seconds["attacks"] = seconds.get("attacks", 0.0) + self._rounds.attacks.take()
        memory, clients = plan.memory.read(), record.metrics.get("clients")
        row = timings(server_round, self.seconds, seconds, record.traffic, memory, clients, gauges)
        plan.folder.append("timings", row)
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        measured = {f"timings/{name}": float(value) for name, value in row.items() if name != "round"}
        plan.trackers.log(server_round, numbers | measured)
        return {**metrics, "failures": failures}
