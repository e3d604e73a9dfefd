"""What every defense is: four hooks on a client, each the identity unless overridden."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedsim.models.roles import ViTRoles, find_roles
from fedsim.update import Update


@dataclass(frozen=True)
class Batch:
    """Pictures [B,C,H,W] as the model reads them (normalised), and labels [B]."""

    images: Tensor
    labels: Tensor


class Defense:
    """Subclass it, override the hooks it needs, and add `conf/defense/NAME.yaml` with its `_target_`.

    The server knows the class and its settings (Kerckhoffs), never the state of `rng`.
    """

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Change the model before anybody trains it; the server does the same."""
        return model

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Change what the model sees."""
        return batch

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        """A term added to the loss, or None."""
        return None

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        """Change what is shared."""
        return update


class DefenseChain(Defense):
    """Several defenses, applied in order; keeps book of which one withheld what."""

    def __init__(self, defenses: dict[str, Defense] | None = None) -> None:
        self.defenses = dict(defenses or {})
        self._frozen_by: dict[str, str] = {}

    @property
    def wrappers(self) -> Sequence[Defense]:
        return list(self.defenses.values())

    def wrap_model(self, model: nn.Module) -> nn.Module:
        for name, defense in self.defenses.items():
            before, roles_before = _trainable(model), find_roles(model)
            model = defense.wrap_model(model)
            for parameter in before - _trainable(model):
                self._frozen_by[parameter] = name
            for role in _lost_roles(roles_before, find_roles(model)):
                self._frozen_by[role] = name
        return model

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        for defense in self.defenses.values():
            batch = defense.transform_batch(batch, rng)
        return batch

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        terms = [term for d in self.defenses.values() if (term := d.extra_loss(model, batch)) is not None]
        return torch.stack(terms).sum() if terms else None

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        # A frozen parameter's delta is zero, which is not what its gradient is: it must be absent.
        shared = {name: tensor for name, tensor in update.tensors.items() if name not in self._frozen_by}
        update = replace(update, tensors=shared, withheld={**self._frozen_by, **update.withheld})
        for name, defense in self.defenses.items():
            before = set(update.tensors)
            update = defense.transform_update(update, rng)
            dropped = dict.fromkeys(before - set(update.tensors), name)
            if dropped:
                update = replace(update, withheld={**update.withheld, **dropped})
        return update


def _trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def _lost_roles(before: ViTRoles, after: ViTRoles) -> list[str]:
    """Roles, by their own name, that the model had before and has no more."""
    old, new = before.to_dict(), after.to_dict()
    return [role for role, name in old.items() if isinstance(name, str) and new[role] is None]
