"""How a model answers pictures, whole and jigsawed: top-1, Diff. Norm., Consistency (Ren et al. 2023, Table 3)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from defenses.mjp import MaskedJigsawPuzzle, jigsaw_order, shuffle_patches
from defenses.mjp.mask import blockwise_masks
from experiments.measure.subjects import Subject
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.metrics.jigsaw import Spread, consistent, difference_norm

Size = tuple[int, int]


@dataclass(frozen=True)
class Answers:
    """What a model says of each picture.

    Attributes:
        features: the input of the classifier: in a ViT with a class token, that token after the last norm.
    """

    logits: Float[Tensor, "n classes"]
    features: Float[Tensor, "n width"] | None


@dataclass(frozen=True)
class Jigsaw:
    """Masks and permutations of all test pictures at one ratio, and the size of what is moved."""

    masks: Bool[Tensor, "n tokens"]
    orders: Int64[Tensor, "n tokens"]
    patch: Size

    def shuffled(self, images: Tensor, start: int) -> Tensor:
        """Pictures that begin at position `start` of the set, as x̃."""
        return shuffle_patches(images, self.orders[start : start + len(images)], self.patch)


@dataclass(frozen=True)
class JigsawPoint:
    """The measures at one ratio, over draws of the masks.

    Attributes:
        masked: the share of positions that are masked.
        top1: on x̃.
    """

    ratio: float
    masked: Spread
    top1: Spread
    diff_norm: Spread | None
    consistency: Spread


def layout(subject: Subject, patch_size: int | None) -> tuple[Size, Size]:
    """(grid, patch) of the jigsaw: the model's own patches, or squares of `patch_size` pixels (or of its puzzle's).

    Raises:
        ConfigError: the model has no patches and no size is given, or the squares do not fill its pictures.
    """
    side = subject.pictures.images.images([0]).shape[-1]
    roles = subject.roles
    if patch_size is None:
        patch_size = next((mjp.patch for mjp in _mjps(subject) if mjp.patch is not None), None)
    if patch_size is None and roles.grid is not None and roles.patch is not None:
        return roles.grid, roles.patch
    if patch_size is None:
        raise ConfigError(
            "measure.patch_size", None, f"pixels: {type(subject.model).__name__} has no patches of its own"
        )
    if side % patch_size:
        raise ConfigError("measure.patch_size", patch_size, f"a divisor of the pictures' {side} pixels")
    if (patch_size, patch_size) != roles.patch and mjp_of(subject) is not None:
        raise ConfigError("measure.patch_size", patch_size, "null: masked embeddings are those of the model's patches")
    return (side // patch_size, side // patch_size), (patch_size, patch_size)


def mjp_of(subject: Subject) -> MaskedJigsawPuzzle | None:
    """The run's own puzzle, which knows how its model reads masked positions."""
    return next((mjp for mjp in _mjps(subject) if mjp.patch is None), None)


def _mjps(subject: Subject) -> list[MaskedJigsawPuzzle]:
    return [defense for defense in subject.defenses.defenses.values() if isinstance(defense, MaskedJigsawPuzzle)]


def mask_embedding(subject: Subject) -> str:
    """What masked positions take in this model: `unknown`, `indexed` or their `own` embedding."""
    mjp = mjp_of(subject)
    return "own" if mjp is None else mjp.embedding


def draw_jigsaw(
    count: int, grid: Size, patch: Size, ratio: float, min_block: int | None, seed: int, draw: int
) -> Jigsaw:
    """A jigsaw, the same for every model with this grid, so that models are compared on the same x̃."""
    ratio = float(ratio)  # YAML gives 0 and 1 as whole numbers
    rng = torch_generator(seed, "jigsaw", draw, str(ratio))
    masks = blockwise_masks(count, grid, ratio, min_block, rng)
    return Jigsaw(masks, jigsaw_order(masks, rng), patch)


@torch.no_grad()
def answer(subject: Subject, batch_size: int, jigsaw: Jigsaw | None = None) -> Answers:
    """Every test picture through the model in eval mode, as x or, with a jigsaw, as x̃."""
    mjp = mjp_of(subject)
    logits, features, start = [], [], 0
    for images in subject.pictures.batches(batch_size):
        masked: AbstractContextManager[None] = nullcontext()
        if jigsaw is not None:
            images = jigsaw.shuffled(images, start)
            if mjp is not None:
                masked = mjp.masking(jigsaw.masks[start : start + len(images)])
        start += len(images)
        with masked, classifier_input(subject.model) as taken:
            logits.append(subject.model(subject.normalise(images)).float().cpu())
        features += taken
    whole = torch.cat(features) if len(features) == len(logits) else None
    return Answers(torch.cat(logits), whole)


@contextmanager
def classifier_input(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what a linear classifier reads, as [b, width]; of two classifiers, the first."""
    taken: list[Tensor] = []
    get_classifier: Any = getattr(model, "get_classifier", None)
    found = None if get_classifier is None else get_classifier()
    head = found[0] if isinstance(found, tuple) else found
    if not isinstance(head, nn.Linear):
        yield taken
        return

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        taken.append(inputs[0].detach().float().cpu())

    handle = head.register_forward_pre_hook(take)
    try:
        yield taken
    finally:
        handle.remove()


def measure_jigsaw(
    subject: Subject,
    clean: Answers,
    ratios: Sequence[float],
    draws: int,
    *,
    size: tuple[Size, Size],
    min_block: int | None,
    seed: int,
    batch_size: int,
    done: Callable[[], None],
) -> list[JigsawPoint]:
    """The measures at each ratio.

    Args:
        size: grid and patch.
        done: called after each pass through the pictures.
    """
    points = []
    for ratio in ratios:
        found: dict[str, list[float]] = {"masked": [], "top1": [], "diff_norm": [], "consistency": []}
        for draw in range(draws):
            jigsaw = draw_jigsaw(len(subject.pictures), *size, ratio, min_block, seed, draw)
            # Where nothing is masked x̃ is x.
            moved = answer(subject, batch_size, jigsaw) if bool(jigsaw.masks.any()) else clean
            found["masked"].append(float(jigsaw.masks.double().mean()))
            found["top1"].append(top1(moved, subject.pictures.labels))
            found["consistency"].append(float(consistent(clean.logits, moved.logits).double().mean()))
            if clean.features is not None and moved.features is not None:
                found["diff_norm"].append(float(difference_norm(clean.features, moved.features).mean()))
            done()
        spreads = {name: Spread.of(values) if values else None for name, values in found.items()}
        points.append(JigsawPoint(float(ratio), **spreads))  # type: ignore[arg-type]
    return points


def top1(answers: Answers, labels: Int64[Tensor, " n"]) -> float:
    return float((answers.logits.argmax(1) == labels).double().mean())
