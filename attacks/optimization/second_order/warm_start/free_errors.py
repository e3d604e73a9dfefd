"""The errors of the logits as unknowns beside the images: what a start comes near by where nothing tells them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, vmap

from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual import Residual
from attacks.optimization.second_order.warm_start.known_logits import one_gradient
from attacks.victim import Victim
from fedsim.update import State

RIDGE, LEAST_RIDGE = 1e-6, 1e-13
"""Of the mean curvature: errors that what was shared hardly tells stay small; the second where images explain it."""
MOST_ERRORS = 64
"""Unknowns beside those of the images."""
TOGETHER = 8
"""Images at which errors are fitted at once."""


@dataclass(frozen=True)
class FreeErrors:
    """A gradient is Σ_bc δ_bc ∂z_bc/∂θ / B, linear in the errors δ of the logits z, whatever labels and loss are.

    A search for δ as well meets gradients of the client's own size wherever it stands, as one that knows them does
    (`LogitErrors`), and of a wrong size where a bound scaled them down: it starts from the δ that fits best.

    Attributes:
        residual: of the plan's unknowns alone.
        images: those that unknowns stand for, as the model reads them.
    """

    residual: Residual
    victim: Victim
    images: Callable[[Tensor], Float[Tensor, "batch c h w"]]
    count: int
    classes: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        residual: Residual,
        images: Callable[[Tensor], Float[Tensor, "batch c h w"]],
        local: str,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
    ) -> "FreeErrors | None":
        """None but for one gradient of few images and classes.

        Args:
            dtype: that the client's computation is repeated in.
        """
        classes = problem.observation.num_classes
        victim = None if problem.count * classes > MOST_ERRORS else one_gradient(problem, local, device, dtype)
        if victim is None:
            return None
        return cls(residual, victim, images, problem.count, classes)

    @property
    def size(self) -> int:
        """Of the errors: the last unknowns."""
        return self.count * self.classes

    @property
    def free(self) -> Residual:
        """Of images and errors."""

        def shared(u: Tensor) -> tuple[Tensor, ...]:
            return self._gradient(self.images(u[: -self.size]), u[-self.size :].view(self.count, self.classes))

        return replace(self.residual, shared=shared, before=None)

    def begin(self, x: Float[Tensor, " n"]) -> Float[Tensor, " unknowns"]:
        """With the errors that fit best."""
        return torch.cat([x, self._fit(x)[0].flatten()])

    def left(self, points: Float[Tensor, "k n"]) -> Float[Tensor, " k"]:
        """‖r‖² at each with the errors that fit best."""
        return vmap(lambda x: self._fit(x)[1], chunk_size=TOGETHER)(points)

    def labels(self, x: Float[Tensor, " n"]) -> tuple[Int[Tensor, " batch"], float]:
        """The classes with the least errors, p - 1 of the true ones; and ‖r‖² there."""
        errors, left = self._fit(x, LEAST_RIDGE)
        return errors.argmin(dim=1), float(left)

    def _fit(
        self, x: Float[Tensor, " n"], ridge: float = RIDGE
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, ""]]:
        images, eye = self.images(x), torch.eye(self.size, dtype=x.dtype, device=x.device)
        found = vmap(lambda one: self._gradient(images, one.view(self.count, self.classes)))(eye)
        weights, target = self.residual.weights, self.residual.weights * self.residual.target
        rows = weights * torch.cat([tensor.flatten(1) for tensor in found], dim=1)
        square = rows @ rows.T
        errors = torch.linalg.solve_ex(square + ridge * square.diagonal().mean() * eye, rows @ target).result
        return errors.view(self.count, self.classes), (errors @ rows - target).square().sum()

    def _gradient(
        self, images: Float[Tensor, "batch c h w"], errors: Float[Tensor, "batch classes"]
    ) -> tuple[Tensor, ...]:
        params = {name: self.victim.params[name] for name in self.residual.names}
        victim = replace(self.victim, fixed={**self.victim.fixed, **self.victim.params})

        def loss(weights: State) -> Tensor:
            return (victim.scores(weights, images) * errors).sum() / self.count

        gradient = grad(loss)(params)
        return tuple(gradient[name] for name in self.residual.names)
