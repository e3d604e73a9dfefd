"""Defenses that keep named parts of a model from the server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from defenses.base import ClientRound, Defense, Plan
from defenses.settings import choice
from fedsim.effects import Effect, Withholds
from fedsim.errors import ConfigError, nearest
from fedsim.models.roles import ViTRoles, find_roles
from fedsim.update import Update

MODES = ("private", "local", "frozen")


class Withhold(Defense):
    """Parameters and running statistics that are never shared, chosen by name or role.

    Args:
        patterns: globs on the names of parameters (`blocks.0.attn.*`), of floating-point buffers
            (`bn1.running_mean`), and of roles in `ViTRoles` (`patch_weight`, `qkv_*`).
        mode: `private`: trained in the local steps, and lost when the client's turn ends; `local`: trained, and kept
            on the client for its next turn (FedPer, Arivazhagan et al. 2019), so that the server evaluates them as it
            sent them first and clients (`strategy.fraction_evaluate`) as they trained them; `frozen`: never trained
            (buffers follow the batches all the same, and are lost).
    """

    def __init__(self, patterns: str | Sequence[str] = ("patch_weight",), mode: str = "private") -> None:
        self.patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(self.patterns, Sequence) or not all(isinstance(p, str) for p in self.patterns):
            raise ConfigError("defense.withhold.patterns", patterns, "a list of globs on names or roles")
        self.mode = choice("defense.withhold.mode", mode, MODES)
        self._names: frozenset[str] | None = None
        self._turn: ClientRound | None = None

    @property
    def names(self) -> frozenset[str]:
        """The parameters and buffers that it holds back, known from `wrap_model` on."""
        return self._names or frozenset()

    @property
    def repeatable(self) -> bool:
        return self.mode != "local"

    def effects(self) -> tuple[Effect, ...]:
        return (Withholds(frozen=self.mode == "frozen", kept=self.mode == "local"),)

    def check(self, plan: Plan) -> None:
        """Raises ConfigError for `local` where nothing is trained, and where a later defense changes what is named."""
        if self.mode == "local" and plan.client["share"] == "gradient":
            raise ConfigError(
                "defense.withhold.mode", self.mode, "private or frozen: a client that shares a gradient trains nothing"
            )
        order = list(plan.defenses.items())
        place = next((index for index, (_, defense) in enumerate(order) if defense is self), len(order))
        later = [name for name, other in order[place + 1 :] if type(other).wrap_model is not Defense.wrap_model]
        if self._names is None or not later:
            return
        roles = parameters_by_role(find_roles(plan.model))
        tensors = [*dict(plan.model.named_parameters()), *_floating_buffers(plan.model)]
        now = {name for pattern in self.patterns for name in _matched(pattern, tensors, roles)}
        if changed := sorted(now ^ self._names):
            expected = f"{order[place][0]} behind {' and '.join(later)}: it learns what its patterns name where it "
            expected += f"stands, and {changed[0]} is {'added' if changed[0] in now else 'removed'} later"
            raise ConfigError("defense", f"[{', '.join(plan.defenses)}]", expected)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Raises ConfigError where a pattern matches nothing, or nothing trained, or where nothing is left to share."""
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        buffers, roles = _floating_buffers(model), parameters_by_role(find_roles(model))
        every = [*dict(model.named_parameters()), *buffers]
        for pattern in self.patterns:
            found = matching([pattern], every, roles)
            if not found & {*trainable, *buffers}:
                layers = {layer for name in found if (layer := name.rpartition(".")[0])}
                beside = [name for name in every if name in trainable and name.rpartition(".")[0] in layers]
                expected = "something that is trained: of this nothing is shared as it is"
                raise ConfigError(
                    "defense.withhold.patterns",
                    pattern,
                    expected + (f"; trained beside it: {', '.join(beside[:2])}" if beside else ""),
                )
        self._names = frozenset(matching(self.patterns, every, roles))
        if not trainable - self._names:
            raise ConfigError("defense.withhold.patterns", list(self.patterns), "fewer: no parameter is left to share")
        if self.mode == "frozen":
            for name in self._names.difference(buffers):
                model.get_parameter(name).requires_grad_(False)
        return model

    def begin(self, turn: ClientRound) -> None:
        self._turn = turn
        if self.mode == "local" and turn.model is not None:
            with torch.no_grad():
                own = turn.model.state_dict()
                for name in self.names & set(turn.memory):
                    own[name].copy_(turn.memory[name])

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        if self._names is None:
            raise RuntimeError("withhold learns the names of the parameters in wrap_model: call it first")
        if self.mode == "local" and self._turn is not None and self._turn.model is not None:
            own = self._turn.model.state_dict()
            self._turn.memory.update({name: own[name].detach().cpu().clone() for name in self._names})
        tensors, buffers = (
            {name: tensor for name, tensor in shared.items() if name not in self._names}
            for shared in (update.tensors, update.buffers)
        )
        return replace(update, tensors=tensors, buffers=buffers)


def parameters_by_role(roles: ViTRoles) -> dict[str, tuple[str, ...]]:
    """The names of the parameters in each role that the model has."""
    named = {role: (value,) if isinstance(value, str) else value for role, value in roles.to_dict().items()}
    del named["obstacles"]  # reasons, not names
    return {
        role: names for role, names in named.items() if isinstance(names, tuple) and names and isinstance(names[0], str)
    }


def _floating_buffers(model: nn.Module) -> list[str]:
    """The names of those that are part of the model's state."""
    persistent = model.state_dict().keys()
    return [name for name, b in model.named_buffers() if b.is_floating_point() and name in persistent]


def matching(patterns: Sequence[str], tensors: Sequence[str], roles: Mapping[str, Sequence[str]]) -> set[str]:
    """The tensors whose name, or the name of whose role, a pattern matches.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    result: set[str] = set()
    for pattern in patterns:
        matched = _matched(pattern, tensors, roles)
        if not matched:
            there = f" Roles of this model: {', '.join(roles)}." if roles else ""
            expected = "it matches no parameter, buffer or role." + nearest(pattern, [*roles, *tensors]) + there
            raise ConfigError("defense.withhold.patterns", pattern, fault=expected)
        result |= matched
    return result


def _matched(pattern: str, tensors: Sequence[str], roles: Mapping[str, Sequence[str]]) -> set[str]:
    by_role = {name for role, names in roles.items() if fnmatchcase(role, pattern) for name in names}
    return by_role | {name for name in tensors if fnmatchcase(name, pattern)}
