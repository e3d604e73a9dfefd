"""The client's side of gradient matching: what it computed from its pictures, as a pure function of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_

from attacks.positions import masked_rows
from fedsim.effects import MasksPositions
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import leave_out_drops
from fedsim.observation import Observation
from fedsim.update import State


@dataclass(frozen=True)
class Victim:
    """The observed model with its weights taken out.

    Attributes:
        params: those whose update was shared, by name.
        fixed: all other parameters and buffers.
        unshared: of these the parameters that the client trains too.
        own: names of those that it trains for itself alone: no defense sees them in what is shared.
        masked: rows of the position embedding in whose place the client's model took one that all share.
        embeddings: the names of the two, where rows are masked.
        buffers: names in `fixed` of what a forward pass may write to, as a counter of steps.
    """

    model: nn.Module
    params: State
    fixed: State = field(repr=False)
    label_smoothing: float = 0.0
    masked: Bool[Tensor, " rows"] | None = None
    embeddings: tuple[str, str] = ("", "")
    unshared: State = field(default_factory=dict, repr=False)
    buffers: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()

    def loss(
        self, params: State, images: Float[Tensor, "batch channels height width"], labels: Shaped[Tensor, "batch *c"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy. Labels are classes [batch], or logits [batch, classes] of soft labels."""
        logits = self.scores(params, images)
        targets = labels.softmax(dim=-1) if labels.is_floating_point() else labels
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    def scores(self, params: State, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """What the model says of the pictures, with the client's mask."""
        state = {**self.fixed, **params}
        state |= {name: state[name].clone() for name in self.buffers}  # torch.func lets no call write to what is given
        if self.masked is not None:
            position, shared = self.embeddings
            state[position] = torch.where(self.masked[:, None], state[shared], state[position])
        result: Tensor = functional_call(self.model, state, (images,))
        return result

    def gradient(self, params: State, images: Tensor, labels: Tensor) -> State:
        """∂L/∂θ, differentiable."""
        gradient: State = grad(self.loss)(params, images, labels)
        return gradient


def make_victim(
    observation: Observation, shared: Mapping[str, Tensor], device: torch.device, fused_attention: bool
) -> Victim:
    """The model in the mode in which the client trained it.

    Dropout is left out, since nobody but the client knows its masks, and so is the noise of a defense's modules, which
    have a method `without_noise` for it. BatchNorm in training mode keeps no running
    statistics, which have no part in the gradient. A mask of positions, where it shows, is in its place. What the
    client trains for itself alone is as it was drawn, by a public seed; later rounds have moved it.

    Args:
        shared: names what was shared.
        fused_attention: fast, but without a second derivative.

    Raises:
        NotApplicable: nothing that the model trains was shared.
    """
    model = observation.build_model()
    own = frozenset(observation.finetune.personalise(model, observation.architecture.seed))
    model = model.to(device)
    set_fused_attention(model, fused_attention)
    leave_out_drops(model)
    leave_out_noise(model)
    if observation.protocol.training_mode:
        replace_all_batch_norm_modules_(model)
    params = {n: p.detach() for n, p in model.named_parameters() if n in shared and p.requires_grad}
    if not params:
        raise NotApplicable("no gradient of a trained parameter was shared")
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fixed = {name: tensor.detach() for name, tensor in named.items() if name not in params}
    unshared = {n: fixed[n] for n, p in model.named_parameters() if n in fixed and p.requires_grad}
    smoothing = observation.protocol.label_smoothing
    buffers = tuple(name for name, _ in model.named_buffers())
    victim = Victim(model.requires_grad_(False), params, fixed, smoothing, unshared=unshared, buffers=buffers, own=own)
    masked, effect = masked_rows(observation), observation.effect(MasksPositions)
    if masked is None or effect is None or observation.roles.pos_embed is None:
        return victim
    return replace(victim, masked=masked.to(device), embeddings=(observation.roles.pos_embed, effect.embedding))


def leave_out_noise(model: nn.Module) -> None:
    """Of a defense's modules: an attacker does not know what was drawn."""
    for module in model.modules():
        if (without_noise := getattr(module, "without_noise", None)) is not None:
            without_noise()


def set_fused_attention(model: nn.Module, on: bool) -> None:
    """Fused attention is fast, but has no second derivative and no batching rule."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", on)  # noqa: B010 - not every module has it
