"""The page of MJP's Table 5."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Page, Table
from experiments.studies.harness.tables import Value, mean, number
from experiments.studies.mjp_table5.rows import ADAPTIVE, ATTACKS, GREY, MEAN, PATCH, PATCH_TOLD, TableCase, TableRow
from experiments.studies.mjp_table5.work import MEASURES
from fedsim.metrics.perceptual import lpips_hint
from fedsim.report.wording import percent

FORMS = {"mse": ".4f", "fft2d_mjp": ".4f", "psnr": ".2f", "ssim": ".4f", "lpips": ".4f"}
COLUMNS = {"mse": "MSE", "fft2d_mjp": "FFT", "psnr": "PSNR", "ssim": "SSIM", "lpips": "LPIPS"}
CERTIFYING = (PATCH, PATCH_TOLD, ADAPTIVE)
"""Attacks that can say of a picture that it is exact."""

INTRODUCTION = (
    "Ren et al. 2023 attack masked jigsaws with the closed form of APRIL. Φ is a recovery from the gradient of its "
    "argument, x̃ the jigsawed picture: setting a compares Φ(x) with x, b Φ(x̃) with x̃, c Φ(x̃) with x. Means over the "
    "pictures, compared in [0, 1] after rounding to 8 bits; a picture without any error counts as 300 dB. "
    "± is the standard deviation over pictures."
)

COMPARED = {"a": "Φ(x), x", "b": "Φ(x̃), x̃", "c": "Φ(x̃), x"}


@dataclass(frozen=True)
class MeasuredRow:
    """A row with what was measured.

    Attributes:
        means: over the pictures, by measure; None where there is no value.
        acc: share of right predictions; None without trained weights.
        refused: the most frequent reason, where no picture was rebuilt.
    """

    row: TableRow
    pictures: int
    means: Mapping[str, float | None]
    psnr_std: float | None
    certified: float | None
    acc: float | None
    masked: float | None
    refused: str


def summarise(rows: Sequence[TableRow], entries: Sequence[Entry]) -> list[MeasuredRow]:
    """One line for each row."""
    by_attack: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        by_attack.setdefault((entry["case"], entry["attack"]), []).append(entry)
    return [_line(row, by_attack) for row in rows]


def page_of(rows: Sequence[TableRow], entries: Sequence[Entry], trained: bool, drawn: bool) -> Page:
    """The page, and `table5.csv`; the paper's numbers stand on the lines of its own attack.

    Args:
        drawn: there is a figure beside it.
    """
    lines = summarise(rows, entries)
    header = ["model", "set.", "compared", "closed form", "n", "acc", *COLUMNS.values(), "certified"]
    header += [f"paper: {name}" for name in ("acc", *COLUMNS.values())]
    names = ["row", "model", "setting", "compared", "attack", "pictures", "acc", *MEASURES, "psnr_std", "certified"]
    names += ["masked", "refused", *(f"paper_{name}" for name in ("acc", *MEASURES))]
    record = names, [_record(line) for line in lines]
    table = Table("table5", "Table 5", header, [_cells(line) for line in lines], record)
    figures = {"table5.png": "clients' pictures on top, then what each closed form makes of them"} if drawn else {}
    return Page("mjp_table5", "MJP's Table 5", INTRODUCTION, [table], _notes(lines, trained), figures)


def compared_images(row: TableRow) -> str:
    """What stands against what, `Φ(x), x`."""
    compared = COMPARED["b"] if not row.told else COMPARED[row.setting]
    return compared.split(", ")[1] if row.attack in (MEAN, GREY) else compared


def _line(row: TableRow, by_attack: Mapping[tuple[str, str], Sequence[Entry]]) -> MeasuredRow:
    found = by_attack.get((row.case.name, row.attack), [])
    done = [entry for entry in found if entry["status"] == "done"]
    scores = [entry[row.against] for entry in done]
    psnrs = [score["psnr"] for score in scores]
    told = "right" if row.told else "right_untold"
    stock = TableCase(row.case.group, "stock", row.case.ratio).name
    answers = {
        e["number"]: e[told] for (case, _), group in by_attack.items() if case == stock for e in group if told in e
    }
    reasons = Counter(entry["reason"] for entry in found if entry["status"] != "done")
    return MeasuredRow(
        row,
        len(done),
        {name: mean(score[name] for score in scores) for name in MEASURES},
        stdev(psnrs) if len(psnrs) > 1 else None,
        fmean(entry["certified"] for entry in done) if done else None,
        fmean(answers.values()) if answers and row.attack not in (MEAN, GREY) else None,
        mean(entry["masked"] for entry in found) if row.case.ratio is not None else None,
        reasons.most_common(1)[0][0] if reasons and not done else "",
    )


def _cells(line: MeasuredRow) -> list[str]:
    row, paper = line.row, line.row.published
    compared = compared_images(row)
    own = [number(line.means[name], FORMS[name]) for name in MEASURES]
    if line.psnr_std is not None and line.pictures > 1:
        own[MEASURES.index("psnr")] += f" ± {line.psnr_std:.2f}"
    acc = "" if line.acc is None else f"{100 * line.acc:.1f}"
    certified = "" if line.certified is None or row.attack not in CERTIFYING else percent(line.certified)
    if line.refused:
        own = ["refused", *[""] * (len(own) - 1)]
    printed = [""] * (1 + len(MEASURES))
    if paper is not None:
        values = (paper.mse, paper.fft, paper.psnr, paper.ssim, paper.lpips)
        printed = [f"{paper.acc:.1f}", *(number(v, FORMS[n]) for n, v in zip(MEASURES, values, strict=True))]
    return [row.label, row.setting, compared, ATTACKS[row.attack], str(line.pictures), acc, *own, certified, *printed]


def _record(line: MeasuredRow) -> list[Value]:
    row, paper = line.row, line.row.published
    printed: list[Value] = [None] * (1 + len(MEASURES))
    if paper is not None:
        printed = [paper.acc, paper.mse, paper.fft, paper.psnr, paper.ssim, paper.lpips]
    acc = None if line.acc is None else 100 * line.acc
    measured = [acc, *(line.means[name] for name in MEASURES), line.psnr_std, line.certified, line.masked]
    compared = "seen" if row.against == "seen" else "private"
    return [row.name, row.label, row.setting, compared, row.attack, line.pictures, *measured, line.refused, *printed]


def _notes(lines: Sequence[MeasuredRow], trained: bool) -> list[str]:
    """What a reader of the table alone must know."""
    notes = [
        "The paper's numbers are of trained models on 1,000 ImageNet validation pictures.",
        "APRIL as published needs a first block without norm and residual, and attacks such a model; patch_gradient "
        "attacks the stock one, on the same pictures. Patches of more pixels than the model is wide have no exact "
        "solution in APRIL's second step.",
        "(w/o): masks on, and the attacker does not know of them. The paper prints setting a, with the values of b.",
        "MJP's gradients hold the localisation's term too. It is a function of what the server sent and of the mask, "
        "which shows: who is told of MJP, and the adaptive attack, subtract it; the others leave it in.",
    ]
    if not trained:
        notes.append("acc is empty: the models are as they were initialised; --checkpoint gives trained weights.")
    shares = {line.row.case.ratio: line.masked for line in lines if line.masked is not None}
    told = ", ".join(f"{share:.3f} at ratio {ratio:g}" for ratio, share in shares.items())
    if told:
        notes.append(f"Masked positions: {told}.")
    for reason in dict.fromkeys(line.refused for line in lines if line.refused):
        refused = [line for line in lines if line.refused == reason]
        rows = ", ".join(dict.fromkeys(line.row.label for line in refused))
        printed = any(line.row.published for line in refused)
        also = "; the paper does not say how its attack does without that gradient" if printed else ""
        notes.append(f"{rows}: refused, {reason}{also}.")
    hint = lpips_hint()
    return notes if hint is None else [*notes, f"{hint}."]
