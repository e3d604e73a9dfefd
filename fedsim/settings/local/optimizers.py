"""torch optimisers and schedulers from configuration, tried before anything starts."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from fedsim.errors import ConfigError
from fedsim.settings.local.limits import LARGEST
from fedsim.settings.local.sgd import SGD
from fedsim.settings.schema import is_number

Optimisers = tuple[torch.optim.Optimizer, LRScheduler | None]
OptimizerFactory = Callable[[list[Any]], Optimisers]
"""Of parameters, or of groups of them."""


def optimizer_factory(key: str, optimizer: dict[str, Any], scheduler: dict[str, Any] | None) -> OptimizerFactory:
    """A function that makes the configured optimiser, and its scheduler or None, for given parameters.

    Args:
        key: where the settings stand in the configuration, for the error.

    Raises:
        ConfigError: torch has no such class, or refuses the settings, or they climb the loss, or take no step from
            gradients alone.
    """

    try:
        # Called, not passed to `instantiate`: Hydra would deep-copy parameters and train the copies.
        optimizer_of = instantiate(optimizer, _partial_=True)
        scheduler_of = None if scheduler is None else instantiate(scheduler, _partial_=True)
        made = optimizer_of([nn.Parameter(torch.zeros(1))])
        trial = made, None if scheduler_of is None else scheduler_of(made)
    except InstantiationException as error:
        name = optimizer.get("_target_") if scheduler is None else f"{optimizer.get('_target_')} or its scheduler"
        raise ConfigError(f"{key}.optimizer._target_", name, "an importable torch optimiser") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{key}.optimizer", optimizer, f"settings that torch takes ({error})") from error
    if not isinstance(trial[0], torch.optim.Optimizer):
        raise ConfigError(f"{key}.optimizer._target_", optimizer.get("_target_"), "a torch optimiser")
    for name in ("lr", "momentum", "dampening", "weight_decay", "eps"):
        value = trial[0].defaults.get(name)
        if isinstance(value, float | int) and not is_number(value, 0.0, LARGEST):
            raise ConfigError(f"{key}.optimizer.{name}", value, f"a number from 0 to {LARGEST:g}")
    _take_step(key, *trial, {"optimizer": optimizer, "scheduler": scheduler or {}})
    if any(group.get("maximize", False) for group in trial[0].param_groups):
        raise ConfigError(f"{key}.optimizer.maximize", True, "false: the loss is minimised, and attacks read it so")
    if scheduler is not None and key == "client":
        for name in ("momentum", "betas"):
            if any(group.get(name) != made.defaults.get(name) for group in made.param_groups):
                expected = (
                    f"one that leaves {name} as it is, cycle_momentum=false: the observation names one for all steps"
                )
                raise ConfigError(f"{key}.scheduler", scheduler.get("_target_"), expected)
    optimizer_of, scheduler_of = _plain(optimizer_of), None if scheduler_of is None else _plain(scheduler_of)
    numbers = all(isinstance(value, float | int | None) for value in optimizer_of.keywords.values())

    def make(parameters: list[Any]) -> Optimisers:
        # Nothing that the settings hold goes on to the next client.
        made = (optimizer_of if numbers else copy.deepcopy(optimizer_of))(parameters)
        return made, None if scheduler_of is None else copy.deepcopy(scheduler_of)(made)

    return make


def _take_step(
    key: str, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None, settings: dict[str, dict[str, Any]]
) -> None:
    """As a client does: some ask for more than gradients and a count of steps."""
    if optimizer.defaults.get("capturable"):  # on a GPU alone
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    part, wanted = "optimizer", "one that steps from dense gradients alone, without a closure"
    try:
        optimizer.step()
        if scheduler is not None:
            part, wanted = "scheduler", "one that steps without a measure of how training goes"
            scheduler.step()
    except Exception as error:  # an optimiser of one's own raises what it likes
        raise ConfigError(f"{key}.{part}._target_", settings[part].get("_target_"), f"{wanted} ({error})") from error


def check_lasts(key: str, optimizer: dict[str, Any], scheduler: dict[str, Any] | None, steps: int, of: str) -> None:
    """Raises ConfigError where the scheduler ends before so many steps.

    Args:
        of: what takes them, for the error.
    """
    if scheduler is None:
        return
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    made, plan = optimizer_factory(key, optimizer, scheduler)([parameter])
    assert plan is not None
    if not made.defaults.get("capturable"):  # on a GPU alone
        made.step()
    try:
        for _ in range(steps):
            plan.step()
    except Exception as error:  # torch raises ValueError, a scheduler of one's own what it likes
        expected = f"one that lasts the {steps:,} steps of {of} ({error})"
        raise ConfigError(f"{key}.scheduler", scheduler.get("_target_"), expected) from error


def _plain(call: partial[Any]) -> partial[Any]:
    """Without Hydra's check at each call, which takes longer than the call: the first has passed it.

    SGD takes all parameters together: the same bits, and on a CPU half the time of torch's default there.
    """
    keywords, func = dict(call.keywords), call.func
    if func is torch.optim.SGD and "fused" not in keywords:
        keywords.setdefault("foreach", True)
        func = SGD
    return partial(func, *call.args, **keywords)
