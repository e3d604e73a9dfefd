"""Settings that cannot work are refused here, in one line, before any worker starts."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedAvgM,
    FedProx,
    FedTrimmedAvg,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.fedopt import FedOpt
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate

from experiments.cli.errors import config_error
from experiments.cli.machine import cores
from experiments.engine.ray_only import needs_ray
from fedsim.errors import ConfigError
from fedsim.settings.commands import JobConfig, RunConfig
from fedsim.settings.components import check_settings, layers
from fedsim.settings.groups import CREW
from fedsim.settings.local.optimizers import check_lasts
from fedsim.settings.schema import at_least
from fedsim.simulation.placement import Placement, Request, describe_room, living_nodes
from fedsim.wire.records import ARRAYS, CONFIG, NUM_EXAMPLES, TRAIN_LOSS
from server.attack_queue.scheduling import Crew
from server.fedsgd import FedSGD
from server.resume.strategy_state import strategy_layers
from server.sums.summing import FEWEST, Sums

RECORD_KEYS = {"arrayrecord_key": ARRAYS, "configrecord_key": CONFIG}
"""Settings of Flower's strategies that decide under which name a record travels."""

CLIENT_SIDE = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)
"""Flower's strategies whose clients must run a mod that clips."""

SAMPLES = tuple(kind.configure_train for kind in (FedAvg, FedProx, FedAvgM, FedOpt, QFedAvg, FedSGD))
"""How strategies sample the clients of a round by their settings alone."""

SERVER_SIDE = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyServerSideAdaptiveClipping)
HANDS_ON = tuple(kind.configure_train for kind in SERVER_SIDE)
"""How strategies leave the sampling to the one that they wrap."""


def check_strategy(strategy: Any, num_clients: int) -> None:
    """Flower waits without end for nodes that never come: refuse a strategy that asks for more than there are."""
    for depth, layer in enumerate(strategy_layers(strategy)):
        prefix = ".".join(["strategy"] * (depth + 1))
        keys = ["min_available_nodes", "min_train_nodes"]
        if getattr(layer, "fraction_evaluate", 0.0):
            keys.append("min_evaluate_nodes")
        for key in keys:
            nodes = getattr(layer, key, 0)
            at_least(0)(f"{prefix}.{key}", nodes)
            if nodes > num_clients:
                raise ConfigError(f"{prefix}.{key}", nodes, f"at most num_clients={num_clients}")


def build_strategy(settings: Mapping[str, Any]) -> Any:
    """Flower's strategy, and the one that it wraps.

    Raises:
        ConfigError: settings that it refuses; it names them in backquotes, if at all.
    """
    wrapped = {key: build_strategy(value) for key, value in settings.items() if _is_strategy(value)}
    try:
        return instantiate({**settings, **dict.fromkeys(wrapped)}, **wrapped, _recursive_=False, _convert_="all")
    except InstantiationException as error:
        if (known := config_error(error)) is not None:
            raise known from error
        reason = " ".join(str(error.__cause__ or error).split())
        for key, value in settings.items():
            if f"`{key}`" in reason:
                raise ConfigError(f"strategy.{key}", value, fault=reason) from error
        raise ConfigError("strategy", str(settings["_target_"]).rpartition(".")[2], fault=reason) from error


def _is_strategy(value: object) -> bool:
    """Whether a setting describes a strategy; a strategy may build other things itself, as FedSGD its optimiser."""
    if not isinstance(value, Mapping) or "_target_" not in value:
        return False
    try:
        return issubclass(get_class(value["_target_"]), Strategy)
    except (ImportError, ValueError, AttributeError):
        return False  # who builds it says so


def check_federated(config: RunConfig) -> None:
    """Raises ConfigError for what no federated run can work with, the strategy's class and devices included."""
    check_gpus(config)
    strategy = config.strategy
    for key, layer in layers(strategy):
        _check_layer(key, layer)
    share, gradients = config.client.share, takes_gradients(strategy)
    name = strategy["_target_"].rsplit(".", 1)[-1]
    _check_wrapped(strategy, gradients)
    if gradients and share != "gradient":
        raise ConfigError("client.share", share, f"gradient, which is what {name} averages")
    if not gradients and share == "gradient":
        raise ConfigError("client.share", share, f"weights or delta with {name}; strategy=fedsgd takes gradients")
    if gradients and "optimizer" in strategy:
        check_lasts("strategy", strategy["optimizer"], strategy.get("scheduler"), config.num_rounds, "num_rounds")
    key, sampling = _sampling(config)
    if (clients := clients_a_round(config)) < 1:
        expected = f"enough for one of {config.num_clients} clients in each round"
        raise ConfigError(f"{key}.fraction_train", sampling.get("fraction_train"), expected)
    for key, layer in layers(strategy):
        _check_rule(key, layer, clients)


def _check_layer(key: str, strategy: Mapping[str, Any]) -> None:
    """What a strategy asks of clients, whatever it wraps and whatever wraps it."""
    if not any(isinstance(value, Mapping) for value in strategy.values()):  # what is nested checks itself
        check_settings(key, strategy)
    for record, right in RECORD_KEYS.items():
        if strategy.get(record, right) != right:
            raise ConfigError(f"{key}.{record}", strategy[record], f"{right}: fedsim's clients use that name")
    if issubclass(_class(key, strategy), CLIENT_SIDE):
        expected = "a strategy whose server clips, or defense=[dp_sgd] or [local_dp]: fedsim's clients run no mod of "
        raise ConfigError(f"{key}._target_", strategy["_target_"], f"{expected}Flower's that clips what they share")
    _check_weights(key, strategy)
    at_least(0)(f"{key}.min_train_nodes", strategy.get("min_train_nodes", 0))


def _check_wrapped(strategy: Mapping[str, Any], gradients: bool) -> None:
    """Clients share what the outermost strategy takes: none within may take gradients where it takes weights."""
    for key, layer in layers(strategy):
        if not gradients and takes_gradients(layer, key):
            expected = "a strategy that averages weights: what wraps it takes no gradients"
            raise ConfigError(f"{key}._target_", layer["_target_"], expected)


def _check_weights(prefix: str, strategy: Mapping[str, Any]) -> None:
    """By what the strategy weights clients: each must report it, where clients evaluate then too."""
    key, evaluates = strategy.get("weighted_by_key", NUM_EXAMPLES), strategy.get("fraction_evaluate", 1.0)
    if key != NUM_EXAMPLES and (key != TRAIN_LOSS or evaluates):
        or_loss = ", which clients report when they evaluate too" if evaluates else f" or {TRAIN_LOSS}"
        raise ConfigError(f"{prefix}.weighted_by_key", key, f"{NUM_EXAMPLES}{or_loss}")


def _check_rule(key: str, strategy: Mapping[str, Any], clients: int) -> None:
    """What a robust rule asks of the clients of a round."""
    rule, malicious = _class(key, strategy), strategy.get("num_malicious_nodes", 0)
    for kind, factor in ((MultiKrum, 2), (Bulyan, 4)):
        if issubclass(rule, kind) and not 0 <= malicious <= (clients - 3) / factor:
            expected = f"f of at least 0 with {factor}f + 3 at most {clients}, the clients of a round"
            raise ConfigError(f"{key}.num_malicious_nodes", malicious, expected)
    selected = strategy.get("num_nodes_to_select", 1)
    if issubclass(rule, MultiKrum) and not 1 <= selected <= clients - malicious:
        expected = f"from 1 to {clients - malicious}, the {clients} clients of a round less num_malicious_nodes"
        raise ConfigError(f"{key}.num_nodes_to_select", selected, expected)
    beta = strategy.get("beta", 0.2)
    if issubclass(rule, FedTrimmedAvg) and beta > 0 and int(beta * clients) < 1:
        expected = f"0, or enough to trim one of {clients} clients of a round at each end"
        raise ConfigError(f"{key}.beta", beta, expected)


def check_observed(config: RunConfig, sums: Sums | None) -> None:
    """Raises ConfigError for what a run cannot work with in which the server sees sums; None: it sees each client."""
    if sums is None:
        return
    sums.check_observed(config.observe.clients)
    clients, fewest = config.num_clients, sums.clients or FEWEST
    if clients < fewest:
        raise ConfigError("num_clients", clients, f"at least {fewest}: {sums.by} sums over them")
    if clients_a_round(config) < fewest:
        key, sampling = _sampling(config)
        expected = f"enough for {fewest} of {clients} clients in each round: {sums.by} sums over them"
        raise ConfigError(f"{key}.fraction_train", sampling.get("fraction_train"), expected)


def check_history(config: RunConfig, sums: Sums | None, most: int | None) -> None:
    """What holds where attacks read several rounds together: a client trains on the same images in each.

    Args:
        most: images of the client that has most; None: not known.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    if not config.observe.save:
        raise ConfigError("observe.save", False, "true with observe.history: earlier rounds are read from disk")
    if sums is not None:
        raise ConfigError("observe.history", True, "false where the server sees sums of clients")
    if most is not None and most > config.client.batch_size:
        expected = f"at least {most} with observe.history=true, so that a client's images are the same in each round"
        raise ConfigError("client.batch_size", config.client.batch_size, expected)


def clients_a_round(config: RunConfig) -> int:
    """How many of the clients train in a round, as Flower's strategies sample them; 1 and 2 are their defaults."""
    _, strategy = _sampling(config)
    sampled = int(config.num_clients * strategy.get("fraction_train", 1.0))
    return max(sampled, int(strategy.get("min_train_nodes", 2)))


def replies_a_round(config: RunConfig) -> int:
    """Of clients that train, and of those that evaluate then, as far as they exist."""
    _, strategy = _sampling(config)
    share = float(strategy.get("fraction_evaluate", 1.0))
    evaluating = max(int(config.num_clients * share), int(strategy.get("min_evaluate_nodes", 2))) if share else 0
    return sum(min(config.num_clients, one) for one in (clients_a_round(config), evaluating))


def all_train(config: RunConfig) -> bool:
    """Whether every client is known to train in each round: a strategy may sample by what no setting tells."""
    ways = (getattr(_class(key, layer), "configure_train", None) for key, layer in layers(config.strategy))
    way = next((way for way in ways if way not in HANDS_ON), None)
    return way in SAMPLES and clients_a_round(config) >= config.num_clients


def _sampling(config: RunConfig) -> tuple[str, Mapping[str, Any]]:
    """The key and the settings of the strategy that samples the clients of a round."""
    *_, innermost = layers(config.strategy)
    return innermost


def takes_gradients(strategy: Mapping[str, Any], key: str = "strategy") -> bool:
    """Whether the strategy averages gradients itself."""
    return bool(getattr(_class(key, strategy), "shares_gradients", False))


def _class(key: str, strategy: Mapping[str, Any]) -> type:
    target = strategy.get("_target_", "")
    try:
        return get_class(target)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"{key}._target_", target, f"a Flower strategy class ({error})") from error


def crews(config: JobConfig) -> tuple[Crew, dict[str, Crew]]:
    """The workers of attacks, and those that single attacks have for themselves, by their names."""
    simulation = config.simulation
    common = {key: getattr(simulation, f"attack_{key}") for key in CREW}
    own = {name: _crew({**common, **crew}) for name, crew in simulation.attack_crews.items()}
    return _crew(common), own


def attacks_timeout(config: JobConfig, attacks: Iterable[str]) -> float:
    """Seconds that these attacks may take one after the other, each as long as its workers would let it."""
    common, own = crews(config)
    return sum(own.get(name, common).timeout for name in attacks)


def _crew(settings: dict[str, Any]) -> Crew:
    request = Request(float(settings["num_cpus"]), float(settings["num_gpus"]), settings["resources"])
    return Crew(int(settings["workers"]), request, int(settings["threads"]), float(settings["timeout"]))


def placement(config: JobConfig, attackers: bool = True) -> Placement:
    """What all workers of a run ask for; `attackers`: attacks have workers of their own."""
    simulation = config.simulation
    clients = Request(float(simulation.num_cpus), float(simulation.num_gpus), simulation.resources)
    common, own = crews(config)
    needed = dict.fromkeys(own.get(name, common) for name in (config.attack if attackers else ()))
    return Placement(clients, tuple((crew.request, crew.workers) for crew in needed))


def check_room(config: JobConfig, attackers: bool = True) -> None:
    """Where no further node can come: every worker must fit on what is there.

    Args:
        attackers: attacks have workers of their own.

    Raises:
        ConfigError: a worker would wait without end; it names the key and what is missing.
    """
    common, own = crews(config)
    _refuse_homeless(placement(config).clients, "simulation.")
    for name in config.attack if attackers else ():
        request, apart = own.get(name, common).request, config.simulation.attack_crews.get(name, {})
        prefixes = dict.fromkeys(apart, f"simulation.attack_crews.{name}.")
        _refuse_homeless(request, "simulation.attack_", prefixes)


def _refuse_homeless(request: Request, prefix: str, prefixes: Mapping[str, str] = MappingProxyType({})) -> None:
    """`prefixes`: of keys that are not set under `prefix`."""
    nodes = living_nodes()
    if any(node.room(request) for node in nodes):
        return
    lacking = [n for n, amount in request.amounts.items() if all(node.has.get(n, 0.0) < amount for node in nodes)]
    key = next(({"CPU": "num_cpus", "GPU": "num_gpus"}.get(name, "resources") for name in lacking), "resources")
    value = {"num_cpus": request.cpus, "num_gpus": request.gpus, "resources": dict(request.resources)}[key]
    expected = f"what there is, or ray.address of a cluster that has it ({describe_room(request)})"
    raise ConfigError(f"{prefixes.get(key, prefix)}{key}", value, expected)


def worker_counts(config: JobConfig, jobs: int, attackers: bool = True) -> int:
    """Client workers: as configured, or what this machine, or the cluster, can carry beside the attack workers."""
    workers = config.simulation.workers
    if workers != "auto":
        return int(workers)
    wanted = placement(config, attackers)
    if config.ray.address is not None:
        return max(1, min(jobs, wanted.room_for_clients()))
    free = cores() - sum(request.cpus * count for request, count in wanted.attacks)
    fitting = min(jobs, int(free / max(wanted.clients.cpus, 1e-3)))
    if wanted.clients.gpus > 0:
        left = torch.cuda.device_count() - sum(request.gpus * count for request, count in wanted.attacks)
        fitting = min(fitting, int(left / wanted.clients.gpus))
    return max(1, fitting)


def check_compiler(config: JobConfig) -> None:
    """Raises ConfigError where clients compile for a CPU of this machine, which has nothing to compile with."""
    simulation, device = config.simulation, config.client.device
    found = simulation.num_gpus > 0 or (simulation.engine == "inline" and torch.cuda.is_available())
    on_gpu = device == "cuda" or (device == "auto" and found)
    if not config.client.compile or config.ray.address is not None or on_gpu:
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ConfigError("client.compile", True, "false: this machine has no C++ compiler (g++, or CXX)") from error


def check_gpus(config: JobConfig) -> None:
    simulation = config.simulation
    engine = simulation.engine
    on_ray = needs_ray(config) is not None if engine == "auto" else engine == "ray"
    for key in ("num_gpus", "attack_num_gpus"):
        if (gpus := getattr(simulation, key)) > 0 and config.ray.address is None and not torch.cuda.is_available():
            raise ConfigError(f"simulation.{key}", gpus, "0: this machine has no CUDA device")
    if config.client.device == "cuda":
        if not on_ray and not torch.cuda.is_available():
            raise ConfigError("client.device", "cuda", "auto or cpu: this machine has no CUDA device")
        if on_ray and not simulation.num_gpus:
            raise ConfigError("client.device", "cuda", "auto, or simulation.num_gpus above 0 so that workers get a GPU")
    if config.ray.address is None and on_ray:
        attacks = placement(config).attacks
        wanted = worker_counts(config, 1) * simulation.num_gpus + sum(r.gpus * count for r, count in attacks)
        if wanted > torch.cuda.device_count():
            there = torch.cuda.device_count()
            raise ConfigError(
                "simulation.num_gpus", simulation.num_gpus, f"less: all workers ask for {wanted:g} of {there}"
            )
