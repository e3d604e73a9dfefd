"""`fedsim-measure`: trained models compared by the measures of the MJP paper (Ren et al. 2023) and by robustness."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.nn.functional as F
import yaml

from experiments.cli.call import console, say_doing
from experiments.cli.places import RUNS
from experiments.cli.progress import Bars
from experiments.measure.drawing import draw_all, embedding_view
from experiments.measure.jigsawed import Answers, answer, layout, mask_embedding, measure_jigsaw, top1
from experiments.measure.robust import (
    CorruptionPlan,
    check_foreign,
    corruption_errors,
    folder_images,
    measure_foreign,
    measure_hard,
)
from experiments.measure.settings import check_measure, check_reference
from experiments.measure.subjects import Subject, load_subjects
from fedsim.determinism import torch_threads
from fedsim.errors import ConfigError, RunError
from fedsim.float32 import full_float32
from fedsim.metrics.jigsaw import Spread
from fedsim.metrics.position import explained_variance, position_errors, svd_energy
from fedsim.metrics.robustness import ALEXNET, mean_corruption_error
from fedsim.report.measures.page import build_measures_page
from fedsim.report.measures.wording import cautions, findings
from fedsim.settings.commands import MeasureConfig, MeasureSettings
from fedsim.settings.places import once_mended, write_refused
from fedsim.settings.schema import parse, plain
from fedsim.storage.durable import write_text

Record = dict[str, Any]


def run_measure(given: MeasureConfig | Mapping[str, Any], root: Path) -> None:
    """From checked settings to the page.

    Raises:
        ConfigError: a setting cannot work; nothing has been measured then.
    """
    config = parse(MeasureConfig, given)
    plan = check_measure(config)
    with nullcontext() if config.threads is None else torch_threads(config.threads):
        _measure(config, plan, root)


@full_float32()
def _measure(config: MeasureConfig, plan: CorruptionPlan | None, root: Path) -> None:
    start = time.perf_counter()
    say_doing("loading models and test images")
    subjects = load_subjects(config)
    for subject in subjects:
        _check_subject(subject, config.measure)
    reference = config.measure.corruptions.reference
    if plan is not None:
        tables = {plan.table_of(_side(subject)) for subject in subjects}
        check_reference(reference, [subject.name for subject in subjects], tables)
    _open(config, root)
    with Bars(console) as bars:
        progress = PassesBar(bars, _passes(subjects, config.measure, plan))
        records = [measure_subject(subject, config, progress) for subject in subjects]
        if plan is not None:
            _measure_corruptions(subjects, records, plan, config.measure.batch_size, progress)
            _normalise(records, reference)
        measures = {"runs": records, "figures": [], "settings": plain(config.measure), "seed": config.seed}
        _write_json(root / "measures.json", {**measures, "seconds": time.perf_counter() - start})
        progress.note("figures")
        measures["figures"] = draw_all(subjects, records, config, root)
    _write_json(root / "measures.json", {**measures, "seconds": time.perf_counter() - start})
    try:
        page = build_measures_page(root)
    except OSError as error:
        if not (refused := write_refused(error, root)):
            raise
        fault = f"{refused}; what was measured is kept. {once_mended(error)}, fedsim-report {root} makes its page"
        raise RunError(fault) from error
    console.print(" ".join([findings(measures)[0], *cautions(measures)]), markup=False)
    console.print(f"report  {page}", markup=False)
    console.print(str(root), markup=False)


def _check_subject(subject: Subject, measure: MeasureSettings) -> None:
    """Raises ConfigError: a setting cannot work for this model."""
    if measure.patch_size is not None:
        layout(subject, measure.patch_size)
    view = embedding_view(subject)
    if view is not None and len(view.patches) < measure.folds:
        expected = f"at most {len(view.patches)}, the number of patches of {subject.name}"
        raise ConfigError("measure.folds", measure.folds, expected)
    if measure.hard is not None:
        folder_images(measure.hard, subject, "measure.hard", must_match=True)
    if measure.foreign is not None:
        check_foreign(subject, folder_images(measure.foreign, subject, "measure.foreign", must_match=False))


class PassesBar:
    """One bar for all passes through the pictures."""

    def __init__(self, bars: Bars, total: int) -> None:
        self._bars, self._total, self._done = bars, total, 0
        self._bars.set("measures", 0, total)

    def note(self, text: str) -> None:
        self._bars.set("measures", self._done, self._total, text)

    def step(self) -> None:
        self._done += 1
        self._bars.set("measures", self._done, self._total)
        if self._done % max(1, self._total // 10) == 0:
            self._bars.say(f"measures {self._done}/{self._total}")


def _passes(subjects: Sequence[Subject], measure: MeasureSettings, plan: CorruptionPlan | None) -> int:
    each = 2 + len(measure.ratios) * measure.draws + sum(path is not None for path in (measure.hard, measure.foreign))
    groups = len({id(subject.pictures) for subject in subjects})
    total: int = each * len(subjects)
    return total if plan is None else total + groups * len(plan.names) * len(plan.severities)


def measure_subject(subject: Subject, config: MeasureConfig, progress: PassesBar) -> Record:
    """Everything but the corruptions, which several models look at together."""
    measure = config.measure
    progress.note(subject.name)
    clean = answer(subject, measure.batch_size)
    progress.step()
    origin = subject.origin
    notes: list[str] = []
    record: Record = {
        "name": subject.name,
        "folder": None if origin.folder is None else str(origin.folder),
        "round": origin.server_round,
        "seed": origin.config["seed"],
        "model": origin.config["model"]["name"],
        "defenses": list(subject.defenses.defenses),
        "pictures": len(subject.pictures),
        "top1": top1(clean, subject.pictures.labels),
        "classes_named": len(clean.logits.argmax(1).unique()),
        "loss": float(F.cross_entropy(clean.logits.double(), subject.pictures.labels)),
        "features": _features(subject, clean),
        "notes": notes,
    }
    record["jigsaw"] = _measure_jigsaw(subject, clean, config, progress, notes)
    record["position"] = _measure_position(subject, config, notes)
    progress.step()
    if measure.hard is not None:
        folder = folder_images(measure.hard, subject, "measure.hard", must_match=True)
        record["hard"] = asdict(measure_hard(subject, folder, measure.batch_size))
        progress.step()
    if measure.foreign is not None:
        folder = folder_images(measure.foreign, subject, "measure.foreign", must_match=False)
        record["foreign"] = asdict(measure_foreign(subject, clean, folder, measure.batch_size))
        progress.step()
    return record


def _features(subject: Subject, clean: Answers) -> str:
    """What Diff. Norm. is taken of."""
    if clean.features is None:
        return "not one linear classifier: no Diff. Norm."
    pooled = getattr(subject.model, "global_pool", None)
    if subject.roles.class_token is not None and pooled == "token":
        return "the class token after the last norm"
    return "pooled features"


def _measure_jigsaw(
    subject: Subject, clean: Answers, config: MeasureConfig, progress: PassesBar, notes: list[str]
) -> Record | None:
    measure = config.measure
    try:
        size = layout(subject, measure.patch_size)
    except ConfigError as error:
        if measure.patch_size is not None:
            raise
        notes.append(f"jigsawed pictures: set {error.key} to a number of {error.expected}")
        for _ in range(len(measure.ratios) * measure.draws):
            progress.step()
        return None
    points = measure_jigsaw(
        subject,
        clean,
        measure.ratios,
        measure.draws,
        size=size,
        min_block=measure.min_block,
        seed=config.seed,
        batch_size=measure.batch_size,
        done=progress.step,
    )
    embedding, (grid, patch) = mask_embedding(subject), size
    rows = [asdict(point) for point in points]
    return {"grid": list(grid), "patch": list(patch), "mask_embedding": embedding, "points": rows}


def _measure_position(subject: Subject, config: MeasureConfig, notes: list[str]) -> Record | None:
    measure, view = config.measure, embedding_view(subject)
    if view is None:
        notes.append("position embeddings: it has none for each patch")
        return None
    found = position_errors(view.patches, view.grid, measure.folds, measure.repeats, config.seed)
    rows, columns = view.grid
    variance = explained_variance(view.patches, measure.dimensions)
    return {
        "grid": list(view.grid),
        "mae_1d": asdict(Spread.of(found.index)),
        "mae_2d": asdict(Spread.of(found.grid)),
        "chance_1d": _guess(rows * columns),
        "chance_2d": (_guess(rows) + _guess(columns)) / 2,
        "explained_variance": {str(count): share for count, share in variance.items()},
        "svd_energy": svd_energy(view.patches).tolist(),
    }


def _guess(count: int) -> float:
    """Mean distance of 0 … count - 1 from their middle."""
    return math.fsum(abs(place - (count - 1) / 2) for place in range(count)) / count


def _measure_corruptions(
    subjects: Sequence[Subject], records: Sequence[Record], plan: CorruptionPlan, batch_size: int, progress: PassesBar
) -> None:
    """Models with the same pictures are shown the same corrupted ones."""
    groups: dict[int, list[int]] = {}
    for number, subject in enumerate(subjects):
        groups.setdefault(id(subject.pictures), []).append(number)
    for numbers in groups.values():
        members = [subjects[number] for number in numbers]
        progress.note("corruptions")
        found = corruption_errors(members, plan, batch_size, progress.step)
        images = members[0].pictures
        side = _side(members[0])
        for number, errors_by_name in zip(numbers, found, strict=True):
            records[number]["corruptions"] = {
                "errors": errors_by_name,
                "pictures": min(len(images), plan.num_images or len(images)),
                "severities": list(plan.severities),
                "table": plan.table_of(side),
                "mean_error": mean_corruption_error(errors_by_name),
            }


def _side(subject: Subject) -> int:
    """Of its pictures, in pixels."""
    return int(subject.pictures.images.images([0]).shape[-1])


def _normalise(records: Sequence[Record], reference: str | None) -> None:
    """Add mCE, None without a reference. Of several runs of the reference's name, the mean error counts."""
    if reference is None:
        for record in records:
            record["corruptions"] |= {"reference": None, "mce": None}
        return
    if reference == "alexnet":
        against = dict(ALEXNET)
    else:
        chosen = [record["corruptions"]["errors"] for record in records if record["name"] == reference]
        against = {
            name: math.fsum(math.fsum(e[name]) / len(e[name]) for e in chosen) / len(chosen) for name in chosen[0]
        }
    for record in records:
        record["corruptions"]["reference"] = reference
        try:
            record["corruptions"]["mce"] = mean_corruption_error(record["corruptions"]["errors"], against)
        except ValueError as error:
            record["corruptions"]["mce"] = None
            record["notes"].append(f"mCE: {reference} cannot be the reference: {error}")


def _open(config: MeasureConfig, root: Path) -> None:
    """Raises ConfigError: the folder holds what a command left there, or cannot be written to."""
    if any((root / name).exists() for name in (*RUNS, "matrix.json", "rows", "content.json")):
        fault = "choose a new folder, this one holds measures or what another command is at already"
        raise ConfigError("run_dir", root, fault=fault)
    try:
        root.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(json.loads(json.dumps(plain(config))), sort_keys=False)
        (root / "config.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("run_dir", root, f"a folder that can be written to ({error.strerror})") from error


def _write_json(path: Path, value: Record) -> None:
    write_text(path, json.dumps(value, indent=1))
