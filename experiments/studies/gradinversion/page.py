"""The page of GradInversion's reproduction: label tables, the ablation, a figure of both."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Table, counted, spread_of
from experiments.studies.harness.tables import mean, record_of
from fedsim.metrics.perceptual import lpips_hint
from fedsim.report.draw.png import COLOURS, drawing, plain_numbers

GRADIENT, SMOOTH, FIDELITY = "gradient only", "+ total variation, norm", "+ BatchNorm statistics: fidelity"
LAZY, REGISTERED = "+ lazy group", "+ registered group"
RANDOM, GUESS = "random gradient (baseline)", "mean public picture (baseline)"
ARMS = (GRADIENT, SMOOTH, FIDELITY, LAZY, REGISTERED, RANDOM, GUESS)
PAPER_ARMS = {
    GRADIENT: {"lpips": 0.919},
    FIDELITY: {"lpips": 0.655},
    LAZY: {"lpips": 0.554},
    REGISTERED: {"lpips": 0.484, "psnr": 12.93, "fft2d": 0.175},
}
"""ResNet-50, 224 px, B = 8. Its FFT is another formula than ours."""

STATES = {"initial": "at initialisation", "trained": "trained"}
KINDS = {"distinct": "distinct labels", "repeated": "repeated labels"}
RULES_SHOWN = {
    "gradinversion": "GradInversion, column minimum",
    "gradinversion_sum": "column sum",
    "rlg": "RLG (the set alone)",
    "llg": "LLG",
    "zlg": "ZLG",
    "ilrg": "iLRG",
    "bias_corrected": "bias, corrected",
    "bias_prior": "bias + p̂",
    "certified": "certified (ours)",
}
PAPER_LABELS = {"gradinversion": 99.56, "gradinversion_sum": 95.89}
"""Per cent of labels, trained ResNet-50 on ImageNet, batches without repeats."""

DRAWN = ("gradinversion", "gradinversion_sum", "ilrg", "bias_prior", "certified")
MEASURES = {"psnr": ("PSNR", ".2f"), "ssim": ("SSIM", ".3f"), "fft2d": ("FFT", ".3f"), "lpips": ("LPIPS", ".3f")}

INTRODUCTION = (
    "GradInversion (Yin et al. 2021). Labels: the share of a batch's labels that each rule names, in per cent, mean ± "
    "standard deviation over the seeds; of the certified rule also the share of batches that it certifies, and how "
    "many of those certificates were wrong. Ablation: mean scores of the batch's pictures, mean ± standard deviation "
    "over the seeds, each with its own batch of {batch}, in brackets how many of the batches an arm served. Every "
    "arm starts from the same candidates, except the random gradient's."
)
DIFFERS = (
    "The paper prints one label accuracy for batches without repeats; here it depends on the batch size, which the "
    "tables show, and on repeats, which the column rules cannot name at all: their share falls as repeats grow.",
    "Certificates need B ≤ classes - 1 and are tried up to B = 16; RLG needs B < classes - 1. A dash: the rule does "
    "not apply, or the pictures have too few classes.",
    "Registration: a translation and then an affine map; the paper's RANSAC flow is a learned one. FFT: the paper "
    "prints no formula, so its number and ours are on different scales.",
    "The paper's ablation is in LPIPS alone; the order of the arms is what can be compared.",
)


def page(entries: Sequence[Entry], batch: int, out: Path, budget: str) -> Page:
    """The page; its figure is written beside it.

    Args:
        budget: what differs from the paper in size.
    """
    labels = [entry for entry in entries if entry["kind"] == "labels"]
    ablation = [entry for entry in entries if entry["kind"] == "ablation"]
    figure(labels, ablation, out / "gradinversion.png")
    hint = lpips_hint()
    differs = [budget, *DIFFERS, *([f"{hint}."] if hint else []), *_training(entries)]
    tables = [*_label_tables(labels), _ablation_table(ablation)]
    text = "left: labels of the trained network, dashed where they repeat; right: PSNR of the ablation's arms"
    introduction = INTRODUCTION.format(batch=batch)
    title = "GradInversion: labels and ablation"
    return Page("gradinversion", title, introduction, tables, differs, {"gradinversion.png": text})


def _training(entries: Iterable[Entry]) -> list[str]:
    found = next((entry for entry in entries if entry["kind"] == "training"), None)
    if found is None or found["accuracy"] is None:
        return []
    return [f"The network's accuracy after {found['steps']} steps: {100 * found['accuracy']:.0f} %."]


def _label_tables(entries: Sequence[Entry]) -> list[Table]:
    tables = []
    for state, title in STATES.items():
        for kind, name in KINDS.items():
            own = [entry for entry in entries if (entry["state"], entry["labels"]) == (state, kind)]
            if own:
                tables.append(_label_table(own, f"labels-{state}-{kind}", f"Labels, {name}, {title}", state, kind))
    return tables


def _label_table(own: Sequence[Entry], name: str, title: str, state: str, kind: str) -> Table:
    sizes = sorted({entry["batch_size"] for entry in own})
    compared = state == "trained" and kind == "distinct"
    header = ["rule", *(f"B = {size}" for size in sizes), *(["paper"] if compared else [])]
    rows = []
    for rule, label in RULES_SHOWN.items():
        cells = [_share(_of(own, rule, size), "share") for size in sizes]
        known = f"{PAPER_LABELS[rule]:.2f}" if rule in PAPER_LABELS else ""
        rows.append([label, *cells, *([known] if compared else [])])
    certified = [_of(own, "certified", size) for size in sizes]
    rows.append(
        ["… batches certified", *(_share(cell, "certified") for cell in certified), *([""] if compared else [])]
    )
    wrong = [str(sum(one["wrongly_certified"] for one in cell)) if cell else "-" for cell in certified]
    rows.append(["… certificates that were wrong", *wrong, *([""] if compared else [])])
    record = record_of(own, "rule batch_size seed batches share exact certified wrongly_certified seconds")
    return Table(name, title, header, rows, record)


def _ablation_table(entries: Sequence[Entry]) -> Table:
    present = [name for name in MEASURES if any(name in entry for entry in entries)]
    known = [name for name in MEASURES if any(name in values for values in PAPER_ARMS.values())]
    header = ["arm", *(MEASURES[name][0] for name in present), "labels, %"]
    header += [f"paper: {MEASURES[name][0]}" for name in known]
    rows = []
    for arm in ARMS:
        own = [entry for entry in entries if entry["arm"] == arm]
        cells = []
        for name in present:
            values = [entry[name] for entry in own if name in entry]
            cells.append(
                counted(spread_of(values, MEASURES[name][1]), len(values), len(own)) if values else _reason(own)
            )
        paper = [PAPER_ARMS.get(arm, {}).get(name) for name in known]
        row = [arm, *cells, _share([entry for entry in own if "labels" in entry], "labels", "")]
        rows.append([*row, *("" if value is None else f"{value:g}" for value in paper)])
    record = record_of(entries, "arm seed status psnr ssim fft2d lpips labels seconds")
    return Table("ablation", "Ablation", header, rows, record)


def figure(labels: Sequence[Entry], ablation: Sequence[Entry], path: Path) -> None:
    """Label shares over the batch size, and the PSNR of each arm with its seeds."""
    with drawing(path, 10.0, 3.8) as drawn:
        left, right = drawn.subplots(1, 2)
        trained = [entry for entry in labels if entry["state"] == "trained"]
        for rule, colour in zip(DRAWN, COLOURS, strict=False):
            for kind, style in (("distinct", "-"), ("repeated", "--")):
                own = [entry for entry in trained if (entry["rule"], entry["labels"]) == (rule, kind)]
                sizes = sorted({entry["batch_size"] for entry in own})
                shares = [mean(100 * entry["share"] for entry in own if entry["batch_size"] == s) for s in sizes]
                label = RULES_SHOWN[rule] if kind == "distinct" else None
                left.plot(sizes, shares, style, color=colour, marker="o", markersize=3, label=label)
        left.set_xscale("log", base=2)
        plain_numbers(left.xaxis, sorted({entry["batch_size"] for entry in trained}))
        left.set(xlabel="batch size", ylabel="labels named, %", title="Labels, trained network")
        drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(DRAWN))
        for place, arm in enumerate(ARMS):
            values = [entry["psnr"] for entry in ablation if entry["arm"] == arm and "psnr" in entry]
            colour = COLOURS[6] if arm in (RANDOM, GUESS) else COLOURS[0]
            right.barh(place, mean(values) or 0.0, color=colour, alpha=0.35)
            right.plot(values, [place] * len(values), "o", color=colour, markersize=4)
        right.set_yticks(range(len(ARMS)), ARMS)
        right.invert_yaxis()
        right.set(xlabel="PSNR, dB; a point for each seed", title="Ablation")


def _of(entries: Sequence[Entry], rule: str, size: int) -> list[Entry]:
    return [entry for entry in entries if (entry["rule"], entry["batch_size"]) == (rule, size)]


def _share(entries: Sequence[Entry], name: str, missing: str = "-") -> str:
    return spread_of((100 * entry[name] for entry in entries), ".1f") if entries else missing


def _reason(entries: Sequence[Entry]) -> str:
    """Why there is no score."""
    return next((f"{entry['status']}: {entry['reason']}" for entry in entries if entry["reason"]), "-")
