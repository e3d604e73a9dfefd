"""What is public about a defense, in words that attacks may ask for: how it acts, never what it drew."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

Norm = Literal["l2", "max"]

Part = Literal["images", "gradient", "equations", "head"]
"""What an effect may leave as it was.

`images`: the model sees those that the client holds, in every local step the same. `gradient`: what is shared is that
of the classification loss. `equations`: it still is the gradient of one image but for one factor, with no jumps and
nothing cut off. `head`: the classifier's gradient is that of what it read and of the labels, its scale too.
"""


class Effect:
    """One thing that a defense does. Subclass it where none below says it: attacks ask `keeps`, and trust nothing more.

    Attributes:
        KEEPS: what stays as it was.
    """

    KEEPS: ClassVar[tuple[Part, ...]] = ()

    def __post_init__(self) -> None:
        """Numbers of torch's and NumPy's become Python's, which a record can hold."""
        for name, value in vars(self).items():
            if getattr(value, "ndim", None) == 0:
                object.__setattr__(self, name, value.item())

    def keeps(self, part: Part) -> bool:
        """Whether that stays as it was."""
        return part in self.KEEPS

    def at(self, server_round: int) -> Self | None:
        """The effect as it is in that round, for what changes from one to another; None where it is not there."""
        return self


@dataclass(frozen=True)
class Clips(Effect):
    """What is shared is scaled down to an L2 norm: by one factor, or by one for each example or tensor, or both.

    `step`: each local step's gradient is, before the optimiser takes it, or it is shared.
    """

    max_norm: float
    per: Literal["update", "example", "tensor", "example_and_tensor", "step"]
    KEEPS = ("images", "equations")

    def keeps(self, part: Part) -> bool:
        return super().keeps(part) and not (part == "equations" and self.per.endswith("tensor"))


@dataclass(frozen=True)
class AddsNoise(Effect):
    """Independent noise of one standard deviation in every coordinate, `gaussian` or `laplace`.

    Attributes:
        std: of a coordinate; `relative`: the norm of all noise, as a multiple of the norm of what is shared.
        on: what is shared, or in each local step the `sum` of a batch's gradients, before its mean is taken.
    """

    std: float
    relative: bool = False
    distribution: str = "gaussian"
    on: Literal["update", "sum"] = "update"
    KEEPS = ("images",)


@dataclass(frozen=True)
class Sparsifies(Effect):
    """Zeros stand for all but this share of the coordinates: the largest `per` update, or tensor."""

    share: float
    per: str = "update"
    KEEPS = ("images",)


@dataclass(frozen=True)
class Quantises(Effect):
    """Coordinates take the nearest, or a neighbouring, of values a step apart.

    Attributes:
        step: as a multiple of the coordinate itself, or of a norm of the update or of its tensor.
        bucket: consecutive coordinates of a tensor that share a norm; None: all of it.
        norm: which, `per` tensor.
        least: the step of coordinates near zero, which is no multiple of anything.
    """

    step: float
    per: Literal["coordinate", "update", "tensor"]
    bucket: int | None = None
    least: float = 0.0
    norm: Norm = "l2"
    KEEPS = ("images",)


@dataclass(frozen=True)
class SharesSigns(Effect):
    """Coordinates are -1, 0 or 1, times one magnitude `per` update or tensor; None: times nothing."""

    per: str | None
    KEEPS = ("images",)


@dataclass(frozen=True)
class AddsErrors(Effect):
    """What the compression of a client's earlier updates left out is in this one, before it is compressed."""

    KEEPS = ("images",)

    def at(self, server_round: int) -> Self | None:
        return self if server_round > 1 else None


@dataclass(frozen=True)
class PerturbsSteps(Effect):
    """In some local steps small coordinates of the gradient become zero and others gain Gaussian noise.

    Attributes:
        fading: β of the chance 1 / (1 + β·i) of local step i, counted from 1.
        pruned: share of each tensor's coordinates that become zero, the smallest.
        noised: share of all coordinates that gain noise.
        std: of the noise, at most.
    """

    fading: float
    pruned: float
    noised: float
    std: float
    KEEPS = ("images",)


@dataclass(frozen=True)
class TransformsImages(Effect):
    """Each image is changed by itself before the model sees it, its label is not.

    Attributes:
        first_round: from which on.
    """

    first_round: int = 0
    KEEPS = ("gradient", "equations", "head")

    def at(self, server_round: int) -> Self | None:
        return None if server_round < self.first_round else self


@dataclass(frozen=True)
class MixesImages(Effect):
    """The model sees mixtures of a batch's images, and their labels as shares of the classes."""


@dataclass(frozen=True)
class MasksPositions(Effect):
    """Some positions of an image take one learnable embedding that all share, in place of their own.

    Attributes:
        embedding: the parameter's name.
        first_round: from which on.
    """

    embedding: str
    first_round: int = 0
    KEEPS = ("equations", "head")

    def at(self, server_round: int) -> Self | None:
        return None if server_round < self.first_round else self


@dataclass(frozen=True)
class ForgetsPositions(Effect):
    """The model adds no position to its patches: every order of them has the same update."""

    KEEPS = ("images", "gradient", "equations", "head")


@dataclass(frozen=True)
class AddsPositions(Effect):
    """Tokens take a second embedding of their position besides.

    Attributes:
        embedding: the name of the parameter, of the position embedding's shape.
    """

    embedding: str
    KEEPS = ("equations", "head")


@dataclass(frozen=True)
class AddsRegression(Effect):
    """The loss has a further term λ·m(e, s) in the unmasked rows e of the position embedding, and in no image.

    Attributes:
        module: the name of m among the model's modules. It is given [tokens, width] embeddings and the [tokens] share
            of each in the mean, zero where masked.
        weight: λ, or λ by round as the defense publishes it; None: nobody says, and files of before it was recorded.
    """

    module: str
    weight: float | Callable[[int], float] | None = None
    KEEPS = ("images", "equations", "head")

    def at(self, server_round: int) -> Self:
        return replace(self, weight=self.weight(server_round)) if callable(self.weight) else self


@dataclass(frozen=True)
class SamplesFeatures(Effect):
    """The classifier reads a random sample around the features, and the loss has a term in these."""

    KEEPS = ("images", "equations")


@dataclass(frozen=True)
class PrunesFeatures(Effect):
    """The gradient of the classifier's weights is as if some features were zero; all others are what they were."""

    KEEPS = ("images",)


@dataclass(frozen=True)
class Withholds(Effect):
    """Tensors are not shared, or have no gradient; the others are what they were.

    Attributes:
        frozen: they have no gradient, and are in no norm.
        kept: the client keeps what it trained of them: from its second round on its model is not the server's.
    """

    frozen: bool = False
    kept: bool = False
    KEEPS = ("images", "gradient", "equations", "head")

    def keeps(self, part: Part) -> bool:
        return super().keeps(part) and not (part == "gradient" and self.kept)

    def at(self, server_round: int) -> Self:
        return replace(self, kept=False) if self.kept and server_round <= 1 else self


@dataclass(frozen=True)
class SumsClients(Effect):
    """The server sees sums over this many clients at least, None: over all; `Observation.summed` counts them."""

    clients: int | None = None
    KEEPS = ("images", "gradient", "equations", "head")


@dataclass(frozen=True)
class Unpublished(Effect):
    """A defense that does not say how it acts: everything that it could do is possible."""

    defense: str


def of_training(max_grad_norm: float | None) -> tuple[Effect, ...]:
    """What a client's training does to a gradient without any defense; None: it is not clipped."""
    return () if max_grad_norm is None else (Clips(max_grad_norm, "step"),)


def effects_in(server_round: int, effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Those that are there in that round, as they are in it."""
    return tuple(now for effect in effects if (now := effect.at(server_round)) is not None)


def effects_to_records(effects: Iterable[Effect]) -> list[dict[str, Any]]:
    """Effects as JSON has them; an effect that is none of the above is recorded as `Unpublished`."""
    known = (one if type(one) in KINDS.values() else Unpublished(type(one).__name__) for one in effects)
    return [{"effect": type(one).__name__, **vars(one)} for one in known]


def effects_of_records(records: Iterable[Mapping[str, Any]]) -> tuple[Effect, ...]:
    """What `effects_to_records` wrote; an effect of another version is `Unpublished`."""
    each = ((str(record["effect"]), {k: v for k, v in record.items() if k != "effect"}) for record in records)
    return tuple(KINDS[name](**fields) if name in KINDS else Unpublished(name) for name, fields in each)


KINDS = {kind.__name__: kind for kind in Effect.__subclasses__()}
"""The effects above, by name."""
