"""Folders and files that a command is to read or to write in, looked at before any library is imported."""

from collections.abc import Iterator
from pathlib import Path

from fedsim.errors import ConfigError
from fedsim.settings.class_folders import check_class_folders
from fedsim.settings.commands import JobConfig, MeasureConfig, PriorConfig
from fedsim.settings.places import check_model_file, class_folders

IMAGE_FOLDER = "fedsim.data.ImageFolder"


def check_sources(config: JobConfig) -> None:
    """Raises ConfigError where what data and model are read from is not there."""
    _check_data(config)
    if isinstance(checkpoint := config.model.get("checkpoint"), str):
        check_model_file(checkpoint)


RUNS = ("metrics.jsonl", "attacks.jsonl", "measures.json", "scratch")
"""What is in the folder of a run, an audit or measures; the last as soon as attacks begin."""


def refuse_used(root: Path) -> None:
    """A federated run starts in a folder of its own.

    Raises:
        ConfigError: `root` holds a run.
    """
    if any((root / name).exists() for name in (*RUNS, "matrix.json", "rows")):
        words = f"choose a new folder, this one holds a run already; fedsim resume={root} goes on with one"
        raise ConfigError("run_dir", root, fault=words)


def refuse_runs(root: Path) -> None:
    """Raises ConfigError where `root` holds a run, an audit or measures, and no matrix."""
    if any((root / name).exists() for name in RUNS):
        raise ConfigError("run_dir", root, fault="choose a new folder, this one holds a run and no matrix")


def find_observations(path: Path) -> Iterator[Path]:
    """The observation at `path`, or all in the folder.

    Raises:
        ConfigError: there are none.
    """
    try:
        if (path / "observation.json").is_file():
            yield path
            return
        found = sorted(child.parent for child in path.glob("*/observation.json"))
    except OSError as error:
        raise ConfigError("observation", path, f"a folder that can be read ({error.strerror})") from error
    if not found:
        words = "there is none in this folder; a federated run records them in RUN/observations, an audit does not"
        raise ConfigError("observation", path, fault=words)
    yield from found


def find_runs(folder: Path) -> list[Path]:
    """The folder itself where it is a run, or the runs in it where it is a sweep.

    Raises:
        ConfigError: it is neither.
    """
    if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
        return [folder]
    children = sorted(folder.iterdir(), key=_by_number) if folder.is_dir() else []
    result = [child for child in children if (child / "config.yaml").is_file() and (child / "checkpoints").is_dir()]
    if not result:
        raise ConfigError("runs", folder, "a folder of a fedsim run, with its config.yaml and checkpoints/")
    return result


def check_measured(config: MeasureConfig) -> None:
    """Raises ConfigError where what `fedsim-measure` reads is not there."""
    measure = config.measure
    for folder in config.runs:
        find_runs(Path(str(folder)).expanduser())
    for key, path in (("hard", measure.hard), ("foreign", measure.foreign)):
        _folder(f"measure.{key}", path, "a folder of class folders; there is none")
    _folder("measure.corruptions.frost", measure.corruptions.frost, "a folder of photographs of frost; there is none")
    _check_data(config)
    if isinstance(checkpoint := config.model.get("checkpoint"), str):
        check_model_file(Path(checkpoint).expanduser())
    if config.model.get("checkpoint_head") is False:
        raise ConfigError("model.checkpoint_head", "false", "true: a model is measured as it was trained")


def _check_data(config: JobConfig | MeasureConfig) -> None:
    data = config.data
    if data.get("_target_") == IMAGE_FOLDER and isinstance(data.get("path"), str | None):
        if isinstance(config, MeasureConfig | PriorConfig):  # neither has to tell classes apart
            class_folders(data.get("path"))
        else:
            check_class_folders(data.get("path"), config.model)


def _folder(key: str, path: object, expected: str) -> None:
    if path is not None and not Path(str(path)).expanduser().is_dir():
        raise ConfigError(key, path, expected)


def _by_number(path: Path) -> tuple[bool, int, str]:
    return (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, path.name)
