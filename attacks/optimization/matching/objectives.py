"""How far a candidate's gradient is from the one that was shared."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation
from fedsim.update import State

TINY = 1e-30
"""Added to squared norms: a zero gradient gives zero, not NaN."""


class Objective(ABC):
    """D(g, g'), a function of the candidate's gradient g and the shared one g', both by parameter name.

    Written for one candidate; the engine maps it over many, so no `.item()` and no branching on values.

    Args:
        mask_zeros: compare only where the shared gradient is not zero, for updates that were pruned.
    """

    scale_invariant = False

    def __init__(self, mask_zeros: bool = False) -> None:
        self.mask_zeros = mask_zeros

    def prepare(self, observation: Observation) -> "Objective":
        """Look up what the distance needs to know of the observed model.

        One prepared distance serves all victims that are searched together: of the update's numbers it may read none.

        Raises:
            NotApplicable: the model or the update lacks it.
        """
        return self

    def __call__(self, found: State, target: State) -> Float[Tensor, ""]:
        """D(found, target); both hold the same names."""
        return self.value(*self._compared(found, target))

    def direction(self, found: State, target: State) -> tuple[Float[Tensor, ""], State]:
        """D and its derivative by the candidate's gradient, ∂D/∂g, by name."""

        def value(gradients: State) -> Tensor:
            return self(gradients, target)

        derivative, distance = torch.func.grad_and_value(value)(found)
        return distance, derivative

    def replace_by_direction(self, found: State, target: State) -> Float[Tensor, ""]:
        """Put ∂D/∂g into `found`'s own memory, where there is but one candidate; D is returned."""
        distance, derivative = self.direction(found, target)
        for name, tensor in found.items():
            tensor.copy_(derivative[name])
        return distance

    @abstractmethod
    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        """D of tensors as they are compared."""

    def _compared(self, found: State, target: State) -> tuple[State, State]:
        if self.mask_zeros:
            return {name: found[name] * (target[name] != 0) for name in target}, target
        return {name: found[name] for name in target}, target

    def _inner(self, a: State, b: State) -> Float[Tensor, ""]:
        """Σ_l ⟨a_l, b_l⟩."""
        return torch.stack([torch.dot(a[name].reshape(-1), b[name].reshape(-1)) for name in b]).sum()


class SquaredL2(Objective):
    """Σ_l ‖g_l - g'_l‖² (Zhu et al. 2019, DLG).

    Args:
        relative: divide by ‖g'‖², so that the value is 1 for a candidate without any gradient.
    """

    def __init__(self, relative: bool = False, mask_zeros: bool = False) -> None:
        super().__init__(mask_zeros)
        self.relative = relative

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        difference = {name: found[name] - target[name] for name in target}
        distance = self._inner(difference, difference)
        return distance / (self._inner(target, target) + TINY) if self.relative else distance


class LayerL2(Objective):
    """Σ_l ‖g_l - g'_l‖₂, a sum of norms, not of squares (Yin et al. 2021, eq. 3)."""

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        norms = [((found[name] - target[name]).square().sum() + TINY).sqrt() for name in target]
        return torch.stack(norms).sum()


class L1(Objective):
    """Σ_l ‖g_l - g'_l‖₁."""

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        terms = [(found[name] - target[name]).abs().sum() for name in target]
        return torch.stack(terms).sum()


class Cosine(Objective):
    """1 - cos(g, g') over all tensors as one vector (Geiping et al. 2020, eq. 4)."""

    scale_invariant = True

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        norms = (self._inner(found, found) + TINY).sqrt() * (self._inner(target, target) + TINY).sqrt()
        return 1.0 - self._inner(found, target) / norms

    def replace_by_direction(self, found: State, target: State) -> Float[Tensor, ""]:
        """∂D/∂g = (cos·g/‖g‖ - g'/‖g'‖)/‖g‖, a third of the passes over memory of the general way."""
        if self.mask_zeros:
            return super().replace_by_direction(found, target)
        size = (self._inner(found, found) + TINY).sqrt()
        target_size = (self._inner(target, target) + TINY).sqrt()
        cosine = self._inner(found, target) / (size * target_size)
        along, against = float(cosine / size.square()), float(-1.0 / (size * target_size))
        for name, tensor in found.items():
            tensor.mul_(along).add_(target[name], alpha=against)
        return 1.0 - cosine


class LayerCosine(Objective):
    """Σ_l (1 - cos(g_l, g'_l)) / L: every tensor counts alike, however small its gradient."""

    scale_invariant = True

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        terms = [1.0 - _cosine(found[name], target[name]) for name in target]
        return torch.stack(terms).sum() / len(target)


class TagDistance(Objective):
    """Σ_l ‖g_l - g'_l‖₂² + α_l ‖g_l - g'_l‖₁ (Deng et al. 2021, TAG).

    The L1 weight falls linearly from `alpha` at the first layer to `alpha / layers` at the last: gradients of the
    first layers say most.
    """

    def __init__(self, alpha: float | int = 0.1, mask_zeros: bool = False) -> None:
        super().__init__(mask_zeros)
        self.alpha = alpha

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        terms = []
        for layer, name in enumerate(target):
            difference = found[name] - target[name]
            alpha = self.alpha * (1.0 - layer / len(target))
            terms.append(difference.square().sum() + alpha * difference.abs().sum())
        return torch.stack(terms).sum()


class PositionAlignment(Objective):
    """‖g - g'‖²/‖g'‖² - α·cos(∂L/∂E_pos, ∂L'/∂E_pos) (Lu et al. 2022, eq. 11, with α in units of ‖g'‖²).

    Args:
        alpha: weight of the alignment; 0 is plain matching. The paper's value is not known to us.
        align: what the cosine is taken over. `all`: the whole tensor, as published; the class token's row holds
            nearly all of its norm, so that the patches hardly count. `patch`: the rows of the patches together.
            `row`: the mean of each patch row's own cosine.
    """

    def __init__(self, alpha: float | int = 1.0, align: str = "row", mask_zeros: bool = False) -> None:
        super().__init__(mask_zeros)
        require("objective.align", align, align in ("all", "patch", "row"), "one of all, patch, row")
        self.alpha = alpha
        self.align = align
        self._name = ""
        self._prefix = 0

    def prepare(self, observation: Observation) -> "Objective":
        """Raises NotApplicable where the position embedding has no shared gradient to align."""
        prepared = type(self)(self.alpha, self.align, self.mask_zeros)
        if self.alpha == 0:
            return prepared
        name, shared = observation.roles.pos_embed, observation.update.tensors
        if name is None or not shared:
            observation.gradient_of("pos_embed")  # which says why
        assert name is not None
        if name not in shared:  # its gradient may be read off a step of Adam, or simulated
            raise NotApplicable(observation.why_absent(name))
        prepared._name = name
        prepared._prefix = observation.roles.embedded_prefix_tokens
        return prepared

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        difference = {name: found[name] - target[name] for name in target}
        distance = self._inner(difference, difference) / (self._inner(target, target) + TINY)
        if self.alpha == 0:
            return distance
        return distance - self.alpha * self._alignment(found[self._name], target[self._name])

    def _alignment(
        self, found: Float[Tensor, "*one rows width"], target: Float[Tensor, "*one rows width"]
    ) -> Float[Tensor, ""]:
        if self.align == "all":
            return _cosine(found, target)
        found = found.reshape(-1, found.shape[-1])[self._prefix :]
        target = target.reshape(-1, target.shape[-1])[self._prefix :]
        if self.align == "patch":
            return _cosine(found, target)
        sizes = (found.square().sum(-1) + TINY).sqrt() * (target.square().sum(-1) + TINY).sqrt()
        return ((found * target).sum(-1) / sizes).mean()


class Clipped(Objective):
    """Another distance, of gradients that the client had scaled down to an L2 norm of `max_norm`.

    Args:
        noise: standard deviation of what was added to each number before, and counts in the norm.
        pruned: what had been pruned before does not count in it.
        relative: norm of further noise that counts in it, as a multiple of the gradient's.
    """

    def __init__(
        self, inner: Objective, max_norm: float, noise: float = 0.0, pruned: bool = False, relative: float = 0.0
    ) -> None:
        super().__init__(inner.mask_zeros)
        self.inner = inner
        self.max_norm = max_norm
        self.noise = noise
        self.pruned = pruned
        self.relative = relative

    def __call__(self, found: State, target: State) -> Float[Tensor, ""]:
        counted = {name: found[name] * (target[name] != 0) for name in target} if self.pruned else found
        size = torch.stack([tensor.square().sum() for tensor in counted.values()]).sum()
        size = size * (1.0 + self.relative**2) + self.noise**2 * sum(tensor.numel() for tensor in target.values())
        factor = (self.max_norm / (size + TINY).sqrt()).clamp(max=1.0)
        return self.inner({name: factor * tensor for name, tensor in found.items()}, target)

    def value(self, found: State, target: State) -> Float[Tensor, ""]:
        return self.inner.value(found, target)


def _cosine(a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    return (a * b).sum() / ((a.square().sum() + TINY).sqrt() * (b.square().sum() + TINY).sqrt())
