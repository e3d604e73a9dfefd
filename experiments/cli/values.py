"""Types and ranges of settings, checked before any library is imported."""

import math
from typing import Any

from experiments.cli.completeness import check_complete
from fedsim.errors import ConfigError, nearest
from fedsim.settings.ray_address import check_address

Config = dict[str, Any]

STATES = {"initial": ("initial",), "trained": ("trained",), "both": ("initial", "trained")}
"""Of the weights that the audits of a matrix take, by what `matrix.state` says."""

SHARES = ("gradient", "delta", "weights")
ENGINES = ("auto", "ray", "inline")
CREW_KEYS = ("workers", "num_cpus", "num_gpus", "resources", "threads", "timeout")
ATTACK_WORKERS = {
    "attack_workers": 1,
    "attack_num_cpus": 1.0,
    "attack_num_gpus": 0.0,
    "attack_threads": 1,
    "attack_resources": {},
}
"""As they are when nobody set them."""


def check_common_values(config: Config) -> None:
    """What holds for federated runs and audits alike.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    client, simulation = config["client"], config["simulation"]
    one_of("client.share", client["share"], SHARES)
    one_of("simulation.engine", simulation["engine"], ENGINES)
    one_of("client.device", client["device"], ("auto", "cpu", "cuda"))
    at_least("client.batch_size", client["batch_size"], 1)
    at_least("client.local_epochs", client["local_epochs"], 1)
    if client["local_steps"] is not None:
        at_least("client.local_steps", client["local_steps"], 1)
    number("client.label_smoothing", client["label_smoothing"], 0.0, 0.999)
    true_or_false("client.training_mode", client["training_mode"])
    if not isinstance(config["seed"], int) or isinstance(config["seed"], bool):
        raise ConfigError("seed", config["seed"], "a whole number")
    check_address(config["ray"]["address"])
    for key in ("dashboard", "grows"):
        true_or_false(f"ray.{key}", config["ray"][key])
    if not config["attack"] and config.get("observation") is not None:
        raise ConfigError("attack", "[]", "at least one attack, for example attack=[patch_gradient]")
    _check_simulation(config)


def check_federated_values(config: Config) -> None:
    """What holds for federated runs.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_complete(config, "config")
    check_common_values(config)
    at_least("num_clients", config["num_clients"], 1)
    at_least("num_rounds", config["num_rounds"], 1)
    at_least("evaluate_every", config["evaluate_every"], 0)
    true_or_false("audit", config["audit"])
    true_or_false("observe.save", config["observe"]["save"])
    for key in ("fraction_train", "fraction_evaluate"):
        number(f"strategy.{key}", config["strategy"].get(key, 0), 0.0, 1.0)
    at_least("checkpoint_every", config["checkpoint_every"], 0)
    number("round_timeout", config["round_timeout"], 0.001)
    _check_observed_clients(config["observe"]["clients"], config["num_clients"])
    at_least("observe.every", config["observe"]["every"], 0)


def _check_observed_clients(clients: Any, num_clients: int) -> None:
    if isinstance(clients, list):
        ids = set(range(num_clients))
        odd = next((one for one in clients if type(one) is not int or one not in ids), None)
        if odd is not None:
            raise ConfigError("observe.clients", clients, f"partition ids from 0 to {num_clients - 1}; {odd!r} is none")
    elif clients != "all" and (type(clients) is not int or clients < 0):
        raise ConfigError("observe.clients", clients, "a number of at least 0, a list of partition ids, or all")


def check_audit_values(config: Config) -> None:
    """What holds for audits.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_complete(config, "audit")
    check_common_values(config)
    audit = config["audit"]
    at_least("audit.num_images", audit["num_images"], 1)
    at_least("audit.batch_size", audit["batch_size"], 1)
    at_least("audit.victims", audit["victims"], 1)
    if not isinstance(audit["select"], list):
        one_of("audit.select", audit["select"], ("random", "per_class", "first"))
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


def check_matrix_values(config: Config) -> None:
    """What holds for a matrix, its rows and columns aside.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_complete(config, "matrix")
    check_common_values(config)
    matrix, simulation = config["matrix"], config["simulation"]
    for group in ("defense", "attack"):
        if config[group]:
            raise ConfigError(group, list(config[group]), f"[]: matrix.{group}s names them")
    one_of("matrix.state", matrix["state"], tuple(STATES))
    at_least("matrix.seeds", matrix["seeds"], 1)
    true_or_false("matrix.parallel", matrix["parallel"])
    if matrix["parallel"] and simulation["engine"] != "inline" and simulation["num_gpus"]:
        raise ConfigError("matrix.parallel", "true", "false where simulation.num_gpus gives each worker a GPU")


def _check_simulation(config: Config) -> None:
    simulation = config["simulation"]
    if simulation["workers"] != "auto":
        at_least("simulation.workers", simulation["workers"], 1)
    for key in ("threads", "attack_workers", "attack_threads", "attack_backlog"):
        at_least(f"simulation.{key}", simulation[key], 1)
    if simulation["worker_sums"] != "auto":
        at_least("simulation.worker_sums", simulation["worker_sums"], 0)
    for key in ("max_retries", "attack_retries"):
        at_least(f"simulation.{key}", simulation[key], 0)
    _check_resources(simulation, config["attack"])
    for key in ("num_cpus", "attack_num_cpus", "attack_timeout"):
        number(f"simulation.{key}", simulation[key], 0.001)
    for key in ("num_gpus", "attack_num_gpus"):
        number(f"simulation.{key}", simulation[key], 0.0)


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
                at_least(full, value, 1)
            elif key in ("num_cpus", "num_gpus", "timeout"):
                number(full, value, 0.0 if key == "num_gpus" else 0.001)
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
        number(f"{key}.{name}", amount, 0.0001)


def one_of(key: str, value: Any, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ConfigError(key, value, f"one of {', '.join(options)}.{nearest(str(value), options)}")


def true_or_false(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")


def number(key: str, value: Any, least: float, most: float = math.inf) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ConfigError(key, value, f"a number of at least {least:g}{upper}")


def at_least(key: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(key, value, f"a whole number of at least {least}")
