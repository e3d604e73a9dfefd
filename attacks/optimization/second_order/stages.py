"""How one victim's search goes on: stage after stage, with J whole where it is small, else by products."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import SearchTask
from attacks.optimization.search.memory import GIB, chunk_size, default_budget
from attacks.optimization.second_order.residual.residual import Residual, make_residuals, shape_of
from attacks.optimization.second_order.steps.levenberg_marquardt import DenseModel, Linearised, NormalEquations
from attacks.optimization.second_order.steps.products import MatrixFree
from attacks.optimization.second_order.steps.sketch import gram
from attacks.optimization.second_order.steps.subspace import AlongDirections
from attacks.optimization.second_order.unknowns.frequencies import Frequencies
from attacks.optimization.second_order.unknowns.prior_directions import PriorDirections
from attacks.optimization.second_order.unknowns.read_directions import ReadDirections
from fedsim.bounds.gaussian_prior import ImagePrior

MOST_WHOLE, MOST_OF_FEW = 2_000, 8_000
"""Unknowns up to which J is computed whole, if there is memory for it; the second where few numbers determine them."""
FEW = 10**8
"""Entries of J up to which its square takes less than products do."""
MOST_COLUMNS, COLUMNS_OF_FEW = 512, 128
"""Of J whole, that are computed at once: each chunk costs some 60 ms of Python at `vit_nano`, whatever its size.

Where numbers are few the model's own activations take the memory, which is not known here.
"""
WHOLE_BYTES, SQUARE_BYTES = 8, 48
"""Of one round's J whole, for each of its numbers; of its square and what solves it, for each pair of unknowns."""
FAR = 10.0
"""Of ‖r‖² that the errors of what was shared leave: above it J is rounded far less than the image is unknown."""
PARTS = (16, 4)
"""One in so many coordinates is varied first, the low frequencies; then all."""
SKETCH_BYTES = 64
"""Memory of a sketch for each pair of coordinates."""
DIRECTION_BYTES = 64
"""Of one direction's change for each number that was shared."""
TOGETHER, TOGETHER_ON_GPU = 16, 128
"""Directions that are pushed forward at once, at most: more are no faster on a CPU, and fill a GPU."""


@dataclass(frozen=True)
class Stage:
    """A residual and how its linear model is found.

    Attributes:
        partial: a part of the unknowns is varied, of whose end nothing is claimed.
    """

    residual: Residual
    linearised: Callable[[Tensor], Linearised]
    partial: bool = False

    def explains(self, cost: float) -> bool:
        """A point of this ‖r‖² explains what was shared; behind noise none is known to."""
        return self.residual.before is None and cost <= self.residual.floor


@dataclass(frozen=True)
class StagePlan:
    """What a search varies, and its stages.

    Attributes:
        point: of the problem's space, flat, from the unknowns; `unknowns` undoes it.
        directions: along which the change of what was shared is held at once; of 1, less memory would change nothing.
        coarse: the first stage's residual in float32.
        by_products: of a residual and the same in float32, over all coordinates; None where J is whole.
        varied: where J is whole and points are pixels, what varies among the prior's images.
        white: the unknowns are those.
        likely: behind noise the same stages by what varies alone.
    """

    stages: list[Stage]
    point: Callable[[Tensor], Tensor]
    unknowns: Callable[[Tensor], Tensor]
    directions: int
    coarse: Residual
    by_products: Callable[[Residual, Residual], MatrixFree] | None = None
    varied: PriorDirections | ReadDirections | None = None
    white: bool = False
    likely: tuple[Stage, ...] = ()

    @property
    def whole(self) -> bool:
        return self.by_products is None

    def until(self, stages: Sequence[Stage], number: int, steps: int) -> int:
        """Steps of a start after which a stage is over, whatever it does; parts of the coordinates share them."""
        if stages[number].partial or number == len(stages) - 1:
            return steps * (number + 1) // len(stages)
        return max(1, min(steps - steps // 4, steps - 1))

    def of_varied(self, residual: Residual) -> Residual:
        """A residual of the unknowns as one of what varies."""
        return residual if self.white or self.varied is None else residual.of(self.varied.point)


def make_plan(problem: Problem, task: SearchTask, prior: ImagePrior) -> StagePlan:
    shape = shape_of(problem)
    count, numbers, room = math.prod(shape), sum(numbers_of(problem)), memory_of(task)
    assert problem.labels is not None
    given = (problem, task.local, prior, problem.labels, task.device)
    read: ReadDirections | PriorDirections | None = ReadDirections.of(
        problem,
        prior,
        lambda: make_residuals(*given)[-1],
        lambda varied: whole_together(problem, varied, task) is not None,
        task.device,
    )
    varied = count if read is None else read.count
    if (together := whole_together(problem, varied, task)) is not None:
        point = _same if read is None else read.point
        unknowns = _same if read is None else read.unknowns
        exact, coarse = (make_residuals(*given, point, dtype) for dtype in (torch.float64, torch.float32))
        pairs = zip(exact, coarse, strict=True)
        stages = [Stage(one, whole_model(one, rough, together)) for one, rough in pairs]
        white = read is not None
        if read is None and isinstance(problem.space, PixelSpace):
            read = PriorDirections.of(problem.observation, prior, shape, task.device)
        likely = () if white or not isinstance(read, PriorDirections) else _likely(problem, task, exact, coarse, read)
        return StagePlan(stages, point, unknowns, varied, coarse[0], varied=read, white=white, likely=likely)
    frequencies = _frequencies(problem, prior, task.device)
    point = _same if frequencies is None else frequencies.point
    unknowns = _same if frequencies is None else frequencies.coordinates
    exact, coarse = (make_residuals(*given, point, dtype) for dtype in (torch.float64, torch.float32))
    first = max(1, int(math.sqrt(room / SKETCH_BYTES)))
    together = chunk_size(most_together(task.device), DIRECTION_BYTES * numbers, room / GIB)

    def by_products(residual: Residual, rough: Residual, active: int = count) -> MatrixFree:
        return MatrixFree(residual.pieces(), rough.pieces(), active, first, together)

    def stage(index: int, active: int) -> Stage:
        return Stage(exact[index], by_products(exact[index], coarse[index], active), active < count)

    partial = [] if frequencies is None else [stage(0, max(1, count // part)) for part in PARTS]
    stages = [*partial, *(stage(index, count) for index in range(len(exact)))]
    return StagePlan(stages, point, unknowns, max(first, together), coarse[0], by_products)


def _likely(
    problem: Problem, task: SearchTask, exact: list[Residual], coarse: list[Residual], varied: PriorDirections
) -> tuple[Stage, ...]:
    """Of pixels behind noise: most of a search needs no more than varies, whose J has fewer columns."""
    together = whole_together(problem, varied.count, task)
    if exact[-1].before is None or together is None:
        return ()
    middle = varied.point(torch.zeros(varied.count, dtype=torch.float64, device=task.device))

    def along(residual: Residual, rough: Residual) -> Callable[[Tensor], AlongDirections]:
        model = whole_model(residual.of(varied.point), rough.of(varied.point), together)
        return lambda x: AlongDirections(model(varied.unknowns(x)), lambda step: varied.point(step) - middle)

    return tuple(Stage(own, along(own, rough), True) for own, rough in zip(exact, coarse, strict=True))


def most_together(device: torch.device) -> int:
    """Directions that a sketch pushes forward at once, where there is memory for them."""
    return TOGETHER_ON_GPU if device.type == "cuda" else TOGETHER


def numbers_of(problem: Problem) -> list[int]:
    """Numbers that each round shares."""
    return [sum(tensor.numel() for tensor in one.target.values()) for one in problem.rounds]


def memory_of(task: SearchTask) -> float:
    """In bytes, that a search may take."""
    return (task.budget.memory_gib or default_budget(task.device)) * GIB


def _frequencies(problem: Problem, prior: ImagePrior, device: torch.device) -> Frequencies | None:
    """Of pixels; other spaces are varied as they are."""
    if not isinstance(problem.space, PixelSpace):
        return None
    observation = problem.observation
    mean, std = (torch.tensor(v, dtype=torch.float64, device=device) for v in (observation.mean, observation.std))
    return Frequencies.of(prior, shape_of(problem), mean, std, device)


def whole_together(problem: Problem, unknowns: int, task: SearchTask) -> int | None:
    """Columns of J that are computed at once; None where J is too large to be held whole."""
    largest, room = max(numbers_of(problem)), memory_of(task)
    whole = WHOLE_BYTES * unknowns * largest
    most, columns = MOST_WHOLE, MOST_COLUMNS
    if MOST_WHOLE < unknowns <= largest and unknowns * largest <= FEW:
        most, columns = MOST_OF_FEW, COLUMNS_OF_FEW
        whole += SQUARE_BYTES * unknowns**2
    if unknowns > most or 2 * whole > room:
        return None
    return chunk_size(columns, DIRECTION_BYTES * largest, (room - whole) / GIB)


def whole_model(residual: Residual, coarse: Residual, together: int, even: int = 0) -> Callable[[Tensor], DenseModel]:
    """The linear model of a residual at a point, by J whole.

    By J in float32, for half the time, as long as the point explains little of what one round shared: ‖r‖² and its
    slope are exact all the same.

    Args:
        coarse: the residual in float32.
        even: see `DenseModel`.
    """

    def equations(x: Tensor) -> NormalEquations:
        if residual.rounds:
            return residual.normal(x, together)
        r = residual(x)
        if float(r[: len(residual.target)].square().sum()) <= FAR * residual.floor:
            return NormalEquations.of(r, residual.jacobian(x, together))
        normal = gram(coarse.jacobian(x.float(), together).T.double())
        return NormalEquations(float(r.square().sum()), normal, residual.transposed(x, r))

    return lambda x: DenseModel(equations(x), lambda w: residual.transposed(x, w), even)


def _same(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x
