"""What of a model does not go with the clients that would train it."""

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedsim.data import FederatedData
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError
from fedsim.settings.commands import AuditConfig, FederatedConfig, JobConfig
from fedsim.settings.components import layers
from fedsim.settings.groups import ClientSettings
from fedsim.settings.local.optimizers import check_lasts


def check_trainable(
    config: JobConfig,
    model: nn.Module,
    data: FederatedData,
    image_shape: Sequence[int],
    simulated: bool = True,
    withheld: Collection[str] = (),
) -> None:
    """Raises ConfigError for what clients could not train, or would train to no effect.

    Args:
        withheld: names of the parameters and buffers that defenses keep on the client.
        simulated: clients have these settings and these images; SuperNodes have their own.
    """
    if isinstance(config, FederatedConfig):
        _refuse_tied(config, model)
        _refuse_bare_statistics(config, model, withheld)
    if not simulated:
        return
    sizes = _images(config, data)
    if sizes:
        _check_steps(config.client, max(sizes))
    if config.client.training_mode and any(isinstance(module, _BatchNorm) for module in model.modules()):
        _refuse_lone_images(config, model, sizes, image_shape)


def _images(config: JobConfig, data: FederatedData) -> list[int]:
    """Of each client; none where nobody trains."""
    if isinstance(config, FederatedConfig):
        return data.partition_sizes()[: config.num_clients]  # a natural partition may have parts of nobody
    return [config.audit.batch_size] if isinstance(config, AuditConfig) and config.observation is None else []


def _check_steps(client: ClientSettings, images: int) -> None:
    """Of the client that has most."""
    if client.share != "gradient":
        of_epoch = ceil(images / client.batch_size)
        steps = client.local_epochs * of_epoch if client.local_steps is None else client.local_steps
        check_lasts("client", client.optimizer, client.scheduler, steps, f"a client of {images} images")


def _refuse_tied(config: FederatedConfig, model: nn.Module) -> None:
    """Messages carry each trained tensor by one name, and the old values under another would win."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first != name and parameter.requires_grad:
            expected = f"a model whose parameters have one name each: {first} and {name} are one tensor"
            raise ConfigError("model.name", config.model["name"], expected)


def _refuse_bare_statistics(config: FederatedConfig, model: nn.Module, withheld: Collection[str]) -> None:
    """Noise makes no statistics of a model: they would stay as the server sent them, and the model be evaluated so.

    Those that a defense withholds were chosen to stay.
    """
    tracked = (n for n, layer in model.named_modules() if isinstance(layer, _NormBase) and layer.track_running_stats)
    shared = (n for n in tracked if any(f"{n}.{one}" not in withheld for one in ("running_mean", "running_var")))
    if not config.client.training_mode or (name := next(shared, None)) is None:
        return
    for key, strategy in layers(config.strategy):
        if noise := strategy.get("noise_multiplier"):
            expected = (
                "0, client.training_mode=false, defense=[withhold] with patterns that name the running statistics,"
            )
            expected += f" or a model without: those of {name} get no noise"
            raise ConfigError(f"{key}.noise_multiplier", noise, expected)


def _refuse_lone_images(config: JobConfig, model: nn.Module, sizes: Sequence[int], image_shape: Sequence[int]) -> None:
    """A batch of one image, where the last maps are so small that BatchNorm reads one value a channel."""
    client = config.client
    key, given = "client.batch_size", client.batch_size
    if isinstance(config, AuditConfig) and sizes == [1]:
        key, given = "audit.batch_size", 1
    if not _any_alone(sizes, client) or not _reads_one_value(model, image_shape):
        return
    larger = range(client.batch_size + 1, max(sizes) + 3)
    fitting = [size for size in larger if not _any_alone(sizes, replace(client, batch_size=size))]
    enough = "2" if key == "audit.batch_size" else f"{fitting[0]}" if fitting else ""
    expected = f"{enough}, larger images, or " if enough else "of clients with larger images, or "
    why = "of an image alone BatchNorm would read one value a channel, on which it cannot train"
    raise ConfigError(key, given, f"{expected}client.training_mode=false: {why}")


def _any_alone(sizes: Sequence[int], client: ClientSettings) -> bool:
    """Whether one of the batches of clients with so many images holds a single one."""
    return any(_is_alone(size, client) for size in sizes if size)


def _is_alone(size: int, client: ClientSettings) -> bool:
    if min(size, client.batch_size) == 1:
        return True
    of_epoch = ceil(size / client.batch_size)
    reached = client.share != "gradient" and (client.local_steps is None or client.local_steps >= of_epoch)
    return reached and size % client.batch_size == 1


def _reads_one_value(model: nn.Module, image_shape: Sequence[int]) -> bool:
    """Whether BatchNorm refuses an image alone; the model stays as it is."""
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    image = torch.zeros(1, *image_shape, dtype=like.dtype, device=like.device)
    try:
        with torch.no_grad(), seeded_globals(0, "model-noise"):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        return True
    return False
