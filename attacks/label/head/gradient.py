"""The gradient of the classifier as it was shared."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.label.rules.basic import head_gradient
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

NO_HEAD = "the model has no linear head, or gives other scores than its head's"


class NoHead(NotApplicable):
    """No labels can be read off a head's gradient: there is no such head."""

    def __init__(self) -> None:
        super().__init__(f"{NO_HEAD}: labelled images of the server's own would tell (with_public_images)")


def shared(observation: Observation, part: str) -> Float[Tensor, "..."]:
    """The gradient of the head's `weight` or `bias`, on the CPU.

    Raises:
        NotApplicable: there is none.
    """
    roles = observation.roles
    if not roles.head_weights:
        raise NoHead
    names = roles.head_weights if part == "weight" else roles.head_biases
    if not names:
        raise NotApplicable(f"the head has no {part}")
    gradient = head_gradient(observation.gradient, names)
    if gradient is None:
        raise NotApplicable(observation.why_absent(names[0]))
    if not bool(gradient.isfinite().all()):
        raise NotApplicable(f"{names[0]}'s gradient is not finite")
    return gradient.cpu()


def tells(observation: Observation, part: str) -> bool:
    """Whether the gradient of the head's `weight` or `bias` was shared, and is other than zero."""
    try:
        return bool(shared(observation, part).any())
    except NotApplicable:
        return False


def single_head(observation: Observation) -> tuple[Float[Tensor, "classes features"], Float[Tensor, "classes"]]:
    """Weight and bias of the only linear classifier, on the CPU; a bias of zeros where it has none.

    Raises:
        NotApplicable: it has several, or none.
    """
    roles = observation.roles
    if not roles.head_weights:
        raise NoHead
    if len(roles.head_weights) > 1:
        heads = len(roles.head_weights)
        raise NotApplicable(f"the model averages the logits of {heads} heads, each with features of its own")
    weight = observation.global_state[roles.head_weights[0]].double().cpu()
    if not roles.head_biases:
        return weight, weight.new_zeros(len(weight))
    return weight, observation.global_state[roles.head_biases[0]].double().cpu()


def rounding(observation: Observation) -> float:
    """Relative rounding of the head's gradient as it was shared: eps of its dtype, on the CPU and CUDA.

    Weights, and deltas of them, are rounded to the weights, not to what they changed by: for those it is what that
    leaves of the gradient.
    """
    name = observation.roles.head_weights[0]
    tensor = observation.update.tensors.get(name)
    eps = float(torch.finfo(torch.float32 if tensor is None else tensor.dtype).eps)
    computed = observation.protocol.rounding
    if tensor is None or observation.update.kind == "gradient":
        return max(eps, computed)
    weight = observation.global_state[name].double()
    change = observation.gradient[name].norm() * observation.protocol.gradient_scale()
    return max(computed, min(1.0, eps * max(1.0, float(weight.norm() / change.clamp(min=1e-300)))))


def bias_rounding(observation: Observation) -> float:
    """Absolute rounding of the gradient of the head's bias as it was shared.

    A gradient is rounded relative to the 1 of p - y, weights and changes of them to the bias itself.
    """
    update, protocol, names = observation.update, observation.protocol, observation.roles.head_biases
    if update.kind == "gradient":
        dtypes = [update.tensors[name].dtype for name in names if name in update.tensors]
        return max([protocol.rounding, *(float(torch.finfo(dtype).eps) for dtype in dtypes)])
    biases = [observation.global_state[name] for name in names]
    each = max((float(torch.finfo(bias.dtype).eps * bias.abs().max()) for bias in biases), default=0.0)
    return protocol.rounding + len(names) * (protocol.steps + 1) * each / protocol.gradient_scale()


def sign_rounding(observation: Observation) -> float:
    """`bias_rounding` where it can turn the sign of p̄ - n/B; else 0.

    Rounding leaves a gradient its sign, and a change too where nothing was added to it.
    """
    protocol = observation.protocol
    if observation.update.kind == "gradient" or not (protocol.label_smoothing or decays(observation)):
        return 0.0
    return bias_rounding(observation)


def decays(observation: Observation) -> bool:
    """Whether the head's bias did in training."""
    return any(observation.protocol.decay_of(name) for name in observation.roles.head_biases)


def head_is_exact(observation: Observation) -> str:
    """Why the head's gradient may be another than that of one batch and its labels; empty where it is known to be it.

    Nor is it known under autocast: the head's equations are tested to float32.

    By what defenses publish of themselves: one that clips, or does not say how it acts, may have scaled or changed it.
    """
    if observation.protocol.max_grad_norm is not None:
        return "clipped in training: the scale of the head's gradient is unknown"
    if not observation.keeps("head"):
        return "a defense ran on the client: whether it left the head's gradient as it was, its scale too, is unknown"
    if observation.protocol.rounding:
        return f"computed in {observation.protocol.precision}: its rounding is no bound of the head's equations"
    if observation.summed > 1:
        return f"the updates of {observation.summed} clients were summed: the head's gradient is no single batch's"
    return ""
