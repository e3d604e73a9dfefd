"""Settings that cannot work are refused here, in one line, before any worker starts."""

import os
from typing import Any

import torch
from hydra.utils import get_class

from fedsim.composition import Config
from fedsim.errors import ConfigError, nearest

SHARES = ("gradient", "delta", "weights")
ENGINES = ("ray", "inline")


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
    if not 0 <= client["label_smoothing"] < 1:
        raise ConfigError("client.label_smoothing", client["label_smoothing"], "a number from 0 up to, not with, 1")
    if not isinstance(config["seed"], int):
        raise ConfigError("seed", config["seed"], "a whole number")
    _check_simulation(config)


def check_federated(config: Config) -> None:
    """What holds for federated runs.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_common(config)
    _at_least("num_clients", config["num_clients"], 1)
    _at_least("num_rounds", config["num_rounds"], 1)
    _at_least("evaluate_every", config["evaluate_every"], 0)
    if not isinstance(config["audit"], bool):
        raise ConfigError("audit", config["audit"], "true or false")
    strategy = config["strategy"]
    for key in ("min_available_nodes", "min_train_nodes"):
        if int(strategy.get(key, 0)) > config["num_clients"]:
            raise ConfigError(f"strategy.{key}", strategy[key], f"at most num_clients={config['num_clients']}")
    for key in ("fraction_train", "fraction_evaluate"):
        if not 0 <= strategy.get(key, 0) <= 1:
            raise ConfigError(f"strategy.{key}", strategy[key], "a share from 0 to 1")
    share, gradients = config["client"]["share"], takes_gradients(config)
    name = strategy["_target_"].rsplit(".", 1)[-1]
    if gradients and share != "gradient":
        raise ConfigError("client.share", share, f"gradient, which is what {name} averages")
    if not gradients and share == "gradient":
        raise ConfigError("client.share", share, f"weights or delta with {name}; strategy=fedsgd takes gradients")
    clients = config["observe"]["clients"]
    if clients != "all" and not isinstance(clients, int | list):
        raise ConfigError("observe.clients", clients, "a number, a list of partition ids, or all")
    _at_least("observe.every", config["observe"]["every"], 0)


def check_audit(config: Config) -> None:
    """What holds for audits.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    check_common(config)
    audit = config["audit"]
    _at_least("audit.num_images", audit["num_images"], 1)
    _at_least("audit.batch_size", audit["batch_size"], 1)
    if not isinstance(audit["select"], list):
        _one_of("audit.select", audit["select"], ("random", "per_class", "first"))
    if not config["attack"]:
        raise ConfigError("attack", "[]", "at least one attack, for example attack=[patch_gradient]")


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


def worker_counts(config: Config, jobs: int) -> tuple[int, int]:
    """(client workers, attack workers): as configured, or all cores between them."""
    simulation = config["simulation"]
    attackers = int(simulation["attack_workers"]) if config["attack"] else 0
    if simulation["workers"] != "auto":
        return int(simulation["workers"]), attackers
    free = cores() - attackers * float(simulation["attack_num_cpus"])
    return max(1, min(jobs, int(free / max(float(simulation["num_cpus"]), 1e-3)))), attackers


def _check_simulation(config: Config) -> None:
    simulation = config["simulation"]
    workers = simulation["workers"]
    if workers != "auto":
        _at_least("simulation.workers", workers, 1)
    _at_least("simulation.threads", simulation["threads"], 1)
    _at_least("simulation.attack_workers", simulation["attack_workers"], 1)
    for key in ("num_gpus", "attack_num_gpus"):
        wanted = simulation[key]
        if not isinstance(wanted, int | float) or wanted < 0:
            raise ConfigError(f"simulation.{key}", wanted, "a number of GPUs from 0 up, fractions allowed")
        if wanted > 0 and config["ray"]["address"] is None and not torch.cuda.is_available():
            raise ConfigError(f"simulation.{key}", wanted, "0: this machine has no CUDA device")
    if config["client"]["device"] == "cuda" and not simulation["num_gpus"] and simulation["engine"] == "ray":
        raise ConfigError("client.device", "cuda", "auto, or simulation.num_gpus above 0 so that workers get a GPU")


def _one_of(key: str, value: Any, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ConfigError(key, value, f"one of {', '.join(options)}.{nearest(str(value), options)}")


def _at_least(key: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(key, value, f"a whole number of at least {least}")
