"""The Flower ServerApp: rounds, central evaluation, checkpoints, and the curious eye beside them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals
from fedsim.errors import RunError
from fedsim.evaluation import evaluate, mean_softmax
from fedsim.observing import ObservationFactory
from fedsim.records import from_arrays, to_arrays
from fedsim.tracking import RunFolder, Trackers
from fedsim.update import State
from server.completion import CompleteUpdates
from server.honest_but_curious import HonestButCurious, OnObservation
from server.observing import ObservePolicy
from server.recording import RoundRecorder
from server.sampling import SeededSampling
from server.silence import OmitSilent
from server.summing import Sums

logger = getLogger(__name__)

Normalise = Callable[[Tensor], Tensor]
OnRound = Callable[[int, dict[str, Any]], None]


@dataclass
class ServerPlan:
    """Everything the server runs on.

    Attributes:
        strategy: any Flower strategy that averages what clients share.
        shares_gradients: the strategy takes gradients itself (FedSGD), not whole weights.
        evaluate_every: rounds between central evaluations; the last round is always evaluated.
        on_round: called after each round with its metrics.
        client_of: a client's number from its node id.
        observe: None for a server that does not look.
        sums: secure aggregation: how clients are summed before the server looks; None: it sees each client.
    """

    model: nn.Module
    strategy: Strategy
    shares_gradients: bool
    num_rounds: int
    seed: int
    folder: RunFolder
    trackers: Trackers
    test: ImageSet
    normalise: Normalise
    evaluate_every: int = 1
    round_timeout: float = 3600.0
    checkpoint_every: int = 0
    observe: ObservePolicy | None = None
    sums: Sums | None = None
    factory: ObservationFactory | None = None
    on_observation: OnObservation | None = None
    auxiliary: ImageSet | None = None
    training_mode: bool = True
    on_round: OnRound = field(default=lambda server_round, metrics: None)
    client_of: Callable[[int], int] = int


def build_strategy(plan: ServerPlan) -> RoundRecorder:
    """The configured strategy inside its wrappers, innermost first: completion, silence, observer, order, record."""
    strategy: Strategy = OmitSilent(plan.strategy if plan.shares_gradients else CompleteUpdates(plan.strategy))
    if plan.observe is not None and plan.factory is not None and plan.on_observation is not None:
        probs = _AuxiliaryProbs(plan) if plan.auxiliary is not None else None
        strategy = HonestButCurious(strategy, plan.factory, plan.observe, plan.on_observation, probs, plan.sums)
    return RoundRecorder(SeededSampling(strategy, plan.seed), plan.client_of)


def build_server_app(plan: ServerPlan) -> ServerApp:
    """A ServerApp that runs the plan over whatever Grid it is given."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = build_strategy(plan)
        after_round = _AfterRound(plan, strategy)
        strategy.start(
            grid,
            to_arrays(plan.model.state_dict()),
            num_rounds=plan.num_rounds,
            timeout=plan.round_timeout,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
            evaluate_fn=after_round,
        )
        if strategy.aggregated == 0:
            reason = (
                f"the strategy aggregated nothing in {plan.num_rounds} rounds: every client failed or it needs more"
            )
            raise RunError(f"{reason}; see {plan.folder.log}")

    return app


class _AuxiliaryProbs:
    """p̂ over pictures that no client holds, under a given global state."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan

    def __call__(self, state: State) -> Tensor | None:
        plan = self._plan
        if plan.auxiliary is None or len(plan.auxiliary) == 0:
            return None
        plan.model.load_state_dict(state)
        with seeded_globals(plan.seed, "auxiliary"):
            return mean_softmax(plan.model, plan.auxiliary, plan.normalise, plan.training_mode)


class _AfterRound:
    """Flower calls this before the first round and after each: evaluate, log, keep a checkpoint."""

    def __init__(self, plan: ServerPlan, recorder: RoundRecorder) -> None:
        self._plan = plan
        self._recorder = recorder
        self._start = time.perf_counter()

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        plan = self._plan
        last = server_round == plan.num_rounds
        record = self._recorder.take()
        metrics: dict[str, Any] = {**record.metrics}
        before = time.perf_counter()
        if last or (plan.evaluate_every > 0 and server_round % plan.evaluate_every == 0):
            plan.model.load_state_dict(from_arrays(arrays))
            scores = evaluate(plan.model, plan.test, plan.normalise)
            metrics |= {"accuracy": scores.accuracy, "loss": scores.loss}
        seconds = {**record.seconds, "evaluate": time.perf_counter() - before}
        if last or (plan.checkpoint_every > 0 and server_round % plan.checkpoint_every == 0):
            plan.folder.save_checkpoint(from_arrays(arrays), server_round)
        failures = [{"client": f["client"], "error": f["error"]} for f in record.failures]
        plan.folder.append("metrics", {"round": server_round, **metrics, "failures": failures})
        plan.folder.append(
            "timings",
            {
                "round": server_round,
                "seconds": sum(seconds.values()),
                "since_start": time.perf_counter() - self._start,
                **seconds,
            },
        )
        plan.trackers.log(server_round, {n: float(v) for n, v in metrics.items() if isinstance(v, int | float)})
        plan.on_round(server_round, {**metrics, "failures": failures})
        scalars: dict[str, Any] = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        return MetricRecord(scalars) if scalars else None
