"""What every search is: from the problems of some victims to the best candidate of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.base import Frame
from attacks.optimization.matching.derivative import MixedDerivative, Replayed, make_derivative
from attacks.optimization.matching.objectives import Objective
from attacks.optimization.problem import Problem, clips_examples, gradient_norm, make_update_map, with_clip
from attacks.optimization.settings import Budget
from attacks.session import Session
from attacks.victim import make_victim
from fedsim.errors import NotApplicable
from fedsim.errors import NotFiniteError as NotFiniteError
from fedsim.settings.grouped import SettingsGroup

DIFFERENCES = ("finite_difference", "central_difference")


@dataclass
class BestCandidate:
    """The best candidate of one victim, as the model's input, and how the search went.

    Attributes:
        point: the same in the space that was searched.
    """

    images: Float[Tensor, "batch c h w"]
    labels: Tensor
    values: dict[str, float]
    point: Tensor
    trace: list[dict[str, float]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)


@dataclass(frozen=True)
class SearchTask:
    """What a search is given.

    Attributes:
        problems: of victims that one model with one state serves.
        local: how the client's local steps are taken, `auto` resolved.
        report: is told how many candidates were computed together.
    """

    problems: Sequence[Problem]
    objective: Objective
    local: str
    budget: Budget
    device: torch.device
    session: Session = field(default_factory=Session)
    report: Callable[[int], None] = lambda candidates: None

    def part(self, name: str, problems: Sequence[Problem] | None = None) -> "SearchTask":
        """One of several searches, with a session of its own."""
        return replace(self, session=self.session.part(name), problems=problems or self.problems)

    def ordered(self, derivative: MixedDerivative) -> list[Problem]:
        """The problems with their targets in the model's order, which observations read from disk have lost."""
        trained = derivative.update.victim.params
        return [replace(p, target={n: p.target[n] for n in trained if n in p.target}) for p in self.problems]

    def derivative(
        self, method: str, step: float = 1e-2, candidates: int = 1, exact: bool = False
    ) -> tuple[MixedDerivative, str]:
        """The mixed derivative and the name of its method, `auto` resolved.

        Args:
            step: ‖εv‖ of finite differences.
            candidates: that are differentiated together, at most.
            exact: `auto` is exact.

        Raises:
            NotApplicable: a difference of several local steps, or of what training clipped.
        """
        observation, shared = self.problems[0].observation, self.problems[0].target
        objective = with_clip(self.objective.prepare(observation), observation, self.local)
        limit = None if objective.scale_invariant else gradient_norm(observation, self.local)
        singly = self.local == "gradient" and clips_examples(observation)
        plain = self.local == "gradient" and limit is None and not singly
        if method == "auto":
            exact = exact or not plain or observation.roles.qkv_weight is None
            double = next(iter(shared.values())).dtype == torch.float64
            method = "double_backward" if exact or double else "finite_difference"
        by_difference = method in DIFFERENCES
        if by_difference and not plain:
            what = f"local_updates={self.local}" if limit is None else f"a gradient clipped to {limit:g}"
            what = "a gradient clipped image by image" if singly else what
            raise NotApplicable(f"derivative={method} sees one gradient as it is, {what} needs double_backward")
        # torch does not map fused attention over candidates: it falls back on a loop.
        victim = make_victim(observation, shared, self.device, fused_attention=by_difference and candidates == 1)
        update = make_update_map(self.local, victim, observation, sized=not objective.scale_invariant)
        found = make_derivative(method, update, objective, step)
        return Replayed(found) if self.device.type == "cuda" else found, method


class Search(ABC, SettingsGroup):
    """How candidates are found. Subclass it for a search of another kind."""

    one_by_one: bool = False
    """One victim, and one candidate of it, at a time."""
    comparing: bool = False
    """Candidates of a victim are held against each other, image by image."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """How long it takes, in steps of one candidate."""

    @abstractmethod
    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        """The best candidate of each problem, from its own generator.

        Raises:
            NotFiniteError: the objective of a victim's candidates was never finite.
        """
