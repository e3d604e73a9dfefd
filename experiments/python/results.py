"""Results of a run folder, as records and as a table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.report.run.records import AttackRecord, attack_record
from fedsim.report.run.summary import mean, mean_psnr
from fedsim.result import AttackResult
from fedsim.storage.json_lines import rows

if TYPE_CHECKING:
    import pandas as pd


def read_results(folder: Path) -> list[AttackResult]:
    """The latest result of each attack on each observation in `attacks.jsonl`, in the order of their writing."""
    latest = {(row["observation"], row["attack"]): row for row in rows(folder / "attacks.jsonl")}
    return [AttackResult.from_json(row) for row in latest.values()]


def attack_table(folders: Mapping[str, Path]) -> "pd.DataFrame":
    """One row a defense and an attack."""
    import pandas as pd

    table = []
    for defense, folder in folders.items():
        latest = {(row["observation"], row["attack"]): row for row in rows(folder / "attacks.jsonl")}
        found = [record for row in latest.values() if (record := attack_record(row)) is not None]
        for name in dict.fromkeys(one.attack for one in found):
            own = [one for one in found if one.attack == name]
            table.append({"defense": defense, "attack": name, **_summary(own)})
    return pd.DataFrame(table)


def _summary(found: Sequence[AttackRecord]) -> dict[str, Any]:
    """An image that the model saw in several forms is one; `psnr`, as seen, is of each form."""
    scored = [one for one in found if one.scored]
    seen = [image for one in scored for image in one.images if image.psnr is not None]
    held = [image for one in scored for image in one.pictures.values()]
    own = [image for image in held if image.private_psnr is not None]
    return {
        "updates": len(found),
        "images": len(held),
        "refused": sum(one.status == "refused" for one in found),
        "failed": sum(one.status == "failed" for one in found),
        "certified": sum(one.certified for one in found),
        "matched": sum(image.leaked is not None for image in held),
        "psnr": _mean_psnr([image.psnr for image in seen]),
        "seen_guess_psnr": _mean_psnr([image.seen_guess_psnr for image in seen]),
        "least_psnr": min((image.psnr for image in seen if image.psnr is not None), default=math.nan),
        "private_psnr": _mean_psnr([image.private_psnr for image in own]),
        "guess_psnr": _mean_psnr([image.guess_psnr for image in own]),
        "label_share": _or_nan(mean([one.label_share for one in scored if one.label_share is not None])),
        "seconds": sum(one.seconds or 0.0 for one in found),
    }


def _mean_psnr(values: Sequence[float | None]) -> float:
    return _or_nan(mean_psnr([value for value in values if value is not None]))


def _or_nan(value: float | None) -> float:
    """NaN for none, so that a column is of numbers."""
    return math.nan if value is None else value
