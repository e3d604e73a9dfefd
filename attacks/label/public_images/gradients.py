"""Labels from public images' gradients: no part of the classifier is read, so that a withheld head hides nothing.

What a label does to an image's gradient shows in every tensor. The public images whose gradients add up to the
direction of the shared one have, together, the labels of its images.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from attacks.label.public_images.counts import examples_mix
from attacks.result import Certificate, Reconstruction
from attacks.victim import Victim, make_victim
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

FOLDED = 8191
"""Numbers that a longer gradient is folded into, with random signs: its cosines are off by about 1/√8191. Odd, and so
no multiple of a layer's width: all of a column that weighs much would fall on a few of them."""
MOST_A_CLASS = 32
"""Public images of one class whose gradients are computed."""
TOGETHER, MOST_TOGETHER = 2**26, 64
"""Numbers of gradients that are computed at once, and images."""
SWEEPS = 3
"""Over the images of a batch: each is chosen beside the others, then anew."""


def from_public_gradients(observation: Observation, total: int, device: torch.device) -> Reconstruction:
    """The labels of `total` public images, repeats among them, whose gradients are together the likest.

    Each tensor counts by its own norm. Local steps are taken for one gradient of all their images.

    Raises:
        NotApplicable: no public images with labels, several images that BatchNorm mixes, nothing shared.
    """
    held = observation.public_images
    if held is None or held.labels is None or held.pixels.shape[1:] != observation.image_shape:
        raise NotApplicable("nearest_public needs public images of the model's size, with their labels")
    if total > 1 and examples_mix(observation):
        raise NotApplicable("BatchNorm in training mixes the images: no image's gradient is its own")
    target = {n: t.to(device) for n, t in observation.gradient.items() if bool(t.isfinite().all()) and bool(t.any())}
    victim = make_victim(observation, target, device, fused_attention=False)
    norms = {name: float(target[name].norm()) for name in victim.params}
    chosen = _first_of_each(held.labels)
    images, labels = held.images()[chosen], held.labels[chosen]
    dtype = next(iter(victim.params.values())).dtype
    inputs = observation.from_unit_range(images).to(device, dtype)
    public = _folded_gradients(victim, norms, inputs, labels.to(device))
    wanted = folded({name: target[name][None] / norm for name, norm in norms.items()})[0]
    found, cosine = likest(public @ public.T, public @ wanted, float(wanted.norm()), total)
    reason = "named by the public images whose gradients are together the likest: nothing proves it"
    values = {"cosine": cosine, "public_images": float(len(labels))}
    return Reconstruction(labels=labels[found].sort().values, certificate=Certificate("uncertified", reason, values))


def likest(
    inner: Float[Tensor, "n n"], along: Float[Tensor, " n"], norm: float, count: int, sweeps: int = SWEEPS
) -> tuple[list[int], float]:
    """Which `count` of n vectors add up to the direction of a target, and the cosine between it and their sum.

    One after the other the vector that raises the cosine most, then each of them anew beside the others: no search of
    all sets.

    Args:
        inner, along: inner products with each other and with the target.
        norm: of the target.
    """
    squares = inner.diagonal()
    found = list[int]()
    products, square, reached = torch.zeros_like(along), 0.0, 0.0  # of the sum: with each, with itself, with the target
    cosine = 0.0
    for turn in range(sweeps * count):
        if turn >= count:
            old = found[turn % count]
            square += float(squares[old] - 2.0 * products[old])
            products, reached = products - inner[old], reached - float(along[old])
        lengths = (square + 2.0 * products + squares).clamp(min=0.0).sqrt()
        cosines = (reached + along) / (lengths * norm).clamp(min=1e-300)
        new = int(cosines.argmax())
        cosine = float(cosines[new])
        square += float(squares[new] + 2.0 * products[new])
        products, reached = products + inner[new], reached + float(along[new])
        found[turn % count : turn % count + 1] = [new]
    return found, cosine


def folded(gradients: State, numbers: int = FOLDED) -> Float[Tensor, "n numbers"]:
    """Each row's tensors one after the other, from the start again where there are more numbers, with random signs.

    Inner products are kept in the mean over the signs, and exactly where all numbers have a place of their own.
    """
    rng, begin = torch.Generator().manual_seed(0), 0
    first = next(iter(gradients.values()))
    found = first.new_zeros(len(first), numbers, dtype=torch.float64)
    for tensor in gradients.values():
        flat = tensor.flatten(1)
        signs = torch.randint(2, flat.shape[1:], generator=rng, dtype=torch.int8).to(flat) * 2 - 1
        at = begin % numbers
        padded = F.pad(flat * signs, (at, -(at + flat.shape[1]) % numbers))
        found += padded.unflatten(1, (-1, numbers)).sum(dim=1, dtype=torch.float64)
        begin += flat.shape[1]
    return found


def _folded_gradients(
    victim: Victim, norms: dict[str, float], inputs: Float[Tensor, "n c h w"], labels: Tensor
) -> Float[Tensor, "n numbers"]:
    def loss(params: State, image: Tensor, label: Tensor) -> Tensor:
        return victim.loss(params, image[None], label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    together = max(1, min(MOST_TOGETHER, TOGETHER // sum(param.numel() for param in victim.params.values())))
    rows = []
    for images, own in zip(inputs.split(together), labels.split(together), strict=True):
        found = each(victim.params, images, own)
        rows.append(folded({name: found[name] / norm for name, norm in norms.items()}))
    return torch.cat(rows)


def _first_of_each(labels: Tensor) -> Tensor:
    """Indices of the first images of each class, in their order."""
    rank = torch.stack([(labels[:index] == label).sum() for index, label in enumerate(labels)])
    return (rank < MOST_A_CLASS).nonzero()[:, 0]
