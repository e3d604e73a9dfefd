"""What may be set for `fedsim-measure`, checked before anything is loaded."""

from collections.abc import Collection, Sequence

import torch

from experiments.cli.places import check_measured
from experiments.measure.robust import CorruptionPlan
from fedsim.data.corruption_levels import SEVERITIES, TABLES
from fedsim.data.corruptions import NAMES
from fedsim.errors import ConfigError
from fedsim.report.draw.embeddings import check_methods
from fedsim.settings.commands import CorruptionSettings, MeasureConfig
from fedsim.settings.schema import list_of, one_of

TABLE_CHOICES = ("auto", *TABLES)
OF_ALEXNET = "its errors are means over ImageNet-C's fifteen corruptions at five severities"


def check_measure(config: MeasureConfig) -> CorruptionPlan | None:
    """The corruptions that are asked for, if any; raises ConfigError for a setting that cannot work."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "auto or cpu: this machine has no CUDA device")
    check_measured(config)
    check_methods(config.measure.projections)
    return _corruptions(config.measure.corruptions, config.seed)


def check_reference(reference: object, names: Sequence[str], tables: Collection[str]) -> None:
    """What mCE is divided by.

    Args:
        tables: whose numbers corrupt the models' pictures: `imagenet`, `cifar`.

    Raises:
        ConfigError: it is neither null, alexnet nor one of the models' names, or errors of another benchmark,
            or the models' errors are by several tables.
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
    if reference is not None and len(set(tables)) > 1:
        expected = f"one of {', '.join(TABLES)} for all models, beside reference={reference}: mCE divides their errors"
        raise ConfigError("measure.corruptions.table", ", ".join(sorted(set(tables))), expected)


def _corruptions(settings: CorruptionSettings, seed: int) -> CorruptionPlan | None:
    names = list(NAMES) if settings.names == "all" else settings.names
    if not isinstance(names, list):
        raise ConfigError("measure.corruptions.names", names, "a list, all, or [] for none")
    for name in names:
        one_of(*NAMES)("measure.corruptions.names", name)
    if not names:
        return None
    severities = settings.severities
    some = list_of(lambda level: level in SEVERITIES, "some of 1 to 5, as in [1,3,5]")
    some("measure.corruptions.severities", severities)
    if not severities:
        raise ConfigError("measure.corruptions.severities", "[]", "some of 1 to 5")
    one_of(*TABLE_CHOICES)("measure.corruptions.table", settings.table)
    if settings.reference == "alexnet":
        if sorted(names) != sorted(NAMES):
            expected = f"all, beside reference=alexnet: {OF_ALEXNET}"
            raise ConfigError("measure.corruptions.names", f"[{', '.join(names)}]", expected)
        if sorted(severities) != list(SEVERITIES):
            expected = f"[1,2,3,4,5], beside reference=alexnet: {OF_ALEXNET}"
            raise ConfigError("measure.corruptions.severities", severities, expected)
    size, table, frost = settings.num_images, settings.table, settings.frost
    return CorruptionPlan(tuple(names), tuple(severities), size, table, frost, seed)
