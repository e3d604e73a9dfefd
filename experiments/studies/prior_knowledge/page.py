"""The page of the prior-knowledge experiment: one picture, larger batches, repeated labels with certificates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from attacks.analytic.linear.certificate import MIN_EXPECTED_PSNR
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Table, counted, spread_of
from experiments.studies.harness.tables import mean, record_of
from fedsim.report.draw.png import COLOURS, drawing, plain_numbers

SQUARED, COSINE, CLOSED = "L2 matching", "cosine matching", "closed form (dL/dW / dL/db)"
RANDOM, GUESS = "random gradient (baseline)", "mean public picture (baseline)"
RGAP, LABELS, FEATURES = "R-GAP", "certified labels", "cosine + recovered features"
ROW_SPACE, FIRST_BLOCK = "cosine in the row spaces", "first block's equations"

MATCHING = (SQUARED, COSINE, CLOSED, RANDOM, GUESS)
CERTIFYING = {
    False: (LABELS, CLOSED, RGAP, COSINE, FEATURES, RANDOM, GUESS),
    True: (LABELS, FIRST_BLOCK, ROW_SPACE, COSINE, FEATURES, RANDOM, GUESS),
}
"""Methods for repeated labels, on the MLP and on the ViT."""


@dataclass(frozen=True)
class Sharing:
    """A batch by its labels: how many pictures share each."""

    groups: tuple[int, ...]
    on_vit: bool


SHARING = {
    "MLP, B = 4, four labels": Sharing((1, 1, 1, 1), on_vit=False),
    "MLP, B = 4, two labels twice": Sharing((2, 2), on_vit=False),
    "MLP, B = 4, one label": Sharing((4,), on_vit=False),
    "ViT, B = 2, two labels": Sharing((1, 1), on_vit=True),
    "ViT, B = 2, one label": Sharing((2,), on_vit=True),
}

SEEN = 100.0
"""dB at which a picture counts in means: an exact one would outweigh all others."""

PAPER = {SQUARED: "recovers", COSINE: "recovers", CLOSED: "exact"}
"""What the post says of one picture of known label; its numbers were not available."""

INTRODUCTION = (
    "A 4-layer MLP at initialisation, no priors, labels read off the head's gradient. PSNR in dB, mean ± standard "
    "deviation over the seeds, each with its own pictures and weights; a picture counts with at most "
    f"{SEEN:.0f} dB, and one that was not rebuilt not at all: in brackets, how many of the batch were. Certified: the "
    "method itself says that its labels are the right multiset, or its pictures exact, without seeing the truth."
)
DIFFERS = (
    "The post knows the label. Here it is read off: for one picture that is exact, for batches the rule `auto` says "
    "what it certifies; batches repeat labels no more than their number of classes makes them.",
    "Information loss: a unit of the first layer that only one picture activates gives that picture exactly, "
    "whatever the batch; the more pictures, the fewer such units.",
    "Repeated labels, what can be certified: the label counts, with repeats, where B ≤ classes - 1; an MLP's batch, "
    "where every picture is found, lies on whole pixel levels and moves its units in the model as far as they were "
    "moved, whatever the labels; a ViT's pair, by the first block's equations, which read no labels at all; each where "
    "the client's computation, done once more with the certified labels, gives the shared update and the error is "
    "bounded. What cannot: anything a search gives, the row-space one and that with recovered features included (their "
    "counts are certified; how near the features are depends on the condition of the equations), and which of two "
    "pictures of one label is which. R-GAP certifies single pictures of at most 2,000 numbers, behind invertible "
    "activations.",
)


def page(entries: Sequence[Entry], out: Path, budget: str) -> Page:
    """The page; its figure is written beside it.

    Args:
        budget: what differs from the post in pictures, network and steps.
    """
    batches = [entry for entry in entries if entry["sharing"] is None]
    figure(batches, out / "prior_knowledge.png")
    tables = [_single_table(batches), _batch_table(batches), _sharing_table(entries)]
    text = "left: one picture, PSNR on the way, a line for each seed; right: mean PSNR over the batch size"
    title = "Prior knowledge: an MLP's gradient"
    return Page("prior_knowledge", title, INTRODUCTION, tables, [budget, *DIFFERS], {"prior_knowledge.png": text})


def _single_table(entries: Sequence[Entry]) -> Table:
    """B = 1."""
    single = [entry for entry in entries if entry["batch_size"] == 1]
    rows = []
    for method in MATCHING:
        own = _of(single, method)
        ssim = [entry["ssim"] for entry in own if "ssim" in entry]
        steps = [found for entry in own if (found := _steps_to(entry.get("curve", []))) is not None]
        reached = counted(f"{median(steps):g}", len(steps), len(own)) if steps else "-"
        likeness = counted(spread_of(ssim, ".3f"), len(ssim), len(own)) if ssim else "-"
        rows.append([method, _psnr(own), likeness, reached, PAPER.get(method, "")])
    record = record_of(single, "method seed status psnr ssim seconds")
    header = ["method", "PSNR", "SSIM", "steps to 20 dB, median", "post"]
    return Table("one-picture", "One picture, label known", header, rows, record)


def _batch_table(entries: Sequence[Entry]) -> Table:
    sizes = sorted({entry["batch_size"] for entry in entries})
    rows = []
    for method in MATCHING:
        rows.append([method, *(_psnr([e for e in _of(entries, method) if e["batch_size"] == size]) for size in sizes)])
    closed = _of(entries, CLOSED)
    exact = [_certified_images([entry for entry in closed if entry["batch_size"] == size]) for size in sizes]
    rows.append(["… pictures that it certifies as exact", *exact])
    record = record_of(entries, "method batch_size seed status psnr ssim labels pictures_certified seconds")
    header = ["method", *(f"B = {size}" for size in sizes)]
    return Table("batches", "Information loss in batches, PSNR", header, rows, record)


def _sharing_table(entries: Sequence[Entry]) -> Table:
    rows = []
    for sharing, kind in SHARING.items():
        for method in CERTIFYING[kind.on_vit]:
            own = _of([entry for entry in entries if entry["sharing"] == sharing], method)
            refusals = [entry["reason"] for entry in own if entry["status"] != "done"]
            if len(refusals) == len(own):
                rows.append([sharing, method, "-", "-", f"refused: {refusals[0]}" if refusals else "-", "-"])
                continue
            labels = [100 * entry["labels"] for entry in own if "labels" in entry]
            named = counted(f"{spread_of(labels, '.0f')} %", len(labels), len(own)) if labels else "-"
            rows.append([sharing, method, named, _psnr(own), _certified(method, own), str(wrong(method, own))])
    record = record_of(
        [e for e in entries if e["sharing"] is not None],
        "sharing method seed status labels labels_exact psnr certificate pictures_certified reason seconds",
    )
    header = ["batch", "method", "labels named", "PSNR", "certified", "certificates that were wrong, at least"]
    return Table("repeated-labels", "Samples that share a label, and what is certified", header, rows, record)


def wrong(method: str, entries: Sequence[Entry]) -> int:
    """Certificates of labels that were others; of pictures, how many more were certified than are good.

    Certificates do not say which pictures they are of: a good one without may hide a wrong one.
    """
    if method == LABELS:
        return sum(e.get("certificate") == "certified" and not e["labels_exact"] for e in entries)
    count = 0
    for entry in entries:
        right = sum(value is not None and value >= MIN_EXPECTED_PSNR for value in entry.get("psnrs", []))
        count += max(0, entry.get("pictures_certified", 0) - right)
    return count


def figure(entries: Sequence[Entry], path: Path) -> None:
    """Curves of one picture, and PSNR over B."""
    with drawing(path, 10.0, 3.6) as drawn:
        left, right = drawn.subplots(1, 2)
        sizes = sorted({entry["batch_size"] for entry in entries})
        for method, colour in zip(MATCHING, COLOURS, strict=False):
            for entry in _of(entries, method):
                if entry["batch_size"] == 1 and entry.get("curve"):
                    steps, values = zip(*entry["curve"], strict=True)
                    left.plot(steps, [min(SEEN, value) for value in values], color=colour, alpha=0.7)
            means = [_capped(_of(entries, method), size) for size in sizes]
            known = [(size, value) for size, value in zip(sizes, means, strict=True) if value is not None]
            if known:
                right.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=4, label=method)
        left.set(xlabel="step", ylabel="PSNR, dB", title="One picture, label known")
        right.set_xscale("log", base=2)
        plain_numbers(right.xaxis, sizes)
        right.set(xlabel="batch size", ylabel="mean PSNR of rebuilt pictures, dB", title="Information loss in batches")
        drawn.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5)


def _capped(entries: Sequence[Entry], size: int) -> float | None:
    own = [entry for entry in entries if entry["batch_size"] == size]
    return mean(min(SEEN, value) for entry in own for value in entry.get("psnrs", []) if value is not None)


def _psnr(entries: Sequence[Entry]) -> str:
    """Mean over pictures, then mean and spread over seeds; how many were rebuilt where not all were."""
    means, rebuilt, count = [], 0, 0
    for entry in entries:
        values = [min(SEEN, value) for value in entry.get("psnrs", []) if value is not None]
        rebuilt, count = rebuilt + len(values), count + entry["batch_size"]
        if values:
            means.append(sum(values) / len(values))
    if not means:
        return "-"
    return counted(spread_of(means), rebuilt, count)


def _certified(method: str, entries: Sequence[Entry]) -> str:
    if method == LABELS:
        return f"{sum(e.get('certificate') == 'certified' for e in entries)} of {len(entries)} batches' labels"
    if all(entry.get("certificate", "none") == "none" for entry in entries):
        return "nothing: it has no test"
    return _certified_images(entries)


def _certified_images(entries: Sequence[Entry]) -> str:
    return f"{sum(e.get('pictures_certified', 0) for e in entries)} of {sum(e['batch_size'] for e in entries)} pictures"


def _steps_to(curve: Sequence[Sequence[float]], level: float = 20.0) -> int | None:
    return next((int(step) for step, value in curve if value >= level), None)


def _of(entries: Sequence[Entry], method: str) -> list[Entry]:
    return [entry for entry in entries if entry["method"] == method]
