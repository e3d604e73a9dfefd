"""What may be set for `fedsim-measure`, checked before anything is loaded."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from experiments.cli.places import check_measured
from experiments.measure.robust import CorruptionPlan
from fedsim.data.corruption_levels import SEVERITIES, TABLES
from fedsim.data.corruptions import NAMES
from fedsim.errors import ConfigError, nearest
from fedsim.report.draw.embeddings import check_methods
from fedsim.settings.composition import Config

TABLE_CHOICES = ("auto", *TABLES)
OF_ALEXNET = "its errors are means over ImageNet-C's fifteen corruptions at five severities"


def check_measure(config: Config) -> CorruptionPlan | None:
    """The corruptions that are asked for, if any.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    measure = config["measure"]
    if not isinstance(config["runs"], list):
        raise ConfigError("runs", config["runs"], "a list of folders, as in runs=[DIR,DIR]")
    if config["names"] is not None and not isinstance(config["names"], list):
        raise ConfigError("names", config["names"], "a list of names, as in names=[baseline,mjp], or null")
    _whole("seed", config["seed"], 0)
    _choice("device", config["device"], ("auto", "cpu", "cuda"))
    if config["device"] == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "auto or cpu: this machine has no CUDA device")
    for key in ("num_images", "round", "min_block", "patch_size"):
        if measure[key] is not None:
            _whole(f"measure.{key}", measure[key], 1)
    if config["threads"] is not None:
        _whole("threads", config["threads"], 1)
    for key, least in (("batch_size", 1), ("draws", 1), ("repeats", 1), ("folds", 2), ("attention", 0)):
        _whole(f"measure.{key}", measure[key], least)
    _each("measure.ratios", measure["ratios"], _is_share, "numbers from 0 to 1, as in [0,0.09,0.27]")
    _each("measure.dimensions", measure["dimensions"], _is_count, "whole numbers of at least 1, as in [3,4,5]")
    _each("measure.projections", measure["projections"], lambda name: isinstance(name, str), "names, as in [pca,tsne]")
    if not _is_share(measure["attention_ratio"]):
        raise ConfigError("measure.attention_ratio", measure["attention_ratio"], "a number from 0 to 1")
    check_measured(config)
    check_methods(measure["projections"])
    return _corruptions(measure["corruptions"], config["seed"])


def check_reference(reference: object, names: Sequence[str], tables: Collection[str]) -> None:
    """What mCE is divided by.

    Args:
        tables: whose numbers corrupt the models' pictures: `imagenet`, `cifar`.

    Raises:
        ConfigError: it is neither null, alexnet nor one of the models' names, or errors of another benchmark.
    """
    if reference is not None and reference != "alexnet" and reference not in names:
        options = ["alexnet", *dict.fromkeys(names)]
        raise ConfigError("measure.corruptions.reference", reference, f"null or one of {', '.join(options)}")
    if reference == "alexnet" and set(tables) != {"imagenet"}:
        raise ConfigError(
            "measure.corruptions.table",
            ", ".join(sorted(set(tables) - {"imagenet"})),
            f"imagenet, beside reference=alexnet: {OF_ALEXNET}",
        )


def _corruptions(settings: Config, seed: int) -> CorruptionPlan | None:
    names = list(NAMES) if settings["names"] == "all" else settings["names"]
    if not isinstance(names, list):
        raise ConfigError("measure.corruptions.names", names, "a list, all, or [] for none")
    for name in names:
        _choice("measure.corruptions.names", name, NAMES)
    if not names:
        return None
    severities = settings["severities"]
    _each(
        "measure.corruptions.severities", severities, lambda level: level in SEVERITIES, "some of 1 to 5, as in [1,3,5]"
    )
    if not severities:
        raise ConfigError("measure.corruptions.severities", "[]", "some of 1 to 5")
    if settings["num_images"] is not None:
        _whole("measure.corruptions.num_images", settings["num_images"], 1)
    _choice("measure.corruptions.table", settings["table"], TABLE_CHOICES)
    if settings["reference"] == "alexnet":
        if sorted(names) != sorted(NAMES):
            expected = f"all, beside reference=alexnet: {OF_ALEXNET}"
            raise ConfigError("measure.corruptions.names", f"[{', '.join(names)}]", expected)
        if sorted(severities) != list(SEVERITIES):
            expected = f"[1,2,3,4,5], beside reference=alexnet: {OF_ALEXNET}"
            raise ConfigError("measure.corruptions.severities", severities, expected)
    size, table, frost = settings["num_images"], settings["table"], settings["frost"]
    return CorruptionPlan(tuple(names), tuple(severities), size, table, frost, seed)


def _whole(key: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(key, value, f"a whole number of at least {least}")


def _choice(key: str, value: object, options: Sequence[str]) -> None:
    if value not in options:
        raise ConfigError(key, value, f"one of {', '.join(options)}.{nearest(str(value), options)}")


def _each(key: str, values: object, valid: Callable[[Any], bool], expected: str) -> None:
    if not isinstance(values, list) or not all(valid(value) for value in values):
        raise ConfigError(key, values, expected)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
