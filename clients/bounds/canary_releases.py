"""Canaries of several kinds through a private defense, and what its releases show of each."""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn

from defenses.base import Batch, ClientRound, Defense
from fedsim.bounds.empirical import directions
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.effects import Clips
from fedsim.update import State, Update

SHAPES: dict[str, tuple[int, ...]] = {
    "canary.weight": (32, 32),
    "canary.kernel": (9, 10, 3, 3),
    "canary.bias": (1000,),
    "canary.table": (40, 20),
}
"""Of the tensors that canaries are gradients of, of unlike kinds and sizes."""
FEWEST, MOST = 60, 4000
"""Canaries of a kind inside, and as many outside."""
A_RELEASE = 100
"""At most so many of a kind in one batch; all that enter or stay outside of it are at right angles."""


@dataclass(frozen=True)
class Kind:
    """Canaries over these tensors, each as long in every one of them.

    Attributes:
        length: in units of the clipping norm.
    """

    names: tuple[str, ...]
    length: float

    @property
    def words(self) -> str:
        where = "all tensors" if len(self.names) > 1 else f"{self.names[0]} alone"
        return f"{self.length:g} C in {where}"


KINDS = (
    *(Kind(tuple(SHAPES), length) for length in (0.5, 2.0, 8.0, 100.0)),
    *(Kind((name,), 8.0) for name in SHAPES),
)

OF_UPDATES = tuple(kind for kind in KINDS if kind.length >= 8.0)
"""Those that a client's whole update is of, one at a time."""


@dataclass(frozen=True)
class Shown:
    """What releases show of each canary of a kind inside, and of each outside.

    Attributes:
        difference: of two clients' releases.
    """

    kind: str
    difference: bool
    shown: tuple[Tensor, Tensor]


@dataclass
class _Values:
    inside: list[Tensor] = field(default_factory=list)
    outside: list[Tensor] = field(default_factory=list)


def released_canaries(defense: Defense, by_example: bool, canaries: int, seed: int) -> list[Shown]:
    """Each kind in one release, and in the difference of two clients' releases.

    Args:
        by_example: the defense changes gradients of single images; else whole updates.
        canaries: of each kind that enter, at least, and as many that do not.
    """
    rng, clients = torch_generator(seed, "canaries"), count()
    norms = [one.max_norm for one in defense.effects() if isinstance(one, Clips) and one.max_norm < math.inf]
    norm = max(norms, default=1.0)
    releases = math.ceil(canaries / A_RELEASE)
    values: defaultdict[tuple[Kind, bool], _Values] = defaultdict(_Values)
    release = _of_examples if by_example else _of_updates
    for _ in range(releases):
        sets = _draw(math.ceil(canaries / releases), rng)
        for kind, difference, inside, outside in release(defense, sets, norm, seed, clients):
            values[kind, difference].inside.append(inside)
            values[kind, difference].outside.append(outside)
    return [
        Shown(kind.words, difference, (torch.cat(found.inside), torch.cat(found.outside)))
        for (kind, difference), found in values.items()
    ]


Sets = dict[Kind, tuple[State, State]]
"""Of each kind the unit canaries that enter and those that do not, [n, …] by tensor."""
Seen = Iterator[tuple[Kind, bool, Tensor, Tensor]]


def _draw(number: int, rng: torch.Generator) -> Sets:
    """All of them at right angles; those that do not enter are the same for all kinds over the same tensors."""
    places: defaultdict[str, Iterator[int]] = defaultdict(count)
    pieces = {name: directions(shape, number * _sets_of(name), rng) for name, shape in SHAPES.items()}

    def take(kind: Kind) -> State:
        taken = {name: next(places[name]) for name in kind.names}
        share = 1.0 / math.sqrt(len(kind.names))
        return {name: share * pieces[name][number * place :][:number] for name, place in taken.items()}

    outside: dict[tuple[str, ...], State] = {}
    sets: Sets = {}
    for kind in KINDS:
        if kind.names not in outside:
            outside[kind.names] = take(kind)
        sets[kind] = take(kind), outside[kind.names]
    return sets


def _sets_of(name: str) -> int:
    """Of canaries that have a piece in a tensor: one of each kind inside, and one outside for all over the same."""
    kinds = [kind.names for kind in KINDS if name in kind.names]
    return len(kinds) + len(set(kinds))


def _along(canaries: State, seen: State) -> Tensor:
    """What a release shows of each canary: its part along it."""
    return torch.stack([one.flatten(1) @ seen[name].flatten() for name, one in canaries.items()]).sum(dim=0)


def _of_examples(defense: Defense, sets: Sets, norm: float, seed: int, clients: Iterator[int]) -> Seen:
    """Canaries as gradients of the images of a client's batch; beside it a client whose images have no gradient."""
    numbers = [len(next(iter(inside.values()))) for inside, _ in sets.values()]
    each = {name: torch.zeros(sum(numbers), *shape) for name, shape in SHAPES.items()}
    place = 0
    for (kind, (inside, _)), number in zip(sets.items(), numbers, strict=True):
        for name, one in inside.items():
            each[name][place : place + number] = kind.length * norm * one
        place += number
    first = _release_batch(defense, each, seed, next(clients))
    second = _release_batch(defense, {name: torch.zeros_like(one) for name, one in each.items()}, seed, next(clients))
    apart = {name: one - second[name] for name, one in first.items()}
    for kind, (inside, outside) in sets.items():
        for difference, seen in ((False, first), (True, apart)):
            yield kind, difference, _along(inside, seen), _along(outside, seen)


def _release_batch(defense: Defense, each: State, seed: int, client: int) -> State:
    """What one client shares of a batch whose images have these gradients."""
    own, model, number = copy.copy(defense), _Holder(), len(next(iter(each.values())))
    own.begin(ClientRound(1, number, {}, model))
    rng = torch_generator(seed, "client-defense", 1, client)
    with seeded_globals(seed, "model-noise", 1, client):
        gradient = own.gradient(model, _numbered(number), _Gradients(each), rng)
        update = Update(gradient, "gradient", number)
        return dict(own.transform_update(update, torch_generator(seed, "defense", 1, client)).tensors)


def _of_updates(defense: Defense, sets: Sets, norm: float, seed: int, clients: Iterator[int]) -> Seen:
    """A canary, or the opposite of another, as the whole update of a client; beside it one with nothing to share."""
    number = len(next(iter(next(iter(sets.values()))[0].values())))
    nothing = {name: torch.zeros(shape) for name, shape in SHAPES.items()}

    def released(tensors: State) -> Tensor:
        return _flat(_release_update(defense, tensors, seed, next(clients)))

    silent = [torch.stack([released(nothing) for _ in range(number)]) for _ in range(2)]
    for kind, members in sets.items():
        if kind not in OF_UPDATES:
            continue
        alone, apart = [], []
        for sign, canaries, other in zip((1.0, -1.0), members, silent, strict=True):
            given = {name: sign * kind.length * norm * one for name, one in canaries.items()}
            updates = [nothing | {name: one[place] for name, one in given.items()} for place in range(number)]
            seen = torch.stack(list(map(released, updates)))
            unit = torch.stack(
                [_flat(nothing | {name: one[k] for name, one in canaries.items()}) for k in range(number)]
            )
            alone.append((unit * seen).sum(dim=1))
            apart.append((unit * (seen - other)).sum(dim=1))
        yield kind, False, alone[0], alone[1]
        yield kind, True, apart[0], apart[1]


def _flat(tensors: State) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in SHAPES])


def _release_update(defense: Defense, tensors: State, seed: int, client: int) -> State:
    own = copy.copy(defense)
    own.begin(ClientRound(1, 1, {}, None))
    rng = torch_generator(seed, "defense", 1, client)
    return dict(own.transform_update(Update(dict(tensors), "gradient", 1), rng).tensors)


def told_of_two(defense: Defense, by_example: bool, seed: int) -> dict[str, float]:
    """What the defense measures of a release of two images' gradients, or of one update."""
    defense.begin(ClientRound(1, 2, {}, _Holder()))
    rng = torch_generator(seed, "claim")
    if by_example:
        each = {name: torch.ones(2, *shape) for name, shape in SHAPES.items()}
        defense.gradient(_Holder(), _numbered(2), _Gradients(each), rng)
    else:
        update = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        defense.transform_update(Update(update, "gradient", 1), rng)
    return defense.measurements()


def _numbered(number: int) -> Batch:
    """Images that are known by their labels."""
    return Batch(torch.arange(number, dtype=torch.float32).view(-1, 1, 1, 1), torch.arange(number))


class _Holder(nn.Module):
    """A model of these tensors; canaries are its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.canary = nn.ParameterDict(
            {name.removeprefix("canary."): nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
        )


@dataclass(frozen=True)
class _Gradients:
    """`defenses.base.BatchGradient` whose examples have these gradients, by their labels."""

    each: State

    def __call__(self, batch: Batch) -> State:
        return {name: one[batch.labels].mean(dim=0) for name, one in self.each.items()}

    def per_example(self, batch: Batch) -> State:
        return {name: one[batch.labels] for name, one in self.each.items()}
