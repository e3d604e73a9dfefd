"""A gradient with the errors of its images' logits as they are known: what a start comes near by."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad

from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.errors import reads_adam
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.warm_start.logits import LogitErrors
from attacks.victim import Victim, make_victim
from fedsim.effects import Clips
from fedsim.update import State


@dataclass(frozen=True)
class KnownLogits:
    """The client's computation, and a residual that it is to explain.

    Attributes:
        residual: of pixels alone, each tensor by its norm.
        labels: [batch].
        errors: None where they are not shared: then it is the client's own loss.
    """

    residual: Residual
    victim: Victim
    labels: Tensor
    errors: LogitErrors | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        residual: Residual,
        local: str,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
        errors: LogitErrors | None = None,
    ) -> "KnownLogits | None":
        """None but for one gradient that nothing clips: behind a bound its size is not known.

        None too for a batch whose errors are not known.

        Args:
            dtype: that the client's computation is repeated in.
            errors: where they have been found.
        """
        observation = problem.observation
        if problem.labels is None or observation.protocol.max_grad_norm is not None:
            return None
        if any(isinstance(effect, Clips) for effect in observation.effects):
            return None
        victim = one_gradient(problem, local, device, dtype)
        errors = LogitErrors.of(problem, local, victim) if errors is None and victim is not None else errors
        if victim is None or (errors is None and problem.count > 1):
            return None
        return cls(residual, victim, problem.labels, None if errors is None else errors.to(dtype))

    @property
    def state(self) -> State:
        return {**self.victim.fixed, **self.victim.params}

    def images(self, images: Callable[[Tensor], Float[Tensor, "batch c h w"]]) -> Residual:
        """Of unknowns that are images, as the model reads them."""
        names, params = self.residual.names, {name: self.victim.params[name] for name in self.residual.names}

        def shared(x: Tensor) -> tuple[Tensor, ...]:
            found = self.gradient(params, images(x))
            return tuple(found[name] for name in names)

        before = None if self.errors is None else lambda x: self.rows(images(x))
        return replace(self.residual, shared=shared, before=before)

    def gradient(self, params: State, images: Float[Tensor, "batch c h w"]) -> State:
        """By `params`."""
        victim, errors = replace(self.victim, fixed=self.state), self.errors
        if errors is None:
            return victim.gradient(params, images, self.labels)
        found: State = grad(lambda weights: errors.loss(victim.scores(weights, images)))(params)
        return found

    def rows(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, " rows"]:
        """How far logits are from the client's; none where those are not known."""
        if self.errors is None:
            return images.new_zeros(0)
        return self.errors.rows(self.victim.scores(self.state, images))


def one_gradient(problem: Problem, local: str, device: torch.device, dtype: torch.dtype) -> Victim | None:
    """The model that one gradient is of, in this precision; None for several, as of local steps and rounds.

    None too where rows of the position embedding were masked.
    """
    if problem.later or local != "gradient" or reads_adam(problem.observation, local):
        return None
    victim = make_victim(problem.observation, problem.target, device, fused_attention=False)
    if victim.masked is not None:
        return None
    victim.model.to(dtype)
    params, fixed = ({n: _as(t, dtype) for n, t in part.items()} for part in (victim.params, victim.fixed))
    return replace(victim, params=params, fixed=fixed)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
