"""torch optimisers and schedulers from configuration, tried before anything starts."""

from collections.abc import Callable
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from fedsim.errors import ConfigError

Optimisers = tuple[torch.optim.Optimizer, LRScheduler | None]
OptimizerFactory = Callable[[list[nn.Parameter]], Optimisers]


def optimizer_factory(key: str, optimizer: dict[str, Any], scheduler: dict[str, Any] | None) -> OptimizerFactory:
    """A function that makes the configured optimiser, and its scheduler or None, for given parameters.

    Args:
        key: where the settings stand in the configuration, for the error.

    Raises:
        ConfigError: torch has no such class, or refuses the settings, or they climb the loss.
    """

    def make(parameters: list[nn.Parameter]) -> Optimisers:
        # Called, not passed to `instantiate`: Hydra would deep-copy parameters and train the copies.
        made = instantiate(optimizer, _partial_=True)(parameters)
        return made, None if scheduler is None else instantiate(scheduler, _partial_=True)(made)

    try:
        trial = make([nn.Parameter(torch.zeros(1))])
    except InstantiationException as error:
        name = optimizer.get("_target_") if scheduler is None else f"{optimizer.get('_target_')} or its scheduler"
        raise ConfigError(f"{key}.optimizer._target_", name, "an importable torch optimiser") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{key}.optimizer", optimizer, f"settings that torch takes ({error})") from error
    if not isinstance(trial[0], torch.optim.Optimizer):
        raise ConfigError(f"{key}.optimizer._target_", optimizer.get("_target_"), "a torch optimiser")
    if any(group.get("maximize", False) for group in trial[0].param_groups):
        raise ConfigError(f"{key}.optimizer.maximize", True, "false: the loss is minimised, and attacks read it so")
    return make
