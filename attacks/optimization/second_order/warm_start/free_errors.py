"""The errors of the logits as unknowns beside the images: what a start comes near by where nothing tells them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.optimization.problem import Problem
from attacks.optimization.search.memory import chunk_size
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.warm_start.known_logits import one_gradient
from attacks.victim import Victim
from fedsim.update import State

RIDGE, LEAST_RIDGE = 1e-6, 1e-13
"""Of the mean curvature: errors that what was shared hardly tells stay small; the second where images explain it."""
MOST_ERRORS = 64
"""Unknowns beside those of the images."""
TOGETHER = 8
"""Points at which errors are fitted at once, where there is memory for them."""
HELD = 24
"""Bytes of each number of a gradient, for each error, where they are fitted."""


@dataclass(frozen=True)
class FreeErrors:
    """A gradient is Σ_bc δ_bc ∂z_bc/∂θ / B, linear in the errors δ of the logits z, whatever labels and loss are.

    A search for δ as well meets gradients of the client's own size wherever it stands, as one that knows them does
    (`LogitErrors`), and of a wrong size where a bound scaled them down: it starts from the δ that fits best.

    Attributes:
        residual: of the plan's unknowns alone.
        images: those that unknowns stand for, as the model reads them.
        memory_gib: for the gradients of all errors at once.
    """

    residual: Residual
    victim: Victim
    images: Callable[[Tensor], Float[Tensor, "batch c h w"]]
    count: int
    classes: int
    memory_gib: float

    @classmethod
    def of(
        cls,
        problem: Problem,
        residual: Residual,
        images: Callable[[Tensor], Float[Tensor, "batch c h w"]],
        local: str,
        device: torch.device,
        memory_gib: float,
        dtype: torch.dtype = torch.float64,
    ) -> "FreeErrors | None":
        """None but for one gradient of few images and classes, and where a batch's statistics mix its images.

        Args:
            dtype: that the client's computation is repeated in.
        """
        classes = problem.observation.num_classes
        victim = None if problem.count * classes > MOST_ERRORS else one_gradient(problem, local, device, dtype)
        if victim is None or (problem.count > 1 and _mixes_images(victim.model)):
            return None
        return cls(residual, victim, images, problem.count, classes, memory_gib)

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
        together = chunk_size(TOGETHER, HELD * self.size * len(self.residual.target), self.memory_gib)
        return vmap(lambda x: self._fit(x)[1], chunk_size=together)(points)

    def labels(self, x: Float[Tensor, " n"]) -> tuple[Int[Tensor, " batch"], float]:
        """The classes whose errors p - y, by the model's own p, are the most like those that fit; and ‖r‖² there.

        By their direction: a bound scales them. Not the least errors, which may be another class's where labels are
        smoothed.
        """
        errors, left = self._fit(x, LEAST_RIDGE)
        eye = torch.eye(self.classes, dtype=errors.dtype, device=errors.device)
        wanted = (1.0 - self.victim.label_smoothing) * eye + self.victim.label_smoothing / self.classes
        probs = self.victim.scores(self.victim.params, self.images(x)).softmax(dim=1)
        alike = F.cosine_similarity(probs[:, None] - wanted, errors[:, None], dim=2)
        return alike.argmax(dim=1), float(left)

    def _fit(
        self, x: Float[Tensor, " n"], ridge: float = RIDGE
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, ""]]:
        eye = torch.eye(self.classes, dtype=x.dtype, device=x.device)

        def of_one(image: Tensor) -> tuple[Tensor, ...]:
            return vmap(lambda one: self._gradient(image[None], one[None]))(eye)

        found = vmap(of_one)(self.images(x))
        weights, target = self.residual.weights, self.residual.weights * self.residual.target
        rows = weights * torch.cat([tensor.flatten(2) for tensor in found], dim=2).flatten(0, 1)
        square, eye = rows @ rows.T, torch.eye(self.size, dtype=x.dtype, device=x.device)
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


def _mixes_images(model: nn.Module) -> bool:
    """By BatchNorm with the statistics of the batch."""
    return any(isinstance(part, _BatchNorm) and part.running_mean is None for part in model.modules())
