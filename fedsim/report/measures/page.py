"""Tables, figures and the page of `fedsim-measure`, from `measures.json` alone."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.metrics.jigsaw import Spread
from fedsim.report.draw.pictures import data_uri, path_inside
from fedsim.report.measures.records import Record, at, grouped, mean_error, over_runs, point, ratios
from fedsim.report.measures.wording import cautions, findings
from fedsim.report.pages import filled
from fedsim.report.wording import DASH, count
from fedsim.storage.durable import write_text
from fedsim.storage.json_objects import DamagedFileError, read_object

SPREAD_NOTE = "± is the standard deviation over runs, or of a single run over what was drawn for it."


@dataclass(frozen=True)
class MeasureTable:
    """Headings, and a row of words for each model; `note` says how to read it."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n{body}\n\n{self.note}\n"


def tables(measures: Record) -> list[MeasureTable]:
    """Everything that was measured; what was not has no table."""
    groups = grouped(measures["runs"])
    made: list[MeasureTable | None] = [
        _accuracy(groups),
        *_jigsaw(groups),
        _position(groups),
        _corruptions(groups),
        _others(groups),
    ]
    return [table for table in made if table is not None]


def _accuracy(groups: Mapping[str, Sequence[Record]]) -> MeasureTable:
    rows = []
    for name, runs in groups.items():
        facts = [str(runs[0]["model"]), str(len(runs)), _join(run.get("round") for run in runs)]
        rows.append((name, *facts, _percent(over_runs(r["top1"] for r in runs)), _join(r["pictures"] for r in runs)))
    columns = ("Model", "Architecture", "Runs", "Round", "Top-1 (%)", "Test pictures")
    return MeasureTable("Accuracy", f"Whole pictures, no mask. {SPREAD_NOTE}", columns, tuple(rows))


def _jigsaw(groups: Mapping[str, Sequence[Record]]) -> list[MeasureTable]:
    runs = [run for members in groups.values() for run in members]
    shown = ratios(runs)
    if not shown:
        return []
    measures = (
        ("Consistency (%)", "consistency", "Share of pictures that get the same class as x and as x̃."),
        ("Diff. Norm.", "diff_norm", "‖cls(x) - cls(x̃)‖₂ on what the classifier reads, mean over the pictures."),
        ("Top-1 on jigsawed pictures (%)", "top1", "Accuracy on x̃."),
        ("Masked positions (%)", "masked", "What the ratio amounts to: blocks leave a part of it unused."),
    )
    made = []
    for title, key, note in measures:
        rows = []
        for name, members in groups.items():
            spreads = [over_runs(point(r, ratio).get(key) for r in members) for ratio in shown]
            if key == "diff_norm":
                digits = 2 if max((s.mean for s in spreads if s is not None), default=0.0) >= 1.0 else 4
                cells = [_plain(spread, digits) for spread in spreads]
            else:
                cells = [_percent(spread) for spread in spreads]
            rows.append((name, _join(at(r, "jigsaw", "mask_embedding") for r in members), *cells))
        columns = ("Model", "Masked positions take", *(f"ratio {ratio:g}" for ratio in shown))
        made.append(MeasureTable(title, note, columns, tuple(rows)))
    return made


def _position(groups: Mapping[str, Sequence[Record]]) -> MeasureTable | None:
    known = [run for members in groups.values() for run in members if run.get("position")]
    if not known:
        return None
    dimensions = list(known[0]["position"]["explained_variance"])
    rows = []
    for name, members in groups.items():
        cells = [_plain(over_runs(at(r, "position", key) for r in members), 3) for key in ("mae_1d", "mae_2d")]
        cells += [_plain(over_runs(at(r, "position", f"chance_{d}d") for r in members), 3) for d in (1, 2)]
        cells += [
            _percent(over_runs(at(r, "position", "explained_variance", key) for r in members)) for key in dimensions
        ]
        rows.append((name, *cells))
    columns = ("Model", "MAE 1D", "MAE 2D", "chance 1D", "chance 2D", *(f"PCA {key} (%)" for key in dimensions))
    note = (
        "Linear regression from a position's embedding to its index (1D) and to its row and column (2D), in patches, "
        "each position predicted from the other folds; chance is the error of guessing the middle. PCA k: the variance "
        "within k components."
    )
    return MeasureTable("Position embeddings", note, columns, tuple(rows))


def _corruptions(groups: Mapping[str, Sequence[Record]]) -> MeasureTable | None:
    known = [run for members in groups.values() for run in members if run.get("corruptions")]
    if not known:
        return None
    names = list(known[0]["corruptions"]["errors"])
    rows = []
    for name, members in groups.items():
        cells = [_percent(over_runs(at(r, "corruptions", key) for r in members)) for key in ("mce", "mean_error")]
        cells += [_percent(over_runs(mean_error(r, corruption) for r in members)) for corruption in names]
        rows.append((name, *cells))
    columns = ("Model", "mCE (%)", "mean error (%)", *(corruption.replace("_", " ") for corruption in names))
    reference = known[0]["corruptions"]["reference"]
    against = f"divided by the errors of {reference}" if reference else "left out: no reference is set"
    pictures, tables_of = (_join(run["corruptions"][key] for run in known) for key in ("pictures", "table"))
    note = (
        f"Errors on {pictures} corrupted test pictures, mean over severities "
        f"{_join(known[0]['corruptions']['severities'])}, with the numbers of {tables_of}; mCE is {against}."
    )
    return MeasureTable("Common corruptions", note, columns, tuple(rows))


def _others(groups: Mapping[str, Sequence[Record]]) -> MeasureTable | None:
    cells = {
        "hard pictures: top-1 (%)": ("hard", "top1"),
        "AURRA (%)": ("hard", "aurra"),
        "foreign pictures: AUPR (%)": ("foreign", "aupr"),
        "AUPR of guessing (%)": ("foreign", "chance"),
    }
    found = {
        title: [_percent(over_runs(at(r, *keys) for r in members)) for members in groups.values()]
        for title, keys in cells.items()
    }
    shown = {title: values for title, values in found.items() if set(values) != {DASH}}
    if not shown:
        return None
    rows = tuple((name, *(values[number] for values in shown.values())) for number, name in enumerate(groups))
    note = (
        "AURRA: area under the accuracy of the most confident answers, over the share that is answered. "
        "AUPR: average precision of finding foreign pictures by their low confidence."
    )
    return MeasureTable("Hard and foreign pictures", note, ("Model", *shown), rows)


def csv_text(measures: Record) -> str:
    """One line a run, one column a number; spreads have a column of their own."""
    lines = [_flat(run) for run in measures["runs"]]
    columns = dict.fromkeys(key for line in lines for key in line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(run: Record) -> dict[str, Any]:
    line = {key: run[key] for key in ("name", "folder", "model", "seed", "round", "pictures", "top1", "loss")}
    line["defenses"] = "+".join(run["defenses"])
    for row in at(run, "jigsaw", "points") or []:
        for key in ("masked", "top1", "diff_norm", "consistency"):
            if row[key] is not None:
                line[f"{key}@{row['ratio']:g}"] = row[key]["mean"]
                line[f"{key}@{row['ratio']:g}_std"] = row[key]["std"]
    for key in ("mae_1d", "mae_2d"):
        spread = at(run, "position", key)
        line |= {} if spread is None else {key: spread["mean"], f"{key}_std": spread["std"]}
    for dimension, share in (at(run, "position", "explained_variance") or {}).items():
        line[f"explained_variance_{dimension}"] = share
    for corruption in at(run, "corruptions", "errors") or {}:
        line[f"error_{corruption}"] = mean_error(run, corruption)
    for group, keys in {"corruptions": ("mce", "mean_error"), "hard": ("top1", "aurra"), "foreign": ("aupr",)}.items():
        line |= {f"{group}_{key}": at(run, group, key) for key in keys if at(run, group, key) is not None}
    return line


def build_measures_page(folder: Path) -> Path:
    """Write `report.html`, `measures.md` and `measures.csv` from `measures.json` and the figures that it names.

    Raises:
        FileNotFoundError: there are no measures.
        DamagedFileError: the file holds none.
    """
    path = folder / "measures.json"
    measures = read_object(path)
    if missing := {"runs", "settings", "seed", "figures"} - measures.keys():
        raise DamagedFileError(path, f"measures, with {', '.join(sorted(missing))}")
    made = tables(measures)
    found, few = findings(measures), cautions(measures)
    header = f"# Measures of {count(len(grouped(measures['runs'])), 'model')}\n\n" + " ".join([*found, *few]) + "\n\n"
    write_text(folder / "measures.md", header + "\n".join(table.markdown() for table in made))
    write_text(folder / "measures.csv", csv_text(measures))
    page = filled(
        "measures.html.j2",
        name=folder.resolve().name,
        runs=measures["runs"],
        facts=_facts(measures),
        found=found,
        few=few,
        tables=made,
        figures=[one for figure in measures["figures"] if (one := _embedded(folder, figure)) is not None],
        notes=[(run["name"], note) for run in measures["runs"] for note in run.get("notes", [])],
    )
    return write_text(folder / "report.html", page)


def _facts(measures: Record) -> list[tuple[str, str]]:
    settings = measures["settings"]
    return [
        ("Models", str(len(grouped(measures["runs"])))),
        ("Runs", str(len(measures["runs"]))),
        ("Masks drawn per ratio", str(settings["draws"])),
        ("Seed", str(measures["seed"])),
    ]


def _embedded(folder: Path, figure: Record) -> dict[str, str] | None:
    path = path_inside(folder, figure["file"])
    if path is None:
        return None
    uri = data_uri(path.read_bytes(), "image/png")
    return {"uri": uri, "caption": str(figure["caption"]), "hint": str(figure["hint"])}


def _plain(spread: Spread | None, digits: int = 2) -> str:
    if spread is None:
        return DASH
    around = "" if spread.std is None else f" ± {spread.std:.{digits}f}"
    return f"{spread.mean:.{digits}f}{around}"


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return DASH
    return _plain(Spread(100 * spread.mean, None if spread.std is None else 100 * spread.std, spread.count), 1)


def _join(values: Any) -> str:
    """Different values, in order; a dash for none."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or DASH
