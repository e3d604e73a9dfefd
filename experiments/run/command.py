"""`fedsim`: a federated run under the eyes of a curious server."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from jaxtyping import Int
from torch import Tensor

from clients.app import build_client_app, with_data
from defenses import Withhold
from experiments.cli.call import console, say_doing
from experiments.cli.logs import log_to
from experiments.cli.places import refuse_used
from experiments.cli.progress import Bars
from experiments.cli.validation import (
    all_train,
    build_strategy,
    check_federated,
    check_history,
    check_observed,
    check_strategy,
    clients_a_round,
    placement,
    replies_a_round,
    takes_gradients,
    worker_counts,
)
from experiments.engine.choice import estimate_run, with_engine
from experiments.engine.content import federated_content, keep_content
from experiments.engine.folders import open_folder
from experiments.engine.reporting import reported
from experiments.engine.scratch import scratch_folder
from experiments.engine.setup import (
    Setup,
    engine,
    make_scheduler,
    make_writer,
    prepare,
)
from experiments.flower.grid import NumberedGrid
from experiments.run.resumed import check_resume
from experiments.run.resuming import check_room, finished, go_back
from fedsim.effects import AddsErrors
from fedsim.memory.kept import give_back
from fedsim.memory.peak import PeakMemory
from fedsim.report.wording import count, percent
from fedsim.settings.commands import RunConfig
from fedsim.settings.schema import parse, plain
from fedsim.simulation import InlineGrid, SimulatedGrid, partition_of
from fedsim.simulation.placement import anywhere, living_nodes
from fedsim.simulation.shipping import absolute
from fedsim.storage.durable import sync_all
from fedsim.storage.run_folder import RunFolder
from fedsim.storage.sealed import SealedStates
from fedsim.tracking import Trackers
from server.app import ServerPlan, build_server_app
from server.attack_queue.failures import AttackFailures
from server.attack_queue.pending import PendingObservations
from server.attack_queue.queue import AttackQueue
from server.attack_queue.scheduling import AttackScheduler, RayAttacks
from server.resume.points import ResumePoint, ResumePoints

RunGrid = SimulatedGrid | NumberedGrid

logger = getLogger(__name__)

SECONDS_BETWEEN_COLLECTIONS = 0.5
"""Of attacks that finished during a round: their workers get the next ones then."""


def run_federated(
    given: RunConfig | Mapping[str, Any],
    root: Path,
    grid_of: Callable[[Setup], RunGrid] | None = None,
    simulated: bool = True,
) -> None:
    """One run, from its settings to the report; with `resume` the rest of one, from its last resume point.

    Args:
        grid_of: makes the Grid once the settings are checked; None: the simulation that they describe.
        simulated: clients have these settings and these images; SuperNodes have their own.

    Raises:
        ConfigError: a setting cannot work; nothing has been started then.
    """
    start = time.perf_counter()
    give_back()
    memory = PeakMemory()
    config = parse(RunConfig, given)
    resumed = config.resume is not None
    check_federated(config)
    check_resume(config, root)
    if resumed and finished(root):
        return
    if not resumed:
        refuse_used(root)
    say_doing("reading the data, building the model")
    strategy = build_strategy(config.strategy)
    check_strategy(strategy, config.num_clients)
    setup = prepare(config, simulated)
    check_observed(config, setup.sums)
    if simulated:
        setup.check_steps()
    if simulated and config.attack:
        observable = [setup.data.client(number) for number in _observable(config, setup)]
        setup.refuse_learned(observable)
        say_doing("looking for copies of attacked images among the server's own")
        setup = setup.attacking(*observable)
    if config.observe.history:
        most = max(setup.data.partition_sizes()[: config.num_clients]) if simulated else None
        check_history(config, setup.sums, most)
    clients = count(clients_a_round(config), "client")
    config = with_engine(config, f"{count(config.num_rounds, 'round')} of {clients}", partial(estimate_run, setup))
    setup = replace(setup, config=config)
    folder = RunFolder(root)
    with folder.locked():
        if not resumed:
            refuse_used(root)
            open_folder(config, root)
        keep_content(folder, federated_content(setup), "resume" if resumed else "run_dir")
        asked = min(config.num_clients, clients_a_round(config) * config.num_rounds)
        check_room(folder, setup.model, config.resume_every_seconds, asked * _kept_bytes(setup) if simulated else 0)
        pending = PendingObservations(folder.resume_points / "pending", root / "observations", setup.recorded)
        point = go_back(folder, pending, config.resume_every_seconds) if resumed else None
        start -= 0.0 if point is None else point.seconds
        trackers = Trackers(config.tracker, root)
        with (
            trackers,
            reported(folder, "federated", start, len(setup.data.test), _commonest_class(setup.data.test.labels)),
            log_to(folder.log),
            Bars(console) as bars,
            scratch_folder(folder, bars, resumable=False) as scratch,
            engine(config, config.num_clients, folder=root),
        ):
            work = f"{count(config.num_clients, 'client')}, {count(config.num_rounds, 'round')}"
            say_doing(f"training: {work}, in {folder.root}")  # who is killed says nothing at the end
            writer = make_writer(config, folder, trackers, setup)
            writer.failures = AttackFailures(_tell)
            scheduler = make_scheduler(config, writer.write, scratch)
            recorded = folder.observations if config.observe.save else None
            queue = AttackQueue(scheduler, writer, pending, recorded, _tell, config.observe.history)
            grid = (grid_of or make_grid)(setup)
            run = _Run(setup, folder, trackers, queue, grid, bars, memory)
            try:
                run.train(strategy, point)
                run.grid.close()
                run.finish_attacks()
                writer.finish()
            finally:
                run.grid.close()
                scheduler.close()
        shutil.rmtree(folder.resume_points, ignore_errors=True)


def _observable(config: RunConfig, setup: Setup) -> list[int]:
    """The clients that may be attacked: of those that train in a round a number stands for the first."""
    if not config.observe.every:
        return []
    chosen, every = config.observe.clients, range(config.num_clients)
    if isinstance(chosen, int) and setup.sums is None and all_train(config):
        return list(every[:chosen])
    return [client for client in every if not isinstance(chosen, list) or client in chosen]


def _kept_bytes(setup: Setup) -> int:
    """What a client keeps from one of its rounds to the next: the errors of its compression, parameters of its own."""
    trained = [parameter for parameter in setup.model.parameters() if parameter.requires_grad]
    errors = any(isinstance(effect, AddsErrors) for effect in setup.defenses.effects())
    kept: list[Tensor] = [*trained] if errors or setup.architecture.finetune.keeps else []
    state = setup.model.state_dict()
    for one in setup.defenses.wrappers:
        if isinstance(one, Withhold) and one.mode == "local":
            kept += [state[name] for name in one.names if name in state]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def _commonest_class(labels: Int[Tensor, "images"]) -> float | None:
    """The accuracy of who always names it."""
    return float(labels.bincount().max()) / len(labels) if len(labels) else None


def make_grid(setup: Setup) -> SimulatedGrid:
    """The configured Grid, with a node for each partition."""
    config, simulation = setup.run_config, setup.config.simulation
    if simulation.engine == "inline":
        make_app = partial(build_client_app, config, setup.data)
        return InlineGrid(
            config.num_clients,
            make_app,
            simulation.threads,
            work_of=_work(setup),
            rules=setup.rules(simulated=True),
        )
    from fedsim.simulation.on_ray import RayGrid

    wanted, workers = placement(config), worker_counts(config, config.num_clients)
    on_cluster = config.ray.address is not None
    shipped = absolute(plain(config)) if on_cluster else config
    room = max((node.room(wanted.clients) for node in living_nodes()), default=1) if on_cluster else workers
    beside = max(1, min(workers, room))
    return RayGrid(
        config.num_clients,
        partial(with_data, build_client_app, setup.data.partitions(), shipped, beside),
        workers=workers,
        threads=simulation.threads,
        request=wanted.clients,
        max_retries=simulation.max_retries,
        work_of=_work(setup),
        place=wanted.client if on_cluster else anywhere,
        rules=setup.rules(simulated=True),
    )


def _work(setup: Setup) -> Callable[[int], float] | None:
    """What a client has to do, in pictures; None where all do the same."""
    client = setup.config.client
    if client.share == "gradient" or client.local_steps is not None:
        return None
    return setup.data.partition_sizes().__getitem__


class _Throttled:
    """Calls on, but not again within so many seconds."""

    def __init__(self, call: Callable[[], object], seconds: float) -> None:
        self._call, self._seconds = call, seconds
        self._next = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._call()
            self._next = time.monotonic() + self._seconds


@dataclass(frozen=True)
class _Run:
    """The parts of a run once its workers are there."""

    setup: Setup
    folder: RunFolder
    trackers: Trackers
    queue: AttackQueue
    grid: RunGrid
    bars: Bars
    memory: PeakMemory

    @property
    def scheduler(self) -> AttackScheduler:
        return self.queue.scheduler

    def train(self, strategy: Any, point: ResumePoint | None) -> None:
        """All rounds, or those after the resume point."""
        config, setup, bars = self.setup.run_config, self.setup, self.bars
        rounds, expected = config.num_rounds, replies_a_round(config)
        replies = {"round": 0}

        def on_reply(_: object) -> None:
            replies["round"] += 1
            bars.set("clients", replies["round"], max(expected, replies["round"]))

        def on_round(server_round: int, metrics: dict[str, Any]) -> None:
            replies["round"] = 0
            self._show_round(server_round, rounds, metrics)

        self.grid.on_reply = on_reply
        if isinstance(self.grid, SimulatedGrid):
            self.grid.on_look = _Throttled(self.scheduler.collect, SECONDS_BETWEEN_COLLECTIONS)
        self._share_the_cluster()
        if config.resume is not None:
            self._take_up(point)
        every = config.resume_every_seconds
        plan = ServerPlan(
            model=setup.model,
            strategy=strategy,
            resting=setup.architecture.finetune.resting(setup.model),
            shares_gradients=takes_gradients(config.strategy),
            rules=setup.rules(simulated=isinstance(self.grid, SimulatedGrid)),
            num_rounds=rounds,
            seed=config.seed,
            folder=self.folder,
            trackers=self.trackers,
            test=setup.data.test,
            normalise=setup.normaliser,
            evaluate_every=config.evaluate_every,
            round_timeout=config.round_timeout,
            checkpoint_every=config.checkpoint_every,
            checkpoint_mark=setup.architecture.redrawn() if config.defense else "",
            observe=config.observe if config.attack or config.observe.save else None,
            sums=setup.sums,
            worker_sums=config.simulation.worker_sums,
            factory=setup.factory(),
            on_observation=self.queue,
            auxiliary=setup.held if setup.wants_auxiliary else None,
            training_mode=config.client.training_mode,
            on_round=on_round,
            gauges=self._backlog,
            client_of=partition_of,
            holders=setup.holders(simulated=isinstance(self.grid, SimulatedGrid)),
            memory=self.memory,
            start=point,
            points=None if every is None else ResumePoints(self._states, float(every), self._settle, _tell),
        )
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        build_server_app(plan)(self.grid, context)

    def finish_attacks(self) -> None:
        """Wait for the attacks; the cores that the clients have left help."""
        config, scheduler = self.setup.run_config, self.scheduler
        if isinstance(scheduler, RayAttacks):
            scheduler.help(worker_counts(config, config.num_clients))
        scheduler.drain(lambda: self.bars.set("attacks", scheduler.finished, scheduler.submitted))
        line = f"attacks {scheduler.finished}/{scheduler.submitted}{self.queue.writer.failures}"
        console.print(line, markup=False) if str(self.queue.writer.failures) else self.bars.say(line)

    def _share_the_cluster(self) -> None:
        """Whoever waits for room says so, and on a cluster clients come first: without them nothing goes on."""
        grid, scheduler = self.grid, self.scheduler
        on_cluster = self.setup.config.ray.address is not None  # a Ray of one's own has room for all workers
        if isinstance(scheduler, RayAttacks):
            scheduler.on_waiting = _tell
        if not isinstance(grid, SimulatedGrid):
            return

        def clients_wait(text: str) -> None:
            _tell(text)
            if on_cluster and isinstance(scheduler, RayAttacks):
                scheduler.give_way()

        grid.on_waiting = clients_wait

    @property
    def _states(self) -> SealedStates:
        return SealedStates(self.folder.resume_points)

    def _backlog(self) -> dict[str, int]:
        """Of attacks, once what has finished is taken."""
        self.scheduler.collect()
        return self.scheduler.backlog()

    def _take_up(self, point: ResumePoint | None) -> None:
        """What attacks had not finished, and what trackers are to forget and to get again."""
        if point is None:
            self.trackers.resume(0)
            self.queue.writer.track_again(-1, 0)
            return
        self.trackers.resume(point.server_round + 1)
        self.queue.writer.track_again(point.server_round, point.tracked)
        self.queue.take_up(point.server_round)

    def _settle(self) -> int:
        """On disk from here on: everything that a resumed run does not compute again; and how many results are."""
        written = self.queue.keep()
        self.trackers.flush()
        sync_all(self.folder.root)
        return written

    def _show_round(self, server_round: int, rounds: int, metrics: dict[str, Any]) -> None:
        scheduler, bars = self.scheduler, self.bars
        note = f"accuracy {percent(metrics['accuracy'])}" if "accuracy" in metrics else None
        bars.set("rounds", server_round, rounds, note)
        bars.set("attacks", scheduler.finished, scheduler.submitted)
        attacks = f"attacks {scheduler.finished}/{scheduler.submitted}"
        if note is not None:
            bars.say(f"round {server_round}/{rounds}  {note}  {attacks}")
        else:
            bars.say_now_and_then(f"round {server_round}/{rounds}  {attacks}", "rounds")
        for failure in metrics["failures"]:
            who = "" if failure["client"] is None else f"client {failure['client']} failed: "
            bars.say(f"round {server_round}: {who}{failure['error']}")


def _tell(text: str) -> None:
    logger.warning("%s", text)
    console.print(text, markup=False)
