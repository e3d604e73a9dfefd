"""All settings of each command as one object, and what must hold between its groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedsim.errors import ConfigError, nearest
from fedsim.settings.components import layers
from fedsim.settings.groups import (
    AuditedImages,
    ClientSettings,
    Device,
    ObserveSettings,
    RaySettings,
    SimulationSettings,
    usual_images,
    usual_simulation,
)
from fedsim.settings.local.augment import STAGE, stage
from fedsim.settings.schema import Rule, at_least, is_number, is_whole, list_of, number, options, parse
from fedsim.settings.trained import LearnedSettings

Component = dict[str, Any]
"""Settings of what a `_target_` names, which is checked against the signature of that class."""
Chosen = Annotated[dict[str, Component], options]
"""Components by their names, of a group of which several options stand side by side."""
Count = Annotated[int, at_least(1)]
Share = Annotated[float, number(0.0, 1.0, words="a number from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class CorruptionSettings:
    """The fifteen common corruptions; which there are is known with the libraries alone."""

    names: Any
    severities: Any
    num_images: Annotated[int | None, at_least(1)]
    table: Any
    frost: Any
    reference: Any


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What is measured; `conf/measure.yaml` says what each is."""

    round: Annotated[int | None, at_least(1)]
    num_images: Annotated[int | None, at_least(1)]
    batch_size: Count
    ratios: Annotated[
        list[float], list_of(lambda value: is_number(value, 0.0, 1.0), "numbers from 0 to 1, as in [0,0.09,0.27]")
    ]
    draws: Count
    min_block: Annotated[int | None, at_least(1)]
    patch_size: Annotated[int | None, at_least(1)]
    folds: Annotated[int, at_least(2)]
    repeats: Count
    dimensions: Annotated[
        list[int], list_of(lambda value: is_whole(value, 1), "whole numbers of at least 1, as in [3,4,5]")
    ]
    projections: Annotated[list[str], list_of(lambda value: isinstance(value, str), "names, as in [pca,tsne]")]
    attention: Annotated[int, at_least(0)]
    attention_ratio: Share
    corruptions: CorruptionSettings
    hard: Any
    foreign: Any


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """What a client computes with."""

    seed: Annotated[int, at_least(0)]
    audit: object = field(init=False, default_factory=dict)  # no setting here
    client: ClientSettings
    data: Component
    partition: Component = field(init=False, default_factory=dict)  # no setting here
    model: Component
    finetune: Component = field(default_factory=dict)
    defense: Chosen

    @property
    def hooks(self) -> Chosen:
        """What a client's chain is made of, by name: its augmentation, where it has one, and its defenses.

        Raises:
            ConfigError: a defense has the augmentation's name.
        """
        if self.client.augment and STAGE in self.defense:
            raise ConfigError("defense", STAGE, "another name beside client.augment, which is recorded as that")
        return {**stage(self.client.augment), **self.defense}


@dataclass(frozen=True, kw_only=True)
class JobConfig(LocalConfig):
    """What commands with clients have in common."""

    run_dir: Any = None  # a folder may be called 0
    ray: RaySettings
    attack: Chosen
    simulation: SimulationSettings

    def check(self) -> None:
        """Raises ConfigError where settings of several groups do not go together."""
        schedule = self.client.schedule
        if not schedule.constant and schedule.over == "rounds" and not isinstance(self, RunConfig):
            raise ConfigError("client.schedule.over", schedule.over, "steps but in a federated run: here are no rounds")
        for name, crew in self.simulation.attack_crews.items():
            if name not in self.attack and (hint := nearest(str(name), self.attack)):
                raise ConfigError(f"simulation.attack_crews.{name}", crew, f"the name of an attack.{hint}")


@dataclass(frozen=True, kw_only=True)
class FederatedConfig(JobConfig):
    """What commands that train a federation have in common."""

    num_clients: Annotated[int, at_least(1)]
    num_rounds: Annotated[int, at_least(1)]
    evaluate_every: Annotated[int, at_least(0)]
    checkpoint_every: Annotated[int, at_least(0)]
    round_timeout: Annotated[float, number(0.001)]
    partition: Component
    strategy: Component
    tracker: Chosen

    def check(self) -> None:
        super().check()
        for prefix, strategy in layers(self.strategy):
            for key in ("fraction_train", "fraction_evaluate"):
                number(0.0, 1.0)(f"{prefix}.{key}", strategy.get(key, 0))
            if strategy.get("fraction_train", 1) == 0:
                raise ConfigError(f"{prefix}.fraction_train", 0, "a number above 0: with 0 no client trains")
            malicious = strategy.get("num_malicious_nodes", 0)
            if is_whole(malicious) and malicious and 2 * malicious >= self.num_clients:
                wanted = f"less than half of num_clients={self.num_clients}: no rule is robust against more"
                raise ConfigError(f"{prefix}.num_malicious_nodes", malicious, wanted)


@dataclass(frozen=True, kw_only=True)
class RunConfig(FederatedConfig):
    """`fedsim`."""

    audit: bool
    observe: ObserveSettings
    resume: Any = None
    resume_every_seconds: Annotated[
        float | None, number(0.0, words="a number of at least 0, or null for no resume points")
    ] = None

    def check(self) -> None:
        super().check()
        clients = self.observe.clients
        ids = range(self.num_clients)
        odd = [one for one in clients if type(one) is not int or one not in ids] if isinstance(clients, list) else []
        if odd:
            wanted = f"partition ids from 0 to {self.num_clients - 1}; {odd[0]!r} is none"
            raise ConfigError("observe.clients", clients, wanted)


@dataclass(frozen=True, kw_only=True)
class AuditConfig(JobConfig):
    """`fedsim-audit`."""

    observation: Annotated[str | None, Rule("a folder of observations, or null", lambda value: isinstance(value, str))]
    audit: AuditedImages
    bound: Chosen = field(default_factory=dict)
    tracker: Chosen

    def check(self) -> None:
        super().check()
        if self.observation is not None:
            if self.bound:
                wanted = "[] beside observation=: bounds are computed from the clients' images, which it does not hold"
                raise ConfigError("bound", list(self.bound), wanted)
            for key, usual in usual_images().items():
                if (given := getattr(self.audit, key)) != usual:
                    wanted = "left out beside observation=: all that it holds is attacked, one update at a time"
                    raise ConfigError(f"audit.{key}", given, wanted)
            return
        crews = self.simulation.attack_crews.items()
        for name, key, value in [(name, *one) for name, crew in crews for one in crew.items() if one[0] != "timeout"]:
            wanted = "left out: here the workers of clients attack, as simulation.num_gpus and its like set them"
            raise ConfigError(f"simulation.attack_crews.{name}.{key}", value, wanted)
        for key in ("workers", "num_cpus", "num_gpus", "threads", "resources"):  # who computed an update attacks it
            given, usual = getattr(self.simulation, f"attack_{key}"), usual_simulation()[f"attack_{key}"]
            if given != usual:
                wanted = f"{usual} in an audit: its workers attack too, and simulation.{key} is of them"
                raise ConfigError(f"simulation.attack_{key}", given, wanted)

    def check_audit(self) -> None:
        """Raises ConfigError for what only a whole audit needs: an attack or a bound, and updates of one size."""
        if not self.attack and not self.bound:
            raise ConfigError("attack", "[]", "at least one attack, for example attack=[patch_gradient]")
        if self.observation is None:
            self.audit.check_batches()
            if self.client.share == "gradient" and self.client.batch_size < self.audit.batch_size:
                expected = f"{self.audit.batch_size} or more, audit.batch_size, beside client.share=gradient"
                raise ConfigError("client.batch_size", self.client.batch_size, expected)


@dataclass(frozen=True, kw_only=True)
class MatrixSettings:
    """Rows and columns; what these hold is read where they are composed.

    Attributes:
        state: the weights that the audited clients get.
        seeds: trainings of each row.
        parallel: a run for each worker.
    """

    state: Literal["initial", "trained", "both"]
    seeds: Annotated[int, at_least(1)]
    parallel: bool
    defenses: Any
    every_defense: bool
    attacks: Any
    rows: Any
    columns: Any

    @property
    def states(self) -> tuple[str, ...]:
        return ("initial", "trained") if self.state == "both" else (self.state,)


@dataclass(frozen=True, kw_only=True)
class MatrixConfig(FederatedConfig):
    """`fedsim-matrix`."""

    matrix: MatrixSettings
    audit: AuditedImages

    def check(self) -> None:
        super().check()
        for group, chosen in (("defense", self.defense), ("attack", self.attack)):
            if chosen:
                raise ConfigError(group, list(chosen), f"[]: matrix.{group}s names them")
        if self.matrix.parallel and self.simulation.engine != "inline" and self.simulation.num_gpus:
            raise ConfigError("matrix.parallel", "true", "false where simulation.num_gpus gives each worker a GPU")


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """`fedsim-measure`."""

    seed: Annotated[int, at_least(0)]
    run_dir: Any = None  # a folder may be called 0
    runs: Annotated[list[Any], list_of(lambda _: True, "a list of folders, as in runs=[DIR,DIR]")]
    names: Annotated[list[Any] | None, list_of(lambda _: True, "a list of names, as in names=[baseline,mjp], or null")]
    device: Device
    threads: Annotated[int | None, at_least(1)]
    measure: MeasureSettings
    data: Component
    model: Component
    defense: Chosen


@dataclass(frozen=True, kw_only=True)
class PriorConfig(JobConfig):
    """`fedsim-prior`."""

    kind: Literal["generator", "lti"]
    threads: Annotated[int, at_least(1)]
    attack: Chosen = field(init=False, default_factory=dict)  # no setting here
    prior: LearnedSettings

    def check(self) -> None:
        super().check()
        batch, held = self.client.batch_size, self.prior.validation
        if self.kind == "lti" and held < batch:
            raise ConfigError("prior.validation", held, f"at least the {batch} pictures of a batch")


def config_of(given: LocalConfig | Mapping[str, Any]) -> LocalConfig:
    """Settings of whatever command with clients; parsed ones come back as they are. Refused as by `parse`."""
    if isinstance(given, LocalConfig):
        return given
    return parse(RunConfig if "observe" in given else PriorConfig if "prior" in given else AuditConfig, given)
