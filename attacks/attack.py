"""`fedsim.attack`: an attack on observations in hand."""

from collections.abc import Sequence
from typing import Any, overload

import torch

from attacks.base import Attack
from attacks.building import build_attack, stages
from attacks.progress import shown_session
from attacks.running import run_built, run_on_history
from attacks.session import Session
from fedsim.effects import AddsNoise, PerturbsSteps, Unpublished
from fedsim.errors import ConfigError
from fedsim.history import History
from fedsim.observation import Observation
from fedsim.result import AttackResult
from fedsim.settings.options import option

NOISY = AddsNoise, PerturbsSteps, Unpublished
"""Effects with which a client's draw may be noise on what it shares."""


@overload
def attack(
    attack: str | Attack,
    observation: Observation | History,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> AttackResult: ...


@overload
def attack(
    attack: str | Attack,
    observation: Sequence[Observation],
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> list[AttackResult]: ...


def attack(
    attack: str | Attack,
    observation: Observation | History | Sequence[Observation],
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> AttackResult | list[AttackResult]:
    """Attack what a client shared; a refusal, and a fault in the attack's code, are results too.

    Args:
        attack: a name of `conf/attack`, or an Attack of your own.
        observation: one, or several: these are attacked together where the attack can. A `fedsim.History` is one
            client's several rounds, from which an attack rebuilds the same images.
        seed: of every random draw.
        device: None: CUDA where there is any, else the CPU.
        progress: a bar while a search runs; None: on a terminal and in a notebook.
        settings: of the named attack, nested ones as dictionaries:
            `priors={"total_variation": {"weight": 0.1}}`.

    Raises:
        ConfigError: no such attack, a setting that it does not have, a device that is not there, or several
            observations of one round and client behind noise.

    >>> import fedsim, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    >>> seen = fedsim.observe(model, torch.rand(1, 3, 4, 4), [3])
    >>> fedsim.attack("patch_gradient", seen).reason.partition(";")[0]
    "Sequential has no patch embedding: a Conv2d at `patch_embed.proj`, as timm's ViTs"
    """
    built, name = _built(attack, settings)
    where = _device(device)
    if isinstance(observation, History):
        _check_stated(name, built, observation.observations)
        with shown_session(name, progress) as session:
            built.session = session
            result = run_on_history(observation, name, built, seed, where)
        built.session = Session()
        return result
    several = list(observation) if isinstance(observation, Sequence) else [observation]
    if strange := next((one for one in several if not isinstance(one, Observation)), None):
        expected = "an Observation, as fedsim.observe and fedsim.Observation.of give, or several"
        raise ConfigError("observation", type(strange).__name__, expected)
    _refuse_shared_noise(several)
    _check_stated(name, built, several)
    with shown_session(name, progress) as session:
        built.session = session
        results = run_built(several, name, built, seed, where)
    built.session = Session()
    return results[0] if isinstance(observation, Observation) else results


def _refuse_shared_noise(several: Sequence[Observation]) -> None:
    """Noise follows the seed, which no server knows, the round and the client: these two must tell draws apart."""
    drawn = [one.name for one in several if not one.repeatable and any(isinstance(e, NOISY) for e in one.effects)]
    if twice := next((name for name in drawn if drawn.count(name) > 1), None):
        expected = "observed with a client= of its own each time: equal noise leaves no noise in their difference"
        raise ConfigError("observation", f"{twice}, more than once", expected)


def _check_stated(name: str, attack: Attack, observations: Sequence[Observation]) -> None:
    """Raises ConfigError: what settings state of the images cannot be true of one of these."""
    for key, stage in stages(name, attack).items():
        for observation in observations:
            try:
                stage.check_stated(observation)
            except ConfigError as error:
                raise error.under(f"{key}.{error.key}") from error


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError("device", device, "cpu, cuda or cuda:N, or None for what is there") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu, or None: this machine has no CUDA device")
    if where.type == "cuda" and (where.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError("device", device, f"cuda:{count - 1} at most: this machine has {count} CUDA devices")
    return where


def _built(attack: str | Attack, settings: dict[str, Any]) -> tuple[Attack, str]:
    if isinstance(attack, Attack):
        if settings:
            key, value = next(iter(settings.items()))
            raise ConfigError(key, value, f"nothing: {type(attack).__name__} is built already, with its settings")
        return attack, type(attack).__name__
    if not isinstance(attack, str):
        last = ", before the observation" if isinstance(attack, Observation | History) else ""
        raise ConfigError("attack", attack, f"a name of conf/attack, or an object of a subclass of fedsim.Attack{last}")
    return build_attack(attack, option("attack", attack, settings, objects=True)), attack
