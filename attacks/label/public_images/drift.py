"""Label counts from several local steps on one batch: what the steps do to the head is simulated on public images.

The mean gradient of the steps is the first one and a drift, of which the counts decide most: a client that trains on
public images with the counts that are believed shows it. Taken off, it leaves one gradient, whose counts are better.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.public_images.moments import ClassMoments, CountFit, fit_counts

CLIENTS = 4
"""Simulated for each belief."""
BELIEFS = 2
"""The first, and each corrected by the one before."""

Drift = Callable[[Int[Tensor, "batch"]], tuple[Float[Tensor, "classes features"], Float[Tensor, "classes"]]]
"""Of public images at these positions: the mean gradient of the head over the steps, less the first one."""


def drifted_counts(
    moments: ClassMoments,
    gradient: tuple[Float[Tensor, "classes features"], Float[Tensor, "classes"]],
    least: Int[Tensor, "classes"],
    believed: Int[Tensor, "classes"],
    public_labels: Int[Tensor, "n"],
    drift: Drift,
    rng: torch.Generator,
    added: Float[Tensor, "moments moments"] | float = 0.0,
) -> CountFit:
    """The likeliest counts, from a first belief; how far simulated clients differ counts as noise.

    Args:
        gradient: mean over the steps, of weight and bias.
    """
    weight_grad, bias_grad = (part.double() for part in gradient)
    batch_size = int(believed.sum())
    for _ in range(BELIEFS):
        seen = [drift(images_of(believed, public_labels, rng)) for _ in range(CLIENTS)]
        weights, biases = (torch.stack([one[part].double() for one in seen]) for part in (0, 1))
        read = batch_size * torch.stack([moments.read(*one) for one in seen])
        apart = read - read.mean(dim=0)
        scatter = apart.T @ apart / (CLIENTS - 1)
        # Few clients span few directions: the diagonal stands for the others.
        noise = added + (1.0 + 1.0 / CLIENTS) * scatter + scatter.diagonal().diag()
        fit = fit_counts(moments, weight_grad - weights.mean(0), bias_grad - biases.mean(0), least, batch_size, noise)
        believed = fit.counts
    return fit


def images_of(counts: Int[Tensor, "classes"], labels: Int[Tensor, "n"], rng: torch.Generator) -> Int[Tensor, "batch"]:
    """Positions of images with these counts, sorted by class; twice only where a class has too few."""
    chosen = []
    for label, count in enumerate(counts.tolist()):
        own = (labels == label).nonzero().flatten()
        if count <= len(own):
            chosen.append(own[torch.randperm(len(own), generator=rng)[:count]])
        else:
            chosen.append(own[torch.randint(len(own), (count,), generator=rng)])
    return torch.cat(chosen)
