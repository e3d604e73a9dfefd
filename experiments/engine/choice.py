"""What `simulation=auto` stands for: this process, or Ray where a setting needs it or where it should end sooner.

The bits of results are the same. Nothing is timed: the same settings on as many cores are decided alike.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from experiments.cli.call import console
from experiments.cli.machine import cores
from experiments.cli.validation import clients_a_round, worker_counts
from experiments.engine.ray_only import needs_ray
from experiments.engine.setup import Setup
from fedsim.models.buffers import Buffers
from fedsim.settings.commands import AuditConfig, JobConfig, RunConfig
from fedsim.settings.composition import image_side
from fedsim.settings.groups import Device, Engine

Job = TypeVar("Job", bound=JobConfig)

RAY_SECONDS = 12.0
"""Until Ray has started, and a worker has imported what it needs."""
MESSAGE_SECONDS = 0.003
"""What a client's turn takes longer on Ray than in this process."""
FLOPS = 7e10
"""Of one core, a second."""
STEP_SECONDS = 0.004
"""Of Python in one training step, however small the model."""
CLOSED_FORM = 2.0
"""Training steps that a closed form and its certificate take."""
SEARCH = 3.0
"""Training steps that one step of a search takes."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, less what both ways take.

    Attributes:
        inline: in this process.
        on_ray: on Ray's workers, until all have ended.
        workers: how many those are.
    """

    inline: float
    on_ray: float
    workers: int


def with_engine(config: Job, work: str, estimate: Callable[[], Estimate] | None = None) -> Job:
    """The settings with `auto` replaced by its choice, which is printed where no engine was named.

    Args:
        work: what is to be done, for people: `16 updates`.
        estimate: asked where neither settings nor the machine decide; None where Ray would have one worker.
    """
    if config.simulation.engine != "auto":
        return on_engine(config, config.simulation.engine)
    engine, words = _choice(config, work, estimate)
    console.print(words, markup=False)
    return on_engine(config, engine)


def on_engine(config: Job, engine: Engine) -> Job:
    """The settings with the engine that `auto` was found to stand for, or that was named, and where clients compute."""
    simulation = config.simulation
    device = device_on(engine, config.client.device, simulation.num_gpus, named=simulation.engine != "auto")
    if (engine, device) == (simulation.engine, config.client.device):
        return config
    client = replace(config.client, device=device)
    return replace(config, client=client, simulation=replace(simulation, engine=engine))


def device_on(engine: str, device: Device, num_gpus: float, named: bool) -> Device:
    """`cpu` or `cuda`: where clients compute on this engine. As recorded, it is the same on any machine.

    Ray hides no GPU from workers that asked for none; those that asked for one have it.

    Args:
        named: the engine, by the settings; what `auto` chooses decides nothing, and so gives no client a GPU.
    """
    if device != "auto":
        return device
    return "cuda" if (num_gpus if engine == "ray" else named and torch.cuda.is_available()) else "cpu"


def _choice(config: JobConfig, work: str, estimate: Callable[[], Estimate] | None) -> tuple[Engine, str]:
    if (setting := needs_ray(config)) is not None:
        return "ray", f"on Ray, as {setting} asks: {work}"
    if config.client.device == "cuda":
        return "inline", f"in this process, which has the GPU: {work}; simulation.num_gpus shares it between workers"
    if cores() == 1:
        return "inline", f"in this process, on one core: {work}"
    seconds = None if estimate is None else estimate()
    if seconds is None or seconds.inline <= seconds.on_ray:
        return "inline", f"in this process: {work}; simulation=ray uses workers"
    return "ray", f"on {seconds.workers} workers of Ray: {work}; simulation=inline stays in this process"


def estimate_audit(setup: Setup, groups: int) -> Estimate:
    """Seconds of an audit of so many groups of `audit.victims` updates each."""
    config = setup.config
    assert isinstance(config, AuditConfig)
    client, audit = config.client, config.audit
    steps = 1 if client.share == "gradient" else client.local_steps or client.local_epochs
    step = _step_seconds(setup, audit.batch_size)
    one = audit.victims * step * (steps + _attack_steps(setup))
    workers = _at_once(config, groups, attackers=False)  # who computed an update attacks it
    return Estimate(groups * one, RAY_SECONDS + ceil(groups / workers) * one, workers)


def estimate_run(setup: Setup) -> Estimate:
    """Seconds of all rounds and their attacks, on workers of their own beside those of the clients."""
    config = setup.config
    assert isinstance(config, RunConfig)
    client, observe, rounds = config.client, config.observe, config.num_rounds
    a_round = clients_a_round(config)
    images = max(1, len(setup.data.train) // config.num_clients)
    batch = min(client.batch_size, images)
    steps = client.local_steps or client.local_epochs * ceil(images / batch)
    step = _step_seconds(setup, batch)
    turns = rounds * a_round
    training = turns * step * (1 if client.share == "gradient" else steps)
    observed_rounds = 1 + rounds // observe.every if observe.every else 0
    observed = observed_rounds * _observed_clients(observe.clients, a_round)
    attack = step * _attack_steps(setup)
    inline, workers = training + observed * attack, _at_once(config, a_round)
    shared = max(training / workers, inline / min(cores(), workers + 1), attack if observed else 0.0)
    return Estimate(inline, RAY_SECONDS + turns * MESSAGE_SECONDS + shared, workers)


def estimate_jobs(config: JobConfig, each: Iterable[float]) -> Estimate:
    """Seconds of jobs that take so many seconds in one process, each on a worker."""
    seconds = list(each)
    workers = _at_once(config, len(seconds), attackers=False)
    shared = max([sum(seconds) / workers, *seconds])
    return Estimate(sum(seconds), RAY_SECONDS + shared, workers)


def _observed_clients(clients: Any, a_round: int) -> int:
    """Of one round."""
    if clients == "all":
        return a_round
    return min(len(clients) if isinstance(clients, list) else int(clients), a_round)


def _at_once(config: JobConfig, jobs: int, attackers: bool = True) -> int:
    """Workers of Ray on this machine that find a core for each of their threads."""
    return max(1, min(worker_counts(config, jobs, attackers), cores() // int(config.simulation.threads)))


def _attack_steps(setup: Setup) -> float:
    """Training steps that all attacks on one update take."""
    return sum(CLOSED_FORM + SEARCH * cost for cost in setup.attack_costs)


def _step_seconds(setup: Setup, batch: int) -> float:
    flops = 3 * forward_flops(setup.model, image_side(setup.config.model))  # backward takes two forwards
    return STEP_SECONDS + batch * flops / FLOPS / int(setup.config.simulation.threads)


def forward_flops(model: nn.Module, side: int) -> float:
    """FLOPs of one picture; 0 for a model that cannot take one: who trains it says why. The model stays as it is."""
    image = torch.zeros(1, 3, side, side, dtype=next(model.parameters()).dtype)
    trained, buffers = model.training, Buffers(model)
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(image)
    except Exception:  # noqa: BLE001 - a plug-in's model: its fault belongs where a client meets it
        return 0.0
    finally:
        model.train(trained)
        buffers.restore()
    return float(counter.get_total_flops())
