"""What every defense is: hooks on a client's model, batch, loss, gradient and update, each the identity by default."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from logging import getLogger
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedsim.bounds.privacy import COPIES, MU, RELEASES
from fedsim.bounds.robustness import GaussianDP, with_copies
from fedsim.data import ImageSet
from fedsim.data.copies import most_copies
from fedsim.effects import Effect, Unpublished
from fedsim.errors import ConfigError
from fedsim.models.architecture import wrapped_by
from fedsim.models.roles import ViTRoles, find_roles
from fedsim.observation import Observation
from fedsim.update import State, Update, under

logger = getLogger(__name__)

UNKNOWN = 0
"""Copies of an image, where not all of the client's can be read: it stays so, also once they can."""


@dataclass(frozen=True)
class Batch:
    """Pictures [B,C,H,W] as the model reads them (normalised), and labels: [B] classes or [B,classes] shares."""

    images: Tensor
    labels: Tensor

    def pieces(self, size: int | None) -> Iterator["Batch"]:
        """The same, at most that many pictures at a time; None: all at once."""
        if size is None or size >= len(self.labels):
            yield self
            return
        for images, labels in zip(self.images.split(size), self.labels.split(size), strict=True):
            yield Batch(images, labels)


@runtime_checkable
class BatchGradient(Protocol):
    """Differentiates a client's loss, by parameter name. Each call starts anew."""

    def __call__(self, batch: Batch) -> State:
        """The gradient of the batch's mean loss with the defenses' extra terms."""

    def per_example(self, batch: Batch) -> State:
        """[B,…]: the gradient of each example's own classification loss, without extra terms."""


@dataclass(frozen=True)
class Plan:
    """What a run intends, for a defense to refuse before it starts.

    Attributes:
        model: with every defense applied.
        client: `cfg.client`.
        strategy: `cfg.strategy`; empty in an audit.
        defenses: all that run, by name, in order.
        image_shape: (channels, height, width) that the model reads; None: not known.
        server_round: of all updates, in an audit; None: of a federation's rounds, or recorded.
    """

    model: nn.Module
    client: Mapping[str, Any]
    strategy: Mapping[str, Any]
    defenses: Mapping[str, "Defense"]
    image_shape: tuple[int, int, int] | None = None
    server_round: int | None = None


@dataclass
class ClientRound:
    """One client's turn.

    Attributes:
        num_examples: pictures that the client holds.
        memory: what this defense kept on this client from its earlier rounds; write to it what it should keep.
        model: holds the global state; a defense may write into it what the client has of its own.
        pictures: the client's, before any defense; None where an update is computed once more, or public images are
            transformed.
        observe: what the server would know of an update of this turn, from `transform_update` on: for a defense that
            looks through its eyes; None where nothing is shared.
        seen: changed batches as the model saw them, where a defense has put a list here in `begin`; else None.
    """

    server_round: int
    num_examples: int
    memory: State = field(default_factory=dict)
    model: nn.Module | None = None
    pictures: ImageSet | None = None
    observe: Callable[[Update], Observation] | None = None
    seen: list[Tensor] | None = None


class Defense:
    """Subclass it, override the hooks it needs, and add `conf/defense/NAME.yaml` with its `_target_`.

    The server knows the class and its settings (Kerckhoffs), never the state of `rng`. One object serves all clients
    of a worker in turn: what belongs to a client lives in `ClientRound.memory`.

    Attributes:
        judges_updates: by an update it decides what is shared, and so by the size of the batch.
    """

    judges_updates: ClassVar[bool] = False

    @property
    def repeatable(self) -> bool:
        """Whether its loss, gradient and update hooks draw nothing and depend on nothing that a client keeps.

        Then who knows the images as the model saw them can compute the update once more, and a certificate can rest
        on that (`fedsim.observation.Observation.replay`). False leaves every result behind it uncertified.
        """
        return False

    def effects(self) -> tuple[Effect, ...]:
        """What it does to an update, in public words; none where it does nothing."""
        return (Unpublished(type(self).__name__),)

    def check(self, plan: Plan) -> None:
        """Refuse what cannot work together, before anything starts.

        Raises:
            ConfigError: naming the setting and what would be right.
        """

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Change the model before anybody trains it; the server does the same.

        What it draws from the global generators is the same in every process and run, whatever the seed.
        """
        return model

    def begin(self, turn: ClientRound) -> None:
        """A client starts its local training, or evaluates what it would start from."""

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Change what the model sees: as many pictures, in the same order."""
        return batch

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        """A term added to the loss, or None."""
        return None

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        """Change a local step's gradient, by parameter name, or how it is taken."""
        return compute(batch)

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        """Change what is shared."""
        return update

    def measurements(self) -> dict[str, float]:
        """Numbers about the turn that ends, for the round's metrics: the same names each time."""
        return {}

    def gaussian_dp(self) -> GaussianDP | None:
        """What is proven of all that the client whose turn ends has shared so far; None: nothing.

        Of one image where the unit is `image`, which a batch holds once: a chain counts its copies.

        Whoever says something here makes a report say *proven*: it must hold whatever runs beside this defense that
        its `check` does not refuse.
        """
        return None


class DefenseChain(Defense):
    """Several defenses, applied in order; keeps book of which one withheld what."""

    def __init__(self, defenses: dict[str, Defense] | None = None) -> None:
        self.defenses = dict(defenses or {})
        for name, defense in self.defenses.items():
            _check_hooks(name, type(defense))
        self._frozen_by: dict[str, str] = {}
        self._turns: dict[str, ClientRound] = {}
        self._turn: ClientRound | None = None

    @property
    def wrappers(self) -> Sequence[Defense]:
        return list(self.defenses.values())

    @property
    def repeatable(self) -> bool:
        return all(defense.repeatable and own_word(defense, "repeatable") for defense in self.defenses.values())

    def effects(self) -> tuple[Effect, ...]:
        named = self.defenses.items()
        each = (one.effects() if own_word(one, "effects") else (Unpublished(name),) for name, one in named)
        return tuple(effect for effects in each for effect in effects)

    def check(self, plan: Plan) -> None:
        for name, defense in self.defenses.items():
            if plan.client.get("compile") and type(defense).gradient is not Defense.gradient:
                expected = f"false beside {name}, which takes gradients its own way: compiled code would pass it by"
                raise ConfigError("client.compile", True, expected)
            defense.check(plan)

    def begin(self, turn: ClientRound) -> None:
        """Each defense reads and writes its own part of the memory, under its name."""
        self._turn = turn
        self._turns = {name: replace(turn, memory=under(f"{name}/", turn.memory)) for name in self.defenses}
        for name, defense in self.defenses.items():
            defense.begin(self._turns[name])

    def memory(self) -> State:
        """What the defenses keep on the client whose turn ends."""
        turns = self._turns.items()
        own = {} if self._turn is None or COPIES not in self._turn.memory else {COPIES: self._turn.memory[COPIES]}
        return own | {f"{name}/{key}": tensor for name, turn in turns for key, tensor in turn.memory.items()}

    def measurements(self) -> dict[str, float]:
        named = self.defenses.items()
        found = {f"{name}_{key}": value for name, defense in named for key, value in defense.measurements().items()}
        for name, proven in self.proofs().items():
            found |= {f"{name}_{MU}": proven.mu, f"{name}_{RELEASES}": float(proven.releases)}
            found[f"{name}_{COPIES}"] = float(proven.copies)
        return found

    def proofs(self) -> dict[str, GaussianDP]:
        """What its defenses prove, by their names; nothing where one of them does not say how it acts.

        What is proven of an image is proven of it with all its copies: nothing where the client's images are not known.
        """
        if any(isinstance(effect, Unpublished) for effect in self.effects()):
            return {}
        own = {name: one for name, one in self.defenses.items() if own_word(one, "gaussian_dp")}
        each = {name: proven for name, one in own.items() if (proven := one.gaussian_dp()) is not None}
        counted = {name: proven if proven.unit == "update" else self._counted(proven) for name, proven in each.items()}
        return {name: proven for name, proven in counted.items() if proven is not None}

    def _counted(self, proven: GaussianDP) -> GaussianDP | None:
        turn = self._turn
        if turn is None or turn.pictures is None:
            return None
        if COPIES not in turn.memory:
            try:
                turn.memory[COPIES] = torch.tensor(most_copies(turn.pictures))
            except ConfigError as error:  # one that no batch may need
                logger.warning("nothing is proven of a client whose images cannot all be compared: %s", error)
                turn.memory[COPIES] = torch.tensor(UNKNOWN)
        copies = int(turn.memory[COPIES])
        return replace(proven, mu=math.inf) if copies == UNKNOWN else with_copies(proven, copies)

    def gaussian_dp(self) -> GaussianDP | None:
        """The strongest: each holds by itself."""
        return min(self.proofs().values(), key=lambda one: one.mu, default=None)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        for name, defense in self.defenses.items():
            before, roles_before = _trainable(model), find_roles(model)
            model = wrapped_by(defense, model)
            for parameter in before - _trainable(model):
                self._frozen_by[parameter] = name
            for role in _lost_roles(roles_before, find_roles(model)):
                self._frozen_by[role] = name
        return model

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        given = batch.images
        for name, defense in self.defenses.items():
            batch = defense.transform_batch(batch, rng)
            _check_result(f"{name}.transform_batch", batch, Batch, "dataclasses.replace(batch, images=...)")
        for turn in self._turns.values():
            if turn.seen is not None and batch.images is not given:
                turn.seen.append(batch.images.detach().cpu())
        return batch

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        terms = [term for d in self.defenses.values() if (term := d.extra_loss(model, batch)) is not None]
        return torch.stack(terms).sum() if terms else None

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        """The first defense is the innermost: a later one changes what an earlier one gave."""
        for defense in self.defenses.values():
            if type(defense).gradient is not Defense.gradient:
                compute = _Defended(defense, model, compute, rng)
        return compute(batch)

    @property
    def changes_updates(self) -> bool:
        """Whether a defense acts on what is shared; that parameters are frozen, and so not shared, is no such act."""
        return any(type(one).transform_update is not Defense.transform_update for one in self.defenses.values())

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        # A frozen parameter's delta is zero, which is not what its gradient is: it must be absent.
        shared = {name: tensor for name, tensor in update.tensors.items() if name not in self._frozen_by}
        update = replace(update, tensors=shared, withheld={**self._frozen_by, **update.withheld})
        for name, defense in self.defenses.items():
            before = dict(update.tensors)
            update = defense.transform_update(update, rng)
            _check_result(f"{name}.transform_update", update, Update, "dataclasses.replace(update, tensors=...)")
            for tensor_name, tensor in update.tensors.items():
                if not tensor.is_floating_point() and tensor is not before.get(tensor_name):
                    expected = f"a defense that makes floating-point tensors: the others pass over {tensor_name}"
                    raise ConfigError("defense", name, f"{expected} of {tensor.dtype}")
            dropped = dict.fromkeys(before.keys() - update.tensors.keys(), name)
            if dropped:
                update = replace(update, withheld={**update.withheld, **dropped})
        return update


HOOKS = ("wrap_model", "begin", "transform_batch", "extra_loss", "gradient", "transform_update")


def _check_hooks(name: str, kind: type[Defense]) -> None:
    """A class of none of the hooks changes nothing, unless it says what it does elsewhere (`SecureAggregation`)."""
    if any(getattr(kind, hook) is not getattr(Defense, hook) for hook in (*HOOKS, "measurements", "effects")):
        return
    close = {word: get_close_matches(word, HOOKS, n=1) for word in vars(kind)}
    hint = "".join(f" Did you mean '{found[0]}' by {word}?" for word, found in close.items() if found)
    raise ConfigError("defense", name, fault=f"{kind.__name__} has none of the hooks {', '.join(HOOKS)}.{hint}")


def _check_result(place: str, result: object, wanted: type, hint: str) -> None:
    if not isinstance(result, wanted):
        raise TypeError(f"{place} gave a {type(result).__name__}, no {wanted.__name__}: return {hint}")


def own_word(defense: Defense, declaration: str) -> bool:
    """Whether it was declared by the class that has the last hook, or below: a subclass must speak for itself."""
    classes = type(defense).__mro__
    declared = next(place for place, cls in enumerate(classes) if declaration in vars(cls))
    hooked = next(place for place, cls in enumerate(classes) if any(hook in vars(cls) for hook in HOOKS))
    return declared <= hooked


@dataclass(frozen=True)
class _Defended:
    """A gradient as one defense changes it."""

    defense: Defense
    model: nn.Module
    inner: BatchGradient
    rng: torch.Generator

    def __call__(self, batch: Batch) -> State:
        return self.defense.gradient(self.model, batch, self.inner, self.rng)

    def per_example(self, batch: Batch) -> State:
        return self.inner.per_example(batch)


def _trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def _lost_roles(before: ViTRoles, after: ViTRoles) -> list[str]:
    """Roles, by their own name, that the model had before and has no more."""
    old, new = before.to_dict(), after.to_dict()
    return [role for role, name in old.items() if isinstance(name, str) and new[role] is None]
