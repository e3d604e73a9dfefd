"""Second-order matching as a search: start after start, until what was shared is explained up to its own errors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.base import Frame
from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, NotFiniteError, Search, SearchTask
from attacks.optimization.second_order.coordinates import first_order
from attacks.optimization.second_order.ends import End, agreement, best_of
from attacks.optimization.second_order.label_orders import label_orders
from attacks.optimization.second_order.levenberg_marquardt import LEAST_FALL, PATIENCE, LMState, take_step
from attacks.optimization.second_order.likeliest import ALIKE, likeliest
from attacks.optimization.second_order.likeliest import STEPS as FOLLOWING
from attacks.optimization.second_order.posterior import PosteriorMean, posterior_mean
from attacks.optimization.second_order.products import MatrixFree
from attacks.optimization.second_order.residual import LEFT_BY_ONE, LEFT_BY_SEVERAL, ROUNDINGS, shape_of
from attacks.optimization.second_order.stages import Stage, make_plan, whole_together
from attacks.optimization.second_order.starts import STARTS, Starts
from attacks.optimization.second_order.warm_start import MUCH_NEARER, Trail, WarmStart
from attacks.result import psnr_of
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.errors import NotApplicable, one_of, require
from fedsim.models.random_drops import random_drops

DRAWS_A_STEP = 20
"""Draws from the posterior that take about as long as a step."""
PATIENCE_IN_NOISE = 3
LEAST_FALL_BY_PRODUCTS, PATIENCE_BY_PRODUCTS = 0.02, 3
"""As `LEAST_FALL` and `PATIENCE`, where a step takes long."""
LEAST_FALL_OF_A_PART = 0.1
"""With a part of the coordinates: the next stage gets further."""
SPREAD = 6.0
"""Standard deviations by which ‖r‖² of the true image may pass what noise leaves of it."""
MOST_PUBLIC = 1024
"""Public images that are tried for each image of a batch."""
LEFT_BY_NEAR, SURE = 1e-3, 1.0 - 1e-6
"""Of ‖r‖² at the mean, what two ends may leave that speak for one image, and how alike they must be."""
SAME = 4.0
"""By how much ‖r‖² of two starts may differ that ended at the same image, and what counts as progress of one, in units
of the noise."""
SAVED = ("near", "number", "stage", "taken", "stale", "before", "rows")
"""What of a solution goes into its record as it is."""
OF_A_STATE = ("damping", "growth", "cost", "ended")


@dataclass(frozen=True)
class LevenbergMarquardt(Search):
    """Gauss-Newton steps on the whole residual.

    Attributes:
        steps: of each start, at most; as many come near before from a public image, twice as many where the order of
            patches is open.
        starts: what is tried, in this order: `closed_form` (of the first closed form that applies), `public` (of the
            server's own images the one whose update is the likest), `any_order` (that one, then the
            mean, with the places of patches searched for as well), `mean`, `prior` (a draw of it).
        restarts: how many public images and draws of the prior are tried.
        prior: of images: for starts, for what a narrow model does not read of them or an update hardly tells, and
            behind noise for the result. None: that of public images where the server has any, else a smooth one around
            gray.
        max_unknowns: numbers of all images together, three to a colour pixel; more are refused.
        first_order: steps of Adam before each start that draws, where J is not computed whole.
        draws: from the posterior, at most, whose mean is the result behind noise; 0, or where J is not computed whole:
            its likeliest image.
    """

    steps: int = 60
    starts: Sequence[str] = STARTS
    restarts: int = 2
    prior: GaussianPrior | None = None
    draws: int = 200
    first_order: int = 300
    max_unknowns: int = 20_000
    one_by_one = True

    def __post_init__(self) -> None:
        require("steps", self.steps, self.steps >= 1, "1 or more")
        require("restarts", self.restarts, self.restarts >= 1, "1 or more")
        require("starts", self.starts, len(self.starts) > 0, f"one or more of {', '.join(STARTS)}")
        require("max_unknowns", self.max_unknowns, self.max_unknowns >= 1, "1 or more")
        require("draws", self.draws, self.draws >= 0, "0 or more")
        require("first_order", self.first_order, self.first_order >= 0, "0 or more")
        for start in self.starts:
            one_of("starts", start, STARTS)

    @property
    def cost(self) -> float:
        """In steps of one candidate, of one order of labels: a Jacobian of some hundred pixels counts as a hundred."""
        return 100.0 * self.steps * self.restarts

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        found = []
        for index, (problem, rng) in enumerate(zip(task.problems, rngs, strict=True)):
            part = task if len(task.problems) == 1 else task.part(f"victim-{index}")
            found.append(self._of(part, problem, rng))
        return found

    def _of(self, task: SearchTask, problem: Problem, rng: torch.Generator) -> BestCandidate:
        """Of the orders in which labels may have been in local batches, the one that explains best what was shared."""
        protocol = problem.observation.protocol
        once = protocol.steps <= math.ceil(problem.count / protocol.batch_size)  # later epochs have other batches
        if problem.ordered or problem.start is not None or problem.labels is None or not once:
            return _VictimSearch(self, task, problem, rng).run()
        found: list[BestCandidate] = []
        orders = label_orders(problem.labels, protocol.batch_size, rng)
        for number, labels in enumerate(orders):
            part, one = task.part(f"order-{number}"), replace(problem, labels=labels)
            found.append(_VictimSearch(self, part, one, rng, (number, len(orders))).run())
            if found[-1].values["within_errors"]:
                break
        return min(found, key=lambda one: one.values["objective"])


class _VictimSearch:
    """One victim's starts, one after the other.

    What it would take to go on after a kill: the number of the start, its place and damping, and the best so far.

    Args:
        place: the number of this search among those of other orders of labels, and how many there are.
    """

    def __init__(
        self,
        settings: LevenbergMarquardt,
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
        self.prior: ImagePrior = settings.prior or problem.observation.image_prior or GaussianPrior()
        self._solve(problem)
        task.report(self.plan.directions)
        self.seeds = torch.randint(2**62, (settings.restarts + 1,), generator=rng).tolist()
        self.near_steps: list[int] = []
        self.near, self.number, self.stage, self.taken, self.stale, self.before = 0, 0, 0, 0, 0, math.inf
        self.state: LMState | None = None
        self.followed = 0
        self.trail = Trail()
        self.refused: list[list[int]] = []
        self.rows: list[dict[str, float]] = []
        self.frames: list[Frame] = []

    def _solve(self, problem: Problem) -> None:
        self.problem, self.plan = problem, make_plan(problem, self.task, self.prior)
        self.last, self.ends = self.plan.stages[-1].residual, list[End]()
        self.__dict__.pop("_least", None)

    def run(self) -> BestCandidate:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            starts, planned = self._starts()
            self._go_on()
            kept = self._keep_solved(starts)
            while not kept and self.number < len(planned):
                if starts.problem is not self.problem:
                    starts, planned = self._starts()
                kind, make = planned[self.number]
                self._descend(kind, make, starts.warm_start)
                if self._settled():
                    break
                self.near, self.stage, self.taken, self.state, self.number = 0, 0, 0, None, self.number + 1
            if not kept:
                self._make_likely()
            average = None if kept else self._average()
        if not self.ends and not self.rows:
            raise NotApplicable(f"none of its starts applies: {', '.join(self.settings.starts)}")
        if not self.ends:
            raise NotFiniteError("the residual was finite for no start")
        cost, x = self.best
        x = x if average is None else average.mean
        point = self.plan.point(x).view(self.shape)
        values = {
            "objective": cost,
            "matching": cost,
            "steps": float(len(self.rows)),
            "explained": float(self._explained()),
            "within_errors": float(bool(self.ends) and self.best.cost <= self._doubt),
            "floor": self.last.floor,
            "left": self._left(cost),
            "trust": 1.0 if kept else self._trust(),
            "kept": float(kept),
        }
        if average is not None:
            values |= {"accepted": average.accepted, "draws": float(average.draws)}
            if values["trust"] == 1.0:  # else the result is drawn to a mean, and no draw of the posterior
                values |= {"predicted_psnr": self._predicted(average.variance)}
        assert self.problem.labels is not None
        return BestCandidate(self._images(x), self.problem.labels, values, point, self.rows, self.frames)

    def _starts(self) -> tuple[Starts, list[tuple[str, Callable[[], Tensor | None]]]]:
        given = self.problem, self.task, self.plan, self.settings.steps
        warm_start = WarmStart(*given, self._came_near, self.trail, self._keep)
        starts = Starts(self.problem, self.prior, self.task.device, self.seeds[:-1], warm_start, MOST_PUBLIC)
        planned = list(starts.of(self.settings.starts))
        self.near_steps = warm_start.steps_of([kind for kind, _ in planned])
        return starts, planned

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
            self.ends = [End(float(self.last(x).square().sum()), x)]
        return x is not None

    def _descend(self, kind: str, make: Callable[[], Tensor | None], warm_start: WarmStart) -> None:
        """From one start to its end, stage after stage; one that was begun before goes on."""
        state = self.state
        if state is None:
            start = make()
            if start is None:
                return
            if kind == "public":
                self._name(warm_start.labels(start), start)
            state = self._begin(kind, start)
            if self.near:  # the steps that came near are not taken again
                self.state, self.stale, self.before = state, 0, math.inf
                self._keep()
        stages = self.plan.stages
        for number in range(self.stage, len(stages)):
            stage, self.stage = stages[number], number
            if state is not self.state:
                state, self.stale, self.before = LMState(state.x), 0, math.inf
                if not self.plan.whole and self._reached(stage, float(stage.residual(state.x).square().sum())):
                    continue
            while self.taken < self._until(number) and not state.ended:
                take_step(state, stage.residual, stage.linearised)
                self.taken += 1
                self.state = state
                self._record(state.cost)
                if self._done(stage, state.cost):
                    break
                if len(self.rows) % max(1, self.task.budget.save_every) == 0:
                    self._keep()
            self.state = None
        cost = float(self.last(state.x).square().sum())
        if math.isfinite(cost):
            self.ends.append(End(cost, state.x))

    def _make_likely(self) -> None:
        """Of the images that explain the update as the best does, the likeliest; noise has a posterior of its own.

        Where none explains it yet the best goes on so: a prior keeps it from what the update hardly tells.
        """
        varied = self.plan.varied
        if varied is None or self.last.before is not None or not self.ends:
            return
        residual, z = self.plan.of_varied(self.last), varied.unknowns(self.plan.point(self.best.x))
        together = whole_together(self.problem, len(z), self.task)
        if together is None:
            return
        z = likeliest(residual, z, together, self._followed)
        cost, best = float(residual(z).square().sum()), self.best
        rounded = self.last.floor / ROUNDINGS**2
        if cost < best.cost or cost <= min(ALIKE * max(best.cost, rounded), self._doubt):
            fall = min(1.0, cost / best.cost) if best.cost > 0 else 1.0  # the others might go on as far
            others = [End(fall * end.cost, end.x) for end in self.ends if end is not best]
            self.ends = [End(cost, z if self.plan.white else varied.point(z)), *(e for e in others if e.cost > cost)]

    def _name(self, labels: Tensor | None, point: Tensor) -> None:
        """Other labels than a rule's, where a point explains far more of the update by the client's loss with them."""
        rule = self.problem.labels
        if labels is None or rule is None or self.problem.stated or labels.tolist() in [rule.tolist(), *self.refused]:
            return
        former, by_rule = (self.problem, self.plan, self.last, self.ends), self._by_norm(point)
        self._solve(replace(self.problem, labels=labels))
        if self._by_norm(point) < MUCH_NEARER * by_rule:
            return
        self.refused.append(labels.tolist())
        self.problem, self.plan, self.last, self.ends = former
        self.__dict__.pop("_least", None)

    def _by_norm(self, point: Tensor) -> float:
        return float(self.plan.stages[0].residual(self.plan.unknowns(point)).square().sum())

    @property
    def best(self) -> End:
        return best_of(self.ends)

    def _begin(self, kind: str, start: Tensor) -> LMState:
        """What has the low frequencies already varies all; others are brought near first, where J is not whole."""
        x = self.plan.unknowns(start)
        if kind == "closed_form" or self.near:
            self.stage = sum(stage.partial for stage in self.plan.stages)
        elif not self.plan.whole and self.settings.first_order:
            x = first_order(self.plan.coarse, x.float(), self.settings.first_order).double()
        return LMState(x)

    def _until(self, number: int) -> int:
        """Steps of a start after which a stage is over, whatever it does; parts of the coordinates share them."""
        stages, total = self.plan.stages, self.settings.steps
        if stages[number].partial or number == len(stages) - 1:
            return total * (number + 1) // len(stages)
        return max(1, min(total - total // 4, total - 1))

    def _reached(self, stage: Stage, cost: float) -> bool:
        return stage.residual.before is None and cost <= stage.residual.floor

    def _done(self, stage: Stage, cost: float) -> bool:
        """What was shared is explained, as far as this stage is asked to, or steps no longer help."""
        noisy, explained = stage.residual.before is not None, self._reached(stage, cost)
        fall, patience = (LEAST_FALL, PATIENCE) if self.plan.whole else (LEAST_FALL_BY_PRODUCTS, PATIENCE_BY_PRODUCTS)
        if stage.partial:
            fall, patience = LEAST_FALL_OF_A_PART, 1
        least, patience = (SAME, PATIENCE_IN_NOISE) if noisy else (fall * cost, patience)
        self.stale = 0 if cost < self.before - least else self.stale + 1
        self.before = cost
        return self.stale >= patience or (explained and not (self.plan.whole and stage is self.plan.stages[-1]))

    @property
    def _draws(self) -> int:
        return self.settings.draws if self.plan.whole and self.last.before is not None else 0

    def _images(self, x: Tensor) -> Tensor:
        """The model's input."""
        return self.problem.space.images(self.plan.point(x).view(1, *self.shape))[0]

    def _settled(self) -> bool:
        """What was shared is explained, or two starts came to the same; behind noise that is to the same cost."""
        if self.last.before is None:
            near = bool(self.ends) and self._left(self.best.cost) <= LEFT_BY_NEAR
            return self._explained() or (near and self._alike(alone=0.0) >= SURE)
        return sum(end.cost <= self.best.cost + SAME for end in self.ends) > 1

    def _average(self) -> PosteriorMean | None:
        """The posterior's mean around the best image; None where no defense adds noise, and by products."""
        if not self.ends or not self._draws:
            return None
        x, rng = self.best.x, torch.Generator().manual_seed(self.seeds[-1])
        return posterior_mean(self.last, x, self.last.normal(x).matrix, self._draws, rng, self._drew)

    def _predicted(self, variance: Tensor) -> float:
        """dB of the mean squared error of pixels in [0, 1] that the posterior itself expects."""
        images = variance.sqrt().view(self.shape)
        std = torch.tensor(self.problem.observation.std, dtype=images.dtype, device=images.device)
        return psnr_of(float((images * std.view(1, -1, 1, 1)).square().mean()))

    def _drew(self, draw: int) -> None:
        done = self._steps_until(len(self.near_steps)) + draw // DRAWS_A_STEP
        self._tell(min(done, self._total()), {"draw": float(draw)})

    def _left(self, cost: float) -> float:
        """What remains of ‖r‖² at the prior's mean, or of ‖W·f*‖² if that is less; 0 where the mean is no point.

        Behind noise of what the noise does not leave at the true image too.
        """
        least = self._least - self._noise
        return max(0.0, cost - self._noise) / least if math.isfinite(least) and least > 0 else 0.0

    @cached_property
    def _mean(self) -> Tensor:
        """The prior's, as a point."""
        return self.problem.observation.normalised(self.prior.centre(self.shape)).flatten().to(self.task.device)

    @cached_property
    def _least(self) -> float:
        """‖r‖² without an image: at the prior's mean, or ‖W·f*‖² if that is less; 0 where the mean is no point."""
        if not isinstance(self.problem.space, PixelSpace):
            return 0.0
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            at_mean = float(self.last(self.plan.unknowns(self._mean)).square().sum())
        return min(at_mean, float((self.last.weights * self.last.target).square().sum()))

    def _trust(self) -> float:
        """How far the best end is the image: 1 where it explains what was shared, 0 where hardly more than the mean.

        Else as far as ends of other starts vouch for it.
        """
        best = self.best
        if best.cost <= self._doubt:
            return 1.0
        if self._left(best.cost) > (LEFT_BY_ONE if self.problem.count == 1 else LEFT_BY_SEVERAL):
            return 0.0
        return self._alike(alone=1.0)

    @property
    def _noise(self) -> float:
        """‖r‖² that noise leaves at the true image."""
        return 0.0 if self.last.before is None else self.last.floor

    @property
    def _doubt(self) -> float:
        """‖r‖² that the errors of what was shared leave at the true image, at most."""
        floor = self.last.floor
        return 2.0 * floor if self.last.before is None else floor + len(self.best.x) + SPREAD * math.sqrt(2.0 * floor)

    def _alike(self, alone: float) -> float:
        """How alike ends of starts are, see `agreement`."""
        if not isinstance(self.problem.space, PixelSpace):
            return alone
        ends = [End(max(0.0, end.cost - self._noise), self.plan.point(end.x)) for end in self.ends]
        return agreement(ends, self._mean.to(self.best.x), alone, self.problem.labels)

    def _explained(self) -> bool:
        return bool(self.ends) and self.best.cost <= 2.0 * self.last.floor

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
            else FOLLOWING * (self.plan.varied is not None and self.last.before is None)
        )
        return self._steps_until(len(self.near_steps)) + last

    def _steps_until(self, start: int) -> int:
        """Steps of all starts before this one, at most."""
        return start * self.settings.steps + sum(self.near_steps[:start])

    def _keep(self) -> None:
        """Where a start comes near there is no state yet: what it has gone of its way is in the trail."""
        if not self.task.budget.save_every:
            return
        tensors = self.trail.tensors() | {f"end/{index}": end.x for index, end in enumerate(self.ends)}
        tensors |= {f"frame/{index}": frame.images for index, frame in enumerate(self.frames)}
        record: dict[str, Any] = {name: getattr(self, name) for name in SAVED}
        labels = None if self.problem.labels is None else self.problem.labels.tolist()
        record |= {"starts": self.near_steps, "trail": self.trail.record(), "labels": labels}
        record |= {"ends": [end.cost for end in self.ends], "directions": self.plan.directions}
        record |= {"frames": [[frame.step, frame.values] for frame in self.frames]}
        if self.state is not None:
            tensors |= {"x": self.state.x}
            record |= {name: getattr(self.state, name) for name in OF_A_STATE}
        tensors |= {f"anchor/{i}": one.anchor for i, one in enumerate(self._by_products) if one.anchor is not None}
        record |= {"sketches": [[one.rough, one.spent] for one in self._by_products]}
        self.task.session.save(tensors, record)

    @property
    def _by_products(self) -> list[MatrixFree]:
        """Of each stage, whose sketch the next start begins with; none where J is whole."""
        return [stage.linearised for stage in self.plan.stages if isinstance(stage.linearised, MatrixFree)]

    def _go_on(self) -> None:
        saved = self.task.session.load()
        if saved is None:
            return
        tensors, record = saved
        # Less memory since then: other unknowns, or another sketch. Earlier versions had other starts, and no trail.
        known = {"trail", "labels"} <= record.keys() and record.get("starts") == self.near_steps
        if record["directions"] != self.plan.directions or not known:
            return
        labels = self.problem.labels
        if labels is not None and record["labels"] != labels.tolist():
            self._solve(replace(self.problem, labels=labels.new_tensor(record["labels"])))
        for name in SAVED:
            setattr(self, name, record[name])
        self.trail.restore(tensors, record["trail"], self.task.device)
        if "x" in tensors:
            self.state = LMState(tensors["x"].to(self.task.device), *(record[name] for name in OF_A_STATE))
        for index, (one, (rough, spent)) in enumerate(zip(self._by_products, record["sketches"], strict=True)):
            anchor = tensors.get(f"anchor/{index}")
            one.anchor, one.rough, one.spent = None if anchor is None else anchor.to(self.task.device), rough, spent
        self.ends = [End(c, tensors[f"end/{i}"].to(self.task.device)) for i, c in enumerate(record["ends"])]
        self.frames = [Frame(s, tensors[f"frame/{i}"], v) for i, (s, v) in enumerate(record["frames"])]
