"""The search for pictures whose gradient is the shared one: all candidates of all victims at once."""

from collections.abc import Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from attacks.base import Frame
from attacks.optimization.matching.derivative import MixedDerivative
from attacks.optimization.matching.local_steps import Variables
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, NotFiniteError
from attacks.optimization.search.checkpoint import load_search, save_search
from attacks.optimization.search.group import GroupState
from attacks.optimization.search.optimisers import Optimiser
from attacks.optimization.search.schedule import Schedule, piecewise
from attacks.optimization.settings import Budget
from attacks.session import Session
from fedsim.update import State

if TYPE_CHECKING:
    from attacks.optimization.search.descent import Descent

logger = getLogger(__name__)

MAX_RESTARTS = 10
"""How often one candidate may start anew after a value that was not finite."""
IMPROVEMENT = 1e-4
"""The relative fall of the objective that counts as progress."""


class SearchState:
    """State of all candidates: rows `v·restarts + r` of every tensor belong to restart r of victim v.

    Args:
        generators: one a candidate, the only source of its randomness.

    Attributes:
        chunk: how many candidates are differentiated at once.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        derivative: MixedDerivative,
        settings: "Descent",
        budget: Budget,
        generators: Sequence[torch.Generator],
        device: torch.device,
        surrogate: bool,
    ) -> None:
        self.problems = problems
        self.derivative = derivative
        self.settings, self.budget = settings, budget
        self.generators = generators
        self.chunk = 1
        self.device = device
        self.step = 0
        self.ended = False
        self.weights: list[Any] | None = None
        self.count = len(problems) * settings.restarts
        self.dtype = next(iter(problems[0].target.values())).dtype
        starts = [self._start(index) for index in range(self.count)]
        self.variables: Variables = {
            name: torch.stack([start[name] for start in starts]).to(device) for name in starts[0]
        }
        if surrogate:
            alphas = [problem.alpha for problem in problems for _ in range(settings.restarts)]
            self.variables["alpha"] = torch.tensor(alphas, dtype=self.dtype, device=device)
        given = {"labels"} if problems[0].labels is not None else set()
        moving = {name: v for name, v in self.variables.items() if v.is_floating_point() and name not in given}
        self.smooth = {name: variable.requires_grad_() for name, variable in moving.items()}
        self.optimiser = Optimiser(settings.moves, self.smooth)
        self.targets, self.shared_target = _stack([problem.target for problem in problems])
        infinity = torch.full((self.count,), torch.inf, dtype=self.dtype, device=device)
        self.best, self.best_matching = infinity.clone(), infinity.clone()
        self.best_variables = {name: variable.detach().clone() for name, variable in self.variables.items()}
        self.reference = infinity.clone()
        self.improved_at = torch.zeros(self.count, dtype=torch.long, device=device)
        self.done = torch.zeros(self.count, dtype=torch.bool, device=device)
        self.bad = torch.zeros(self.count, dtype=torch.bool, device=device)
        self.restarted = torch.zeros(self.count, dtype=torch.long, device=device)
        self.last = {"objective": infinity.clone(), "matching": infinity.clone()}
        self.group = None if settings.group is None else GroupState(settings.group, len(problems), settings.restarts)
        self.rows: list[list[dict[str, float]]] = [[] for _ in problems]
        self.frames: list[list[Frame]] = [[] for _ in problems]

    def run(self, session: Session) -> list[BestCandidate]:
        """Search to the end, or from where an earlier try had come."""
        saved = session.load()
        if saved is not None:
            load_search(self, *saved)
        steps = self.settings.steps
        schedule = self.settings.schedule or Schedule()
        every = max(1, steps // max(1, self.budget.frames))
        while self.step < steps:
            if bool(self.done.all()):
                lost = bool((self.restarted > MAX_RESTARTS).all())
                if lost or (later := self._other_weights()) is None:
                    break
                self.step = later
            factor = schedule(self.step, steps)
            if self.group is not None:
                labels = [problem.labels for problem in self.problems]
                self.group.update(self.step, steps, self.images().detach(), labels)
            self.optimiser.step(self.evaluate, factor)
            self._renew()
            self._after_step(factor)
            if self.step % every == 0 or self.step == steps - 1:
                self._record(factor)
            self.step += 1
            # L-BFGS has a memory of its own that torch does not give out: such a search starts anew.
            if (
                self.settings.moves.elementwise
                and self.budget.save_every
                and self.step % self.budget.save_every == 0
                and self.step < steps
            ):
                session.save(*save_search(self))
            if self.step % 10 == 0:
                session.progress(self.step, steps, {"objective": float(self.best.min())})
        # Gradients are taken before each step: the last step's outcome has yet to be judged.
        self.ended = True
        with torch.enable_grad():
            self.evaluate()
        self._record(0.0)
        return self._results()

    def evaluate(self) -> Float[Tensor, "candidates"]:
        """The objective of all candidates; fills `.grad` and remembers each candidate's best."""
        weights = self._weights(self._judged)
        weight: float = weights[0]
        for variable in self.smooth.values():
            variable.grad = None
        images, penalty = self.images(), self._penalty()
        matching, by = self._differentiate(images.detach())
        prior, by_prior = self._priors(images.detach(), self._judged / self.settings.steps)
        (((weight * by.pop("images") + by_prior) * images).sum() + penalty.sum()).backward()
        for name in by.keys() & self.smooth.keys():
            self.smooth[name].grad = weight * by[name]
        totals = weight * matching + prior + penalty.detach()
        self._guard(totals)
        self._remember(totals, matching, weights)
        return totals

    @property
    def _judged(self) -> int:
        """The step whose weights hold: the outcome of the last step is judged by those of that step."""
        return self.step - self.ended

    def _weights(self, step: int) -> list[Any]:
        """What weighs the objective at a step: of the distance, of each term, and the number of the group's means."""
        steps = self.settings.steps
        terms = [prior.weight_at(step / steps) for prior, _ in self.problems[0].terms.values()]
        means = 0 if self.group is None else self.group.number(step, steps)
        return [piecewise(self.settings.matching_weight, step / steps), terms, means]

    def _other_weights(self) -> int | None:
        """The next step at which the objective is another one; a new mean of the group is none, but the first is."""
        *now, means = self._weights(self.step - 1)
        for step in range(self.step, self.settings.steps):
            *later, new = self._weights(step)
            if later != now or (means == 0) != (new == 0):
                return step
        return None

    def images(self) -> Float[Tensor, "candidates batch c h w"]:
        points = self.variables["point"].split(self.settings.restarts)
        return torch.cat([problem.space.images(own) for problem, own in zip(self.problems, points, strict=True)])

    def _penalty(self) -> Float[Tensor, "candidates"]:
        points = self.variables["point"].split(self.settings.restarts)
        return torch.cat([problem.space.penalty(own) for problem, own in zip(self.problems, points, strict=True)])

    def _differentiate(self, images: Tensor) -> tuple[Tensor, Variables]:
        """Chunk by chunk, so that memory does not grow with the number of candidates."""
        values, parts = [], []
        others = {name: v.detach() for name, v in self.variables.items() if name != "point"}
        for start in range(0, self.count, self.chunk):
            rows = slice(start, min(start + self.chunk, self.count))
            variables = {"images": images[rows], **{name: variable[rows] for name, variable in others.items()}}
            found = self.derivative(variables, self._target(rows), self.shared_target)
            values.append(found.values.detach())
            parts.append({name: tensor.detach() for name, tensor in found.by.items()})
        return torch.cat(values), {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _target(self, rows: slice) -> State:
        if self.shared_target:
            return self.targets
        owners = torch.arange(rows.start, rows.stop, device=self.device) // self.settings.restarts
        return {name: tensor[owners] for name, tensor in self.targets.items()}

    def _priors(self, images: Tensor, fraction: float) -> tuple[Float[Tensor, "candidates"], Tensor]:
        """Weighted terms of each candidate and their derivatives by its pictures, chunk by chunk too."""
        totals, derivatives = [], []
        for index, problem in enumerate(self.problems):
            for rows in torch.arange(self.count)[self._rows(index)].split(self.chunk):
                own = images[rows[0] : rows[-1] + 1].requires_grad_()
                total = (own * 0.0).flatten(1).sum(dim=1)
                for prior, term in problem.terms.values():
                    weight = prior.weight_at(fraction)
                    if weight > 0:
                        values = vmap(term)(own) if len(own) > 1 else term(own[0]).reshape(1)
                        total = total + weight * values
                if self.group is not None:
                    first = int(rows[0]) - index * self.settings.restarts
                    total = total + self.group.penalty(index, slice(first, first + len(rows)), own)
                (derivative,) = torch.autograd.grad(total.sum(), own)
                totals.append(total.detach())
                derivatives.append(derivative)
        return torch.cat(totals), torch.cat(derivatives)

    def _guard(self, totals: Tensor) -> None:
        """Mark candidates whose value or derivative is not finite, and keep them from moving."""
        bad = ~totals.isfinite()
        for variable in self.smooth.values():
            assert variable.grad is not None
            bad |= ~variable.grad.flatten(1).isfinite().all(dim=1) if variable.dim() > 1 else ~variable.grad.isfinite()
        if bool(bad.any()):
            for variable in self.smooth.values():
                assert variable.grad is not None
                variable.grad[bad] = 0.0
            self.bad |= bad

    def _remember(self, totals: Tensor, matching: Tensor, weights: list[Any]) -> None:
        self.last = {"objective": totals, "matching": matching}
        # Objectives of other weights or group means cannot be compared: the best is chosen among the last ones'.
        changed, self.weights = self.weights not in (None, weights), weights
        if changed:
            # What was best under other weights is not comparable, and what was a plateau under them need be none.
            self.best[:], self.reference[:], self.improved_at[:], self.done[:] = torch.inf, torch.inf, self.step, False
        better = (totals < self.best) & totals.isfinite() & ~self.done
        self.best = torch.where(better, totals, self.best)
        self.best_matching = torch.where(better, matching, self.best_matching)
        for name, variable in self.variables.items():
            mask = better.view(-1, *[1] * (variable.dim() - 1))
            self.best_variables[name] = torch.where(mask, variable.detach(), self.best_variables[name])

    def _renew(self) -> None:
        """Start candidates anew that had become NaN, a limited number of times."""
        bad = self.bad & ~self.done
        again = bad & (self.restarted < MAX_RESTARTS)
        self.done |= bad & ~again
        for index in again.nonzero().flatten().tolist():
            logger.warning("candidate %d is not finite at step %d: it starts anew", index, self.step)
            start = self._start(index)
            with torch.no_grad():
                for name, value in start.items():
                    self.variables[name][index] = value.to(self.device)
        if bool(again.any()):
            self.optimiser.forget(again)
            self.improved_at[again] = self.step
            self.reference[again] = torch.inf
        self.restarted += bad.long()  # one that is lost has more than all of its starts
        self.bad = torch.zeros_like(self.bad)

    def _after_step(self, factor: float) -> None:
        point = self.variables["point"]
        self.optimiser.add_noise(point, factor, self.generators)
        with torch.no_grad():
            for problem, own in zip(self.problems, point.split(self.settings.restarts), strict=True):
                problem.space.project(own)
            if "alpha" in self.variables:
                self.variables["alpha"].clamp_(0.0, 1.0)
        if self.settings.patience is None:
            return
        fallen = self.best < self.reference - IMPROVEMENT * self.reference.abs().clamp(max=1e30)
        self.reference = torch.where(fallen, self.best, self.reference)
        self.improved_at = torch.where(fallen, self.step, self.improved_at)
        self.done |= self.step - self.improved_at >= self.settings.patience

    def _start(self, index: int) -> Variables:
        """A fresh candidate from its own generator."""
        problem, generator = self.problems[index // self.settings.restarts], self.generators[index]
        start = {"point": problem.space.initial(generator).to(self.dtype)}
        if problem.labels is None:
            shape = (problem.count, problem.observation.num_classes)
            start["labels"] = torch.randn(shape, generator=generator).to(self.dtype)
        else:
            others = not problem.ordered and index % self.settings.restarts > 0
            order = torch.randperm(problem.count, generator=generator) if others else torch.arange(problem.count)
            start["labels"] = problem.labels[order.to(problem.labels.device)]
        return start

    def _choice(self) -> list[int]:
        """The row of each victim's best candidate."""
        best = self.best.view(len(self.problems), -1).argmin(dim=1)
        return [int(row) + victim * self.settings.restarts for victim, row in enumerate(best.tolist())]

    def _best_images(self, row: int) -> Float[Tensor, "batch c h w"]:
        problem = self.problems[row // self.settings.restarts]
        with torch.no_grad():
            return problem.space.images(self.best_variables["point"][row : row + 1])[0]

    def _record(self, factor: float) -> None:
        for victim, row in enumerate(self._choice()):
            values = {
                "objective": float(self.last["objective"][row]),
                "best": float(self.best[row]),
                "matching": float(self.last["matching"][row]),
                "lr": self.settings.moves.lr * factor,
            }
            finite = {name: value for name, value in values.items() if abs(value) < float("inf")}
            self.rows[victim].append({"step": float(self.step), **finite})
            if self.budget.frames:
                observation = self.problems[victim].observation
                images = observation.to_unit_range(self._best_images(row)).clamp(0, 1).float().cpu()
                self.frames[victim].append(Frame(self.step, images, finite))

    def _results(self) -> list[BestCandidate]:
        result = []
        for victim, row in enumerate(self._choice()):
            if not bool(self.best[row].isfinite()):
                raise NotFiniteError(f"the objective was not finite in {MAX_RESTARTS} starts of every candidate")
            labels = self.best_variables["labels"][row]
            values = {
                "objective": float(self.best[row]),
                "matching": float(self.best_matching[row]),
                "steps": float(self.step),
                "candidates": float(self.settings.restarts),
                "restarted_after_nan": float(self.restarted[self._rows(victim)].clamp(max=MAX_RESTARTS).sum()),
            }
            if "alpha" in self.variables:
                values["alpha"] = float(self.best_variables["alpha"][row])
            images, point = self._best_images(row), self.best_variables["point"][row].detach()
            result.append(BestCandidate(images, labels, values, point, self.rows[victim], self.frames[victim]))
        return result

    def _rows(self, victim: int) -> slice:
        return slice(victim * self.settings.restarts, (victim + 1) * self.settings.restarts)


def _stack(targets: Sequence[State]) -> tuple[State, bool]:
    """One victim's target as it is, those of several with a leading dimension of victims."""
    if len(targets) == 1:
        return targets[0], True
    return {name: torch.stack([target[name] for target in targets]) for name in targets[0]}, False
