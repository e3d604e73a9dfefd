"""`measure` of `fedsim-measure`."""

from dataclasses import dataclass
from typing import Annotated, Any

from fedsim.settings.schema import at_least, is_number, is_whole, list_of, number

Count = Annotated[int, at_least(1)]
Share = Annotated[float, number(0.0, 1.0, words="a number from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class CorruptionSettings:
    """The fifteen common corruptions; which there are is known with the libraries alone."""

    names: Any
    severities: Any
    num_images: Annotated[int | None, at_least(1)]
    table: Any
    frost: Any
    reference: Any


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What is measured; `conf/measure.yaml` says what each is."""

    round: Annotated[int | None, at_least(1)]
    num_images: Annotated[int | None, at_least(1)]
    batch_size: Count
    ratios: Annotated[
        list[float], list_of(lambda value: is_number(value, 0.0, 1.0), "numbers from 0 to 1, as in [0,0.09,0.27]")
    ]
    draws: Count
    min_block: Annotated[int | None, at_least(1)]
    patch_size: Annotated[int | None, at_least(1)]
    folds: Annotated[int, at_least(2)]
    repeats: Count
    dimensions: Annotated[
        list[int], list_of(lambda value: is_whole(value, 1), "whole numbers of at least 1, as in [3,4,5]")
    ]
    projections: Annotated[list[str], list_of(lambda value: isinstance(value, str), "names, as in [pca,tsne]")]
    attention: Annotated[int, at_least(0)]
    attention_ratio: Share
    corruptions: CorruptionSettings
    hard: Any
    foreign: Any
