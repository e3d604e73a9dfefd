"""From pictures to what a client shares, through one gradient or several local steps."""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from attacks.optimization.matching.objectives import TINY
from attacks.victim import Victim
from fedsim.effects import Clips
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, State

Variables = dict[str, Tensor]
"""What the attack optimises, of one candidate: `images` [B,C,H,W], `labels` [B] or logits [B,classes], `alpha` []."""

UNROLLED = ("sgd", "adam", "adamw")
ADDED = 1e-6
"""To a norm by `torch.nn.utils.clip_grad_norm_`; a defense that clips adds nothing."""


class UpdateMap(ABC):
    """u(x): what the client would have shared for x, in units of a gradient, differentiable."""

    plain = False
    """Whether u(x) = ∂L/∂θ at the weights sent, which finite differences need."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    @abstractmethod
    def __call__(self, variables: Variables) -> State: ...


class GradientMap(UpdateMap):
    """∂L/∂θ at the weights that the server sent."""

    plain = True

    def __call__(self, variables: Variables) -> State:
        return self.victim.gradient(self.victim.params, variables["images"], variables["labels"])


class ClippedGradient(UpdateMap):
    """∂L/∂θ at the weights that the server sent, as training clips it.

    Args:
        own: what the client trains for itself alone counts in the norm, as in all but what is clipped when shared.
    """

    def __init__(self, victim: Victim, max_grad_norm: float, added: float = ADDED, own: bool = True) -> None:
        super().__init__(victim)
        self.max_grad_norm = max_grad_norm
        self.added = added
        self._unshared = {n: p for n, p in victim.unshared.items() if own or n not in victim.own}

    def __call__(self, variables: Variables) -> State:
        params = self.victim.params
        gradient = self.victim.gradient({**params, **self._unshared}, variables["images"], variables["labels"])
        found = clipped(gradient, self.max_grad_norm, self.added)
        return {name: found[name] for name in params}


class ClippedExamples(UpdateMap):
    """The mean of single images' gradients at the weights that the server sent, as a defense clips each of them.

    Args:
        limit: as in `UnrolledSteps`.
    """

    def __init__(self, victim: Victim, clip: Clips, limit: float | None = None) -> None:
        super().__init__(victim)
        self.clip = clip
        self.limit = limit

    def __call__(self, variables: Variables) -> State:
        whole = {**self.victim.params, **self.victim.unshared}
        found = clipped_examples(self.victim, whole, variables["images"], variables["labels"], self.clip)
        if self.limit is not None:
            found = clipped({n: f for n, f in found.items() if n not in self.victim.own}, self.limit, added=0.0)
        return {name: found[name] for name in self.victim.params}


class UnrolledSteps(UpdateMap):
    """(θ_0 - θ_k)/s after the client's k steps, simulated; s makes it a gradient's size.

    Each step takes the next `batch_size` pictures in their order, an epoch's last step those that are left, as the
    client does. Later epochs take the same batches again: the client draws new ones, and nobody else knows which.
    Where labels of several batches are given in another order than the client's, its pictures are no exact solution:
    see `Problem.ordered`.

    Args:
        limit: the norm, in these units, that a defense scaled the whole change down to before tensors were withheld.
        example: how it clips the gradients of each step's single images.

    Raises:
        NotApplicable: an optimiser that is not simulated.
    """

    def __init__(
        self, victim: Victim, protocol: LocalProtocol, limit: float | None = None, example: Clips | None = None
    ) -> None:
        super().__init__(victim)
        if protocol.optimizer not in UNROLLED:
            raise NotApplicable(f"local steps of {protocol.optimizer} are not simulated (only {', '.join(UNROLLED)})")
        self.protocol = protocol
        self.scale = update_scale(protocol)
        self.limit = limit
        self.example = example
        # What is trained and not shared moves on the way too, and counts in the norm.
        whole = len(protocol.lrs) > 1 or limit is not None or example is not None
        self._unshared = victim.unshared if whole else {}

    def __call__(self, variables: Variables) -> State:
        images, labels = variables["images"], variables["labels"]
        start = {**self.victim.params, **self._unshared}
        params, first, second, peak = dict(start), dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        size = self.protocol.batch_size
        begins = range(0, len(images), size)
        for step, lr in enumerate(self.protocol.lrs):
            begin = begins[step % len(begins)]
            part = slice(begin, begin + size)
            gradient = step_gradient(self.victim, params, images[part], labels[part], self.protocol, self.example)
            if self.protocol.optimizer == "sgd":
                params, first = self._sgd(params, gradient, first, lr)
            else:
                first, second = self._moments(gradient, first, second)
                largest = self.protocol.amsgrad and bool(peak)
                peak = {n: torch.maximum(peak[n], v) for n, v in second.items()} if largest else second
                params = self._adam(params, first, peak, lr, step + 1)
        found = {name: (start[name] - params[name]) / self.scale for name in start}
        if self.limit is not None:
            found = clipped({n: f for n, f in found.items() if n not in self.victim.own}, self.limit, added=0.0)
        return {name: found[name] for name in self.victim.params}

    def _sgd(self, params: State, gradient: State, buffer: State, lr: float) -> tuple[State, State]:
        """torch.optim.SGD's step, momentum and Nesterov included."""
        momentum = self.protocol.momentum
        if not momentum:
            return {n: params[n] - lr * gradient[n] for n in params}, buffer
        kept = 1.0 - self.protocol.dampening
        moved = {n: momentum * buffer[n] + kept * g if buffer else g for n, g in gradient.items()}
        step = {n: g + momentum * moved[n] if self.protocol.nesterov else moved[n] for n, g in gradient.items()}
        return {n: params[n] - lr * step[n] for n in params}, moved

    def _moments(self, gradient: State, first: State, second: State) -> tuple[State, State]:
        """Adam's running means of the gradient and of its square, before they are corrected for their start at 0."""
        beta1, beta2 = self.protocol.betas
        first = {n: (beta1 * first[n] if first else 0.0) + (1 - beta1) * g for n, g in gradient.items()}
        second = {n: (beta2 * second[n] if second else 0.0) + (1 - beta2) * g.square() for n, g in gradient.items()}
        return first, second

    def _adam(self, params: State, first: State, second: State, lr: float, step: int) -> State:
        """torch.optim.Adam's or AdamW's step."""
        (beta1, beta2), eps = self.protocol.betas, self.protocol.eps
        decoupled = self.protocol.optimizer == "adamw"
        moved = {}
        for name, value in params.items():
            mean, power = first[name] / (1 - beta1**step), second[name] / (1 - beta2**step)
            # The tiny term keeps the root's derivative finite where a gradient is exactly zero.
            shrink = 1.0 - lr * self.protocol.decay_of(name) if decoupled else 1.0
            moved[name] = shrink * value - lr * mean / ((power + 1e-38).sqrt() + eps)
        return moved


class SurrogateWeights(UpdateMap):
    """∂L/∂θ at (1 - α)·θ_0 + α·θ_k, a point between the weights sent and returned (Zhu et al. 2023, SME).

    The mean of the gradients along SGD's way, weight decay and FedProx's pull included, is matched by one at the best
    such point; α is optimised too. Another optimiser's change is no such mean.
    """

    def __init__(self, victim: Victim, end: State, protocol: LocalProtocol) -> None:
        super().__init__(victim)
        self.protocol = protocol
        self.change = {name: end[name] - start for name, start in victim.params.items()}

    def __call__(self, variables: Variables) -> State:
        alpha = variables["alpha"]
        start = self.victim.params
        params = {name: tensor + alpha * self.change[name] for name, tensor in start.items()}
        return step_gradient(self.victim, params, variables["images"], variables["labels"], self.protocol)


def step_gradient(
    victim: Victim,
    params: State,
    images: Tensor,
    labels: Tensor,
    protocol: LocalProtocol,
    example: Clips | None = None,
) -> State:
    """What a local step at `params` goes by: ∂L/∂θ, clipped, and FedProx's pull, clipped, and weight decay.

    Decay is coupled as SGD and Adam have it. What is trained and not shared counts in the norm, as it was at the start.
    """
    limit, mu = protocol.max_grad_norm, protocol.proximal_mu
    whole = params if limit is None else {**victim.unshared, **params}
    if example is None:
        gradient = victim.gradient(whole, images, labels)
    else:  # by the defense, before the client adds anything
        gradient = clipped_examples(victim, whole, images, labels, example)
    if mu:
        start = {**victim.params, **victim.unshared}
        gradient = {n: g + mu * (params[n] - start[n]) if n in params else g for n, g in gradient.items()}
    if limit is not None:
        gradient = clipped(gradient, limit)
    if protocol.optimizer == "adamw" or not protocol.weight_decay:
        return {name: gradient[name] for name in params}
    return {name: gradient[name] + protocol.decay_of(name) * param for name, param in params.items()}


def clipped(gradient: State, max_norm: float, added: float = ADDED) -> State:
    """Scaled down to an L2 norm, all tensors together, differentiable.

    Args:
        added: to the norm.
    """
    size = torch.stack([tensor.square().sum() for tensor in gradient.values()]).sum()
    factor = (max_norm / ((size + TINY).sqrt() + added)).clamp(max=1.0)
    return {name: factor * tensor for name, tensor in gradient.items()}


def clipped_examples(victim: Victim, params: State, images: Tensor, labels: Tensor, clip: Clips) -> State:
    """The mean of single images' gradients, each scaled down by itself, or each of its L tensors to a norm of C/√L.

    DP-SGD without its noise (Abadi et al. 2016).
    """
    if len(images) == 1 and clip.per == "example":
        return clipped(victim.gradient(params, images, labels), clip.max_norm, added=0.0)
    each = vmap(lambda image, label: victim.gradient(params, image[None], label[None]))(images, labels)
    squares = {name: gradients.flatten(1).square().sum(dim=1) for name, gradients in each.items()}
    bound = clip.max_norm / math.sqrt(len(each))
    if clip.per == "example":
        whole = torch.stack(list(squares.values())).sum(dim=0)
        bound, squares = clip.max_norm, dict.fromkeys(each, whole)
    factors = {name: (bound / (square + TINY).sqrt()).clamp(max=1.0) for name, square in squares.items()}
    return {name: torch.einsum("b,b...->...", factors[name], one) / len(images) for name, one in each.items()}


def update_scale(protocol: LocalProtocol) -> float:
    """What divides a weight change to make it the size of a gradient (SGD), or of Adam's unit steps."""
    return protocol.gradient_scale() if protocol.optimizer == "sgd" else max(sum(protocol.lrs), 1e-30)


def unit_scale(observation: Observation) -> float:
    """What was shared is divided by it to be a gradient, or as large as one."""
    return 1.0 if observation.update.kind == "gradient" else update_scale(observation.protocol)


def weight_eps(observation: Observation, name: str) -> float:
    """The relative rounding of a weight of which the change is known: as the client holds it, and as it was sent."""
    update = observation.update
    held = float(torch.finfo(observation.global_state[name].dtype).eps)
    return held if update.kind == "delta" else max(held, float(torch.finfo(update.tensors[name].dtype).eps))


def weight_change(observation: Observation) -> dict[str, Float[Tensor, "..."]]:
    """θ_k - θ_0 of what was shared, float64, by name.

    Raises:
        NotApplicable: a gradient was shared, not the outcome of local steps.
    """
    update = observation.update
    if update.kind == "gradient":
        raise NotApplicable("the client shared a gradient, not the outcome of local steps")
    floating = {name: tensor.double() for name, tensor in update.tensors.items() if tensor.is_floating_point()}
    if update.kind == "delta":
        return floating
    return {name: tensor - observation.global_state[name].double() for name, tensor in floating.items()}
