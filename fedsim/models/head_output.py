"""Whether a model's scores are what its linear head makes of features, and nothing else."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedsim.determinism import seeded_globals, torch_generator

ROUNDINGS = 8.0
"""Of the model's precision, relative to the largest score, up to which two scores count as one."""

REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError, IndexError)


def heads_give_scores(
    model: nn.Module,
    weights: Sequence[str],
    image_shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    batch: int = 1,
) -> bool:
    """Whether the scores of an image are W h + b of its head, or of several heads their mean.

    Otherwise the model reorders them, say, and the head's gradient is not that of the labels. Asked in the model's own
    mode, at random images in [0, 1] and at some of zeros and ones alone, of a head of random numbers: one of zeros
    gives any order alike. Both come from one forward pass, so that dropout changes nothing.

    Args:
        model: a copy, whose head is written into.
        weights: the heads' weights, by name.
        batch: images at once.
    """
    heads = [model.get_submodule(name.rpartition(".")[0]) for name in weights]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(head: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], scores: Tensor) -> None:
        read = inputs[0] if inputs else next(iter(named.values()))
        calls.append((head, scores.clone(), F.linear(read, head.weight, head.bias)))  # type: ignore[arg-type]

    with seeded_globals(0, "heads"), torch.no_grad():
        for parameter in (parameter for head in heads for parameter in head.parameters(recurse=False)):
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        like = next(heads[0].parameters())
        hooks = [head.register_forward_hook(keep, with_kwargs=True) for head in heads]
        try:
            for images in _probes((batch, *image_shape)):
                calls.clear()
                shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
                scores = model(((images - shift) / scale).to(like))
                if not _are_scores(scores, heads, calls):
                    return False
        except REFUSALS:
            return False
        finally:
            for hook in hooks:
                hook.remove()
    return True


def _probes(shape: tuple[int, ...]) -> Iterator[Float[Tensor, "batch c h w"]]:
    rng = torch_generator(0, "heads")
    yield torch.rand(shape, generator=rng)
    yield torch.randint(0, 2, shape, generator=rng).float()


def _are_scores(scores: object, heads: Sequence[nn.Module], calls: Sequence[tuple[nn.Module, Tensor, Tensor]]) -> bool:
    """Each head was called once, gave W h + b, and the scores are the mean of what they gave."""
    once = sorted(id(head) for head, _, _ in calls) == sorted(id(head) for head in heads)
    if not once or not isinstance(scores, Tensor) or any(given.shape != scores.shape for _, given, _ in calls):
        return False
    pairs = [(given, expected) for _, given, expected in calls]
    pairs.append((scores, torch.stack([given for _, given, _ in calls]).mean(dim=0)))
    allowed = ROUNDINGS * torch.finfo(scores.dtype).eps
    return all(bool(((one - other).abs() <= allowed * other.abs().max()).all()) for one, other in pairs)
