"""Outpost (Wang, Hugh & Li, INFOCOM 2023): pruning and noise by each layer's risk, fading with the steps."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from defenses.base import Batch, BatchGradient, ClientRound, Defense
from defenses.settings import number
from fedsim.effects import Effect, PerturbsSteps
from fedsim.update import State


class Outpost(Defense):
    """Local step i of a round is perturbed with probability 1 / (1 + beta·i); then, in each tensor's gradient:

    - the share `prune` of entries of smallest magnitude becomes zero;
    - the share `noised` of all entries of the model with the largest diagonal of the empirical Fisher information
      gains Gaussian noise of standard deviation noise·risk, where risk is the variance of the tensor's weights, 1 at
      most.

    The paper's text was not at hand: this follows its abstract, the formulas that summaries of it cite, and the
    authors' implementation in Plato with its default settings. Three things differ from that code. The Fisher diagonal
    is the square of the step's gradient entry by entry (the paper averages over the batches of an epoch, the code over
    the first axis of each tensor). i counts the steps of a client's turn, from 1 (the code's epoch·batch is the same
    in the first epoch). And a tensor of one weight has no variance, so no noise.

    A single shared gradient is i = 1: one update in nine leaves the client unperturbed at beta = 0.125. Tensors of
    equal weights (norms and biases of a fresh model) have no risk, hence no noise, and are pruned only.

    Args:
        beta: how fast perturbation fades; 0: every step.
        noised: share of entries to add noise to, 0 to 1 (the code's phi, in percent).
        prune: share of entries to prune, 0 to 1 (the code's prune_base, in percent).
        noise: standard deviation at risk 1 (the code's noise_base).
    """

    def __init__(self, beta: float = 0.125, noised: float = 0.4, prune: float = 0.8, noise: float = 0.8) -> None:
        self.beta = number("defense.outpost.beta", beta, "0 or more", lambda v: 0.0 <= v < math.inf)
        self.noised = number("defense.outpost.noised", noised, "0 to 1", lambda v: 0.0 <= v <= 1.0)
        self.prune = number("defense.outpost.prune", prune, "0 to 1", lambda v: 0.0 <= v <= 1.0)
        self.noise = number("defense.outpost.noise", noise, "0 or more", lambda v: 0.0 <= v < math.inf)
        self._steps = self._perturbed = 0

    @property
    def _changes_nothing(self) -> bool:
        return self.prune == 0.0 and self.noise * self.noised == 0.0

    def effects(self) -> tuple[Effect, ...]:
        return () if self._changes_nothing else (PerturbsSteps(self.beta, self.prune, self.noised, self.noise),)

    def begin(self, turn: ClientRound) -> None:
        self._steps = self._perturbed = 0

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        gradient = compute(batch)
        self._steps += 1
        if self._changes_nothing:
            return gradient
        chance = 1.0 / (1.0 + self.beta * self._steps)
        if float(torch.rand((), generator=rng, dtype=torch.float64)) >= chance:
            return gradient
        self._perturbed += 1
        risks = {name: weight_risk(parameter) for name, parameter in model.named_parameters() if name in gradient}
        chosen = largest_entries({name: tensor.square() for name, tensor in gradient.items()}, self.noised)
        perturbed = {}
        for name in sorted(gradient):  # an order of its own: the same noise however the tensors are listed
            tensor = without_smallest(gradient[name], self.prune)
            std = self.noise * risks[name]
            if std > 0.0 and bool(chosen[name].any()):
                drawn = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype).to(tensor.device)
                tensor = torch.where(chosen[name], tensor + std * drawn, tensor)
            perturbed[name] = tensor
        return {name: perturbed[name] for name in gradient}

    def measurements(self) -> dict[str, float]:
        """The share of the turn's steps that were perturbed."""
        return {"perturbed": self._perturbed / max(1, self._steps)}


def weight_risk(weights: Tensor) -> float:
    """A tensor's leakage risk: the variance of its entries, 1 at most, 0 for a single one."""
    return min(1.0, float(weights.detach().double().var())) if weights.numel() > 1 else 0.0


def largest_entries(tensors: State, share: float) -> dict[str, Bool[Tensor, "..."]]:
    """Where the round(share·N) largest of the N entries of all tensors together are; equals of the last one too."""
    entries = torch.cat([tensor.flatten() for tensor in tensors.values()])
    count = round(share * len(entries))
    if count == 0:
        return {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in tensors.items()}
    least = entries.kthvalue(len(entries) - count + 1).values
    return {name: tensor >= least for name, tensor in tensors.items()}


def without_smallest(tensor: Float[Tensor, "..."], share: float) -> Float[Tensor, "..."]:
    """Zero in the round(share·n) entries of smallest magnitude; equals of the first one kept stay."""
    count, sizes = round(share * tensor.numel()), tensor.abs().flatten()
    if count == 0:
        return tensor
    if count == len(sizes):
        return torch.zeros_like(tensor)
    return tensor.masked_fill(tensor.abs() < sizes.kthvalue(count + 1).values, 0.0)
