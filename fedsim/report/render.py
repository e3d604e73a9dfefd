"""The pages: `report.html` of a run and of a sweep, each one file that needs nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.metrics.records import SHOWN
from fedsim.report.compare.runs import Comparison, compare_runs, find_runs
from fedsim.report.compare.same_pictures import RUNS_SHOWN
from fedsim.report.compare.settings import knows
from fedsim.report.compare.tradeoff import tradeoffs
from fedsim.report.draw import figures
from fedsim.report.draw.chart_data import Chart, Series
from fedsim.report.draw.svg import SERIES
from fedsim.report.level_wording import few_images, few_test_images, of_images, without_update
from fedsim.report.pages import filled
from fedsim.report.run.baseline import baselines, guessing, reading, unrun
from fedsim.report.run.bounds.section import shown_bounds
from fedsim.report.run.gallery import build_gallery
from fedsim.report.run.images.counts import sizes
from fedsim.report.run.images.leakage import summarise_leakage
from fedsim.report.run.label_attacks import beside_labels, in_updates, labels_by_round, labels_of
from fedsim.report.run.read import RecordedRun, read_run
from fedsim.report.run.searches import search_lines
from fedsim.report.run.summary import (
    AttackSummary,
    ByRound,
    attack_failures,
    client_failures,
    last_accuracy,
    leakage_by_round,
    most_labels,
    psnr_values,
    refusals,
    remarks,
    run_times,
    summarise_attacks,
)
from fedsim.report.run.timings import TimeSpent, time_spent
from fedsim.report.run.verdict import Verdict, verdict
from fedsim.report.wording import duration, graded, percent
from fedsim.storage.durable import write_text
from fedsim.storage.run_folder import RunFolder

ROWS_SHOWN = 50
"""Of refusals and failures."""

SHARED = {
    "gradient": "the gradient of its loss over one batch, averaged over the batch",
    "delta": "how its weights changed during local training",
    "weights": "its weights after local training",
}


def build_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder from its other files and return its path.

    Works on whatever a run left behind: missing files are empty sections.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    return report_run(run_folder)[0]


def report_run(run_folder: Path, ended: dict[str, Any] | None = None) -> tuple[Path, Verdict]:
    """`build_report`, and the verdict that is on the page.

    Args:
        ended: what a run that has just ended says of itself: written to `summary.json`, with the verdict.
    """
    run = read_run(run_folder)
    run = run if ended is None else replace(run, summary=ended)
    judged = verdict(run)
    if ended is not None:
        RunFolder(run_folder).write_json("summary.json", ended | {"verdict": judged.to_dict()})
    return write_text(run_folder / "report.html", _page(run, judged)), judged


def _page(run: RecordedRun, judged: Verdict) -> str:
    rows = summarise_attacks(run)
    gallery = build_gallery(run)
    spent = time_spent(run)
    return filled(
        "report.html.j2",
        run=run,
        verdict=judged,
        facts=_facts(run),
        cards=_cards(run),
        baselines=baselines(run),
        shared=_shared(run),
        plots=_plots(run, rows),
        rows=rows,
        measures=_measures(rows),
        with_private=any(row.twofold for row in rows),
        needs={row.attack: needs for row in rows if (needs := knows(run, row.attack))},
        gallery=gallery,
        bounds=shown_bounds(run),
        searches={row.attack: figure for row in rows if (figure := _search(run, row.attack)) is not None},
        refusals=refusals(run),
        remarks=remarks(run),
        client_failures=client_failures(run),
        rows_shown=ROWS_SHOWN,
        attack_failures=attack_failures(run),
        retried=[record for record in run.attacks if record.attempts > 1],
        times=run_times(run),
        spent=spent,
        time_figure=None if spent is None else _time_figure(spent),
        lpips_hint=run.summary.get("lpips"),
    )


def build_sweep_report(sweep_folder: Path) -> Path:
    """Write `report.html` into a sweep folder: the finished runs below it side by side.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    comparison = compare_runs(find_runs(sweep_folder), sweep_folder, sweep_folder.resolve().name)
    return _build_comparison(comparison, sweep_folder / "report.html")


def build_comparison(runs: Sequence[Path], path: Path) -> Path:
    """Write the runs of these folders, wherever they lie, side by side into the file `path`.

    Raises:
        FileNotFoundError: one of the folders does not exist.
    """
    return _build_comparison(compare_runs(runs, path.parent, path.stem), path)


def _build_comparison(comparison: Comparison, path: Path) -> Path:
    plots = tradeoffs(comparison)
    page = filled("comparison.html.j2", comparison=comparison, plots=plots, runs_shown=RUNS_SHOWN)
    return write_text(path, page)


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """What was run, as far as the configuration says."""
    target = run.setting("data._target_")
    strategy = run.setting("strategy._target_") or run.setting("strategy.name") or run.setting("strategy")
    facts = {
        "Model": _model(run),
        "Trained": _trained(run),
        "Data": _last_part(target),
        "Clients": run.setting("num_clients"),
        "Rounds": run.setting("num_rounds"),
        "Shared": run.setting("client.share"),
        "Batch size": run.setting("client.batch_size"),
        "Images in an update": _in_an_update(run),
        "Precision": None if run.setting("client.precision") == "float32" else run.setting("client.precision"),
        "Augmentation": _augmentation(run),
        "Strategy": _last_part(strategy) if isinstance(strategy, str) else None,
        "Defense": ", ".join(run.names("defense")) or ("none" if run.config else None),
        "Attack": ", ".join(run.names("attack")) or ("none" if run.config else None),
        "Seed": run.setting("seed"),
        "Device": run.summary.get("device"),
    }
    if run.kind == "audit":
        facts |= {"Clients": None, "Rounds": None, "Strategy": None}
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]


def _in_an_update(run: RecordedRun) -> str | None:
    """How many private images the observed updates hold; None where they are as many as a batch."""
    held = set(sizes(run.attacks).values()) - {0}
    if not held or held == {run.setting("client.batch_size")}:
        return None
    return f"{min(held):,}" if len(held) == 1 else f"{min(held):,} to {max(held):,}"


def _model(run: RecordedRun) -> str | None:
    """The model's name, with what else was set of it."""
    model = run.setting("model")
    settings = dict(model) if isinstance(model, Mapping) else {}
    name, kwargs, _ = (settings.pop(key, None) for key in ("name", "kwargs", "num_classes"))
    whole = settings.pop("checkpoint_head", True)
    changed = {key: value for key, value in settings.items() if value not in (None, False, "stock", "float32")}
    changed |= {} if whole else {"checkpoint_head": "false"}
    changed |= kwargs if isinstance(kwargs, Mapping) else {}
    return None if name is None else _with_settings(str(name), changed)


def _with_settings(name: str, settings: Mapping[str, object]) -> str:
    listed = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({listed})" if listed else name


def _augmentation(run: RecordedRun) -> str:
    """The names of the transforms, in order."""
    chosen = run.setting("client.augment")
    listed = chosen if isinstance(chosen, list) else []
    return ", ".join(one if isinstance(one, str) else ", ".join(map(str, one)) for one in listed)


def _trained(run: RecordedRun) -> str | None:
    """The recipe of fine-tuning with its numbers; None where everything is trained."""
    recipe = run.setting("finetune")
    if not isinstance(recipe, Mapping) or str(recipe.get("_target_", "")).endswith(".Full"):
        return None
    settings = {key: value for key, value in recipe.items() if key != "_target_"}
    return _with_settings(_last_part(recipe.get("_target_")) or "", settings).strip() or None


def _shared(run: RecordedRun) -> str:
    """What a client sends, in words."""
    whole = SHARED.get(str(run.setting("client.share")), "a model update")
    recipe = _trained(run)
    return whole if recipe is None else f"{whole}, of the tensors alone that it trains ({recipe})"


def _last_part(dotted: object) -> str | None:
    return str(dotted).rsplit(".", 1)[-1] if dotted else None


def _cards(run: RecordedRun) -> list[tuple[str, str, str]]:
    """Key figures as (name, value, note)."""
    without, silent, run, labels = guessing(run).attacks, unrun([run]), reading(run), labels_of(run)
    rows, (number, accuracy) = summarise_attacks(run), last_accuracy(run)
    leakage = summarise_leakage(run, without, labels, silent)
    counts, cards = leakage.counts, []
    if leakage.scored:
        note = f"{counts.recognisable:,} of {of_images(leakage)}"
        note += f", {counts.as_seen:,} of them as the model saw them" if counts.as_seen else ""
        note += f"; {without_update(counts)}"
        share = percent(counts.recognisable / counts.images)
        cards.append(("Recognisable", share, ". ".join([note, *few_images(counts)])))
    if leakage.returned:
        cards.append(
            ("Certified", percent(counts.certified / counts.images), f"{counts.certified:,} of {of_images(leakage)}")
        )
    if rows and rows[0].mean_leaked is not None:
        note = f"by {rows[0].attack}, over all that it rebuilt"
        if rows[0].twofold:
            note += f", against the clients’ own; {graded(rows[0].mean_psnr)} against what the model saw"
        cards.append(("Mean PSNR", graded(rows[0].mean_leaked), note))
    for best in most_labels(rows)[:1]:
        note = f"by {best.attack}{in_updates(best)}{beside_labels(run, best.attack)}"
        cards.append(("Labels recovered", percent(best.label_share), note))
    if accuracy is not None:
        few = few_test_images([accuracy], run.test_pictures)
        name = "Final accuracy" if run.finished else f"Accuracy after round {number}"
        cards.append((name, percent(accuracy), few or "on test images"))
    seconds = run_times(run).run or run_times(run).total
    if seconds is not None:
        cards.append(("Wall time", duration(seconds), "for the run" if run_times(run).run else "for all rounds"))
    return cards


def _plots(run: RecordedRun, rows: list[AttackSummary]) -> list[tuple[str, Chart]]:
    """(caption, figure) of everything that there is data for."""
    accuracies = [(float(row.number), row.accuracy) for row in run.rounds if row.accuracy is not None]
    measured = [row.attack for row in rows if row.mean_leaked is not None]
    shown = measured[: len(SERIES)]
    of = f"; {len(shown)} of {len(measured)} attacks" if len(shown) < len(measured) else ""
    leakage = [_over_rounds(attack, leakage_by_round(run, attack)) for attack in shown]
    closer = "; closer to what the model saw" if any(row.as_seen for row in rows) else ""
    curve = figures.leakage_curve(leakage) if _several_rounds(run, leakage) else None
    labels = _label_lines(run, rows)
    plots = {
        "What the model learned": figures.accuracy_curve([Series("accuracy", accuracies)]),
        f"What the server rebuilt, against the clients’ own{closer}{of}": curve,
        f"Labels that the server recovered{_best_labelled(rows)}": figures.labels_curve(labels)
        if _several_rounds(run, labels)
        else None,
        f"How close to the clients’ own they came{closer}{of}": figures.psnr_histogram(
            shown, [psnr_values(run, attack) for attack in shown]
        ),
    }
    return [(caption, figure) for caption, figure in plots.items() if figure is not None]


def _over_rounds(name: str, values: ByRound) -> Series:
    return Series(name, [(float(number), value) for number, value in values])


def _several_rounds(run: RecordedRun, lines: Iterable[Series]) -> bool:
    return run.kind != "audit" and len({number for line in lines for number, _ in line.points}) > 1


def _label_lines(run: RecordedRun, rows: list[AttackSummary]) -> list[Series]:
    """A line for each attack, the best first, and one for what a guess gets right where the best was scored."""
    found = [(row.attack, *labels_by_round(run, row.attack)) for row in most_labels(rows)[: len(SERIES) - 1]]
    guess = [_over_rounds("each class equally often", found[0][2])] if found and found[0][2] else []
    return [_over_rounds(attack, right) for attack, right, _ in found] + guess


def _best_labelled(rows: Iterable[AttackSummary]) -> str:
    labelled = len(most_labels(rows))
    return f"; the best {len(SERIES) - 1} of {labelled} attacks" if labelled >= len(SERIES) else ""


def _measures(rows: Iterable[AttackSummary]) -> dict[str, str]:
    """Of the measures beside PSNR SSIM, and those that some attack's images have, with their titles."""
    measured = {name for row in rows for name, (seen, _) in row.means.items() if seen is not None} | {"ssim"}
    return {name: title for name, title in SHOWN.items() if name in measured}


def _time_figure(spent: TimeSpent) -> Chart | None:
    return figures.time_bars(
        [part.name for part in spent.parts], [(bar.first, bar.last, bar.heights) for bar in spent.bars]
    )


def _search(run: RecordedRun, attack: str) -> tuple[str, Chart] | None:
    """(caption, figure)."""
    measure, values, psnr, of = search_lines(run, attack, limit=len(SERIES))
    lines = [[Series(*line) for line in drawn.items()] for drawn in (values, psnr)]
    figure = figures.search_curve(attack, measure, *lines)
    some = f"; {len(SERIES)} of {of} updates" if of > len(SERIES) else ""
    return None if figure is None else (f"The search, step by step{some}", figure)
