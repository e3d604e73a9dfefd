"""Settings that cannot work are refused here, in one line, before any worker starts."""

import math
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from hydra.utils import get_class

from experiments.completeness import check_complete
from experiments.ray_only import needs_ray
from fedsim.components import check_settings
from fedsim.composition import Config
from fedsim.errors import ConfigError, nearest
from fedsim.records import ARRAYS, CONFIG
from fedsim.simulation.placement import Placement, Request, describe_room, living_nodes
from fedsim.simulation.ray_cluster import check_address
from server.scheduling import Crew
from server.summing import FEWEST, Sums

SHARES = ("gradient", "delta", "weights")
ENGINES = ("auto", "ray", "inline")
RECORD_KEYS = {"arrayrecord_key": ARRAYS, "configrecord_key": CONFIG}
"""Settings of Flower's strategies that decide under which name a record travels."""
CREW_KEYS = ("workers", "num_cpus", "num_gpus", "resources", "threads", "timeout")
ATTACK_WORKERS = {
    "attack_workers": 1,
    "attack_num_cpus": 1.0,
    "attack_num_gpus": 0.0,
    "attack_threads": 1,
    "attack_resources": {},
}
"""As they are when nobody set them."""


def check_common(config: Config) -> None:
    """What holds for federated runs and audits alike.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    client, simulation = config["client"], config["simulation"]
    _one_of("client.share", client["share"], SHARES)
    _one_of("simulation.engine", simulation["engine"], ENGINES)
    _one_of("client.device", client["device"], ("auto", "cpu", "cuda"))
    _at_least("client.batch_size", client["batch_size"], 1)
    _at_least("client.local_epochs", client["local_epochs"], 1)
    if client["local_steps"] is not None:
        _at_least("client.local_steps", client["local_steps"], 1)
    _number("client.label_smoothing", client["label_smoothing"], 0.0, 0.999)
    _true_or_false("client.training_mode", client["training_mode"])
    if not isinstance(config["seed"], int) or isinstance(config["seed"], bool):
        raise ConfigError("seed", config["seed"], "a whole number")
    check_address(config["ray"]["address"])
    for key in ("dashboard", "grows"):
        _true_or_false(f"ray.{key}", config["ray"][key])
    if not config["attack"] and config.get("observation") is not None:
        raise ConfigError("attack", "[]", "at least one attack, for example attack=[patch_gradient]")
    _check_simulation(config)


def check_strategy(strategy: Any, num_clients: int) -> None:
    """Flower waits without end for nodes that never come: refuse a strategy that asks for more than there are.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    keys = ["min_available_nodes", "min_train_nodes"]
    if getattr(strategy, "fraction_evaluate", 0.0):
        keys.append("min_evaluate_nodes")
    for key in keys:
        nodes = getattr(strategy, key, 0)
        _at_least(f"strategy.{key}", nodes, 0)
        if nodes > num_clients:
            raise ConfigError(f"strategy.{key}", nodes, f"at most num_clients={num_clients}")


def check_federated(config: Config) -> None:
    """What holds for federated runs.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_complete(config, "config")
    check_common(config)
    _at_least("num_clients", config["num_clients"], 1)
    _at_least("num_rounds", config["num_rounds"], 1)
    _at_least("evaluate_every", config["evaluate_every"], 0)
    _true_or_false("audit", config["audit"])
    _true_or_false("observe.save", config["observe"]["save"])
    strategy = config["strategy"]
    if not any(isinstance(value, Mapping) for value in strategy.values()):  # what is nested checks itself
        check_settings("strategy", strategy)
    for key, right in RECORD_KEYS.items():
        if strategy.get(key, right) != right:
            raise ConfigError(f"strategy.{key}", strategy[key], f"{right}: fedsim's clients use that name")
    for key in ("fraction_train", "fraction_evaluate"):
        _number(f"strategy.{key}", strategy.get(key, 0), 0.0, 1.0)
    _at_least("checkpoint_every", config["checkpoint_every"], 0)
    _number("round_timeout", config["round_timeout"], 0.001)
    share, gradients = config["client"]["share"], takes_gradients(config)
    name = strategy["_target_"].rsplit(".", 1)[-1]
    if gradients and share != "gradient":
        raise ConfigError("client.share", share, f"gradient, which is what {name} averages")
    if not gradients and share == "gradient":
        raise ConfigError("client.share", share, f"weights or delta with {name}; strategy=fedsgd takes gradients")
    _check_observed_clients(config["observe"]["clients"], config["num_clients"])
    _at_least("observe.every", config["observe"]["every"], 0)


def _check_observed_clients(clients: Any, num_clients: int) -> None:
    if isinstance(clients, list):
        ids = set(range(num_clients))
        odd = next((one for one in clients if type(one) is not int or one not in ids), None)
        if odd is not None:
            raise ConfigError("observe.clients", clients, f"partition ids from 0 to {num_clients - 1}; {odd!r} is none")
    elif clients != "all" and (type(clients) is not int or clients < 0):
        raise ConfigError("observe.clients", clients, "a number of at least 0, a list of partition ids, or all")


def check_observed(config: Config, sums: Sums | None) -> None:
    """What holds for federated runs in which the server sees sums; None: it sees each client.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    if sums is None:
        return
    sums.check_observed(config["observe"]["clients"])
    clients, fewest = config["num_clients"], sums.clients or FEWEST
    if clients < fewest:
        raise ConfigError("num_clients", clients, f"at least {fewest}: {sums.by} sums over them")
    if clients_a_round(config) < fewest:
        fraction = config["strategy"].get("fraction_train")
        expected = f"enough for {fewest} of {clients} clients in each round: {sums.by} sums over them"
        raise ConfigError("strategy.fraction_train", fraction, expected)


def clients_a_round(config: Config) -> int:
    """How many of the clients train in a round, as Flower's strategies sample them; 1 and 2 are their defaults."""
    strategy = config["strategy"]
    sampled = int(config["num_clients"] * strategy.get("fraction_train", 1.0))
    return max(sampled, int(strategy.get("min_train_nodes", 2)))


def check_audit(config: Config) -> None:
    """What holds for audits.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_complete(config, "audit")
    check_common(config)
    audit = config["audit"]
    _at_least("audit.num_images", audit["num_images"], 1)
    _at_least("audit.batch_size", audit["batch_size"], 1)
    _at_least("audit.victims", audit["victims"], 1)
    if not isinstance(audit["select"], list):
        _one_of("audit.select", audit["select"], ("random", "per_class", "first"))
    if not config["attack"]:
        raise ConfigError("attack", "[]", "at least one attack, for example attack=[patch_gradient]")
    _check_no_crews(config["simulation"])


def _check_no_crews(simulation: Config) -> None:
    """In an audit whoever computed an update attacks it."""
    for name, crew in simulation["attack_crews"].items():
        for key in crew:
            if key != "timeout":
                expected = "left out: here the workers of clients attack, as simulation.num_gpus and its like set them"
                raise ConfigError(f"simulation.attack_crews.{name}.{key}", crew[key], expected)
    for key, usual in ATTACK_WORKERS.items():
        if simulation[key] != usual:
            expected = f"{usual} in an audit: its workers attack too, and simulation.{key[7:]} is of them"
            raise ConfigError(f"simulation.{key}", simulation[key], expected)


def takes_gradients(config: Config) -> bool:
    """Whether the strategy averages gradients itself."""
    target = config["strategy"].get("_target_", "")
    try:
        return bool(getattr(get_class(target), "shares_gradients", False))
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError("strategy._target_", target, f"a Flower strategy class ({error})") from error


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crews(config: Config) -> tuple[Crew, dict[str, Crew]]:
    """The workers of attacks, and those that single attacks have for themselves, by their names."""
    simulation = config["simulation"]
    common = {
        "workers": simulation["attack_workers"],
        "num_cpus": simulation["attack_num_cpus"],
        "num_gpus": simulation["attack_num_gpus"],
        "resources": simulation["attack_resources"],
        "threads": simulation["attack_threads"],
        "timeout": simulation["attack_timeout"],
    }
    own = {name: _crew({**common, **crew}) for name, crew in simulation["attack_crews"].items()}
    return _crew(common), own


def attacks_timeout(config: Config, attacks: Iterable[str]) -> float:
    """Seconds that these attacks may take one after the other, each as long as its workers would let it."""
    common, own = crews(config)
    return sum(own.get(name, common).timeout for name in attacks)


def _crew(settings: dict[str, Any]) -> Crew:
    request = Request(float(settings["num_cpus"]), float(settings["num_gpus"]), settings["resources"])
    return Crew(int(settings["workers"]), request, int(settings["threads"]), float(settings["timeout"]))


def placement(config: Config) -> Placement:
    """What all workers of a run ask for."""
    simulation = config["simulation"]
    clients = Request(float(simulation["num_cpus"]), float(simulation["num_gpus"]), simulation["resources"])
    common, own = crews(config)
    needed = dict.fromkeys(own.get(name, common) for name in config["attack"])
    return Placement(clients, tuple((crew.request, crew.workers) for crew in needed))


def check_room(config: Config, attackers: bool = True) -> None:
    """Where no further node can come: every worker must fit on what is there.

    Args:
        attackers: attacks have workers of their own.

    Raises:
        ConfigError: a worker would wait without end; it names the key and what is missing.
    """
    common, own = crews(config)
    _refuse_homeless(placement(config).clients, "simulation.")
    for name in config["attack"] if attackers else ():
        request, apart = own.get(name, common).request, config["simulation"]["attack_crews"].get(name, {})
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


def worker_counts(config: Config, jobs: int) -> int:
    """Client workers: as configured, or what this machine, or the cluster, can carry beside the attack workers."""
    workers = config["simulation"]["workers"]
    if workers != "auto":
        return int(workers)
    wanted = placement(config)
    if config["ray"]["address"] is not None:
        return max(1, min(jobs, wanted.room_for_clients()))
    free = cores() - sum(request.cpus * count for request, count in wanted.attacks)
    fitting = min(jobs, int(free / max(wanted.clients.cpus, 1e-3)))
    if wanted.clients.gpus > 0:
        left = torch.cuda.device_count() - sum(request.gpus * count for request, count in wanted.attacks)
        fitting = min(fitting, int(left / wanted.clients.gpus))
    return max(1, fitting)


def _check_simulation(config: Config) -> None:
    simulation = config["simulation"]
    if simulation["workers"] != "auto":
        _at_least("simulation.workers", simulation["workers"], 1)
    for key in ("threads", "attack_workers", "attack_threads", "attack_backlog"):
        _at_least(f"simulation.{key}", simulation[key], 1)
    if simulation["worker_sums"] != "auto":
        _at_least("simulation.worker_sums", simulation["worker_sums"], 0)
    for key in ("max_retries", "attack_retries"):
        _at_least(f"simulation.{key}", simulation[key], 0)
    _check_resources(simulation, config["attack"])
    for key in ("num_cpus", "attack_num_cpus", "attack_timeout"):
        _number(f"simulation.{key}", simulation[key], 0.001)
    for key in ("num_gpus", "attack_num_gpus"):
        _number(f"simulation.{key}", simulation[key], 0.0)
        if simulation[key] > 0 and config["ray"]["address"] is None and not torch.cuda.is_available():
            raise ConfigError(f"simulation.{key}", simulation[key], "it must be 0, this machine has no CUDA device")
    _check_gpus(config)


def _check_resources(simulation: Config, attacks: Config) -> None:
    for key in ("resources", "attack_resources"):
        _amounts(f"simulation.{key}", simulation[key])
    crews = simulation["attack_crews"]
    if not isinstance(crews, dict) or not all(isinstance(crew, dict) for crew in crews.values()):
        raise ConfigError("simulation.attack_crews", crews, "names of attacks, each with settings of its workers")
    for name, crew in crews.items():
        if name not in attacks and (hint := nearest(str(name), attacks)):
            raise ConfigError(f"simulation.attack_crews.{name}", crew, f"the name of an attack.{hint}")
        for key, value in crew.items():
            full = f"simulation.attack_crews.{name}.{key}"
            if key in ("workers", "threads"):
                _at_least(full, value, 1)
            elif key in ("num_cpus", "num_gpus", "timeout"):
                _number(full, value, 0.0 if key == "num_gpus" else 0.001)
            elif key == "resources":
                _amounts(full, value)
            else:
                raise ConfigError(full, value, f"one of {', '.join(CREW_KEYS)}.{nearest(str(key), CREW_KEYS)}")


def _amounts(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(key, value, "amounts of Ray's custom resources by name")
    for name, amount in value.items():
        if name in ("CPU", "GPU"):
            raise ConfigError(f"{key}.{name}", amount, "no custom resource: num_cpus and num_gpus set it")
        _number(f"{key}.{name}", amount, 0.0001)


def _check_gpus(config: Config) -> None:
    simulation = config["simulation"]
    engine = simulation["engine"]
    on_ray = needs_ray(config) is not None if engine == "auto" else engine == "ray"
    if config["client"]["device"] == "cuda":
        if not on_ray and not torch.cuda.is_available():
            raise ConfigError("client.device", "cuda", "auto or cpu: this machine has no CUDA device")
        if on_ray and not simulation["num_gpus"]:
            raise ConfigError("client.device", "cuda", "auto, or simulation.num_gpus above 0 so that workers get a GPU")
    if config["ray"]["address"] is None and on_ray:
        attacks = placement(config).attacks
        wanted = worker_counts(config, 1) * simulation["num_gpus"] + sum(r.gpus * count for r, count in attacks)
        if wanted > torch.cuda.device_count():
            there = torch.cuda.device_count()
            raise ConfigError(
                "simulation.num_gpus", simulation["num_gpus"], f"less: all workers ask for {wanted:g} of {there}"
            )


def _one_of(key: str, value: Any, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ConfigError(key, value, f"one of {', '.join(options)}.{nearest(str(value), options)}")


def _true_or_false(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")


def _number(key: str, value: Any, least: float, most: float = math.inf) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ConfigError(key, value, f"a number of at least {least:g}{upper}")


def _at_least(key: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(key, value, f"a whole number of at least {least}")
