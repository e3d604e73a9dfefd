"""Soteria (Sun et al., CVPR 2021): the gradient of the classifier is taken from a pruned representation."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from defenses.base import Batch, BatchGradient, Defense, Plan
from defenses.mjp.defense import MaskedJigsawPuzzle
from defenses.settings import choice, number
from fedsim.effects import Effect, PrunesFeatures
from fedsim.errors import ConfigError
from fedsim.models.finetune.lora import LowRankLinear
from fedsim.models.roles import find_roles
from fedsim.update import State

PER = ("batch", "image")
FEATURES_AT_ONCE = 32
"""Backward passes of the Jacobian that run as one; more want more memory."""


class Soteria(Defense):
    """Features that the picture is most easily read from are zero in the gradient of the classifier's weight.

    The paper (section 4) looks for the representation r' that differs from r in few entries and whose picture is as
    far from X as can be; to first order that zeroes the entries with the largest |r_i|·‖(∂r_i/∂X)⁻¹‖, which is
    |r_i| / ‖∂r_i/∂X‖ with the pseudoinverse (the authors' code takes this ratio too). r' serves the defended layer's
    gradient alone: the loss, the bias and all other layers keep r, so whatever an attack reads from those stays.
    Balunović et al. (ICLR 2022) break the defence by leaving the defended layer out.

    The defended layer is the last linear one, each where there are several. r is its input and X the normalised
    picture, both of the very forward pass that gives the gradient. The Jacobian costs one backward pass for each
    feature. The authors sum ‖∂r_i/∂X‖ / r_i over a batch, where signed features cancel; here |r_i| / ‖∂r_i/∂X‖ is
    summed, which orders the features of one picture the same.

    Args:
        prune_rate: share of the features to prune, 0 to 1; their number is rounded.
        per: `batch`: one mask for all, so that pruned columns are zero (the authors' code); `image`: each picture's
            own features leave the mean (the paper's r'), which zeroes a column only where all agree.
    """

    repeatable = True

    def __init__(self, prune_rate: float = 0.6, per: str = "batch") -> None:
        self.prune_rate = number("defense.soteria.prune_rate", prune_rate, "0 to 1", lambda v: 0.0 <= v <= 1.0)
        self.per = choice("defense.soteria.per", per, PER)
        self._heads: tuple[str, ...] | None = None

    def effects(self) -> tuple[Effect, ...]:
        return () if self.prune_rate == 0.0 else (PrunesFeatures(),)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Raises ConfigError for models that do not end in a linear layer."""
        self._heads = find_roles(model).head_weights
        if not self._heads:
            raise ConfigError(
                "defense", "soteria", f"a model with a linear classifier; {type(model).__name__} has none"
            )
        return model

    def check(self, plan: Plan) -> None:
        trained = {name for name, parameter in plan.model.named_parameters() if parameter.requires_grad}
        for head in self._heads or ():
            if head not in trained:
                raise ConfigError("defense", "soteria", f"a classifier that is trained: {head} is not")
            layer = plan.model.get_submodule(head.rpartition(".")[0])
            if self.prune_rate > 0.0 and isinstance(layer, LowRankLinear):
                expected = "a list without the classifier beside soteria: its factors' gradients show pruned features"
                raise ConfigError("finetune.targets", head.split(".")[-2], expected)
        precision = plan.client.get("precision", "float32")
        if self.per == "image" and self.prune_rate > 0.0 and precision != "float32":
            raise ConfigError("client.precision", precision, "float32 beside defense.soteria.per=image")
        if self.per == "image" and self.prune_rate > 0.0:
            self._check_order(plan)

    def _check_order(self, plan: Plan) -> None:
        """What leaves the mean is reckoned of gradients as they were taken; a puzzle only gives the batch its mask."""
        own = next((name for name, defense in plan.defenses.items() if defense is self), "soteria")
        for name, other in takewhile(lambda one: one[1] is not self, plan.defenses.items()):
            if type(other).gradient is not Defense.gradient and not isinstance(other, MaskedJigsawPuzzle):
                expected = (
                    f"{own} first: with per=image it subtracts each picture's part of a gradient that {name} changes"
                )
                raise ConfigError("defense", f"[{', '.join(plan.defenses)}]", expected)

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        if self._heads is None:
            raise RuntimeError("soteria learns the name of the classifier in wrap_model: call it first")
        if self.prune_rate == 0.0:
            return compute(batch)
        images = batch.images.detach().requires_grad_()
        with ExitStack() as hooks:
            seen = {}
            for name in self._heads:
                seen[name] = _Head(images)
                head = model.get_submodule(name.rpartition(".")[0])
                hooks.enter_context(head.register_forward_hook(seen[name]))
            gradient = dict(compute(replace(batch, images=images)))
        for name, head_pass in seen.items():
            if name in gradient:
                gradient[name] = self._pruned(gradient[name], head_pass)
        return gradient

    def _pruned(self, weight_grad: Tensor, head: "_Head") -> Tensor:
        if head.scores is None or head.features is None or head.output_grad is None:
            raise RuntimeError("the classifier whose gradient is shared was not run with gradients")
        if self.per == "batch":
            keep = kept_features(head.scores.sum(dim=0, keepdim=True), self.prune_rate)
        else:
            keep = kept_features(head.scores, self.prune_rate)
            weight_grad = weight_grad - head.output_grad.T @ head.features.masked_fill(keep, 0.0)
        return weight_grad.masked_fill(~keep.any(dim=0), 0.0)


class _Head:
    """A forward hook on a classifier: its input's scores, and later the gradient of its output."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        self.features: Tensor | None = None
        self.scores: Tensor | None = None
        self.output_grad: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Sequence[Tensor], output: Tensor) -> None:
        if output.requires_grad:
            self.features = inputs[0].detach()
            self.scores = feature_scores(inputs[0], self._images)
            output.register_hook(self._keep)

    def _keep(self, output_grad: Tensor) -> None:
        self.output_grad = output_grad.detach()


def feature_scores(
    features: Float[Tensor, "batch width"], images: Float[Tensor, "batch c h w"], at_once: int = FEATURES_AT_ONCE
) -> Float[Tensor, "batch width"]:
    """|r_i| / ‖∂r_i/∂X‖₂ of each picture, whose graph is kept.

    A picture's features must depend on that picture alone (BatchNorm in training mode mixes them a little). A feature
    of 0 scores 0; any other that no pixel moves scores inf.
    """
    norms = torch.empty_like(features)
    for chunk in torch.arange(features.shape[1], device=features.device).split(at_once):
        unit = torch.zeros(len(chunk), *features.shape, dtype=features.dtype, device=features.device)
        unit[torch.arange(len(chunk), device=features.device), :, chunk] = 1.0
        (rows,) = torch.autograd.grad(features, images, unit, retain_graph=True, is_grads_batched=True)
        norms[:, chunk] = rows.flatten(2).norm(dim=2).T.to(norms)
    sizes = features.detach().abs()
    return torch.where(sizes == 0.0, 0.0, sizes / norms.detach())


def kept_features(scores: Float[Tensor, "rows width"], prune_rate: float) -> Bool[Tensor, "rows width"]:
    """False for the round(prune_rate·width) largest scores of each row; the first of equals goes first."""
    count = round(prune_rate * scores.shape[1])
    largest = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.ones_like(scores, dtype=torch.bool).scatter(1, largest, False)
