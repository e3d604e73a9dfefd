"""Groups of settings that several commands have: clients, Ray, the simulation and what is audited or observed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import OmegaConf

from fedsim.errors import ConfigError, nearest
from fedsim.settings.local.augment import named
from fedsim.settings.local.limits import LARGEST, LARGEST_BATCH
from fedsim.settings.local.schedule import RateSchedule
from fedsim.settings.ray_address import check_address
from fedsim.settings.schema import Check, Rule, at_least, auto_or, is_number, is_whole, number, one_of

if TYPE_CHECKING:
    from fedsim.settings.local.optimizers import OptimizerFactory

Device = Literal["auto", "cpu", "cuda"]
Engine = Literal["auto", "ray", "inline"]


def amounts(key: str, value: Any) -> None:
    """Raises ConfigError where these are no amounts of Ray's custom resources."""
    if not isinstance(value, dict):
        raise ConfigError(key, value, "amounts of Ray's custom resources by name")
    for name, amount in value.items():
        if name in ("CPU", "GPU"):
            raise ConfigError(f"{key}.{name}", amount, "no custom resource: num_cpus and num_gpus set it")
        number(0.0001)(f"{key}.{name}", amount)


CREW: Mapping[str, Check] = {
    "workers": at_least(1),
    "num_cpus": number(0.001),
    "num_gpus": number(0.0),
    "resources": amounts,
    "threads": at_least(1),
    "timeout": number(0.001),
}
"""What workers of a single attack may have; what is not given is as for all attacks."""


def crews(key: str, value: Any) -> None:
    """Raises ConfigError where these are not attacks, each with settings of its workers."""
    if not isinstance(value, dict) or not all(isinstance(crew, dict) for crew in value.values()):
        raise ConfigError(key, value, "names of attacks, each with settings of its workers")
    for name, crew in value.items():
        for setting, given in crew.items():
            if setting not in CREW:
                wanted = f"one of {', '.join(CREW)}.{nearest(str(setting), CREW)}"
                raise ConfigError(f"{key}.{name}.{setting}", given, wanted)
            CREW[setting](f"{key}.{name}.{setting}", given)


CLIPPED = Rule(
    f"a number above 0 and at most {LARGEST:g}, or null",
    lambda value: is_number(value, 0.0) and value > 0 and (value <= LARGEST or value == math.inf),
)
MICRO_BATCH = Rule(
    f"a whole number from 1 to {LARGEST_BATCH:,}, or null", lambda value: is_whole(value, 1) and value <= LARGEST_BATCH
)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How clients train and what they share.

    Attributes:
        share: `gradient` (one batch, no step), `delta` or `weights` (after local steps).
        batch_size: pictures a step; a client with fewer takes all it has.
        local_epochs: passes over the client's pictures; 1 where `local_steps` is set.
        local_steps: a fixed number of steps instead.
        optimizer: Hydra config of a torch optimiser, without its parameters.
        scheduler: Hydra config of a torch scheduler, stepped after each local step, or None.
        schedule: warm-up and decay of the learning rate, in place of a scheduler.
        training_mode: `model.train()` (dropout, drop path) or `model.eval()` while the gradient is taken.
        precision: of forward and backward under autocast; weights, and what is shared, stay in float32.
        no_decay: the optimiser's weight decay leaves biases and norms alone; see `fedsim.settings.local.decay`.
        micro_batch_size: pictures that are computed at once, for memory; None: a step's batch.
        max_grad_norm: L2 norm that each step's gradient is scaled down to, all tensors together; None: it is not.
        compile: local training goes through torch.compile's code: the same up to rounding.
        augment: torchvision's transforms on each image of a batch, in order; see `fedsim.settings.local.augment`.
        device: `auto` takes CUDA where Ray gave the worker a GPU, or where this process was named and has one.
    """

    share: Literal["gradient", "delta", "weights"]
    batch_size: Annotated[int, at_least(1)]
    local_epochs: Annotated[int, at_least(1)]
    local_steps: Annotated[int | None, at_least(1)]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None
    label_smoothing: Annotated[float, number(0.0, 0.999)]
    training_mode: bool
    device: Device
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    augment: Annotated[list[Any], lambda _, value: named(value)] = field(default_factory=list)
    schedule: RateSchedule = field(default_factory=RateSchedule)
    max_grad_norm: Annotated[float | None, CLIPPED] = None
    micro_batch_size: Annotated[int | None, MICRO_BATCH] = None
    no_decay: bool = False

    def check(self) -> None:
        """Raises `ConfigError` for settings of local steps where there are none, or a scheduler beside a schedule."""
        if self.share == "gradient":
            for key, usual, said in (
                ("local_steps", (None, 1), "null"),
                ("local_epochs", (1,), "1"),
                ("no_decay", (False,), "false"),
            ):
                if (value := getattr(self, key)) not in usual:
                    wanted = f"{said} beside client.share=gradient: such a client takes no step (strategy=fedavg does)"
                    raise ConfigError(f"client.{key}", value, wanted)
            if self.scheduler is not None:
                wanted = (
                    "null beside client.share=gradient: such a client takes no step, strategy.scheduler is the server's"
                )
                raise ConfigError("client.scheduler", self.scheduler.get("_target_"), wanted)
        if self.local_steps is not None and self.local_epochs != 1:
            wanted = f"null beside client.local_epochs={self.local_epochs}: one of them says how long a client trains"
            raise ConfigError("client.local_steps", self.local_steps, wanted)
        if self.schedule.shape == "constant" and self.schedule.final:
            wanted = "0 beside client.schedule.shape=constant, which ends at the whole rate"
            raise ConfigError("client.schedule.final", self.schedule.final, wanted)
        if self.schedule.constant:
            return
        if self.share == "gradient":
            wanted = "constant, without warmup, beside client.share=gradient: such a client takes no step"
            raise ConfigError("client.schedule.shape", self.schedule.shape, wanted)
        if self.scheduler is not None:
            raise ConfigError("client.scheduler", self.scheduler, "null beside client.schedule: one of them")

    @property
    def clip_norm(self) -> float | None:
        """`max_grad_norm`, None where nothing is longer."""
        return None if self.max_grad_norm in (None, math.inf) else float(self.max_grad_norm)

    @cached_property
    def optimisers(self) -> "OptimizerFactory":
        """Makes the optimiser, and its scheduler or None, of given parameters; raises `ConfigError` as the check."""
        from fedsim.settings.local.optimizers import optimizer_factory

        return optimizer_factory("client", self.optimizer, self.scheduler)

    def check_optimizer(self) -> None:
        """Raises `ConfigError` where torch refuses the settings, also of a client that takes no step."""
        import torch
        from torch import nn

        from fedsim.settings.local.optimizers import optimizer_factory

        made, _ = optimizer_factory("client", self.optimizer, self.scheduler)([nn.Parameter(torch.zeros(1))])
        if self.no_decay and not made.defaults.get("weight_decay"):
            raise ConfigError("client.no_decay", True, "false beside client.optimizer.weight_decay=0: nothing decays")


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Where Ray runs.

    Attributes:
        address: of a running cluster; None: Ray on this machine.
        grows: nodes may join the cluster, so that what none can hold is waited for.
    """

    address: Annotated[str | None, lambda _, value: check_address(value)]
    dashboard: bool
    grows: bool


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """Workers of clients and of attacks; `conf/simulation/ray.yaml` says what each is."""

    engine: Engine
    workers: Annotated[int | Literal["auto"], auto_or(at_least(1))]
    threads: Annotated[int, at_least(1)]
    num_cpus: Annotated[float, number(0.001)]
    num_gpus: Annotated[float, number(0.0)]
    resources: Annotated[dict[str, float], amounts]
    worker_sums: Annotated[int | Literal["auto"], auto_or(at_least(0))]
    max_retries: Annotated[int, at_least(0)]
    attack_workers: Annotated[int, at_least(1)]
    attack_threads: Annotated[int, at_least(1)]
    attack_num_cpus: Annotated[float, number(0.001)]
    attack_num_gpus: Annotated[float, number(0.0)]
    attack_resources: Annotated[dict[str, float], amounts]
    attack_crews: Annotated[dict[str, dict[str, Any]], crews]
    attack_timeout: Annotated[float, number(0.001)]
    attack_retries: Annotated[int, at_least(0)]
    attack_backlog: Annotated[int, at_least(1)]


@cache
def usual_simulation() -> dict[str, Any]:
    """The simulation as it is where nobody sets anything."""
    return _written("simulation/ray.yaml")


def usual_images() -> dict[str, Any]:
    """What an audit takes where nobody sets anything."""
    return dict(_written("audit.yaml")["audit"])


def _written(name: str) -> dict[str, Any]:
    usual: Any = OmegaConf.to_container(OmegaConf.create(files("conf").joinpath(name).read_text("utf-8")))
    return dict(usual)


@dataclass(frozen=True, kw_only=True)
class ObserveSettings:
    """Whose updates the curious server keeps and attacks.

    Attributes:
        every: attack in round 1 and each multiple of this number; 0 observes nothing.
        clients: how many of a round's clients (those with the lowest partition ids), a list of
            partition ids, or `all`. Under secure aggregation: how many of the round's sums, or `all`.
        save: write observations to disk, so that they can be attacked again later.
        history: attacks that read several rounds of one client get all up to this one.
    """

    every: Annotated[int, at_least(0)]
    clients: Annotated[
        int | list[int] | Literal["all"],
        Rule(
            "a number of at least 0, a list of partition ids, or all",
            lambda value: value == "all" or isinstance(value, list) or (type(value) is int and value >= 0),
        ),
    ]
    save: bool
    history: bool = False

    def wants_round(self, server_round: int) -> bool:
        return self.every > 0 and (server_round == 1 or server_round % self.every == 0)

    def choose(self, candidates: Iterable[int]) -> set[int]:
        """The ids to observe among those that there are."""
        ordered = sorted(candidates)
        if isinstance(self.clients, list):
            return set(ordered) & set(self.clients)
        return set(ordered if self.clients == "all" else ordered[: self.clients])


SELECT = one_of("random", "per_class", "first")


@dataclass(frozen=True, kw_only=True)
class AuditedImages:
    """Which pictures an audit takes, and how many of them one update and one attack get.

    Attributes:
        select: how they are chosen, or a list of their ids.
    """

    num_images: Annotated[int, at_least(1)]
    batch_size: Annotated[int, at_least(1)]
    victims: Annotated[int, at_least(1)]
    select: Annotated[
        str | list[Any], Rule(SELECT.words, lambda v: isinstance(v, list) or SELECT.valid(v), SELECT.options)
    ]

    @property
    def count(self) -> int:
        """How many pictures."""
        return len(self.select) if isinstance(self.select, list) else self.num_images

    def check_batches(self) -> None:
        """Raises ConfigError where one update would hold fewer images than the others, or an id is there twice."""
        listed = isinstance(self.select, list)
        if listed and (not self.select or len(set(map(str, self.select))) < len(self.select)):
            raise ConfigError("audit.select", f"[{','.join(map(str, self.select))}]", "ids of pictures, each once")
        images, batch = self.count, self.batch_size
        if images % batch:
            fewer = images // batch * batch
            enough = f"{fewer} or {fewer + batch}" if fewer else f"{batch}"
            wanted = f"a multiple of audit.batch_size={batch}, for example {enough}: every update holds as many images"
            key, value = ("audit.select", f"[{images} ids]") if listed else ("audit.num_images", images)
            raise ConfigError(key, value, f"{'in number ' if listed else ''}{wanted}")
