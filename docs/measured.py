"""What MkDocs asks while it builds: pages of attacks and defenses get what the matrix measured of them.

The numbers are those of docs/results/matrix_second_order.csv, and of docs/results/matrix.csv where that has none.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
WHERE = (
    "each image at 60 dB at most, `vit_nano` on digits, untrained, eight images "
    "([newest attacks](../results/matrix_second_order.md), [the others](../results/matrix.md))"
)
BETTER = 1.0
"""Decibels above the guess from which an attack has found something, as the matrix's own page counts."""
EXACT, HIGH = 60.0, 20.0
Line = dict[str, str]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts the section in front of the settings."""
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    section = {"attacks": of_attack, "defenses": of_defense}.get(folder, lambda name: "")(name)
    if not section:
        return markdown
    before, heading, after = markdown.partition("\n## Settings\n")
    if not heading:
        raise ValueError(f"{page.file.src_uri} has no settings")
    return f"{before}\n{section}\n{heading}{after}"


def of_attack(name: str) -> str:
    """Rows of the matrix by how well the attack did behind them; nothing where it is no column.

    Of several images in an update an attack finds less without any defense too: such rows say how many.
    """
    lines = [line for line in read() if line["attack"] == name]
    if not lines:
        return ""
    scored = [(line, float(line["leakage"])) for line in lines if line["leakage"]]
    guess = min((float(line["baseline"]) for line in lines if line["baseline"]), default=0.0)
    levels = (
        (f"{EXACT:.0f} dB and more", lambda value: value >= EXACT),
        (f"{HIGH:.0f} to {EXACT:.0f} dB", lambda value: max(HIGH, guess + BETTER) <= value < EXACT),
        (f"more than a guess, below {HIGH:.0f} dB", lambda value: guess + BETTER <= value < HIGH),
        (f"no better than a guess ({guess:.1f} dB)", lambda value: value < guess + BETTER),
    )
    measure = "Mean PSNR in dB against the client's own image" if scored else "Updates with every label right"
    table = ["## In the matrix", "", f"{measure}: {WHERE}.", "", "| | |", "| --- | --- |"]
    for title, belongs in levels:
        found = sorted(((line, value) for line, value in scored if belongs(value)), key=lambda pair: -pair[1])
        shown = [_row(line["defense"], None if value >= EXACT else f"{value:.1f}") for line, value in found]
        table += [f"| {title} | {', '.join(shown)} |"] if shown else []
    labels = [(line, float(line["label_exact"])) for line in lines if line["label_exact"] and not line["leakage"]]
    shown = [_row(line["defense"], _percent(share, 0)) for line, share in sorted(labels, key=lambda pair: -pair[1])]
    table += [f"| every label right | {', '.join(shown)} |"] if shown else []
    refused = [_row(line["defense"], None) for line in lines if line["status"] == "refused"]
    table += [f"| refused | {', '.join(refused)} |"] if refused else []
    return "\n".join(table)


def of_defense(name: str) -> str:
    """A column for each setting of the defense: accuracy, and PSNR by attack.

    The undefended row of as many images in an update comes first.
    """
    every = read()
    batches = {line["defense"]: line["batch"] for line in every}
    defended = [row for row in batches if _option(row) == name]
    if not defended:
        return ""
    without = {line["batch"]: line["defense"] for line in every if line["defended"] == "False"}
    shown = [*dict.fromkeys(without[batches[row]] for row in defended), *defended]
    cells = {(line["defense"], line["attack"]): line for line in every}
    attacks = list(dict.fromkeys(line["attack"] for line in every))
    table = [
        "## In the matrix",
        "",
        f"Accuracy after the training, and each attack's mean PSNR in dB against the client's own image: {WHERE}. "
        f"A guess has {float(every[0]['baseline']):.1f} dB; a dash is a refusal, "
        "a percentage the share of updates with every label right.",
        "",
        f"| | {' | '.join(_counted(row, batches[row]) for row in shown)} |",
        "| --- " * (len(shown) + 1) + "|",
        f"| accuracy | {' | '.join(_percent(cells[row, attacks[0]]['accuracy']) for row in shown)} |",
    ]
    for attack in attacks:
        values = " | ".join(_value(cells[row, attack]) for row in shown)
        table.append(f"| [`{attack}`](../attacks/{attack}.md) | {values} |")
    return "\n".join(table)


@cache
def read() -> list[Line]:
    """The lines of both matrices: one for each defense and attack, as it was measured last."""
    cells: dict[tuple[str, str, str], Line] = {}
    for name in ("matrix.csv", "matrix_second_order.csv"):
        with (ROOT / "docs" / "results" / name).open(newline="", encoding="utf-8") as file:
            cells |= {(line["defense"], line["state"], line["attack"]): line for line in csv.DictReader(file)}
    return list(cells.values())


@cache
def _rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = yaml.safe_load((ROOT / "conf" / "matrix.yaml").read_text(encoding="utf-8"))["matrix"][
        "defenses"
    ]
    return found


def _option(row: str) -> str:
    """The defense that the row of the matrix is about; of its own name where conf/matrix.yaml does not say."""
    words = [word for word in _rows().get(row, [row]) if "=" not in word]
    return words[0] if len(words) == 1 else ""


def _row(row: str, value: str | None) -> str:
    option = _option(row)
    linked = f"[{row}](../defenses/{option}.md)" if option else row
    counted = _counted(linked, next(line["batch"] for line in read() if line["defense"] == row))
    return counted if value is None else f"{counted} {value}"


def _counted(row: str, batch: str) -> str:
    return row if batch == "1" else f"{row} ({batch} images in an update)"


def _value(line: Line) -> str:
    if line["leakage"]:
        value = float(line["leakage"])
        return f"≥ {EXACT:.0f}" if value >= EXACT else f"{value:.1f}"
    if line["label_exact"]:
        return _percent(line["label_exact"], 0)
    return "-"


def _percent(share: str | float, digits: int = 1) -> str:
    return f"{100 * float(share):.{digits}f} %"
