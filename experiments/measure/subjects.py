"""The models to measure: finished runs, or one model with its weights."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from defenses.base import DefenseChain
from defenses.compose import build_chain
from experiments.cli.places import find_runs
from fedsim.data import FederatedData, ImageSet
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.models import Architecture, Normaliser, ViTRoles, architecture_seed, find_roles, load_checkpoint
from fedsim.report.compare.settings import flatten
from fedsim.settings.commands import MeasureConfig
from fedsim.settings.composition import Config, build_finetune, build_source, build_spec, image_side

HOUSEKEEPING = (
    "run_dir",
    "simulation",
    "ray",
    "tracker",
    "observe",
    "attack",
    "audit",
    "evaluate_every",
    "checkpoint_every",
    "round_timeout",
    "resume",
    "resume_every_seconds",
)
"""Settings that no weight depends on."""

DIVIDING = ("seed", "test_fraction", "auxiliary_fraction", "train_split", "test_split", "verify", "cache_dir")
"""Settings of data that no picture and no id depends on."""


@dataclass(frozen=True)
class Pictures:
    """Test pictures, in an order that depends on their names and the seed alone."""

    images: ImageSet
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        return self.images.labels

    def batches(self, size: int) -> Iterable[Float32[Tensor, "b 3 h w"]]:
        for start in range(0, len(self), size):
            yield self.images.images(range(start, min(start + size, len(self))))


@dataclass(frozen=True)
class Origin:
    """Where a model comes from; without a run, `folder` and `server_round` are None."""

    config: Config
    folder: Path | None
    weights: Path | None
    server_round: int | None


@dataclass(frozen=True)
class Subject:
    """One model and the pictures that it is measured on.

    Attributes:
        name: what it is called in tables; runs of one name differ in their seeds alone.
    """

    name: str
    origin: Origin
    model: nn.Module
    defenses: DefenseChain
    roles: ViTRoles
    normalise: Normaliser
    pictures: Pictures


class ImageShelf:
    """Test pictures by data settings and size: runs that share them load them once."""

    def __init__(self, num_images: int | None, seed: int) -> None:
        self._num_images, self._seed = num_images, seed
        self._data: dict[str, FederatedData] = {}
        self._pictures: dict[str, Pictures] = {}

    def data(self, settings: Config, side: int) -> FederatedData:
        key = json.dumps([settings, side], sort_keys=True)
        if key not in self._data:
            self._data[key] = FederatedData(build_source(settings), None, side)
        return self._data[key]

    def pictures(self, settings: Config, side: int) -> Pictures:
        """The test set, or `num_images` of it.

        Raises:
            ConfigError: the data set aside no test pictures.
        """
        key = json.dumps([settings, side], sort_keys=True)
        if key not in self._pictures:
            data = self.data(settings, side)
            test = data.test
            if len(test) == 0:
                raise ConfigError("data.test_fraction", settings.get("test_fraction"), "above 0: tests need pictures")
            by_name = sorted(range(len(test)), key=lambda position: test.ids[position])
            order = torch.randperm(len(test), generator=torch_generator(self._seed, "measure")).tolist()
            chosen = [by_name[place] for place in order[: self._num_images]]
            self._pictures[key] = Pictures(test.subset(chosen), data.class_names)
        return self._pictures[key]


def load_subjects(config: MeasureConfig) -> list[Subject]:
    """Everything that is to be measured, in the order given.

    Raises:
        ConfigError: a folder holds no finished run and no round is chosen, weights do not fit, or there is nothing to
            measure.
    """
    origins = [_origin(folder, config.measure.round) for folder in _folders(config.runs)]
    if origins and config.defense:
        raise ConfigError("defense", f"[{','.join(config.defense)}]", "[] beside runs: a run has its own")
    if not origins and config.measure.round is not None:
        raise ConfigError("measure.round", config.measure.round, "null without runs: a model has no rounds")
    if config.model:
        if origins:
            raise ConfigError("model.name", config.model.get("name"), "no model beside runs: a run has its own")
        if not config.data:
            raise ConfigError("data", None, "the data to measure a model on, as in data=imagefolder data.path=DIR")
        settings = {key: getattr(config, key) for key in ("model", "data", "defense", "seed")}
        given = config.model.get("checkpoint")
        origins = [Origin(settings, None, Path(given).expanduser() if given else None, None)]
    elif not origins:
        raise ConfigError("runs", "[]", "folders of fedsim runs, as in runs=[DIR,DIR], or a model: model=vit_small")
    shelf = ImageShelf(config.measure.num_images, config.seed)
    names = _names([origin.config for origin in origins], config.names)
    return [
        _load(name, origin, config.data or origin.config["data"], shelf, config.device)
        for name, origin in zip(names, origins, strict=True)
    ]


def _folders(runs: Sequence[Any]) -> list[Path]:
    """Raises ConfigError: one of them is given twice."""
    folders = [found for given in runs for found in find_runs(Path(str(given)).expanduser())]
    whole = [folder.resolve() for folder in folders]
    if twice := next((folder for place, folder in enumerate(whole) if folder in whole[:place]), None):
        raise ConfigError("runs", twice, "given once: a run is no repetition of itself")
    return folders


def find_checkpoint(folder: Path, server_round: int | None) -> Path:
    """The checkpoint of a round, or the last one.

    Raises:
        ConfigError: there is none, or one whose name says no round.
    """
    found = sorted((folder / "checkpoints").glob("round-*.safetensors"), key=round_of)
    if not found:
        raise ConfigError("runs", folder, "a run with a checkpoint: this one was not finished")
    if server_round is None:
        return found[-1]
    for path in found:
        if round_of(path) == server_round:
            return path
    kept = ", ".join(str(round_of(path)) for path in found)
    raise ConfigError("measure.round", server_round, f"one that {folder} kept a checkpoint of: {kept}")


def round_of(checkpoint: Path) -> int:
    number = checkpoint.stem.rpartition("-")[2]
    if not number.isdecimal():
        raise ConfigError("runs", checkpoint, "a checkpoint named round-N.safetensors")
    return int(number)


def _origin(folder: Path, server_round: int | None) -> Origin:
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or not all(key in config for key in ("model", "data", "seed")):
        raise ConfigError("runs", folder, "a folder of a fedsim run: its config.yaml is not a run's")
    checkpoint = find_checkpoint(folder, server_round)
    last, rounds = round_of(checkpoint), config.get("num_rounds")
    if server_round is None and isinstance(rounds, int) and last < rounds:
        fault = f"its last checkpoint is of round {last} of {rounds}: finish it, or measure.round={last} for all"
        raise ConfigError("runs", folder, fault=fault)
    # Every weight is in the checkpoint: what the run started from may be gone.
    config["model"] = {**config["model"], "pretrained": False}
    return Origin(config, folder, checkpoint, last)


def _load(name: str, origin: Origin, data: Config, shelf: ImageShelf, device: str) -> Subject:
    run = {**origin.config, "model": {**origin.config["model"], "checkpoint": None, "checkpoint_head": True}}
    side = image_side(run["model"])
    images = shelf.pictures(data, side)
    held = shelf.data(run["data"], side)
    spec = build_spec(run["model"], held)
    if len(images.class_names) > spec.num_classes:
        expected = f"data of at most {spec.num_classes} classes, as many as {name} tells apart"
        raise ConfigError("data", f"{len(images.class_names)} classes", expected)
    if data != run["data"]:
        _check_other(name, images, held, data, run["data"])
    defenses = build_chain(run.get("defense"))
    finetune = build_finetune(run.get("finetune") or {})
    model = Architecture(spec, (defenses,), architecture_seed(run["seed"]), finetune).build()
    if origin.weights is not None:
        # After the defenses: they add parameters of their own.
        _read(model, origin.weights, "model.checkpoint" if origin.folder is None else "runs")
    model = model.to(_device(device)).eval().requires_grad_(False)
    return Subject(name, origin, model, defenses, find_roles(model), Normaliser(model), images)


def _check_other(name: str, images: Pictures, held: FederatedData, data: Config, own: Config) -> None:
    """Raises ConfigError: data of other classes than the run's, or test pictures that the run trained on."""
    pairs = zip_longest(images.class_names, held.class_names[: len(images.class_names)])
    if odd := next(((place, *pair) for place, pair in enumerate(pairs) if pair[0] != pair[1]), None):
        place, found, wanted = odd
        expected = f"classes called as those of {name}, in their order: class {place} is {found}, there {wanted}"
        raise ConfigError("data", f"{len(images.class_names)} classes", expected)
    seen = len(set(images.images.ids).intersection(held.train.ids)) if _source(data) == _source(own) else 0
    if seen:
        fault = (
            f"{seen:,} of the {len(images):,} test pictures were in the training split of {name}: leave data out, or"
        )
        words = f"{fault} divide it as the run did (data.seed={own.get('seed')})"
        raise ConfigError("data.seed", data.get("seed"), fault=words)


def _source(data: Config) -> Config:
    """What says which picture an id stands for."""
    found = {key: value for key, value in data.items() if key not in DIVIDING and value is not None}
    return found | ({"path": Path(str(found["path"])).expanduser().resolve()} if "path" in found else {})


def _read(model: nn.Module, path: Path, key: str) -> None:
    if not path.is_file():
        raise ConfigError(key, path, fault="there is no such file")
    load_checkpoint(model, path, key)
    broken = [name for name, value in model.state_dict().items() if not bool(value.isfinite().all())]
    if broken:
        finite = f"a model of finite weights: {broken[0]}, one of {len(broken)} tensors, holds NaN or infinity"
        raise ConfigError(key, path, f"{finite}, as where training diverged")


def _device(name: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _names(runs: Sequence[Config], given: Sequence[Any] | None) -> list[str]:
    """Defenses, and the settings in which the runs differ besides seeds; or as the user says.

    Raises:
        ConfigError: another number of names than runs, or two runs of one name and the same seeds.
    """
    flat = [flatten(run) for run in runs]
    if given is not None and len(given) != len(runs):
        raise ConfigError("names", list(given), f"a name for each of the {len(runs)} runs, or null")
    names = _told_apart(runs, flat) if given is None else [str(name) for name in given]
    seen = set()
    for name, settings in zip(names, flat, strict=True):
        seeds = {key: value for key, value in settings.items() if key.rpartition(".")[2] == "seed"}
        if (one := (name, *sorted(seeds.items()))) in seen:
            fault = f"two runs of this name have seed={seeds['seed']}: repetitions differ in their seeds"
            raise ConfigError("runs" if given is None else "names", name, fault=fault)
        seen.add(one)
    return names


def _told_apart(runs: Sequence[Config], flat: Sequence[dict[str, str]]) -> list[str]:
    values: dict[str, set[str]] = {}
    for settings in flat:
        for key, value in settings.items():
            values.setdefault(key, set()).add(value)
    differing = [key for key, found in values.items() if len(found) > 1 and _matters(key)]
    names = []
    for run, settings in zip(runs, flat, strict=True):
        defenses = " + ".join(run.get("defense") or {}) or "no defense"
        different = [_difference(key, settings[key], values[key]) for key in differing if key in settings]
        names.append(", ".join([defenses, *different]))
    return names


def _difference(key: str, value: str, every: Collection[str]) -> str:
    """A class by its own name, under that of what it is the class of; by its whole path where that tells it apart.

    Args:
        every: what the runs have there.
    """
    name = key.removeprefix("defense.")
    if name.endswith("._target_"):
        own = value.rpartition(".")[2]
        alone = [one.rpartition(".")[2] for one in every].count(own) == 1
        return f"{name.removesuffix('._target_')}={own if alone else value}"
    return f"{name}={value}"


def _matters(key: str) -> bool:
    """Whether a setting that differs belongs in a name: runs that differ in seeds alone are repetitions.

    A name begins with the defenses, whose own classes go without saying.
    """
    parts = key.split(".")
    if parts[0] in HOUSEKEEPING or parts[-1] == "seed":
        return False
    return parts[-1] != "_target_" or parts[0] != "defense" or len(parts) != 3
