"""Second-order matching for one victim: start after start, until what was shared is explained."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.base import Frame
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, NotFiniteError, SearchTask
from attacks.optimization.second_order import checkpoint
from attacks.optimization.second_order.ends import SAME, End, Ends
from attacks.optimization.second_order.posterior.mean import PosteriorMean
from attacks.optimization.second_order.posterior.mixture import Modes
from attacks.optimization.second_order.posterior.mode import STEPS as FOLLOWING
from attacks.optimization.second_order.posterior.mode import likeliest
from attacks.optimization.second_order.residual.residual import Residual, shape_of
from attacks.optimization.second_order.settings import Settings
from attacks.optimization.second_order.stages import Stage, make_plan, whole_together
from attacks.optimization.second_order.starts import Starts
from attacks.optimization.second_order.steps.levenberg_marquardt import LEAST_FALL, PATIENCE, LMState, take_step
from attacks.optimization.second_order.unknowns.frequencies import first_order
from attacks.optimization.second_order.warm_start import MUCH_NEARER, Trail, WarmStart
from attacks.result import psnr_of
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops

DRAWS_A_STEP = 20
"""Draws from the posterior that take about as long as a step."""
PATIENCE_IN_NOISE = 3
LEAST_FALL_BY_PRODUCTS, PATIENCE_BY_PRODUCTS = 0.02, 3
"""As `LEAST_FALL` and `PATIENCE`, where a step takes long."""
LEAST_FALL_OF_A_PART = 0.1
"""With a part of the coordinates: the next stage gets further."""
MOST_PUBLIC = 1024
"""Public images that are tried for each image of a batch."""


class VictimSearch:
    """One victim's starts, one after the other.

    What it would take to go on after a kill: the number of the start, its place and damping, and the best so far.

    Args:
        place: the number of this search among those by other orders of labels or priors, and how many there are.
    """

    def __init__(
        self,
        settings: Settings,
        task: SearchTask,
        problem: Problem,
        rng: torch.Generator,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        if problem.labels is None or problem.labels.is_floating_point():
            raise NotApplicable("second-order matching needs classes by a label rule: labels=auto")
        if problem.terms:
            raise NotApplicable("second-order matching has a prior of its own: leave priors out")
        if not all(any(bool(tensor.any()) for tensor in one.target.values()) for one in problem.rounds):
            raise NotApplicable("nothing was shared: the update is zero")
        self.settings, self.task, self.place = settings, task, place
        self.shape = shape_of(problem)
        unknowns = math.prod(self.shape)
        if unknowns > settings.max_unknowns:
            raise NotApplicable(f"{unknowns} unknowns, {settings.max_unknowns} at most are asked for (max_unknowns)")
        self.solve(problem)
        task.report(self.plan.directions)
        self.seeds = torch.randint(2**62, (settings.restarts + 1,), generator=rng).tolist()
        self.near_steps: list[int] = []
        self.near, self.number, self.stage, self.taken, self.stale, self.before = 0, 0, 0, 0, 0, math.inf
        self.state: LMState | None = None
        self.followed, self.drawn = 0, 0
        self.trail = Trail()
        self.refused: list[list[int]] = []
        self.kept = False
        self.rows: list[dict[str, float]] = []
        self.frames: list[Frame] = []

    def solve(self, problem: Problem) -> None:
        """Search for this one from here on, without ends yet."""
        self.prior: ImagePrior = self.settings.prior or problem.observation.image_prior or GaussianPrior()
        self.problem, self.plan = problem, make_plan(problem, self.task, self.prior)
        self.ends = Ends(problem, self.plan, self.prior, self.task.device)

    def run(self) -> BestCandidate:
        self.descend()
        return self.result()

    @property
    def has_posterior(self) -> bool:
        """Noise hides the image, and J is whole."""
        return self.plan.whole and self._last.before is not None

    @property
    def told(self) -> bool:
        """Errors hide hardly any of what images tell, and the best end is within them: a prior adds nothing."""
        return self.ends.within_errors and self.ends.hidden

    @cached_property
    def modes(self) -> Modes:
        """Of the posterior, by the ends of all starts."""
        columns = whole_together(self.problem, len(self.ends.best.x), self.task)
        assert columns is not None, "J is whole where there is a posterior"
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return Modes(self._last, [end.x for end in self.ends.modes], columns)

    def descend(self) -> None:
        """From each start to its end."""
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            starts, planned = self._starts()
            self._go_on()
            self.kept = self._keep_solved(starts)
            while not self.kept and self.number < len(planned):
                if starts.problem is not self.problem:
                    starts, planned = self._starts()
                kind, make = planned[self.number]
                self._descend(kind, make, starts.warm_start)
                self.near, self.stage, self.taken, self.state = 0, 0, 0, None
                self.number = self._next([kind for kind, _ in planned])
            self._keep()
            if not self.kept:
                self._make_likely()

    def _next(self, kinds: Sequence[str]) -> int:
        """The number of the next start. Ends that agree say little of likely images, of which each may have its own."""
        number = self.number + 1
        over = self.told if "likely" in kinds[number : number + 1] else self.ends.settled
        return max(number, len(kinds) - (kinds[-1] == "best")) if over else number

    def result(self) -> BestCandidate:
        """The best end, or the mean of what noise leaves.

        Raises:
            NotApplicable: no start applies.
            NotFiniteError: none has a finite residual.
        """
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            average = None if self.kept else self._average()
        if not self.ends.found and not self.rows:
            raise NotApplicable(f"none of its starts applies: {', '.join(self.settings.starts)}")
        if not self.ends.found:
            raise NotFiniteError("the residual was finite for no start")
        cost, x = self.ends.best
        x = x if average is None else average.mean
        point = self.plan.point(x).view(self.shape)
        values = {
            "objective": cost,
            "matching": cost,
            "steps": float(len(self.rows)),
            "explained": float(self.ends.explained),
            "within_errors": float(self.ends.within_errors),
            "floor": self._last.floor,
            "left": self.ends.left(cost),
            "trust": 1.0 if self.kept else self.ends.trust,
            "kept": float(self.kept),
        }
        if average is not None:
            values |= {"accepted": average.accepted, "draws": float(average.draws)}
            if values["trust"] == 1.0:  # else the result is drawn to a mean, and no draw of the posterior
                values |= {"predicted_psnr": self._predicted(average.variance)}
        assert self.problem.labels is not None
        return BestCandidate(self._images(x), self.problem.labels, values, point, self.rows, self.frames)

    def _starts(self) -> tuple[Starts, list[tuple[str, Callable[[], Tensor | None]]]]:
        given = self.problem, self.task, self.plan, self.settings.steps, self.prior
        warm_start = WarmStart(*given, self._came_near, self.trail, self._keep)
        hidden = bool(self.plan.likely) and self.ends.hidden
        starts = Starts(self.problem, self.prior, self.task.device, self.seeds[:-1], warm_start, MOST_PUBLIC, hidden)
        planned = list(starts.of(self.settings.starts))
        if any(kind == "likely" for kind, _ in planned):
            planned.append(("best", self._best))
        self.near_steps = warm_start.steps_of([kind for kind, _ in planned])
        return starts, planned

    def _best(self) -> Tensor | None:
        """Found by what varies alone, perhaps: all unknowns go on from there."""
        return self.plan.point(self.ends.best.x) if self.ends.found else None

    def _keep_solved(self, starts: Starts) -> bool:
        """Where no image explains the update, a closed form whose own equations hold knows better.

        Units are dropped at random, or autocast rounded each step of the computation by an error that few numbers have.
        """
        observation = self.problem.observation
        if self.problem.start is not None or "closed_form" not in self.settings.starts:
            return False
        drops = observation.protocol.training_mode and bool(random_drops(observation.build_model()))
        if not drops and not observation.protocol.rounding:
            return False
        x = starts.solved()
        if x is not None:
            x = self.plan.unknowns(x)
            self.ends.found = [End(float(self._last(x).square().sum()), x)]
        return x is not None

    def _descend(self, kind: str, make: Callable[[], Tensor | None], warm_start: WarmStart) -> None:
        """From one start to its end, stage after stage; one that was begun before goes on."""
        state = self.state
        if state is None:
            start = make()
            if start is None:
                return
            if kind in {"public", "ensemble"}:
                self._name(warm_start.labels(start), start)
            state = self._begin(kind, start)
            if self.near:  # the steps that came near are not taken again
                self.state, self.stale, self.before = state, 0, math.inf
                self._keep()
        stages = self._stages(kind)
        for number in range(self.stage, len(stages)):
            stage, self.stage = stages[number], number
            if state is not self.state:
                state, self.stale, self.before = LMState(state.x), 0, math.inf
                if not self.plan.whole and stage.explains(float(stage.residual(state.x).square().sum())):
                    continue
            while self.taken < self.plan.until(stages, number, self.settings.steps) and not state.ended:
                take_step(state, stage.residual, stage.linearised)
                self.taken += 1
                self.state = state
                self._record(state.cost)
                if self._done(stage, stage is stages[-1], state.cost):
                    break
                if len(self.rows) % max(1, self.task.budget.save_every) == 0:
                    self._keep()
            self.state = None
        self.ends.add(state.x, behind_best=kind == "best")

    def _make_likely(self) -> None:
        """Of the images that explain the update as the best does, the likeliest; noise has a posterior of its own.

        Where none explains it yet the best goes on so: a prior keeps it from what the update hardly tells.
        """
        varied = self.plan.varied
        if varied is None or self._last.before is not None or not self.ends.found:
            return
        residual, z = self.plan.of_varied(self._last), varied.unknowns(self.plan.point(self.ends.best.x))
        together = whole_together(self.problem, len(z), self.task)
        if together is None:
            return
        z = likeliest(residual, z, together, self._followed)
        cost = float(residual(z).square().sum())
        self.ends.go_on(End(cost, z if self.plan.white else varied.point(z)))

    def _name(self, labels: Tensor | None, point: Tensor) -> None:
        """Other labels than a rule's, where a point explains far more of the update by the client's loss with them."""
        rule = self.problem.labels
        if labels is None or rule is None or self.problem.stated or labels.tolist() in [rule.tolist(), *self.refused]:
            return
        former, by_rule = (self.problem, self.plan, self.ends), self._by_norm(point)
        self.solve(replace(self.problem, labels=labels))
        if self._by_norm(point) < MUCH_NEARER * by_rule:
            return
        self.refused.append(labels.tolist())
        self.problem, self.plan, self.ends = former

    def _by_norm(self, point: Tensor) -> float:
        return float(self.plan.stages[0].residual(self.plan.unknowns(point)).square().sum())

    def _stages(self, kind: str) -> Sequence[Stage]:
        if kind == "likely":
            return self.plan.likely
        return self.plan.stages[-1:] if kind == "best" else self.plan.stages

    def _begin(self, kind: str, start: Tensor) -> LMState:
        """What has the low frequencies already varies all; others are brought near first, where J is not whole."""
        x = self.plan.unknowns(start)
        if kind == "closed_form" or self.near:
            self.stage = sum(stage.partial for stage in self.plan.stages)
        elif not self.plan.whole and self.settings.first_order:
            x = first_order(self.plan.coarse, x.float(), self.settings.first_order).double()
        return LMState(x)

    def _done(self, stage: Stage, last: bool, cost: float) -> bool:
        """What was shared is explained, as far as this stage is asked to, or steps no longer help."""
        noisy, explained = stage.residual.before is not None, stage.explains(cost)
        fall, patience = (LEAST_FALL, PATIENCE) if self.plan.whole else (LEAST_FALL_BY_PRODUCTS, PATIENCE_BY_PRODUCTS)
        if stage.partial and not self.plan.whole:
            fall, patience = LEAST_FALL_OF_A_PART, 1
        least, patience = (SAME, PATIENCE_IN_NOISE) if noisy else (fall * cost, patience)
        self.stale = 0 if cost < self.before - least else self.stale + 1
        self.before = cost
        return self.stale >= patience or (explained and not (self.plan.whole and last))

    @property
    def _last(self) -> Residual:
        return self.ends.residual

    @property
    def _draws(self) -> int:
        return self.settings.draws if self.has_posterior else 0

    def _images(self, x: Tensor) -> Tensor:
        """The model's input."""
        return self.problem.space.images(self.plan.point(x).view(1, *self.shape))[0]

    def _average(self) -> PosteriorMean | None:
        """The posterior's mean; None where no defense adds noise, and by products."""
        if not self.ends.found or not self._draws:
            return None
        return self.modes.mean(self._draws, torch.Generator().manual_seed(self.seeds[-1]), self._drew)

    def _predicted(self, variance: Tensor) -> float:
        """dB of the mean squared error of pixels in [0, 1] that the posterior itself expects."""
        images = variance.sqrt().view(self.shape)
        std = torch.tensor(self.problem.observation.std, dtype=images.dtype, device=images.device)
        return psnr_of(float((images * std.view(1, -1, 1, 1)).square().mean()))

    def _drew(self, draw: int) -> None:
        self.drawn += 1
        done = self._steps_until(len(self.near_steps)) + self.drawn // DRAWS_A_STEP
        self._tell(min(done, self._total()), {"draw": float(draw)})

    def _came_near(self, cost: float) -> None:
        """A step before the search proper."""
        self.near += 1
        self._record(cost)

    def _followed(self, cost: float) -> None:
        """A step behind the search proper, by ‖r‖² in units of its errors."""
        self.followed += 1
        values = {"followed": cost} if math.isfinite(cost) else {}
        self.rows.append({"step": float(len(self.rows)), **values})
        self._tell(self._steps_until(len(self.near_steps)) + self.followed, values)

    def _record(self, cost: float) -> None:
        values = {"objective": cost, "start": float(self.number), "damping": self.state.damping if self.state else 0.0}
        self.rows.append({"step": float(len(self.rows)), **{k: v for k, v in values.items() if math.isfinite(v)}})
        every = max(1, self.settings.steps // max(1, self.task.budget.frames))
        if self.task.budget.frames and len(self.rows) % every == 1 % every and self.state is not None:
            shown = self.problem.observation.to_unit_range(self._images(self.state.x)).clamp(0, 1).float().cpu()
            self.frames.append(Frame(len(self.rows), shown, {"objective": cost}))
        near = min(self.near, self.near_steps[self.number]) if self.state is None else self.near_steps[self.number]
        done = self._steps_until(self.number) + near + self.taken
        self._tell(done, {"objective": cost})

    def _tell(self, done: int, values: dict[str, float]) -> None:
        """This search is one of several, one after the other."""
        number, count = self.place
        self.task.session.progress(number * self._total() + done, count * self._total(), values)

    def _total(self) -> int:
        last = (
            self._draws // DRAWS_A_STEP
            if self._draws
            else FOLLOWING * (self.plan.varied is not None and self._last.before is None)
        )
        return self._steps_until(len(self.near_steps)) + last

    def _steps_until(self, start: int) -> int:
        """Steps of all starts before this one, at most."""
        return start * self.settings.steps + sum(self.near_steps[:start])

    def _keep(self) -> None:
        if self.task.budget.save_every:
            self.task.session.save(*checkpoint.saved(self))

    def _go_on(self) -> None:
        if (found := self.task.session.load()) is not None:
            checkpoint.restore(self, *found)
