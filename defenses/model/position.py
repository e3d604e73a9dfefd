"""Defenses that keep the gradient of the position embedding from the server (APRIL's defence; Lu et al. 2022)."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from defenses.base import Defense
from fedsim.effects import Effect, ForgetsPositions, Withholds
from fedsim.errors import ConfigError
from fedsim.models.roles import ViTRoles, find_roles
from fedsim.models.zoo.april import sincos_position_embedding
from fedsim.update import Update

KINDS = ("sincos", "frozen")


class FixedPositionEmbedding(Defense):
    """A position embedding that is never trained, so that it has no gradient to share.

    It stays a parameter, frozen, and in the state dict. The server knows its values. The row-space
    intersection of two other gradients still leaks the picture where it is `frozen`; behind `sincos` it has too few
    equations, and `first_block` goes further.

    Args:
        kind: `sincos`, MAE's 2D embedding, or `frozen`: the values that the model was built with.
    """

    repeatable = True

    def __init__(self, kind: str = "sincos") -> None:
        if kind not in KINDS:
            raise ConfigError("defense.fixed_pe.kind", kind, f"one of {', '.join(KINDS)}")
        self.kind = kind

    def effects(self) -> tuple[Effect, ...]:
        return (Withholds(frozen=True),)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        embedding, roles = _position_embedding(model, "fixed_pe")
        if self.kind == "sincos":
            if roles.grid is None:
                raise ConfigError("defense.fixed_pe.kind", self.kind, fault=f"{type(model).__name__} has no patch grid")
            fixed = sincos_position_embedding(roles.grid, embedding.shape[-1], roles.embedded_prefix_tokens)
            with torch.no_grad():
                embedding.copy_(fixed.reshape(embedding.shape))
        embedding.requires_grad_(False)
        return model


class WithholdPositionEmbedding(Defense):
    """The position embedding is trained for the local steps, but no change of it is ever shared."""

    repeatable = True

    def __init__(self) -> None:
        self._name: str | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (Withholds(),)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        embedding, roles = _position_embedding(model, "withhold_pe")
        if not embedding.requires_grad:
            raise ConfigError("defense", "withhold_pe", "a position embedding that is trained: here it is frozen")
        self._name = roles.pos_embed
        return model

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        if self._name is None:
            raise RuntimeError("withhold_pe learns the name of the position embedding in wrap_model: call it first")
        return replace(update, tensors={name: t for name, t in update.tensors.items() if name != self._name})


class NoPositionEmbedding(Defense):
    """A model that adds no position embedding: the order of the patches is lost on it, and on the server.

    It stays where the model has rotary or relative positions besides (EVA02, Swin, ConViT), and where its patches
    overlap or come of a convolutional stem (Hiera, PiT, hybrids). The parameter is replaced by zeros that are neither
    parameter nor part of the state dict, since not every timm model can do without the attribute.
    """

    repeatable = True

    def __init__(self) -> None:
        self._forgets = True

    def effects(self) -> tuple[Effect, ...]:
        return (ForgetsPositions(),) if self._forgets else ()

    def wrap_model(self, model: nn.Module) -> nn.Module:
        embedding, roles = _position_embedding(model, "no_pe")
        self._forgets = not (roles.rotary or roles.relative or _tells_patches_apart(roles))
        assert roles.pos_embed is not None
        owner, _, attribute = roles.pos_embed.rpartition(".")
        module = model.get_submodule(owner)
        delattr(module, attribute)
        module.register_buffer(attribute, torch.zeros_like(embedding), persistent=False)
        return model


def _tells_patches_apart(roles: ViTRoles) -> bool:
    """Whether what becomes of a patch goes by its place: a stem reads its neighbours, padding the picture's edge."""
    return roles.patch is None or any(word in why for why in roles.obstacles for word in ("stem", "overlaps", "pads"))


def _position_embedding(model: nn.Module, defense: str) -> tuple[Tensor, ViTRoles]:
    """The parameter, wherever the model keeps it.

    Raises:
        ConfigError: the model has none.
    """
    roles = find_roles(model)
    if roles.pos_embed is None:
        raise ConfigError("defense", defense, f"a model with a position embedding, which {_called(model)} has not")
    return model.get_parameter(roles.pos_embed), roles


def _called(model: nn.Module) -> str:
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    return str(architecture or type(model).__name__)
