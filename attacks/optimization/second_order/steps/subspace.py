"""A linear model of some directions of the unknowns."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.steps.levenberg_marquardt import DenseModel


class AlongDirections:
    """Steps of a model of some directions, as steps of all unknowns.

    Args:
        model: of the coefficients of those directions.
        lift: a step of all unknowns from one of the coefficients.
    """

    def __init__(self, model: DenseModel, lift: Callable[[Tensor], Float[Tensor, " unknowns"]]) -> None:
        self.cost, self._model, self._lift = model.cost, model, lift
        self._step: Tensor | None = None

    def step(self, damping: float) -> tuple[Float[Tensor, " unknowns"], float]:
        self._step, fall = self._model.step(damping)
        return self._lift(self._step), fall

    def bend(
        self, damping: float, step: Float[Tensor, " unknowns"], second: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " unknowns"], float]:
        assert self._step is not None, "a step is bent after it was made"
        bent, share = self._model.bend(damping, self._step, second)
        return self._lift(bent), share
