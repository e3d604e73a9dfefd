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


def attack_table(folders: Mapping[str, Path]) -> "pd.DataFrame":
    """One row a defense and an attack."""
    import pandas as pd

    table = []
    for defense, folder in folders.items():
        found, guesses = read_results(folder), _guesses(folder)
        for name in dict.fromkeys(one.attack for one in found):
            own = [one for one in found if one.attack == name]
            table.append({"defense": defense, "attack": name, **_summary(own, guesses)})
    return pd.DataFrame(table)


def _guesses(folder: Path) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """The images of each result with what a guess without any gradient reaches of them."""
    return {(row["observation"], row["attack"]): row["images"] for row in rows(folder / "attacks.jsonl")}


def _mean(values: Sequence[float]) -> float:
    """NaN without any, so that a column is of numbers."""
    return statistics.fmean(values) if values else math.nan


def _summary(
    found: Sequence[AttackResult], guesses: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    psnrs = [value for one in found for value in one.psnr if value is not None]
    private = [i.private_psnr for one in found if one.scores for i in one.scores.images if i.private_psnr is not None]
    beside = [image for one in found for image in guesses[one.observation, one.attack]]
    labels = [one.scores.labels.share for one in found if one.scores is not None and one.scores.labels is not None]
    return {
        "updates": len(found),
        "images": sum(len(one.psnr) for one in found),
        "refused": sum(one.status == "refused" for one in found),
        "failed": sum(one.status == "failed" for one in found),
        "certified": sum(one.certified for one in found),
        "matched": len(psnrs),
        "psnr": _mean(psnrs),
        "seen_guess_psnr": _mean(_of(beside, "psnr", "seen_guess_psnr")),
        "least_psnr": min(psnrs, default=math.nan),
        "private_psnr": _mean(private),
        "guess_psnr": _mean(_of(beside, "private_psnr", "guess_psnr")),
        "label_share": _mean(labels),
        "seconds": sum(one.seconds for one in found),
    }


def _of(images: Sequence[Mapping[str, Any]], score: str, guess: str) -> list[float]:
    """What a guess reaches of those images that the attack has this score of."""
    return [one[guess] for one in images if one.get(score) is not None and one.get(guess) is not None]
