"""From a resolved configuration to objects; workers repeat it and get the same objects."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from fedsim.data import FederatedData, Source
from fedsim.data.federated import CACHE_BYTES
from fedsim.data.pictures import one_line
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.models.finetune import FULL, Finetune
from fedsim.settings.commands import LocalConfig, config_of
from fedsim.settings.components import TARGET, build_component, check_arguments, check_settings
from fedsim.settings.options import option

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Config = dict[str, Any]
NamedFinetune = str | Mapping[str, Any] | Finetune


def image_side(model: Mapping[str, Any]) -> int:
    """The side in pixels of the pictures that the configured model reads, without building it.

    Raises:
        ConfigError: timm has no such model, it reads no square pictures of three channels, or a setting is none of a
            model's.
    """
    classes = 1 if model.get("num_classes") is None else model["num_classes"]
    check_arguments("model", {**model, "num_classes": classes}, ModelSpec)
    if classes < 1:
        raise ConfigError("model.num_classes", classes, "at least 1, or null for as many as the data have")
    for name, value in model.items():
        if isinstance(value, dict) != (name == "kwargs"):
            wanted = "arguments of the timm constructor" if name == "kwargs" else "one value, not a group of settings"
            raise ConfigError(f"model.{name}", value, wanted)
    for key in ("num_classes", "img_size", "patch_size"):
        if key in (kwargs := model.get("kwargs") or {}):
            raise ConfigError(f"model.kwargs.{key}", kwargs[key], f"left out: model.{key} is a setting of its own")
    ModelSpec.from_dict({**model, "num_classes": 1}).check()
    from fedsim.models.registry import timm

    default, side = timm.get_pretrained_cfg(model["name"]), model.get("img_size")
    channels, height, width = default.input_size if default is not None else (3, 224, 224)
    if (model.get("kwargs") or {}).get("in_chans", channels) != 3:
        raise ConfigError("model.name", model["name"], f"a model of pictures of 3 channels, not of {channels}")
    if side is None and height != width:
        expected = f"a model of square pictures, not of {height}x{width}: model.img_size=SIDE, where it reads others"
        raise ConfigError("model.name", model["name"], expected)
    return int(width if side is None else side)


def build_source(data: Mapping[str, Any]) -> Source:
    """The configured source, unread.

    Raises:
        ConfigError: a setting of `data` that it does not have, or of another type.
    """
    return build_component("data", data, Source)  # type: ignore[type-abstract]


def build_data(
    given: LocalConfig | Mapping[str, Any],
    divided: Sequence[list[int]] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> FederatedData:
    """The configured source, split among clients where the configuration has a partition.

    Args:
        divided, cache_bytes: as in `FederatedData`: a worker is told, and imports no partitioner.

    Raises:
        ConfigError: a setting of `data` or `partition` that their class does not have, or of another type.
    """
    config, partitioner = config_of(given), None
    if config.partition and divided is None:
        partitioner = _partitioner(config.partition)
    return FederatedData(build_source(config.data), partitioner, image_side(config.model), cache_bytes, divided)


def _partitioner(settings: Mapping[str, Any]) -> "Partitioner":
    from flwr_datasets.partitioner import Partitioner

    check_settings("partition", settings)
    alpha = settings.get("alpha")
    if isinstance(alpha, int | float) and not 0 < alpha < math.inf:
        raise ConfigError("partition.alpha", alpha, "a positive number")
    try:
        made = instantiate(settings)
    except InstantiationException as error:
        name, reason = str(settings[TARGET]).rpartition(".")[2], one_line(error.__cause__ or error)
        raise ConfigError("partition", name, fault=reason) from error
    if not isinstance(made, Partitioner):
        expected = "a subclass of flwr_datasets.partitioner.Partitioner"
        raise ConfigError(f"partition.{TARGET}", settings[TARGET], expected)
    return made


def build_finetune(settings: Mapping[str, Any]) -> Finetune:
    """The configured recipe; everything is trained where there is none.

    Raises:
        ConfigError: a setting that it does not have, of another type, or that it refuses.
    """
    return build_component("finetune", settings, Finetune) if settings else FULL


def finetune_of(named: NamedFinetune) -> Finetune:
    """A recipe as a caller in Python names it: as in `conf/finetune`, with settings, or an object.

    Raises:
        ConfigError: there is no such recipe, or it refuses its settings.
    """
    if isinstance(named, Finetune):
        return named
    given = {named: {}} if isinstance(named, str) else named
    if not isinstance(given, Mapping) or len(given) != 1:
        raise ConfigError("finetune", named, "a name of conf/finetune, {name: settings}, or a subclass of Finetune")
    ((name, changes),) = given.items()
    return build_finetune(option("finetune", name, changes))


def build_spec(model: Mapping[str, Any], data: FederatedData) -> ModelSpec:
    """The configured model; it has a class for each of the data's unless the configuration says otherwise.

    Raises:
        ConfigError: fewer classes than the data have.
    """
    classes = data.num_classes if model.get("num_classes") is None else model["num_classes"]
    if classes < data.num_classes:
        raise ConfigError("model.num_classes", classes, f"at least {data.num_classes}, the classes of the data")
    return ModelSpec.from_dict({**model, "num_classes": classes})
