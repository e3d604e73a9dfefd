"""Roles that the owner of a module states, where its parts have other names than timm's: checked at once."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedsim.errors import ConfigError, nearest
from fedsim.models.roles import STATED, find_roles, owner_of


def check_stated(model: nn.Module, roles: Mapping[str, str] | Any, channels: int) -> dict[str, str]:
    """The roles as they were stated.

    Args:
        model: keeps them in `pretrained_cfg` already, with the size of its images.
        channels: of its images.

    Raises:
        ConfigError: no such role or parameter, or one of a shape that cannot have this role.
    """
    if not isinstance(roles, Mapping):
        raise ConfigError("roles", roles, "parameter names by role: {'patch_weight': 'embed.weight', …}")
    parameters = dict(model.named_parameters())
    for role, name in roles.items():
        if role not in STATED:
            raise ConfigError("roles", role, f"one of {', '.join(STATED)}.{nearest(str(role), STATED)}")
        if name not in parameters:
            expected = f"the name of a parameter of {type(model).__name__}.{nearest(str(name), parameters)}"
            raise ConfigError(f"roles.{role}", name, expected)
    found = find_roles(model)
    if (name := roles.get("patch_weight")) is not None:
        owner = owner_of(model, name)
        if not isinstance(owner, nn.Conv2d) or owner.weight is not parameters[name] or owner.in_channels != channels:
            expected = f"the weight of a Conv2d on images: (width, {channels}, rows, columns)"
            raise ConfigError("roles.patch_weight", _described(name, parameters[name]), expected)
    if found.patch_weight is None or found.grid is None:
        raise ConfigError("roles", dict(roles), "patch_weight too: where the patches are projected is not known")
    width, tokens = len(parameters[found.patch_weight]), found.grid[0] * found.grid[1]
    if (name := roles.get("class_token")) is not None and parameters[name].shape[-1] != width:
        expected = f"so many numbers as the model is wide: {width}"
        raise ConfigError("roles.class_token", _described(name, parameters[name]), expected)
    if (name := roles.get("pos_embed")) is not None:
        rows = found.embedded_prefix_tokens + tokens
        if parameters[name].shape[-1] != width or parameters[name].numel() != rows * width:
            also = f", or {tokens + found.prefix_tokens} with class_token" if found.prefix_tokens else ""
            expected = f"a row of {width} numbers for each of {tokens} patches{also}"
            raise ConfigError("roles.pos_embed", _described(name, parameters[name]), expected)
    return dict(roles)


def _described(name: str, parameter: Tensor) -> str:
    return f"{name} {tuple(parameter.shape)}"
