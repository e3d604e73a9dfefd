"""`fedsim.observe`: what a client would share of given images, as the server sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clients.accumulation import check_accumulation
from clients.app import ClientRuntime
from clients.precision import check_precision
from defenses.base import Plan
from defenses.named import Named, chain_of
from fedsim.data.tensors import TensorImages
from fedsim.effects import SumsClients
from fedsim.errors import ConfigError
from fedsim.models import architecture_seed, own_architecture, training_mode_of
from fedsim.observation import Observation
from fedsim.settings.commands import LocalConfig
from fedsim.settings.composition import NamedFinetune, finetune_of
from fedsim.settings.groups import ClientSettings
from fedsim.settings.schema import parse, plain
from fedsim.update import State

SGD = "torch.optim.SGD"


def observe(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | Sequence[int],
    *,
    defense: Named | Sequence[Named] = (),
    finetune: NamedFinetune = "full",
    share: str = "gradient",
    batch_size: int | None = None,
    local_epochs: int = 1,
    local_steps: int | None = None,
    lr: float | int = 0.1,
    optimizer: Mapping[str, Any] | None = None,
    label_smoothing: float | int = 0.0,
    training_mode: bool | None = None,
    precision: str = "float32",
    augment: Sequence[Any] = (),
    max_grad_norm: float | int | None = None,
    micro_batch_size: int | None = None,
    no_decay: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    roles: Mapping[str, str] | None = None,
    seed: int = 0,
    server_round: int = 0,
    client: int = 0,
) -> Observation:
    """What a client would share of these images: its update as the server sees it, with all that the server knows.

    The client's own code runs: the same local training and defenses as in a federated run. The model stays as it is.

    Args:
        model: any module from [n,c,h,w] normalised images to [n,classes] logits.
        images: [n,c,h,w] in [0, 1].
        labels: [n] classes.
        defense: names of `conf/defense`, with settings as `{"mjp": {"ratio": 0.3}}`, or objects of your own.
        finetune: what is trained and shared: a name of `conf/finetune`, `{"lora": {"rank": 4}}`, or an object of your
            own; the rest stays as the model has it.
        share: `gradient` of one batch, or after local steps the `delta` of the weights or the `weights`.
        batch_size: images a step; None: all of them.
        local_epochs, local_steps: passes over the images, or a fixed number of steps (delta and weights).
        lr: of torch's SGD; another optimiser by `optimizer={"_target_": "torch.optim.Adam", "lr": 0.001}`.
        training_mode: `model.train()` or `model.eval()` while training; None: as the model is.
        precision: of forward and backward: `float32`, or autocast to `bfloat16` or `float16`.
        augment: torchvision's transforms on what the model sees, as `["RandomHorizontalFlip"]`, with settings as
            `[{"RandomCrop": {"size": 32, "padding": 4}}]`.
        max_grad_norm: L2 norm that each step's gradient is scaled down to; None: it is not.
        micro_batch_size: images that are computed at once, for memory; None: a step's batch.
        no_decay: the optimiser's `weight_decay` leaves biases, norms and what the model names alone.
        mean, std: normalisation per channel; None: `timm.create_model`'s, else none.
        roles: of a ViT whose parts have other names than timm's: parameter names of `patch_weight` (a Conv2d's),
            `pos_embed`, `class_token`.
        seed: of every random draw: the order of batches, defenses.
        server_round, client: what the observation is called by, and what draws follow beside the seed. Behind a defense
            that draws each call needs a `client` of its own, or rounds of one client a `server_round`: noise that two
            updates share is gone from their difference.

    Raises:
        ConfigError: an argument cannot work; it names the argument, its value and what would be right.

    >>> import fedsim, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    >>> seen = fedsim.observe(model, torch.rand(2, 3, 4, 4), [1, 3])
    >>> sorted(seen.update.tensors), seen.num_classes
    (['1.bias', '1.weight'], 5)
    """
    held = _held(images, labels)
    architecture = own_architecture(model, held_shape(held), None, mean, std, roles)
    _check_labels(held.labels, architecture.spec.num_classes)
    settings = _client(
        {
            "share": share,
            "batch_size": len(held) if batch_size is None else batch_size,
            "local_epochs": local_epochs,
            "local_steps": local_steps,
            "optimizer": {"_target_": SGD, "lr": lr} if optimizer is None else _own(optimizer),
            "label_smoothing": label_smoothing,
            "training_mode": training_mode_of(model) if training_mode is None else training_mode,
            "precision": precision,
            "augment": list(augment),
            "max_grad_norm": max_grad_norm,
            "micro_batch_size": micro_batch_size,
            "no_decay": no_decay,
        }
    )
    chain, described = chain_of(defense, settings.augment)
    config = LocalConfig(client=settings, seed=seed, defense=described, data={}, model={})
    recipe, drawn = finetune_of(finetune), architecture_seed(seed)
    defended = replace(architecture, wrappers=(chain,), seed=drawn, finetune=recipe)
    settings.check_optimizer()
    runtime = ClientRuntime(config, given=defended)
    recipe.check(runtime.model, architecture.image_shape, share)
    chain = runtime.defenses  # whose model it is: others know nothing of its parameters
    check_accumulation(settings, runtime.model, chain)
    check_precision(settings.precision, runtime.model)
    chain.check(Plan(runtime.model, plain(settings), {}, chain.defenses, architecture.image_shape, server_round))
    for name, one in chain.defenses.items():
        if any(isinstance(effect, SumsClients) for effect in one.effects()):
            expected = "left out: the server sees no single client's update behind it; fedsim.audit sums over several"
            raise ConfigError("defense", name, expected)
    whole = runtime.model.state_dict()
    state: State = {name: tensor.detach().cpu().clone() for name, tensor in whole.items() if name not in runtime.own}
    try:
        result = runtime.train(held, client, server_round)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        expected = "more images, larger ones, or model.eval(): BatchNorm cannot train on one value a channel"
        raise ConfigError("images", f"{len(held)} of {held_shape(held)}", expected) from error
    count = result.protocol.batch_size if settings.share == "gradient" else len(held)
    return runtime.onlooker.make(runtime.share(result, state, count, client, server_round), state)


def held_shape(held: TensorImages) -> tuple[int, ...]:
    """[C,H,W] of the images."""
    return tuple(held.images([0]).shape[1:])


def _held(images: Tensor, labels: Tensor | Sequence[int]) -> TensorImages:
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point() or not len(images):
        given = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ConfigError("images", given, "a floating-point tensor [n,c,h,w], n at least 1, of values in [0, 1]")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        expected = "values in [0, 1]: the model's normalisation is applied for you (mean=, std=)"
        raise ConfigError("images", f"{low:.3g} … {high:.3g}", expected)
    classes = torch.as_tensor(labels)
    if classes.shape != (len(images),) or classes.is_floating_point() or classes.dtype == torch.bool:
        expected = f"one whole number for each of {len(images)} images"
        raise ConfigError("labels", f"{classes.dtype} {tuple(classes.shape)}", expected)
    return TensorImages(images, classes.long())


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if strange := sorted({int(label) for label in labels if not 0 <= label < num_classes}):
        expected = f"classes from 0 to {num_classes - 1}: the model has {num_classes} outputs"
        raise ConfigError("labels", strange[0], expected)


def _own(settings: Any) -> Any:
    return dict(settings) if isinstance(settings, Mapping) else settings


def _client(given: Mapping[str, Any]) -> ClientSettings:
    share, steps, epochs = given["share"], given["local_steps"], given["local_epochs"]
    if share not in ("gradient", "delta", "weights"):
        raise ConfigError("share", share, "gradient, delta or weights")
    if share == "gradient" and (steps is not None or epochs != 1):
        key, value = ("local_steps", steps) if steps is not None else ("local_epochs", epochs)
        raise ConfigError(key, value, "share='delta' or 'weights' with it: a gradient is taken of one batch")
    return parse(ClientSettings, {**given, "scheduler": None, "device": "auto"})
