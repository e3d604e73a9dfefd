"""Second-order matching as a search: start after start, until what was shared is explained up to its own errors."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.analytic.patch_gradient import PatchGradient
from attacks.analytic.row_space.attack import RowSpace
from attacks.base import Frame
from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, NotFiniteError, Search, SearchTask
from attacks.optimization.second_order.levenberg_marquardt import Damped, take_step
from attacks.optimization.second_order.posterior import PosteriorMean, posterior_mean
from attacks.optimization.second_order.residual import make_residuals, shape_of
from attacks.result import psnr_of
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.errors import NotApplicable, one_of, require

logger = getLogger(__name__)

STARTS = ("closed_form", "mean", "prior")
MEAN_NOISE = 0.05
"""Standard deviation of the noise around the prior's mean, where a search starts there."""
DRAWS_A_STEP = 20
"""Draws from the posterior that take about as long as a step."""
LEAST_FALL = 1e-3
"""Relative fall of ‖r‖² that counts as progress; so many steps without it end a start."""
PATIENCE, PATIENCE_IN_NOISE = 6, 3
SAME = 4.0
"""By how much ‖r‖² of two starts may differ that ended at the same image, and what counts as progress of one, in units
of the noise."""


@dataclass(frozen=True)
class LevenbergMarquardt(Search):
    """Gauss-Newton steps on the whole residual.

    Attributes:
        steps: of each start, at most.
        starts: what is tried, in this order: `closed_form` (of the first closed form that applies), `mean`, `prior`
            (a draw of it).
        restarts: how often each start that draws is tried.
        prior: of images, for starts, and behind noise for the result. None: that of public images where the server has
            any, else a smooth one around gray.
        max_unknowns: pixels of all images together; more are refused. A step takes time in their square, memory too.
        draws: from the posterior, whose mean is the result behind noise; 0: its likeliest image.
    """

    steps: int = 60
    starts: Sequence[str] = STARTS
    restarts: int = 2
    prior: GaussianPrior | None = None
    draws: int = 200
    max_unknowns: int = 2_000
    one_by_one = True

    def __post_init__(self) -> None:
        require("steps", self.steps, self.steps >= 1, "1 or more")
        require("restarts", self.restarts, self.restarts >= 1, "1 or more")
        require("starts", self.starts, len(self.starts) > 0, f"one or more of {', '.join(STARTS)}")
        require("max_unknowns", self.max_unknowns, self.max_unknowns >= 1, "1 or more")
        require("draws", self.draws, self.draws >= 0, "0 or more")
        for start in self.starts:
            one_of("starts", start, STARTS)

    @property
    def cost(self) -> float:
        """In steps of one candidate: a Jacobian of a few hundred pixels counts as a hundred."""
        return 100.0 * self.steps * self.restarts

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        task.report(1)
        found = []
        for index, (problem, rng) in enumerate(zip(task.problems, rngs, strict=True)):
            part = task if len(task.problems) == 1 else task.part(f"victim-{index}")
            found.append(_Solution(self, part, problem, rng).run())
        return found


class _Solution:
    """One victim's starts, one after the other.

    What it would take to go on after a kill: the number of the start, its place and damping, and the best so far.
    """

    def __init__(self, settings: LevenbergMarquardt, task: SearchTask, problem: Problem, rng: torch.Generator) -> None:
        if problem.labels is None or problem.labels.is_floating_point():
            raise NotApplicable("second-order matching needs classes by a label rule: labels=auto")
        if problem.terms:
            raise NotApplicable("second-order matching has a prior of its own: priors={}")
        self.settings, self.task, self.problem = settings, task, problem
        self.shape = shape_of(problem)
        unknowns = math.prod(self.shape)
        most = settings.max_unknowns
        if unknowns > most:
            limit = f"for {most} at most (max_unknowns)"
            raise NotApplicable(f"{unknowns} unknowns: the Jacobian is computed whole, {limit}")
        self.prior: ImagePrior = settings.prior or problem.observation.image_prior or GaussianPrior()
        self.stages = make_residuals(problem, task.local, self.prior, problem.labels, task.device)
        self.seeds = torch.randint(2**62, (settings.restarts + 1,), generator=rng).tolist()
        self.number, self.stage, self.taken = 0, 0, 0
        self.state: Damped | None = None
        self.best: tuple[float, Tensor] | None = None
        self.ends: list[float] = []
        self.rows: list[dict[str, float]] = []
        self.frames: list[Frame] = []

    def run(self) -> BestCandidate:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            self._go_on()
            for number, start in enumerate(self._starts()):
                if number < self.number or start is None:
                    continue
                self.number = number
                self._descend(start)
                if self._settled():
                    break
                self.stage, self.taken, self.state, self.number = 0, 0, None, number + 1
            average = self._average()
        if self.best is None:
            raise NotFiniteError("the residual was finite for no start")
        cost, x = self.best
        x = x if average is None else average.mean
        images = self.problem.space.images(x.view(1, *self.shape))[0]
        values = {
            "objective": cost,
            "matching": cost,
            "steps": float(len(self.rows)),
            "explained": float(self._explained()),
            "floor": self.stages[-1].floor,
        }
        if average is not None:
            values |= {"accepted": average.accepted, "predicted_psnr": self._predicted(average.variance)}
        assert self.problem.labels is not None
        return BestCandidate(images, self.problem.labels, values, x.view(self.shape), self.rows, self.frames)

    def _starts(self) -> Iterator[Tensor | None]:
        """In their order; None for a closed form that does not apply."""
        for kind in self.settings.starts:
            if kind == "closed_form":
                yield self._closed_form()
                continue
            for seed in self.seeds[: 1 if kind == "mean" else -1]:
                yield self._drawn(kind, torch.Generator().manual_seed(seed))

    def _drawn(self, kind: str, rng: torch.Generator) -> Tensor:
        """The mean has a little noise: all patches alike would be a saddle."""
        if not isinstance(self.problem.space, PixelSpace):
            return self.problem.space.initial(rng).double().flatten().to(self.task.device)
        if kind == "prior":
            return self._as_unknowns(self.prior.draw(self.shape, rng))
        noise = MEAN_NOISE * torch.randn(self.shape, generator=rng, dtype=torch.float64)
        return self._as_unknowns(self.prior.centre(self.shape) + noise)

    def _closed_form(self) -> Tensor | None:
        if not isinstance(self.problem.space, PixelSpace):
            return None
        observation = self.problem.observation
        for attack in (PatchGradient(), RowSpace()):
            try:
                attack.check(observation)
                with torch.enable_grad():  # it may differentiate a defense's own term
                    images = attack.run(observation, torch.Generator().manual_seed(0), self.task.device).images
            except NotApplicable as refusal:
                logger.debug("no start from %s: %s", type(attack).__name__, refusal)
                continue
            if images is not None and bool(images.isfinite().all()):
                return self._as_unknowns(self._one_each(images.double()))
        return None

    def _one_each(self, images: Tensor) -> Tensor:
        """A mixture of a batch stands for each of its images, with a little noise: all alike would be a saddle."""
        if len(images) == self.shape[0]:
            return images
        noise = torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seeds[0]), dtype=torch.float64)
        return images[:1].expand(self.shape) + MEAN_NOISE * noise.to(images)

    def _as_unknowns(self, images: Tensor) -> Tensor:
        return self.problem.observation.normalised(images).flatten().to(self.task.device)

    def _descend(self, start: Tensor) -> None:
        """From one start to its end, stage after stage."""
        state = self.state or Damped(start)
        total = self.settings.steps
        for stage in range(self.stage, len(self.stages)):
            residual, self.stage = self.stages[stage], stage
            state = state if self.state is state else Damped(state.x)
            stale, before = 0, math.inf
            while self.taken < total * (stage + 1) // len(self.stages) and not state.ended:
                take_step(state, residual, residual.jacobian)
                self.taken += 1
                self.state = state
                self._record(state.cost)
                noisy = residual.before is not None
                least, patience = (SAME, PATIENCE_IN_NOISE) if noisy else (LEAST_FALL * state.cost, PATIENCE)
                stale = 0 if state.cost < before - least else stale + 1
                before = state.cost
                if stale >= patience or (stage + 1 < len(self.stages) and state.cost <= residual.floor):
                    break
                self._keep(state)
            self.state = None
        cost = float(self.stages[-1](state.x).square().sum())
        if math.isfinite(cost):
            self.ends.append(cost)
            if self.best is None or cost < self.best[0]:
                self.best = cost, state.x

    def _settled(self) -> bool:
        """What was shared is explained; behind noise, where nothing is exactly, two starts came to the same."""
        if self.stages[-1].before is None:
            return self._explained()
        return self.best is not None and sum(end <= self.best[0] + SAME for end in self.ends) > 1

    def _average(self) -> PosteriorMean | None:
        """The posterior's mean around the best image; None where no defense adds noise."""
        if self.best is None or len(self.stages) == 1 or not self.settings.draws:
            return None
        residual, x = self.stages[-1], self.best[1]
        rng = torch.Generator().manual_seed(self.seeds[-1])
        return posterior_mean(residual, x, residual.jacobian(x), self.settings.draws, rng, self._drew)

    def _predicted(self, variance: Tensor) -> float:
        """dB of the mean squared error of pixels in [0, 1] that the posterior itself expects."""
        images = variance.sqrt().view(self.shape)
        std = torch.tensor(self.problem.observation.std, dtype=images.dtype, device=images.device)
        return psnr_of(float((images * std.view(1, -1, 1, 1)).square().mean()))

    def _drew(self, draw: int) -> None:
        done = self._starts_in_all() * self.settings.steps + draw // DRAWS_A_STEP
        self.task.session.progress(min(done, self._total()), self._total(), {"draw": float(draw)})

    def _explained(self) -> bool:
        return self.best is not None and self.best[0] <= 2.0 * self.stages[-1].floor

    def _record(self, cost: float) -> None:
        values = {"objective": cost, "start": float(self.number), "damping": self.state.damping if self.state else 0.0}
        self.rows.append({"step": float(len(self.rows)), **{k: v for k, v in values.items() if math.isfinite(v)}})
        every = max(1, self.settings.steps // max(1, self.task.budget.frames))
        if self.task.budget.frames and len(self.rows) % every == 1 % every and self.state is not None:
            images = self.problem.space.images(self.state.x.view(1, *self.shape))[0]
            shown = self.problem.observation.to_unit_range(images).clamp(0, 1).float().cpu()
            self.frames.append(Frame(len(self.rows), shown, {"objective": cost}))
        done = self.number * self.settings.steps + self.taken
        self.task.session.progress(done, self._total(), {"objective": cost})

    def _total(self) -> int:
        draws = self.settings.draws if len(self.stages) > 1 else 0
        return self._starts_in_all() * self.settings.steps + draws // DRAWS_A_STEP

    def _starts_in_all(self) -> int:
        return len(self.settings.starts) + (self.settings.restarts - 1) * ("prior" in self.settings.starts)

    def _keep(self, state: Damped) -> None:
        every = self.task.budget.save_every
        if not every or len(self.rows) % every:
            return
        tensors = {"x": state.x} | ({} if self.best is None else {"best": self.best[1]})
        tensors |= {f"frame/{index}": frame.images for index, frame in enumerate(self.frames)}
        record: dict[str, Any] = {name: getattr(self, name) for name in ("number", "stage", "taken", "rows", "ends")}
        record |= {"damping": state.damping, "growth": state.growth, "cost": state.cost}
        record |= {"best": None if self.best is None else self.best[0]}
        record |= {"frames": [[frame.step, frame.values] for frame in self.frames]}
        self.task.session.save(tensors, record)

    def _go_on(self) -> None:
        saved = self.task.session.load()
        if saved is None:
            return
        tensors, record = saved
        self.number, self.stage, self.taken = record["number"], record["stage"], record["taken"]
        self.rows, self.ends = record["rows"], record["ends"]
        x = tensors["x"].to(self.task.device)
        self.state = Damped(x, record["damping"], record["growth"], record["cost"])
        if record["best"] is not None:
            self.best = record["best"], tensors["best"].to(self.task.device)
        self.frames = [Frame(s, tensors[f"frame/{i}"], v) for i, (s, v) in enumerate(record["frames"])]
