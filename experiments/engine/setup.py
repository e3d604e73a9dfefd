"""What both commands build before any worker starts; building it is also the check that it can be built."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import getLogger
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attacks.base import Attack
from attacks.building import build_attack, check_classes, check_fit, stages
from clients.accumulation import check_accumulation
from clients.app import ClientRuntime, resolve_device
from clients.precision import check_precision
from clients.replay import replay
from clients.training import check_steps
from defenses.base import Defense, DefenseChain, Plan
from defenses.compose import build_chain, load_wrappers
from defenses.update.secure_aggregation import SecureAggregation
from defenses.update.withholding import Withhold
from experiments.cli.call import say_doing
from experiments.cli.machine import cores
from experiments.cli.validation import check_compiler, check_gpus, check_room, crews, placement, worker_counts
from experiments.engine.guess import changed_from, not_attacked, public_images, public_mean, public_prior, seen_through
from experiments.engine.model_checks import check_trainable
from fedsim.bounds.public_prior import PublicPrior
from fedsim.data import FederatedData, ImageSet
from fedsim.data.copies import most_holders, readable_contents
from fedsim.determinism import torch_generator
from fedsim.effects import MixesImages, TransformsImages
from fedsim.errors import ConfigError
from fedsim.models import Architecture, Normaliser, OwnArchitecture, architecture_seed
from fedsim.observation import Observation
from fedsim.observation_factory import ObservationFactory
from fedsim.public_images import PublicImages
from fedsim.report.wording import count
from fedsim.settings.class_folders import refuse_one_class
from fedsim.settings.commands import AuditConfig, FederatedConfig, JobConfig, PriorConfig, RunConfig, config_of
from fedsim.settings.composition import build_data, build_finetune, build_spec, image_side
from fedsim.settings.groups import ClientSettings
from fedsim.settings.schema import plain
from fedsim.simulation.placement import anywhere
from fedsim.simulation.ray_cluster import ray_cluster
from fedsim.simulation.shipping import absolute_checkpoints, runtime_env
from fedsim.storage.observation_files import load_observation
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from fedsim.wire.reply.checks import ReplyRules
from server.attack_queue.results import ResultWriter
from server.attack_queue.scheduling import AttackScheduler, InlineAttacks, OnResult, RayAttacks
from server.sums.summing import Sums

logger = getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The objects of one run, in the server's process."""

    config: JobConfig
    data: FederatedData
    defenses: DefenseChain
    architecture: Architecture
    model: nn.Module
    normaliser: Normaliser
    wants_auxiliary: bool
    attack_costs: tuple[float, ...] = ()
    """Of each attack on one update, and of each that goes on from its images (`Attack.cost`)."""
    learned_from: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By name of the attacks that bring a prior along the images that it was trained on (`Attack.learned_from`)."""
    attacked: frozenset[str] = frozenset()
    """Digests of the images that may be attacked."""
    own_attacks: Mapping[str, Attack] = field(default_factory=dict)
    """By name those that came as objects, which no settings build; they live in this process alone."""

    @property
    def run_config(self) -> RunConfig:
        """The settings, those of a federated run."""
        assert isinstance(self.config, RunConfig)
        return self.config

    @property
    def sums(self) -> Sums | None:
        """How the server sees updates: under secure aggregation summed over clients, else one by one."""
        named = self.defenses.defenses.items()
        return next((Sums(d.clients, name) for name, d in named if isinstance(d, SecureAggregation)), None)

    def guess(self) -> Tensor:
        """What one would answer without any gradient: the mean of the pictures that no client holds."""
        return public_mean(self.held, self.image_shape)

    def attacking(self, *attacked: ImageSet) -> "Setup":
        """The same, of a server that has no copy of these images."""
        if not len(self.data.auxiliary):
            return self
        return replace(self, attacked=frozenset(one for images in attacked for one in readable_contents(images)))

    def refuse_learned(self, attacked: Iterable[ImageSet]) -> None:
        """Raises ConfigError where the prior of an attack was trained on an image that it would have to find."""
        if not self.learned_from:
            return
        images = [one for held in attacked for one in readable_contents(held)]
        for name, learned in self.learned_from.items():
            if seen := sum(one in learned for one in images):
                fault = f"its prior was trained on {seen:,} of the {len(images):,} images that would be attacked: give"
                raise ConfigError("attack", name, fault=f"{fault} the data settings and the seed of its fedsim-prior")

    def rules(self, simulated: bool) -> ReplyRules:
        """What the server knows of every honest reply.

        Args:
            simulated: clients have these settings and these partitions. A SuperNode's own settings win over the run's:
                its pictures, its batch size, and whether it sends what its model saw.
        """
        config = self.config
        known: dict[str, Any] = {"defenses": tuple(config.defense), "image_shape": self.image_shape}
        known["counting"] = tuple(name for name, one in self.defenses.defenses.items() if _may_count(one))
        if simulated:
            known["batch_size"] = config.client.batch_size
            sizes = self.data.partition_sizes()
            known |= {"most_examples": max(sizes), "partition_sizes": tuple(sizes)}
            if config.audit is not True:
                known["image_shape"] = None
        return ReplyRules.of(self.model, config.client.share, **known)

    def check_steps(self) -> None:
        """Raises ConfigError: a client of these partitions would take more local steps than a reply may name."""
        check_steps(self.config.client, max(self.data.partition_sizes()[: self.run_config.num_clients]))

    def holders(self, simulated: bool) -> int | None:
        """Of the image that most clients hold, how many do; None where nobody asks, or clients have their own images.

        Args:
            simulated: clients have the partitions of this process.
        """
        if not simulated or not any(map(_is_gaussian, self.defenses.wrappers)):
            return None
        say_doing("comparing the clients' images with each other, which a theorem asks for")
        try:
            return most_holders(self.data.client(number) for number in range(self.run_config.num_clients))
        except ConfigError as error:  # a client fails that needs the image, and no other
            logger.warning("no theorem is stated, since not all of the clients' images can be compared: %s", error)
            return None

    def factory(self) -> ObservationFactory:
        config = self.config
        described = [{"name": name, **settings} for name, settings in config.hooks.items()]
        about = self.architecture, self.model, self.image_shape, described, replay
        return ObservationFactory(*about, *self._public, changed_from(self.defenses))

    @cached_property
    def held(self) -> ImageSet:
        """The images that the server has."""
        return not_attacked(self.data.auxiliary, self.image_shape, self.attacked)

    @cached_property
    def _public(self) -> tuple[PublicPrior | None, PublicImages | None]:
        if not self.wants_auxiliary:
            return None, None
        rng = torch_generator(self.config.seed, "public")
        seen = seen_through(self.defenses, self.model, self.config.client.batch_size, rng)
        return public_prior(self.held, seen), public_images(self.held)

    def recorded(self, folder: Path) -> Observation:
        """An observation of the same settings from disk, of the model and the defenses at hand."""
        seen = load_observation(folder, lambda _: tuple(self.defenses.wrappers), replay)
        return replace(seen, architecture=self.architecture)

    def runtime(self) -> ClientRuntime:
        """What a client's worker keeps."""
        given = self.architecture if isinstance(self.architecture, OwnArchitecture) else None
        return ClientRuntime(self.config, self.data, given)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what the model reads."""
        if isinstance(self.architecture, OwnArchitecture):
            return self.architecture.image_shape
        side = image_side(self.config.model)
        return 3, side, side


def load_recorded(folder: Path) -> Observation:
    """An observation from disk, with the model that its clients' defenses make and the way they compute.

    Raises:
        ConfigError: the folder holds none, or names a defense that is not at hand.
    """
    return load_observation(folder, load_wrappers, replay)


def prepare(given: JobConfig | Mapping[str, Any], simulated: bool = True, worker: bool = False) -> Setup:
    """Check the settings and build everything that can be built without workers.

    Args:
        simulated: clients have these settings and these images; SuperNodes have their own.
        worker: this is one of Ray's, which sees of its machine what it was given: that was checked where all began.

    Raises:
        ConfigError: something cannot work; nothing has been started then.
    """
    config = config_of(given)
    assert isinstance(config, JobConfig)
    if not worker:
        check_gpus(config)
        check_compiler(config)
    config.client.check_optimizer()
    attacks = {name: build_attack(name, settings) for name, settings in config.attack.items()}
    defenses = build_chain(config.hooks)
    side = image_side(config.model)  # a model that timm does not know is refused before any data are read
    for name, attack in attacks.items():
        check_fit(name, attack, (3, side, side))
    data = build_data(config)
    data.check(config.num_clients if isinstance(config, FederatedConfig) else None)
    if isinstance(config, FederatedConfig) and len(data.test) == 0:
        fraction = config.data.get("test_fraction")
        raise ConfigError("data.test_fraction", fraction, "enough for one test picture: the server evaluates on them")
    if not isinstance(config, PriorConfig):
        refuse_one_class("data", config.data.get("_target_"), data.num_classes, config.model)
    finetune = build_finetune(config.finetune)
    architecture = Architecture(build_spec(config.model, data), (defenses,), architecture_seed(config.seed), finetune)
    return assemble(config, data, defenses, architecture, attacks, (3, side, side), simulated)


def assemble(
    config: JobConfig,
    data: FederatedData,
    defenses: DefenseChain,
    architecture: Architecture,
    attacks: Mapping[str, Attack],
    image_shape: tuple[int, int, int],
    simulated: bool = True,
) -> Setup:
    """Build the model, and refuse what does not go with it."""
    for name, attack in attacks.items():
        check_classes(name, attack, data.class_names)
    model = architecture.build()
    strategy = config.strategy if isinstance(config, FederatedConfig) else {}
    withholding = [one for one in defenses.wrappers if isinstance(one, Withhold)]
    withheld = frozenset(name for one in withholding for name in one.names)
    check_trainable(config, model, data, image_shape, simulated, withheld)
    architecture.finetune.check(model, image_shape, config.client.share)
    check_accumulation(config.client, model, defenses)
    check_precision(config.client.precision, model)
    recorded = isinstance(config, AuditConfig) and config.observation is not None
    server_round = None if isinstance(config, FederatedConfig) or recorded else 0
    defenses.check(Plan(model, plain(config.client), strategy, defenses.defenses, image_shape, server_round))
    every = [(name, stage) for name, attack in attacks.items() for stage in stages(name, attack).values()]
    # Whatever attack finds an image as the model saw it, the client's own is guessed from public ones.
    changed = any(isinstance(effect, TransformsImages | MixesImages) for effect in defenses.effects())
    wants_auxiliary = any(stage.needs.auxiliary or stage.shrinks_to_mean or changed for _, stage in every)
    costs = tuple(float(stage.cost) for _, stage in every)
    learned: dict[str, frozenset[str]] = {}
    for name, stage in every:
        if stage.learned_from:
            learned[name] = learned.get(name, frozenset()) | stage.learned_from
    return Setup(config, data, defenses, architecture, model, Normaliser(model), wants_auxiliary, costs, learned)


def make_writer(config: JobConfig, folder: RunFolder, trackers: Trackers, setup: Setup | None = None) -> ResultWriter:
    """The run's only writer of results.

    Args:
        setup: whose public images give the guess without a gradient, and whose classes have names; None: neither.
    """
    if setup is not None:
        folder.write_text("classes.json", json.dumps(setup.data.class_names))
    guess = None if setup is None else setup.guess
    return ResultWriter(folder, trackers, config.model["name"], list(config.defense), guess)


def make_scheduler(config: JobConfig, on_result: OnResult, scratch: Path | None = None) -> AttackScheduler:
    """Attacks on Ray, or in the process.

    Args:
        scratch: where unfinished attacks keep their state.
    """
    simulation = config.simulation
    if simulation.engine == "inline":
        gpus = own_gpus(config.client)
        return InlineAttacks(config.attack, config.seed, on_result, simulation.attack_threads, scratch, gpus)
    crew, own = crews(config)
    on_cluster = config.ray.address is not None
    return RayAttacks(
        absolute_checkpoints(config.attack) if on_cluster else config.attack,
        config.seed,
        on_result,
        crew=crew,
        crews=own,
        backlog=simulation.attack_backlog,
        max_retries=simulation.attack_retries,
        scratch=scratch,
        lazy=on_cluster,
        place=placement(config).attack if on_cluster else anywhere,
    )


def own_gpus(client: ClientSettings) -> float:
    """GPUs of this process for attacks: where its clients train on one, it is theirs too."""
    return float(resolve_device(client.device).type == "cuda")


@contextmanager
def engine(config: JobConfig, jobs: int, attackers: bool = True, folder: Path | None = None) -> Iterator[None]:
    """Ray for the block where the simulation wants it: on this machine with room for all workers, or the cluster.

    Args:
        jobs: how many workers could be busy at once; none: Ray is not started.
        attackers: attacks have workers of their own.
        folder: of the run or of all runs, which is not sent to a cluster.

    Raises:
        ConfigError: a worker that nothing has room for, on this machine or a cluster that will not grow: it would
            wait without end.
    """
    if config.simulation.engine == "inline" or not jobs:
        yield
        return
    ray = config.ray
    if ray.address is not None:
        path = config.data.get("path")
        kept_back = [Path(path)] if isinstance(path, str) else []
        kept_back += [folder] if folder is not None else []
        say_doing(f"joining the cluster at {ray.address}")
        with ray_cluster(
            ray.address, 0, 0, runtime_env=runtime_env(Path(__file__).parents[2], plain(config), kept_back)
        ):
            if not ray.grows:
                check_room(config, attackers)
            yield
        return
    wanted = placement(config, attackers)
    workers = worker_counts(config, jobs, attackers)
    cpus = workers * wanted.clients.cpus + sum(request.cpus * count for request, count in wanted.attacks)
    gpus = workers * wanted.clients.gpus + sum(request.gpus * count for request, count in wanted.attacks)
    say_doing(f"starting Ray and {count(workers, 'worker')}")
    with ray_cluster(None, max(cores(), ceil(cpus)), ceil(gpus), ray.dashboard):
        check_room(config, attackers)
        yield


def _is_gaussian(defense: Defense) -> bool:
    return type(defense).gaussian_dp is not Defense.gaussian_dp


def _may_count(defense: Defense) -> bool:
    """Whether it may report a privacy budget: a plug-in may among its measurements."""
    own = not type(defense).__module__.startswith("defenses.")
    return _is_gaussian(defense) or (own and type(defense).measurements is not Defense.measurements)
