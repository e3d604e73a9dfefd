"""A client's computation once more, from what a server knows of it and images that may be the client's."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clients.training import LossGradient, set_gradients
from defenses.base import Batch, ClientRound, Defense, DefenseChain
from fedsim.determinism import seeded_globals
from fedsim.float32 import full_float32
from fedsim.observation import Observation
from fedsim.settings.local.decay import groups
from fedsim.update import LocalProtocol, Update


def replay(observation: Observation, images: Tensor, labels: Tensor) -> Update | None:
    """What the client would have shared: the same model, protocol and defenses, in the client's precision.

    Args:
        images: [B,C,H,W] in [0, 1], as the model saw them: what a defense makes of images is not done again.
        labels: [B] classes.

    Returns:
        A gradient, or a delta; None where it is not known: an adaptive optimiser, several batches in an unknown order,
        or anything on the way that drew a random number.
    """
    protocol = observation.protocol
    count, shares_gradient = len(labels), observation.update.kind == "gradient"
    if count != min(protocol.batch_size, observation.update.num_examples):
        return None
    if protocol.steps > 1 and observation.update.num_examples > count:
        return None
    if not shares_gradient and (protocol.optimizer != "sgd" or len(protocol.lrs) != protocol.steps):
        return None
    with seeded_globals(0, "replay"):
        before = _global_draws(images.device)
        rng = torch.Generator().manual_seed(0)
        drawn = rng.get_state()
        update = _once_more(observation, images, labels, rng)
        same = before == _global_draws(images.device) and torch.equal(drawn, rng.get_state())
    return update if same else None


@full_float32()
def _once_more(observation: Observation, images: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
    protocol, shares_gradient = observation.protocol, observation.update.kind == "gradient"
    model = observation.build_model().to(images.device)
    defense = _as_one(observation)
    defense.begin(ClientRound(observation.server_round, len(labels), {}, model))
    like = next(model.parameters())
    batch = Batch(observation.from_unit_range(images.to(like)), labels.to(like.device))
    computed = protocol.precision, protocol.micro_batch_size
    gradient_of = LossGradient(model, defense, protocol.label_smoothing, None, *computed)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = {name: p.detach().clone() for name, p in trainable.items()}
    optimizer = None if shares_gradient else _sgd(groups(trainable, protocol.undecayed), protocol)
    with torch.enable_grad():
        for step in range(1 if optimizer is None else protocol.steps):
            gradients = defense.gradient(model, batch, gradient_of, rng)
            set_gradients(trainable, gradients, start, protocol.proximal_mu, protocol.max_grad_norm)
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = protocol.lrs[step]
                optimizer.step()
    if shares_gradient:
        tensors = {n: torch.zeros_like(p) if p.grad is None else p.grad.detach() for n, p in trainable.items()}
    else:
        tensors = {name: p.detach() - start[name] for name, p in trainable.items()}
    whole = {name: tensor.cpu() for name, tensor in tensors.items()}
    update = Update(whole, "gradient" if shares_gradient else "delta", observation.update.num_examples)
    return defense.transform_update(update, rng)


def _global_draws(device: torch.device) -> tuple[object, ...]:
    """The state of the generators of arrays that a model or a defense may draw from without being given them."""
    devices = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    states = [torch.get_rng_state(), *devices]
    return (random.getstate(), str(np.random.get_state()), *(state.numpy().tobytes() for state in states))


def _as_one(observation: Observation) -> DefenseChain:
    chains = [one for one in observation.architecture.wrappers if isinstance(one, Defense)]
    if len(chains) == 1 and isinstance(chains[0], DefenseChain):
        return chains[0]
    return DefenseChain({str(place): one for place, one in enumerate(chains)})


def _sgd(parameters: list[Any], protocol: LocalProtocol) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters,
        lr=protocol.lrs[0],
        momentum=protocol.momentum,
        dampening=protocol.dampening,
        weight_decay=protocol.weight_decay,
        nesterov=protocol.nesterov,
    )
