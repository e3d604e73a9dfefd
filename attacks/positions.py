"""What defenses that act on position embeddings leave in an update: rows that were masked, a term without images."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedsim.effects import AddsRegression, Clips, MasksPositions
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

ROUNDINGS = 4.0
"""Of a weight, in each step, within which a change is that of weight decay alone."""

DENSE = 0.5
"""Share of an update's entries that are not zero, from which a row of zeros is a masked one and not a pruned one."""


def masked_rows(observation: Observation) -> Bool[Tensor, " rows"] | None:
    """Rows of `pos_embed` in whose place every image took the shared embedding; None where none shows.

    Their gradient is zero exactly. With a mask for each image that is so where a position is masked in all.
    """
    name = observation.roles.pos_embed
    if name not in observation.update.tensors or observation.effect(MasksPositions) is None:
        return None
    rows = _moved(observation, name).flatten(0, -2).any(dim=1)
    if bool(rows.all()):
        return None
    every = [_moved(observation, name) for name in observation.update.tensors]
    share = sum(int(moved.sum()) for moved in every) / sum(moved.numel() for moved in every)
    return None if share < DENSE else ~rows


def of_images(observation: Observation, target: State) -> State:
    """The target less what no image has a part in: the regression's own parameters, and its term in `pos_embed`.

    The term is exact as `regression_term` says. After several steps of SGD it is that of the weights sent; after
    Adam's, whose steps are no multiple of a gradient, it stays.

    Args:
        target: the shared update in units of a gradient, by name.
    """
    effect = observation.effect(AddsRegression)
    if effect is None:
        return dict(target)
    result = {name: tensor for name, tensor in target.items() if not name.startswith(f"{effect.module}.")}
    roles, linear = observation.roles, observation.update.kind == "gradient" or observation.protocol.optimizer == "sgd"
    if roles.pos_embed not in result or not linear:
        return result
    rows = result[roles.pos_embed].reshape(-1, result[roles.pos_embed].shape[-1]).clone()
    patches = rows[roles.embedded_prefix_tokens :]
    term = regression_term(observation, _read(observation, patches).cpu())
    if term is None:
        return result
    # What was pruned stays zero, for objectives that compare only what was sent.
    patches.copy_((patches.double() - term.to(patches.device)) * (patches != 0))
    return {**result, roles.pos_embed: rows.view_as(result[roles.pos_embed])}


def without_regression(
    observation: Observation, token_grads: Float[Tensor, "tokens width"]
) -> Float[Tensor, "tokens width"]:
    """∂L/∂e_n of the classification loss alone."""
    term = regression_term(observation, _read(observation, token_grads))
    return token_grads if term is None else token_grads - term.to(token_grads)


def regression_term(observation: Observation, read: Bool[Tensor, " tokens"]) -> Float[Tensor, "tokens width"] | None:
    """A regression's part of ∂L/∂e_n, float64; None where nothing is regressed.

    It reads the global weights and the mask. Its weight is the ratio of the module's shared gradient to its gradient
    here, so that scaling does no harm, or the public one where none is shared: the module has no parameters, a defense
    withholds them, or what came of them is not finite. Exact for one image, for one mask a batch, and for batches of
    which no image was masked. A gradient that is missing otherwise was taken out before, and its term with it.

    Args:
        read: the unmasked positions, which show as rows that are not zero.

    Raises:
        NotApplicable: no gradient tells the weight, and no defense says it.
    """
    effect = observation.effect(AddsRegression)
    if effect is None or not bool(read.any()):
        return None
    model = observation.build_model()
    module = model.get_submodule(effect.module)
    assert observation.roles.pos_embed is not None
    embedding = model.get_parameter(observation.roles.pos_embed)[0, -len(read) :].detach().requires_grad_()
    weights = {f"{effect.module}.{name}": weight for name, weight in module.named_parameters()}
    names = [name for name in weights if name in observation.gradient]
    if not observation.update.withheld.keys() >= weights.keys() - set(names):
        return None
    names = [name for name in names if bool(observation.gradient[name].isfinite().all())]
    loss = module(embedding, read.to(embedding) / read.sum())
    own, *others = torch.autograd.grad(loss, [embedding, *(weights[name] for name in names)])
    if not names:
        return _public_weight(effect) * own.double()
    found = torch.cat([gradient.double().flatten() for gradient in others])
    known = torch.cat([observation.gradient[name].double().flatten() for name in names])
    found = found * (known != 0)  # of a pruned update, what is left
    return (found @ known) / (found @ found).clamp(min=torch.finfo(torch.float64).tiny) * own.double()


def _public_weight(effect: AddsRegression) -> float:
    """λ of the observed round."""
    weight = effect.weight
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight):
        stated = "the defense does not state its weight" if weight is None else f"its weight is stated as {weight}"
        raise NotApplicable(f"the gradient of the regression {effect.module} tells nothing, and {stated}")
    return float(weight)


def _read(observation: Observation, token_grads: Float[Tensor, "tokens width"]) -> Bool[Tensor, " tokens"]:
    """Unmasked positions of patches: by the update where a mask shows in it, else rows that are not zero."""
    masked = masked_rows(observation)
    if masked is None:
        return token_grads.any(dim=1)
    return ~masked[-len(token_grads) :].to(token_grads.device)


def _moved(observation: Observation, name: str) -> Bool[Tensor, "..."]:
    """Where the client's update of a tensor is another than weight decay alone makes of it, beyond its rounding."""
    shared, start = observation.update.tensors[name], observation.global_state[name]
    change = shared - start if observation.update.kind == "weights" else shared
    share = _by_decay(observation, name)
    if not share:
        return change != 0
    eps = max(float(torch.finfo(one.dtype).eps) for one in (shared, start))
    decayed = share * start.double()
    if any(isinstance(effect, Clips) and effect.per == "update" for effect in observation.effects):
        # Row by row as much of it as the clip may have left.
        left = (change.double() * decayed).sum(dim=-1, keepdim=True) / decayed.square().sum(dim=-1, keepdim=True)
        decayed = left.nan_to_num().clamp(0.0, 1.0) * decayed
    off = (change.double() - decayed).abs()
    return off > ROUNDINGS * observation.protocol.steps * eps * start.double().abs()


def _by_decay(observation: Observation, name: str) -> float:
    """The change of a number whose gradient is zero, as a multiple of it; 0 where Adam couples the two."""
    protocol = observation.protocol
    decay = protocol.decay_of(name)
    if observation.update.kind == "gradient" or not decay or protocol.optimizer not in ("sgd", "adamw"):
        return 0.0
    value, buffer = 1.0, 0.0
    for step, lr in enumerate(protocol.lrs):
        if protocol.optimizer == "adamw":
            value -= lr * decay * value
            continue
        moved = gradient = decay * value + protocol.proximal_mu * (value - 1.0)
        if protocol.momentum:
            buffer = gradient if step == 0 else protocol.momentum * buffer + (1.0 - protocol.dampening) * gradient
            moved = gradient + protocol.momentum * buffer if protocol.nesterov else buffer
        value -= lr * moved
    return value - 1.0
