"""Results of a run folder, as records and as a table."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.result import AttackResult
from fedsim.storage.json_lines import rows

if TYPE_CHECKING:
    import pandas as pd


def read_results(folder: Path) -> list[AttackResult]:
    """The latest result of each attack on each observation in `attacks.jsonl`, in the order of their writing."""
    latest = {(row["observation"], row["attack"]): row for row in rows(folder / "attacks.jsonl")}
    return [AttackResult.from_json(row) for row in latest.values()]


def attack_table(results: Mapping[str, Sequence[AttackResult]]) -> "pd.DataFrame":
    """One row a defense and an attack."""
    import pandas as pd

    table = []
    for defense, found in results.items():
        for name in dict.fromkeys(one.attack for one in found):
            table.append({"defense": defense, "attack": name, **_summary([one for one in found if one.attack == name])})
    return pd.DataFrame(table)


def _mean(values: Sequence[float]) -> float:
    """NaN without any, so that a column is of numbers."""
    return statistics.fmean(values) if values else math.nan


def _summary(found: Sequence[AttackResult]) -> dict[str, Any]:
    psnrs = [value for one in found for value in one.psnr if value is not None]
    private = [i.private_psnr for one in found if one.scores for i in one.scores.images if i.private_psnr is not None]
    labels = [one.scores.labels.share for one in found if one.scores is not None and one.scores.labels is not None]
    return {
        "updates": len(found),
        "images": sum(len(one.psnr) for one in found),
        "refused": sum(one.status == "refused" for one in found),
        "failed": sum(one.status == "failed" for one in found),
        "certified": sum(one.certified for one in found),
        "matched": len(psnrs),
        "psnr": _mean(psnrs),
        "least_psnr": min(psnrs, default=math.nan),
        "private_psnr": _mean(private),
        "label_share": _mean(labels),
        "seconds": sum(one.seconds for one in found),
    }
