"""`client.no_decay`: which parameters weight decay leaves alone, as recipes for vision transformers have it."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn


def undecayed(model: nn.Module) -> tuple[str, ...]:
    """Names of trained vectors, and of what the model names by `no_weight_decay()`.

    Those that timm's `param_groups_weight_decay` takes.

    >>> undecayed(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
    ('0.bias', '1.weight', '1.bias')
    """
    own: Collection[str] = getattr(model, "no_weight_decay", tuple)()
    return tuple(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, pattern) for pattern in own))
    )


def groups(trained: Mapping[str, nn.Parameter], apart: Collection[str]) -> list[Any]:
    """Parameters as torch's optimisers take them: in two groups where some do not decay."""
    if not apart:
        return list(trained.values())
    chosen = frozenset(apart)
    decayed = [parameter for name, parameter in trained.items() if name not in chosen]
    kept = [parameter for name, parameter in trained.items() if name in chosen]
    return [one for one in ({"params": decayed}, {"params": kept, "weight_decay": 0.0}) if one["params"]]
