"""What every search by gradient matching is told, whatever it searches and however: what is matched, how it is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from attacks.label.recover import RULES
from attacks.optimization.matching.objectives import Objective
from attacks.optimization.priors.base import Prior
from attacks.optimization.problem import LOCAL_UPDATES
from fedsim.errors import ConfigError, one_of, require
from fedsim.settings.grouped import SettingsGroup

TARGETS = ("observed", "random")


@dataclass(frozen=True)
class Matching(SettingsGroup):
    """What is minimised.

    Attributes:
        objective: the distance D of updates; None: the cosine's.
        priors: the terms R_i by name, each with its weight; None drops one.
        labels: a rule of `RecoverLabels`; `joint`: soft labels searched for together with the images; or the classes
            themselves, known beforehand, one for each image of the update.
        local_updates: `gradient` (a weight change is its scaled gradient), `unroll` (simulate the local steps),
            `surrogate` (the gradient between the weights sent and returned), or `auto`: gradient for one step,
            unroll for several.
        target: `observed`, or `random`, the baseline: noise of the same norms in place of what was shared, for the
            distance, the search space, the priors and the model's mask. Its labels are given: those that the rule
            reads off the true update. A prior that finds nothing in noise is left out.
    """

    objective: Objective | None = None
    priors: Mapping[str, Prior | None] | None = None
    labels: str | Sequence[int] = "auto"
    local_updates: str = "auto"
    target: str = "observed"

    def __post_init__(self) -> None:
        one_of("local_updates", self.local_updates, LOCAL_UPDATES)
        require("target", self.target, self.target in TARGETS, "observed or random")
        object.__setattr__(self, "labels", _labels(self.labels))
        for name, prior in (self.priors or {}).items():
            good = prior is None or isinstance(prior, Prior)
            require(f"priors.{name}", prior, good, "a prior with its _target_, or null")

    @property
    def terms(self) -> dict[str, Prior]:
        """The priors that are not dropped, and weigh anything."""
        return {name: prior for name, prior in (self.priors or {}).items() if prior is not None and prior.weight > 0}


def _labels(given: Any) -> str | tuple[int, ...]:
    """A rule's name, or classes as a tuple, whatever sequence, tensor or array they came as."""
    if isinstance(given, str) and given in ("joint", *RULES):
        return given
    listed = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(listed, list | tuple) and listed and all(map(_is_class, listed)):
        return tuple(map(int, listed))
    classes = "classes in a list, whole numbers from 0, one for each image of the update"
    rules = f"joint, one of {', '.join(RULES)}"
    raise ConfigError("labels", given, f"{rules}, or {classes}" if isinstance(given, str) else f"{classes}, or a rule")


def _is_class(label: object) -> bool:
    return isinstance(label, Integral) and not isinstance(label, bool) and int(label) >= 0


@dataclass(frozen=True)
class Budget(SettingsGroup):
    """How a search is run, whatever it searches for.

    Attributes:
        memory_gib: memory for candidates that are computed together; None: half of a GPU's, 4 on a CPU.
        frames: images kept of the way.
        save_every: steps after which an interrupted attack can go on; 0 saves nothing.
    """

    memory_gib: float | int | None = None
    frames: int = 10
    save_every: int = 100

    def __post_init__(self) -> None:
        given = self.memory_gib
        require("memory_gib", given, given is None or given > 0, "a positive number of GiB, or null")
        require("frames", self.frames, self.frames >= 0, "0 or more")
        require("save_every", self.save_every, self.save_every >= 0, "0 or more")
