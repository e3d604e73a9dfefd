"""What a bound says of a run: of one kind, in one sentence with its assumption, with numbers and images beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Kind = Literal["theorem", "reference", "local fact", "test"]
"""`theorem`: holds for every attacker, under what its sentence says. `reference`: what a Gaussian model of images
alone would leave; who knows more may pass it. `local fact`: of these images and their neighbours, no protection.
`test`: whether a mechanism keeps what it claims."""


@dataclass(frozen=True)
class Panel:
    """One image of a strip, [c,h,w] in [0, 1], and what is said below it."""

    image: Tensor
    caption: str


@dataclass(frozen=True)
class Strip:
    """Images side by side, the client's own first."""

    name: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Proof:
    """The numbers of reconstruction robustness over all of a run's releases; nothing else makes a defense proven.

    Attributes:
        unit: `image`, or `update`: one client's share of a round.
    """

    kappa: float
    gamma: float
    mu: float
    releases: int
    unit: str


@dataclass(frozen=True)
class Statement:
    """Plain words, to be escaped by whoever shows them.

    Attributes:
        sentence: with its assumption.
        note: what follows for whoever reads on.
        values: the numbers in it, by name.
        header, rows: of a table; empty without one.
    """

    kind: Kind
    sentence: str
    values: Mapping[str, float] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    strips: tuple[Strip, ...] = ()
    proof: Proof | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """All but the images."""
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "note": self.note,
            "values": dict(self.values),
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
            "proof": None if self.proof is None else vars(self.proof),
        }
