"""Local training: from the global state and a client's pictures to what it would share."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from clients.compiled import Forward
from clients.local_model import LocalModel
from clients.precision import LossScale, autocast
from defenses.base import Batch, Defense
from fedsim.data import ImageSet
from fedsim.errors import ConfigError
from fedsim.float32 import full_float32
from fedsim.ground_truth import GroundTruth
from fedsim.models import Normaliser
from fedsim.models.buffers import Buffers
from fedsim.settings.groups import ClientSettings
from fedsim.settings.local.limits import MOST_STEPS
from fedsim.update import LocalProtocol, Precision, State, Update

Rate = Callable[[int, int], float]
"""What multiplies the learning rate of a local step, of how many."""


@dataclass(frozen=True)
class LocalResult:
    """What local training gave: a gradient or a change of the weights, by parameter name.

    Attributes:
        tensors: beside a change of the weights also that of the floating-point buffers; empty where nobody wants it.
        buffers: values of the floating-point buffers afterwards (BatchNorm's running statistics).
        loss: mean over the steps that were taken; over all where none was.
        skipped: local steps that were not taken, as their gradients were finite at no scale of float16; the protocol
            knows nothing of them.
    """

    tensors: State
    buffers: State
    protocol: LocalProtocol
    loss: float
    truth: GroundTruth | None
    skipped: int = 0

    def as_update(self, share: str, num_examples: int) -> Update:
        """What defenses change before it is shared: a gradient, or else a delta; `weights` are made from it later.

        Buffers stand apart, so that no defense or attack takes their values for a gradient: for `delta` their change,
        else their new values.
        """
        tensors = {name: tensor for name, tensor in self.tensors.items() if name not in self.buffers}
        buffers = {name: self.tensors[name] if share == "delta" else after for name, after in self.buffers.items()}
        return Update(tensors, "gradient" if share == "gradient" else "delta", num_examples, buffers=buffers)


def batches(
    count: int, batch_size: int, epochs: int, steps: int | None, rng: torch.Generator
) -> Iterator[Int64[Tensor, " batch"]]:
    """Indices of each local step's batch, drawn without replacement within an epoch."""
    produced = 0
    total = _steps(count, batch_size, epochs, steps)
    while produced < total:
        order = torch.randperm(count, generator=rng)
        for chunk in order.split(batch_size):
            if produced == total:
                return
            yield chunk
            produced += 1


@torch.no_grad()
def set_gradients(
    trainable: Mapping[str, nn.Parameter],
    gradients: State,
    start: State,
    proximal_mu: float,
    max_grad_norm: float | None,
) -> None:
    """Hand an optimiser what a local step goes by: the gradients and the drift from `start` of FedProx's term, clipped.

    Scaled down in place, all together.
    """
    for name, parameter in trainable.items():
        if parameter.grad is not (gradient := gradients.get(name)):
            parameter.grad = gradient
        if proximal_mu:
            drift = proximal_mu * (parameter - start[name])
            parameter.grad = drift if parameter.grad is None else parameter.grad + drift
    if max_grad_norm is not None:
        clip_grad_norm_(trainable.values(), max_grad_norm)


def _steps(count: int, batch_size: int, epochs: int, steps: int | None) -> int:
    return steps if steps is not None else epochs * -(-count // batch_size)


def check_steps(settings: ClientSettings, count: int) -> None:
    """Raises ConfigError: a client of so many pictures would take more local steps than a reply may name."""
    steps = _steps(count, settings.batch_size, settings.local_epochs, settings.local_steps)
    if settings.share != "gradient" and steps > MOST_STEPS:
        name = "local_epochs" if settings.local_steps is None else "local_steps"
        expected = f"few enough for {MOST_STEPS:,} local steps a round, not {steps:,}"
        raise ConfigError(f"client.{name}", getattr(settings, name), expected)


@full_float32()
def train_locally(
    local: LocalModel,
    pictures: ImageSet,
    settings: ClientSettings,
    defense: Defense,
    normaliser: Normaliser,
    rng: torch.Generator,
    defense_rng: torch.Generator,
    proximal_mu: float = 0.0,
    audit: bool = False,
    rate: Rate | None = None,
    changes: bool = True,
) -> LocalResult:
    """Take the gradient of one batch, or train for the configured steps; the model is left as trained.

    Args:
        rng: of the batches' order, which is the same whatever a defense draws.
        defense_rng: of the defense. Where no second order follows the first it goes on with `rng` instead.
        audit: keep what the model saw, for the scorer.
        proximal_mu: weight of FedProx's (μ/2)·‖w - w_global‖².
        rate: of each local step, where there is a schedule.
        changes: False: the trained weights alone are of use, not what was added to them.
    """
    local.set_mode(settings.training_mode)
    one_gradient = settings.share == "gradient"
    proximal_mu = 0.0 if one_gradient else proximal_mu  # at the global weights the term has no gradient
    model, trainable = local.model, local.trained
    changes = changes and not one_gradient
    start = local.keep() if changes or proximal_mu else {}
    apart = local.undecayed if settings.no_decay else ()
    optimizer, scheduler = (None, None) if one_gradient else local.optimisers(settings, rate is not None)
    steps = 1 if one_gradient else settings.local_steps
    seen = _Seen()
    sizes: list[int] = []
    losses: list[Losses] = []
    skipped: list[Losses] = []
    lrs: list[float] = []
    computed = settings.precision, settings.micro_batch_size, local.forward
    gradient_of = LossGradient(model, defense, settings.label_smoothing, local.parameters, *computed)
    plan = len(pictures), settings.batch_size, settings.local_epochs, steps
    total = _steps(*plan)
    if rate is not None and optimizer is not None:
        scheduler = LambdaLR(optimizer, lambda step: rate(step, total))
    one_order = total <= -(-len(pictures) // settings.batch_size)
    draws = rng if one_order else defense_rng
    for indices in batches(*plan, rng):
        private, labels = pictures.images(indices), pictures.labels[indices]
        batch = defense.transform_batch(Batch(normaliser(private), labels), draws)
        gradients = defense.gradient(model, batch, gradient_of, draws)
        sizes.append(len(batch.labels))
        taken = gradient_of.ended_finite() or one_gradient
        (losses if taken else skipped).append(gradient_of.take_losses())
        if not taken:
            continue
        if proximal_mu or settings.clip_norm is not None or not gradient_of.left(gradients):
            set_gradients(trainable, gradients, start, proximal_mu, settings.clip_norm)
        if audit:
            names = [pictures.ids[int(i)] for i in indices]
            seen.add(_as_seen(normaliser, batch.images, private), private, labels, names)
        if optimizer is not None:
            lrs.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            del gradients
            if scheduler is not None:
                scheduler.step()
    local.all_buffers.settle()
    if one_gradient:
        tensors = {n: torch.zeros_like(p) if p.grad is None else p.grad.detach() for n, p in trainable.items()}
    else:
        tensors = local.change() if changes else {}
    return LocalResult(
        tensors={name: tensor.cpu() for name, tensor in tensors.items()},
        buffers={name: tensor.cpu() for name, tensor in _copied(local.buffers).items()},
        protocol=_protocol(settings, optimizer, lrs, sizes[0], proximal_mu, apart),
        loss=sum(map(mean_loss, losses or skipped)) / len(losses or skipped),
        truth=seen.truth() if audit else None,
        skipped=len(skipped),
    )


Losses = list[tuple[Tensor, int]]
"""Mean losses of batches, each with its number of pictures. Left where they are: to read one waits for the device."""


def mean_loss(losses: Losses) -> float:
    """Mean classification loss of all pictures; NaN where there were none."""
    if len(losses) == 1:
        return losses[0][0].item()
    counts = sum(count for _, count in losses)
    return sum(loss.item() * count for loss, count in losses) / counts if losses else math.nan


class LossGradient:
    """A client's loss, differentiated; `defenses.base.BatchGradient`.

    Args:
        parameters: the model's, by name, where somebody has them already.
        micro_batch_size: images that the model sees at once, for memory; the gradient is the batch's, but for rounding.
        forward: what the batch goes through; None: the model itself.
    """

    def __init__(
        self,
        model: nn.Module,
        defense: Defense,
        label_smoothing: float,
        parameters: Mapping[str, nn.Parameter] | None = None,
        precision: Precision = "float32",
        micro_batch_size: int | None = None,
        forward: Forward | None = None,
    ) -> None:
        self._losses: Losses = []
        self._left: State | None = None
        self._forward = model if forward is None else forward
        self._model, self._defense, self._label_smoothing = model, defense, label_smoothing
        self._parameters = dict(model.named_parameters()) if parameters is None else parameters
        self._precision, self._micro_batch_size = precision, micro_batch_size
        self.scale = LossScale(precision)
        self._finite = True

    def __call__(self, batch: Batch) -> State:
        return self._within_range(partial(self._together, batch))

    def ended_finite(self) -> bool:
        """End a step: whether all of its gradients were finite."""
        finite, self._finite = self._finite, True
        return finite

    def _within_range(self, compute: Callable[[], State]) -> State:
        """Gradients at a scale at which float16 does not overflow, halved until there is one.

        They are of one batch, from the buffers as they were: GradScaler would leave the step out, and a client of few
        steps learn nothing. What is finite at no scale did not overflow for it, so the scale stays as it was.
        """
        scale, losses = self.scale.value, len(self._losses)
        before = Buffers(self._model) if self.scale.needed else None
        gradients = compute()
        while not (finite := self.scale.step()):
            if before is not None:
                before.restore()
            if self.scale.value < 1.0:
                break
            del self._losses[losses:]
            gradients = compute()
        if not finite:
            self._finite, self.scale.value = False, scale
        return gradients

    def _together(self, batch: Batch) -> State:
        self._left = None
        for parameter in self._parameters.values():
            parameter.grad = None
        pieces = list(batch.pieces(self._micro_batch_size))
        for part in pieces:
            with autocast(self._model, self._precision):
                loss = classification_loss(self._forward, part, self._label_smoothing)
                self._losses.append((loss.detach(), len(part.labels)))
                extra = self._defense.extra_loss(self._model, part)
                whole = loss if extra is None else loss + extra
            if len(pieces) > 1:
                whole = whole * (len(part.labels) / len(batch.labels))
            self.scale.scaled(whole).backward()
        self._left = {name: gradient for name, p in self._parameters.items() if (gradient := p.grad) is not None}
        return self.scale.unscaled(dict(self._left))

    def left(self, gradients: State) -> bool:
        """Whether these are the gradients as the last call left them with the parameters."""
        own = self._left
        if own is None or gradients.keys() != own.keys():
            return False
        return all(gradient is own[name] for name, gradient in gradients.items())

    def per_example(self, batch: Batch) -> State:
        return self._within_range(partial(self._each, batch))

    def _each(self, batch: Batch) -> State:
        trainable = {name: p.detach() for name, p in self._parameters.items() if p.requires_grad}

        def loss_of_one(parameters: State, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            call = partial(functional_call, self._model, parameters)
            scores = call((image[None],))
            loss = F.cross_entropy(scores, label[None].to(scores.device), label_smoothing=self._label_smoothing)
            return self.scale.scaled(loss), loss

        each = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        buffers = Buffers(self._model)
        # The fused kernels have no batching rule.
        with sdpa_kernel(SDPBackend.MATH), autocast(self._model, self._precision):
            gradients, losses = each(trainable, batch.images, batch.labels)
        buffers.restore()  # what has taken the place of one is no tensor outside of vmap
        self._losses.append((losses.mean(), len(batch.labels)))
        return self.scale.unscaled(dict(gradients))

    def take_losses(self) -> Losses:
        """Of the batches differentiated since the last call."""
        losses, self._losses = self._losses, []
        return losses


def _as_seen(normaliser: Normaliser, inputs: Tensor, private: Tensor) -> list[Tensor]:
    """What the model saw, in float64: the client's own image where nothing changed it, whatever its input rounds to."""
    plain = normaliser(private)
    sides = zip(inputs, plain, normaliser.inverse(inputs), private, strict=True)
    return [own.cpu().double() if torch.equal(one, as_is) else back for one, as_is, back, own in sides]


class _Seen:
    """The different pictures that the model saw: one that comes again unchanged counts once."""

    def __init__(self) -> None:
        self._pictures: dict[tuple[str, int, bytes], tuple[Tensor, Tensor]] = {}

    def add(self, images: Sequence[Tensor], private: Tensor, labels: Tensor, ids: list[str]) -> None:
        for image, original, label, name in zip(images, private, labels.tolist(), ids, strict=True):
            digest = hashlib.sha256(image.numpy().tobytes()).digest()
            self._pictures.setdefault((name, label, digest), (image, original))

    def truth(self) -> GroundTruth | None:
        """None where no step was taken."""
        if not self._pictures:
            return None
        labels = torch.tensor([label for _, label, _ in self._pictures])
        images, private = (torch.stack(list(column)) for column in zip(*self._pictures.values(), strict=True))
        return GroundTruth(images, labels, tuple(n for n, _, _ in self._pictures), private)


def classification_loss(forward: Forward, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Mean cross-entropy of the batch."""
    scores = forward(batch.images)
    return F.cross_entropy(scores, batch.labels.to(scores.device), label_smoothing=label_smoothing)


def _copied(tensors: Mapping[str, Tensor]) -> State:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _protocol(
    settings: ClientSettings,
    optimizer: torch.optim.Optimizer | None,
    lrs: list[float],
    batch_size: int,
    proximal_mu: float,
    apart: tuple[str, ...],
) -> LocalProtocol:
    defaults = {} if optimizer is None else optimizer.defaults
    if optimizer is not None and not lrs:
        lrs = [0.0]  # every step was skipped: a protocol has one at least
    named = "none" if optimizer is None else type(optimizer).__name__.lower()
    betas, eps = defaults.get("betas", (0.9, 0.999)), defaults.get("eps")
    return LocalProtocol(
        batch_size=batch_size,
        steps=max(1, len(lrs)),
        optimizer="adamw" if defaults.get("decoupled_weight_decay") and named == "adam" else named,
        lrs=tuple(lrs),
        momentum=float(defaults.get("momentum", 0.0)),
        dampening=float(defaults.get("dampening", 0.0)),
        nesterov=bool(defaults.get("nesterov", False)),
        betas=(float(betas[0]), float(betas[1])),
        eps=float(eps) if isinstance(eps, int | float) else 1e-8,  # Adafactor has two
        weight_decay=float(defaults.get("weight_decay", 0.0)),
        proximal_mu=proximal_mu,
        label_smoothing=settings.label_smoothing,
        training_mode=settings.training_mode,
        precision=settings.precision,
        max_grad_norm=settings.clip_norm,
        micro_batch_size=settings.micro_batch_size,
        undecayed=apart,
        amsgrad=bool(defaults.get("amsgrad", False)),
    )
