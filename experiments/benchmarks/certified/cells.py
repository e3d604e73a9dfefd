"""Which model, state, defense, protocol and batches meet which attacks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from experiments.benchmarks.certified.defended import DEFENSES
from experiments.benchmarks.certified.images import SEVERAL, SINGLE
from experiments.benchmarks.certified.models import MODELS, STATES
from experiments.benchmarks.certified.protocols import PROTOCOLS
from fedsim.determinism import torch_generator

SIZES = (2, 4, 8)
LABELS = ("labels", "labels_certified")
IMAGES = {
    "vit": ("patch_gradient", "row_space"),
    "april": ("april",),
    "mlp": ("fc_bias",),
    "cnn6": ("rgap",),
}
"""Attacks on images by the first letters of a model's name."""

SLOW = ("vit_tiny", "vit_tiny_8", "vit_small_32", "cnn6", "cnn6_2")
"""Models of which a pass takes fewer batches."""

CORE = ("vit_nano", "april", "mlp_sigmoid", "mlp_relu_32")
"""Models that meet every protocol, and every defense under a gradient and another protocol, in each pass."""

HARD = "mlp_relu_32"
"""Its features of alike images, once trained, leave counts of a batch open more often than other models' do."""

RANDOM = 300
"""Cells of a pass whose every part is drawn."""


@dataclass(frozen=True)
class CertifiedCell:
    """What one client computes batch after batch, and who attacks it.

    Attributes:
        batches: kind and size of each.
        number: of the pass: other images, other draws.
    """

    model: str
    state: str
    defense: str
    protocol: str
    batches: tuple[tuple[str, int], ...]
    attacks: tuple[str, ...]
    number: int
    purpose: str

    @property
    def key(self) -> str:
        return f"{self.number}/{self.purpose}/{self.model}/{self.state}/{self.defense}/{self.protocol}"


def cells(number: int) -> list[CertifiedCell]:
    """One pass over everything, in random order; another number is another pass."""
    parts = _by_state, _by_protocol, _by_defense, _first_block, _at_random
    found = [cell for part in parts for cell in part(number)]
    order = torch.randperm(len(found), generator=torch_generator(0, "order", number))
    return [found[place] for place in order.tolist()]


def attacks_on(model: str, defense: str) -> tuple[str, ...]:
    """All that could read the model; the adaptive one where there is something to adapt to."""
    images = next(names for family, names in IMAGES.items() if model.startswith(family))
    return (*images, *(("mjp_adaptive",) if defense.startswith("mjp") and model.startswith("vit") else ()), *LABELS)


def _cell(number: int, purpose: str, where: tuple[str, str, str, str], batches: list[tuple[str, int]]) -> CertifiedCell:
    return CertifiedCell(*where, tuple(batches), attacks_on(where[0], where[2]), number, purpose)


def _by_state(number: int) -> Iterator[CertifiedCell]:
    """Every model in every state, undefended."""
    for model, state, protocol in product(MODELS, STATES, ("gradient", "delta_0.1")):
        rng = torch_generator(0, "states", number, model, state, protocol)
        single = [(kind, 1) for kind in SINGLE] * (1 if model in SLOW else 2)
        several = 4 * [(kind, 8) for kind in SEVERAL] if model == HARD and protocol == "gradient" else []
        several += [(kind, SIZES[_number(len(SIZES), rng)]) for kind in SEVERAL] if model not in SLOW else []
        batches = [*single, *several, *_some(SEVERAL, 2, rng)]
        yield _cell(number, "states", (model, state, "none", protocol), batches)


def _by_protocol(number: int) -> Iterator[CertifiedCell]:
    """Every protocol, with and without transformations that are drawn anew, in a state that changes with the pass."""
    for model, protocol, defense in product(CORE, PROTOCOLS, ("none", "ats_sharpness", "random_roll")):
        rng = torch_generator(0, "protocols", number, model, protocol, defense)
        state = STATES[_number(len(STATES), rng)]
        batches = [("plain", 1), *_some(SINGLE, 2, rng), *_some(SEVERAL, 1, rng)]
        yield _cell(number, "protocols", (model, state, defense, protocol), batches)


def _by_defense(number: int) -> Iterator[CertifiedCell]:
    """Every defense on every model, untrained and in another state, under a gradient and another protocol."""
    for model, defense in product((*CORE, "cnn6"), DEFENSES):
        rng = torch_generator(0, "defenses", number, model, defense)
        batches = [("plain", 1), *_some(SINGLE, 2, rng), *_some(SEVERAL, 1, rng)]
        other = list(PROTOCOLS)[1 + _number(len(PROTOCOLS) - 1, rng)]
        for protocol in ("gradient", other) if model in CORE else ("gradient",):
            state = STATES[_number(len(STATES), rng)]
            yield _cell(number, "defenses", (model, state, defense, protocol), batches)


def _first_block(number: int) -> Iterator[CertifiedCell]:
    """Seconds each, so a few."""
    for state, defense in product(("0", "100", "fitted"), ("none", "scaled_tensors_0.999", "noise_1e-6")):
        where = "vit_tiny_8", state, defense, "gradient"
        yield CertifiedCell(*where, (("random", 2), ("mirrored", 2)), ("first_block",), number, "first_block")


def _at_random(number: int) -> Iterator[CertifiedCell]:
    rng = torch_generator(0, "random", number)
    for place in range(RANDOM):
        model, state, defense, protocol = (
            list(names)[_number(len(names), rng)] for names in (MODELS, STATES, DEFENSES, PROTOCOLS)
        )
        batches = [*_some(SINGLE, 3, rng), *_some(SEVERAL, 2, rng)]
        yield _cell(number, f"random-{place}", (model, state, defense, protocol), batches)


def _some(kinds: tuple[str, ...], count: int, rng: torch.Generator) -> list[tuple[str, int]]:
    sizes = (1,) if kinds is SINGLE else SIZES
    return [(kinds[_number(len(kinds), rng)], sizes[_number(len(sizes), rng)]) for _ in range(count)]


def _number(below: int, rng: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=rng))
