"""The page of LTI and GGL under defenses: one table for each measure and batch size, and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Table, counted, spread_of
from experiments.studies.harness.tables import mean, record_of
from experiments.studies.priors_defended.free_pixels import SETTINGS, TRIED
from experiments.studies.priors_defended.options import FREE, PAPERS
from fedsim.metrics.perceptual import lpips_hint
from fedsim.report.draw.png import COLOURS, drawing

DEFENDED = {
    "none": "none",
    "sign": "sign",
    "prune": "pruning, 99 % zeros",
    "gauss": "noise, std 0.1",
    "noise": "noise, a tenth of the update's norm",
    "clip": "clipping, norm 4",
    "topk": "sparsification, 90 % zeros",
    "soteria": "Soteria, 80 %",
}
NAMES = {
    "lti_mean": "mean public picture (baseline)",
    "generator_samples": "generator's mean sample (baseline)",
    FREE: "free pixels",
    "ggl": "GGL",
    "gias": "GIAS",
    "gifd": "GIFD",
    "lti": "LTI",
}
BASELINE = {"lti": "lti_mean", "ggl": "generator_samples"}
MEASURES = {
    "psnr": ("PSNR in dB", ".2f"),
    "ssim": ("SSIM", ".3f"),
    "feature": ("feature distance, less is better", ".3f"),
    "lpips": ("LPIPS, less is better", ".3f"),
}
INTRODUCTION = (
    "LTI (Wu et al. 2023) and GGL (Li et al. 2022) against the defenses of their papers, on pictures of {held}, "
    "classes that no prior was trained on. Mean ± standard deviation over pictures and seeds. The feature distance is "
    "that of a small classifier of public pictures, between feature maps of unit length. The last column says which "
    "paper tests the defense."
)
DIFFERS = (
    "The papers' numbers were not available, so the last column names the papers that test a defense, without figures. "
    "LTI reports that it gets through sign, pruning and noise, GGL that it gets through noise, clipping, "
    "sparsification and Soteria: compare each with its baseline here.",
    "Held-out classes: the papers attack pictures of classes that the prior was trained on.",
    "Free pixels have a cosine objective and as many steps as GIAS has in the comparison of generators; their "
    "optimiser and the weight of total variation are the best of {settings} settings on {tried} updates of public "
    "pictures behind the same defense. Every search knows the defense: it leaves out what was pruned, and compares "
    "signs with a soft sign. The papers compare with free pixels of one setting.",
    "Noise is a standard deviation of 0.1 in each entry, as GGL's code has it. How much that is depends on the "
    "network, whose gradients may be large or small. GGL's clipping bound of 4 is on the whole update's norm. Sign "
    "shares -1, 0 and 1 alone.",
)


def page(entries: Sequence[Entry], held: Sequence[str], out: Path, budget: Sequence[str]) -> Page:
    """The page; its figure is written beside it.

    Args:
        budget: what differs from the papers in size.
    """
    own = [entry for entry in entries if entry["kind"] == "attacks"]
    sizes = sorted({entry["batch_size"] for entry in own})
    tables = [
        _table([entry for entry in own if entry["batch_size"] == size], measure, size)
        for size in sizes
        for measure in MEASURES
        if any(entry[measure] is not None for entry in own)
    ]
    figure([entry for entry in own if entry["batch_size"] == sizes[0]], out / "priors_defended.png")
    hint = lpips_hint()
    differs = [
        *(sentence.format(settings=len(SETTINGS), tried=TRIED) for sentence in DIFFERS),
        *budget,
        *_settings(own),
        *([f"{hint}."] if hint else []),
        *_priors(entries),
    ]
    introduction = INTRODUCTION.format(held=", ".join(held))
    text = f"PSNR at B = {sizes[0]} under each defense; a line at the mean public picture's"
    title = "LTI and GGL against defenses"
    return Page("priors_defended", title, introduction, tables, differs, {"priors_defended.png": text})


def _settings(entries: Sequence[Entry]) -> list[str]:
    """What public pictures chose for free pixels."""
    chosen: dict[str, list[str]] = {}
    for entry in entries:
        if entry["attack"] == FREE:
            chosen.setdefault(DEFENDED[entry["defense"]], []).append(entry["setting"])
    words = "; ".join(f"{name}: {' and '.join(dict.fromkeys(found))}" for name, found in chosen.items())
    return [f"Free pixels' optimiser and weight of total variation that public pictures chose: {words}."]


def _priors(entries: Sequence[Entry]) -> list[str]:
    """How good the generator is by itself."""
    found = [entry for entry in entries if entry["kind"] == "generator" and "excluded_psnr" in entry]
    if not found:
        return []
    values = [mean(entry[name] for entry in found) for name in ("validation_psnr", "excluded_psnr")]
    return [
        f"The generator's reconstruction of what its encoder makes of a picture: {values[0]:.1f} dB on held-back "
        f"pictures of classes that it knows, {values[1]:.1f} dB on those held out. A search may find better latents."
    ]


def _table(entries: Sequence[Entry], measure: str, size: int) -> Table:
    title, form = MEASURES[measure]
    rows = []
    defenses, attacks = _shown(entries, DEFENDED, "defense"), _shown(entries, NAMES, "attack")
    for defense, label in defenses.items():
        cells = [
            _cell([e for e in entries if (e["defense"], e["attack"]) == (defense, a)], measure, form) for a in attacks
        ]
        rows.append([label, *cells, PAPERS.get(defense, "")])
    record = record_of(entries, f"defense attack seed image status {measure} seconds")
    header = ["defense", *attacks.values(), "paper"]
    return Table(f"{measure}-batch-{size}", f"B = {size}: {title}", header, rows, record)


def _shown(entries: Sequence[Entry], known: Mapping[str, str], key: str) -> dict[str, str]:
    """Of what is known by name what there are entries of."""
    there = {entry[key] for entry in entries}
    return {name: label for name, label in known.items() if name in there}


def _cell(entries: Sequence[Entry], measure: str, form: str) -> str:
    values = [entry[measure] for entry in entries if entry[measure] is not None]
    if not values:
        return next((f"{entry['status']}: {entry['reason']}" for entry in entries), "-")
    return counted(spread_of(values, form), len(values), len(entries))


def figure(entries: Sequence[Entry], path: Path) -> None:
    """Bars for each attack in a group for each defense, with the baseline as a line."""
    defenses, attacks = _shown(entries, DEFENDED, "defense"), _shown(entries, NAMES, "attack")
    with drawing(path, 10.0, 3.8) as drawn:
        axes = drawn.subplots()
        shown = [attack for attack in attacks if attack not in BASELINE.values()] + [BASELINE["ggl"]]
        width = 0.8 / len(shown)
        for turn, (attack, colour) in enumerate(zip(shown, COLOURS, strict=False)):
            label: str | None = attacks[attack]
            for place, defense in enumerate(defenses):
                values = _values(entries, defense, attack)
                if values:
                    at = place - 0.4 + (turn + 0.5) * width
                    axes.bar(at, sum(values) / len(values), width * 0.9, color=colour, label=label)
                    label = None
        guessed = [value for defense in defenses for value in _values(entries, defense, BASELINE["lti"])]
        if guessed:
            axes.axhline(sum(guessed) / len(guessed), color=COLOURS[6], linestyle="--", label=attacks["lti_mean"])
        axes.set_xticks(range(len(defenses)), [label.replace(", ", ",\n") for label in defenses.values()])
        axes.set(ylabel="PSNR, dB")
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)


def _values(entries: Sequence[Entry], defense: str, attack: str) -> list[float]:
    own = [entry for entry in entries if (entry["defense"], entry["attack"]) == (defense, attack)]
    return [entry["psnr"] for entry in own if entry["psnr"] is not None]
