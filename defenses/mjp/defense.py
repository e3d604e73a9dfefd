"""Masked Jigsaw Puzzle as a defense, with the parts that its ablation takes out (Ren et al. 2023, Table 4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from logging import getLogger

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from defenses.base import Batch, BatchGradient, ClientRound, Defense, Plan
from defenses.mjp.embedding import INDEX, POSITION, UNKNOWN, MaskedFeatures
from defenses.mjp.jigsaw import jigsaw_order, pixel_order, shuffle_patches, shuffle_pixels
from defenses.mjp.layout import Layout, model_layout, position_embedding, square_patches
from defenses.mjp.localisation import COORDINATES, HEADS, LOCALISER, Localiser, Weight, unmasked_share
from defenses.mjp.mask import blockwise_masks
from defenses.mjp.masking_counts import MaskingCounts
from defenses.mjp.settings import option, scale, share, whole
from defenses.model.position import WithholdPositionEmbedding
from defenses.update.withholding import Withhold
from fedsim.effects import AddsPositions, AddsRegression, Clips, Effect, MasksPositions, TransformsImages
from fedsim.errors import ConfigError
from fedsim.update import State

logger = getLogger(__name__)

PER = ("image", "batch")
SHUFFLES = ("patches", "patches_and_pixels", "none")
EMBEDDINGS = ("unknown", "indexed", "own")
CLASS_TOKENS = ("own", "unknown")
UNKNOWN_STD = 0.02

Mask = Bool[Tensor, "batch tokens"]


class MaskedJigsawPuzzle(Defense):
    """Patches at masked positions change places among themselves, and all take one shared learnable embedding.

    The pictures themselves are changed, so what the model saw is the shuffled picture. A mask serves the gradient of
    its batch; evaluation has none, except within `masking`.

    Args:
        ratio: share of the positions to mask, at most; small grids reach less of it. 1: all of them.
        per: a mask and a permutation of its own for each `image` (the paper), or one for the `batch` (its code).
        min_block: smallest area of a block in patches; None: 8 of 196 in proportion to the grid.
        probability: that a batch is masked at all (the released code: 0.5).
        start_round: the first server round with masks. An audit is round 0, and refuses a later one.
        class_token: class tokens keep their `own` embedding, or take the `unknown` one in masked pictures.
        shuffle: `patches`; `patches_and_pixels` (SPP): also the pixels of masked patches, alike in each patch of a
            picture (`per` image) or of the batch; or `none`.
        embedding: what masked positions take: the shared `unknown` one, or their `own`, as all others do; `indexed`:
            their own, and every token an index embedding besides (IDX).
        dal: head of the localisation regression: none, linear, nonlinear, nonlinear3 or pca; see `Localiser`.
        dal_coordinates: it regresses to row and column numbers (`grid`) or to these divided by the sides (`unit`).
        lambda_dal: its weight, after `lambda_warmup_rounds` from 0; over `lambda_decay_rounds` more (None: never) it
            falls to `lambda_final`.
        init_std: position and unknown embeddings are drawn anew with this standard deviation (the released code: 1);
            None: 0.02 for the unknown one, and the model's own.
        patch: side of a patch in pixels, for models that have none of their own; needs embedding `own` and dal `none`.
    """

    repeatable = True  # a batch without a mask comes out the same each time

    def __init__(
        self,
        ratio: float = 0.1,
        per: str = "image",
        min_block: int | None = None,
        probability: float = 1.0,
        start_round: int = 0,
        class_token: str = "own",  # noqa: S107 - no password
        shuffle: str = "patches",
        embedding: str = "unknown",
        dal: str = "none",
        dal_coordinates: str = "grid",
        lambda_dal: float = 0.01,
        lambda_warmup_rounds: int = 0,
        lambda_decay_rounds: int | None = None,
        lambda_final: float = 0.005,
        init_std: float | None = None,
        patch: int | None = None,
    ) -> None:
        self.ratio = share("ratio", ratio)
        self.per = option("per", per, PER)
        self.min_block = None if min_block is None else whole("min_block", min_block, 1)
        self.probability = share("probability", probability)
        self.start_round = whole("start_round", start_round, 0)
        self.class_token = option("class_token", class_token, CLASS_TOKENS)
        self.shuffle = option("shuffle", shuffle, SHUFFLES)
        self.embedding = option("embedding", embedding, EMBEDDINGS)
        self.dal = option("dal", dal, HEADS)
        self.dal_coordinates = option("dal_coordinates", dal_coordinates, COORDINATES)
        self.dal_weight = Weight(
            scale("lambda_dal", lambda_dal),
            whole("lambda_warmup_rounds", lambda_warmup_rounds, 0),
            None if lambda_decay_rounds is None else whole("lambda_decay_rounds", lambda_decay_rounds, 1),
            scale("lambda_final", lambda_final),
        )
        self.init_std = None if init_std is None else scale("init_std", init_std)
        self.patch = None if patch is None else whole("patch", patch, 1)
        if self.patch is not None and self.needs_positions:
            raise ConfigError(
                "defense.mjp.patch", patch, "null: the model's own patches, unless embedding=own dal=none"
            )
        if not self.needs_positions and self.shuffle == "none":
            raise ConfigError("defense.mjp.shuffle", shuffle, "patches, where nothing else is done")
        if not self.needs_positions and init_std is not None:
            raise ConfigError("defense.mjp.init_std", init_std, "null, where position embeddings are left alone")
        if self.class_token == "unknown" and self.embedding != "unknown":  # noqa: S105 - no password
            raise ConfigError("defense.mjp.class_token", class_token, "own, where there is no unknown embedding")
        self._layout: Layout | None = None
        self._mask: Mask | None = None  # of the batch at hand
        self._pending: Mask | None = None  # for the forward pass to come
        self._held: Mask | None = None  # for every forward pass, within `masking`
        self._round = 0
        self._counts = MaskingCounts()

    @property
    def needs_positions(self) -> bool:
        """It changes or regresses position embeddings, not pictures alone."""
        return self.embedding != "own" or self.dal != "none"

    @property
    def per_picture(self) -> bool:
        """It does no more than change each picture by itself, from draws that know none; see `defenses.privacy.dp_sgd`.

        `per=batch` too: what pictures share is drawn without them.
        """
        return not self.needs_positions

    def effects(self) -> tuple[Effect, ...]:
        same = self.ratio == 0.0 or self.probability == 0.0 or self.shuffle == "none"
        found: list[Effect] = [] if same else [TransformsImages(self.start_round)]
        found += [MasksPositions(UNKNOWN, self.start_round)] if self.embedding == "unknown" else []
        found += [AddsPositions(INDEX)] if self.embedding == "indexed" else []
        return (*found, *([] if self.dal == "none" else [AddsRegression(LOCALISER, self.dal_weight.at)]))

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Raises ConfigError for models without learnable position embeddings, unless only pictures are changed."""
        if self.needs_positions:
            position_embedding(model)
        self._layout = model_layout(model, self.patch)
        if self.needs_positions:
            self._add_parameters(model, self._layout)
        if self.embedding != "own":
            features = MaskedFeatures(model, self._take_mask, self.class_token == "unknown")  # noqa: S105
            model.forward_features = features  # type: ignore[assignment]
        return model

    def _add_parameters(self, model: nn.Module, layout: Layout) -> None:
        embedding = position_embedding(model)
        rng = torch.Generator().manual_seed(0)  # a fixed draw: every party builds the same model
        unknown = torch.randn(embedding.shape[-1], generator=rng)
        if self.init_std is not None:
            with torch.no_grad():
                embedding.copy_(torch.randn(embedding.shape, generator=rng) * self.init_std)
        if self.class_token == "unknown" and embedding.shape[1] == layout.tokens:  # noqa: S105
            raise ConfigError("defense.mjp.class_token", "unknown", "own: this model adds nothing to its class tokens")
        if self.embedding == "unknown":
            std = UNKNOWN_STD if self.init_std is None else self.init_std
            model.register_parameter(UNKNOWN, nn.Parameter((unknown * std).to(embedding)))
        elif self.embedding == "indexed":
            model.register_parameter(INDEX, nn.Parameter(torch.zeros_like(embedding)))
        if self.dal != "none":
            unit = self.dal_coordinates == "unit"
            localiser = Localiser(self.dal, embedding.shape[-1], layout.grid, unit)
            model.add_module(LOCALISER, localiser.to(embedding))

    def check(self, plan: Plan) -> None:
        names = list(plan.defenses)
        variants = [name for name, other in plan.defenses.items() if isinstance(other, MaskedJigsawPuzzle)]
        if len(variants) > 1:
            raise ConfigError("defense", f"[{', '.join(variants)}]", "one of them: each is a variant of mjp")
        place = list(plan.defenses.values()).index(self)
        for name, other in plan.defenses.items():
            by_example = any(isinstance(one, Clips) and one.per.startswith("example") for one in other.effects())
            if by_example and self.needs_positions:
                expected = f"embedding=own dal=none beside {name}: gradients of single pictures know no mask"
                raise ConfigError("defense.mjp.embedding", self.embedding, expected)
            later = name in names[place + 1 :]
            if later and type(other).transform_batch is not Defense.transform_batch:
                raise ConfigError("defense", f"[{', '.join(names)}]", f"{name} first: mjp masks what the model sees")
        warmup = self.dal_weight.warmup_rounds if self.dal != "none" and self.dal_weight.peak else 0
        for key, rounds in (("start_round", self.start_round), ("lambda_warmup_rounds", warmup)):
            if plan.server_round == 0 and rounds:
                expected = "0 for an update of round 0, as those of audits are: it would be none behind the defense"
                raise ConfigError(f"defense.mjp.{key}", rounds, expected)
        if self.needs_positions:
            position_embedding(plan.model)
        for name, other in plan.defenses.items():
            if self.embedding == "indexed" and _withholds(other, POSITION) and not _withholds(other, INDEX):
                expected = (
                    f"own or unknown beside {name}: the index embedding's gradient is the one that {name} withholds"
                )
                raise ConfigError("defense.mjp.embedding", self.embedding, expected)
            if self.dal != "none" and _holds_back_embeddings(other):
                expected = f"none beside {name}: the embeddings that it trains are never shared"
                if isinstance(other, Withhold) and plan.client.get("share") != "gradient":
                    expected += f" (or defense.{name}.mode=local: each client goes on from its own)"
                raise ConfigError("defense.mjp.dal", self.dal, expected)
        if self.dal != "none" and self.embedding != "unknown" and self.ratio > 0.0 and self.probability > 0.0:
            expected = "unknown beside dal and a mask (no row of Table 4), or ratio=0: no other tells what is regressed"
            raise ConfigError("defense.mjp.embedding", self.embedding, expected)
        shuffles_alone = self.ratio > 0 and self.shuffle == "patches" and not self.needs_positions
        if self._layout is not None and shuffles_alone and int(self.ratio * self._layout.tokens) < 2:
            _warn_of_identity(names[place], self.ratio, self._layout.tokens)

    def begin(self, turn: ClientRound) -> None:
        self._round, self._counts = turn.server_round, MaskingCounts()
        self._mask = self._pending = None

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        self._mask = self._pending = None
        if self._round < self.start_round or not self._chosen(rng):
            self._counts.skip()
            return batch
        images, mask = self.jigsaw(batch.images, rng)
        self._counts.add(mask)
        if mask.numpy().any():
            self._mask = self._pending = mask
        return replace(batch, images=images)

    def _chosen(self, rng: torch.Generator) -> bool:
        if self.probability in (0.0, 1.0):
            return self.probability == 1.0
        return float(torch.rand((), generator=rng, dtype=torch.float64)) < self.probability

    def jigsaw(
        self, images: Float[Tensor, "b c h w"], rng: torch.Generator, ratio: float | None = None
    ) -> tuple[Float[Tensor, "b c h w"], Bool[Tensor, "b tokens"]]:
        """Mask and shuffle pictures, whatever the round: x̃, to be evaluated within `masking`.

        An undefended model is measured by a `MaskedJigsawPuzzle(embedding="own")` that wrapped it, which leaves it as
        it is.

        Args:
            ratio: in place of the defense's own.
        """
        layout = self._layout_of(images)
        ratio = self.ratio if ratio is None else share("ratio", ratio)
        masks = blockwise_masks(len(images) if self.per == "image" else 1, layout.grid, ratio, self.min_block, rng)
        mask = masks.expand(len(images), -1)
        if self.shuffle == "none" or not masks.numpy().any():
            return images, mask
        images = shuffle_patches(images, jigsaw_order(masks, rng).expand(len(images), -1), layout.patch)
        if self.shuffle == "patches_and_pixels":
            order = pixel_order(len(masks), layout.patch, rng).expand(len(images), -1)
            images = shuffle_pixels(images, mask, order, layout.patch)
        return images, mask

    @contextmanager
    def masking(self, mask: Bool[Tensor, "b tokens"] | None) -> Iterator[None]:
        """In the block every forward pass takes its batch to have this mask: how x̃ is evaluated."""
        before, self._held = self._held, mask
        try:
            yield
        finally:
            self._held = before

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        """However often another defense asks for the batch's gradient, the model sees the batch with its mask.

        One that stands before it asks within this call, one behind it calls again.
        """
        self._pending = None
        with self.masking(self._mask):
            return compute(batch)

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        if self.dal == "none" or self._layout is None or (self._mask is not None and self._mask.numpy().all()):
            return None
        tokens = self._layout.tokens
        mask = torch.zeros(1, tokens, dtype=torch.bool) if self._mask is None else self._mask
        embedding = model.get_parameter(POSITION)
        loss: Tensor = model.get_submodule(LOCALISER)(embedding[0, -tokens:], unmasked_share(mask).to(embedding.device))
        self._counts.dal_losses.append(float(loss.detach()))
        return self.dal_weight.at(self._round) * loss

    def measurements(self) -> dict[str, float]:
        """In batches that were masked, and what share of all that was; the localisation loss before its weight."""
        counts = self._counts
        found = {
            "mask_ratio": counts.mask_ratio(),
            "empty_masks": counts.empty_masks(),
            "masked_batches": counts.masked_batches(),
        }
        return found if self.dal == "none" else {**found, "dal_loss": counts.dal_loss()}

    def _take_mask(self) -> Bool[Tensor, "b tokens"] | None:
        if self._held is not None:
            return self._held
        mask, self._pending = self._pending, None
        return mask

    def _layout_of(self, images: Tensor) -> Layout:
        height, width = images.shape[2:]
        if self.patch is not None:
            return square_patches(height, width, self.patch)
        if self._layout is None:
            raise RuntimeError("mjp learns the patch grid in wrap_model: call it first")
        if (height, width) != self._layout.size:
            raise RuntimeError(f"mjp was told of pictures of {self._layout.size} pixels, and saw {(height, width)}")
        return self._layout


@cache
def _warn_of_identity(name: str, ratio: float, tokens: int) -> None:
    """Once: it runs, and every image stays as it is."""
    logger.warning(
        "%s changes nothing: ratio=%g of %d patches is fewer than two, and one has none to change places with",
        name,
        ratio,
        tokens,
    )


def _holds_back_embeddings(defense: Defense) -> bool:
    """What the localisation makes of the position embeddings reaches no server, and is lost with the turn."""
    return _withholds(defense, POSITION) and not (isinstance(defense, Withhold) and defense.mode == "local")


def _withholds(defense: Defense, name: str) -> bool:
    """Frozen parameters aside, which nobody regresses."""
    if isinstance(defense, Withhold):
        return defense.mode != "frozen" and name in defense.names
    return isinstance(defense, WithholdPositionEmbedding) and name == POSITION
