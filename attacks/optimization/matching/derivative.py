"""The mixed derivative ∂x D(∇θL(x), g'): one contract, three ways to compute it.

For v = ∂D/∂g at the candidate's gradient, it is ∂x⟨∇θL(x), v⟩. `double_backward` differentiates the backward pass;
`finite_difference` compares ∇xL at θ and at θ + εv, two ordinary passes that keep fused attention.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.optimization.cuda_graph import Function, replayed
from attacks.optimization.matching.local_steps import UpdateMap, Variables
from attacks.optimization.matching.objectives import TINY, Objective
from fedsim.errors import require
from fedsim.update import State

METHODS = ("auto", "double_backward", "finite_difference", "central_difference")


@dataclass(frozen=True)
class Derivative:
    """The distance of each candidate, and its derivative by each floating-point variable."""

    values: Float[Tensor, "candidates"]
    by: Variables


class MixedDerivative(ABC):
    """D and ∂D of many candidates at once; equal to those of one after the other.

    Args:
        update: u(x), the same for all candidates.
        objective: D(u, u').
    """

    def __init__(self, update: UpdateMap, objective: Objective) -> None:
        self.update = update
        self.objective = objective

    def __call__(self, variables: Variables, target: State, shared_target: bool) -> Derivative:
        """The derivative for each candidate.

        Args:
            variables: each with a leading dimension of candidates.
            target: u' by name, of all candidates or with the same leading dimension.
            shared_target: which of the two.
        """
        candidates = len(variables["images"])
        if candidates > 1:
            mapped = vmap(self.one, in_dims=(0, None if shared_target else 0))
            return Derivative(*mapped(variables, target))
        single = {name: variable[0] for name, variable in variables.items()}
        value, by = self.one(single, target if shared_target else {name: t[0] for name, t in target.items()})
        return Derivative(value.reshape(1), {name: tensor[None] for name, tensor in by.items()})

    @abstractmethod
    def one(self, variables: Variables, target: State) -> tuple[Tensor, Variables]:
        """D and its derivatives for one candidate."""


class DoubleBackward(MixedDerivative):
    """Exact. Needs a model whose backward pass has a derivative: no fused attention, torch's own is switched off."""

    def one(self, variables: Variables, target: State) -> tuple[Tensor, Variables]:
        smooth, hard = split(variables)

        def distance(smooth: Variables) -> Tensor:
            return self.objective(self.update({**smooth, **hard}), target)

        with sdpa_kernel(SDPBackend.MATH):
            by, value = grad_and_value(distance)(smooth)
        return value, by


class Replayed(MixedDerivative):
    """Another one, on CUDA launched as one graph, of each number of candidates."""

    def __init__(self, inner: MixedDerivative) -> None:
        super().__init__(inner.update, inner.objective)
        self._inner = inner
        self._graphs: dict[tuple[object, ...], Function] = {}

    def __call__(self, variables: Variables, target: State, shared_target: bool) -> Derivative:
        smooth, _ = split(variables)
        given = [*variables.values(), *(() if shared_target else target.values())]
        held = [tensor.data_ptr() for tensor in target.values()] if shared_target else []  # it is part of the graph
        key = (*held, *variables, *(tensor.shape for tensor in given))
        if key not in self._graphs:
            inner = self._inner  # not of self, which would keep itself

            def function(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
                own = dict(zip(variables, given, strict=False))
                goal = target if shared_target else dict(zip(target, given[len(own) :], strict=True))
                found = inner(own, goal, shared_target)
                return found.values, *(found.by[name] for name in smooth)

            self._graphs[key] = replayed(function, given)
        values, *by = self._graphs[key](given)
        return Derivative(values, dict(zip(smooth, by, strict=True)))

    def one(self, variables: Variables, target: State) -> tuple[Tensor, Variables]:
        return self._inner.one(variables, target)


class FiniteDifference(MixedDerivative):
    """(∇xL(θ + εv) - ∇xL(θ))/ε, or the central difference, with ε = step/‖v‖.

    One-sided: two gradients, the second by pictures alone, 1.7 training steps instead of 2.4. Its error falls with
    the step until rounding takes over: 1e-2 is near the best in float32.
    """

    def __init__(self, update: UpdateMap, objective: Objective, step: float = 1e-2, central: bool = False) -> None:
        super().__init__(update, objective)
        require("derivative", "finite_difference", update.plain, "double_backward for several local steps")
        self.step = step
        self.central = central

    def __call__(self, variables: Variables, target: State, shared_target: bool) -> Derivative:
        images = variables["images"]
        if len(images) > 1 or not shared_target or images.device.type == "cuda":
            return super().__call__(variables, target, shared_target)
        value, by = self._of_one({name: variable[0] for name, variable in variables.items()}, target)
        return Derivative(value.reshape(1), {name: tensor[None] for name, tensor in by.items()})

    def _of_one(self, variables: Variables, target: State) -> tuple[Tensor, Variables]:
        """As `one`, in place: with one candidate, passes over the model's memory are a quarter of the time on a CPU."""
        params = self.update.victim.params
        smooth, hard = split(variables)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        inputs = {name: tensor.detach().requires_grad_() for name, tensor in smooth.items()}
        loss = self._loss(leaves, inputs, hard)
        gradients = torch.autograd.grad(loss, [*leaves.values(), *inputs.values()], materialize_grads=True)
        before = dict(zip(inputs, gradients[len(leaves) :], strict=True))
        direction = dict(zip(leaves, _apart(gradients), strict=False))
        value = self.objective.replace_by_direction(direction, target)
        size = torch.stack([torch.dot(part.reshape(-1), part.reshape(-1)) for part in direction.values()]).sum()
        epsilon = self.step / float((size + TINY).sqrt())
        if self.central:
            moved = {name: torch.sub(params[name], part, alpha=epsilon) for name, part in direction.items()}
            before = self._by_inputs(moved, inputs, hard)
        for name, part in direction.items():
            torch.add(params[name], part, alpha=epsilon, out=part)
        after = self._by_inputs(direction, inputs, hard)
        width = 2 * epsilon if self.central else epsilon
        return value, {name: (after[name] - before[name]) / width for name in smooth}

    def _by_inputs(self, params: State, inputs: Variables, hard: Variables) -> Variables:
        gradients = torch.autograd.grad(self._loss(params, inputs, hard), list(inputs.values()))
        return dict(zip(inputs, gradients, strict=True))

    def one(self, variables: Variables, target: State) -> tuple[Tensor, Variables]:
        params = self.update.victim.params
        smooth, hard = split(variables)
        found, before = self._gradients(params, smooth, hard)
        value, direction = self.objective.direction(found, target)
        size = torch.stack([part.square().sum() for part in direction.values()]).sum()
        epsilon = self.step / (size + TINY).sqrt()
        after = self._by_variables(_moved(params, direction, epsilon), smooth, hard)
        if self.central:
            before = self._by_variables(_moved(params, direction, -epsilon), smooth, hard)
            epsilon = 2 * epsilon
        return value, {name: (after[name] - before[name]) / epsilon for name in smooth}

    def _gradients(self, params: State, smooth: Variables, hard: Variables) -> tuple[State, Variables]:
        """∇θL and ∇xL in one backward pass."""
        (by_params, by_variables), _ = grad_and_value(self._loss, argnums=(0, 1))(params, smooth, hard)
        return by_params, by_variables

    def _by_variables(self, params: State, smooth: Variables, hard: Variables) -> Variables:
        by, _ = grad_and_value(self._loss, argnums=1)(params, smooth, hard)
        result: Variables = by
        return result

    def _loss(self, params: State, smooth: Variables, hard: Variables) -> Tensor:
        variables = {**smooth, **hard}
        return self.update.victim.loss(params, variables["images"], variables["labels"])


def _apart(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Each in memory of its own: autograd may hand out views of one another."""
    storages = [gradient.untyped_storage() for gradient in gradients]
    users = Counter(storage.data_ptr() for storage in storages)
    return [
        gradient.clone()
        if users[storage.data_ptr()] > 1 or storage.nbytes() != gradient.numel() * gradient.element_size()
        else gradient
        for gradient, storage in zip(gradients, storages, strict=True)
    ]


def _moved(params: State, direction: State, epsilon: Tensor) -> State:
    return {name: torch.addcmul(params[name], direction[name], epsilon) for name in params}


def split(variables: Variables) -> tuple[Variables, Variables]:
    """Variables with a derivative, and class labels."""
    smooth = {name: variable for name, variable in variables.items() if variable.is_floating_point()}
    return smooth, {name: variable for name, variable in variables.items() if name not in smooth}


def make_derivative(method: str, update: UpdateMap, objective: Objective, step: float = 1e-2) -> MixedDerivative:
    """The one of `METHODS` by its name; `auto` must have been resolved."""
    if method == "double_backward":
        return DoubleBackward(update, objective)
    return FiniteDifference(update, objective, step, central=method == "central_difference")
