"""The realism ladder: its plan and its page. Its options are in `options`."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from experiments.studies.harness.options import matching_names
from experiments.studies.harness.study import Page, Study, Table, Unit
from experiments.studies.harness.tables import number
from experiments.studies.realism.figure import draw_strips
from experiments.studies.realism.options import arguments
from experiments.studies.realism.rungs import RUNGS
from experiments.studies.realism.victims import STEPS, RungClients
from experiments.studies.realism.work import (
    CLOSED,
    FIRST_ORDER,
    LABELS,
    LARGEST_SYSTEM,
    NO_IMAGE,
    SECOND_ORDER,
    work,
)
from fedsim.errors import ConfigError
from fedsim.report.thresholds import is_recognisable

MOST = 64
SAME = 100.0
"""dB from which the model saw the picture itself, up to the normalisation's rounding."""
FAMILIES = {"closed form": CLOSED, "second order": (SECOND_ORDER,), "first order": FIRST_ORDER}
HEADER = [
    "rung",
    "pictures",
    *FAMILIES,
    "recognisable",
    "against the own",
    "seen against the own",
    "a guess against the own",
    "a guess",
    "nearest public picture",
]
NAMES = [
    "rung",
    "pictures",
    *FAMILIES,
    "best",
    "recognisable",
    "own",
    "moved",
    "own_guess",
    "guess",
    "nearest",
    "reference",
    "rounding",
]


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: an option cannot work.
        RunError: a unit failed.
    """
    images = (8 if options.pictures is None else 3) if options.images is None else options.images
    if not 1 <= images <= MOST:
        raise ConfigError("--images", images, f"1 to {MOST}")
    names = matching_names("--rungs", RUNGS, options.rungs)
    folder = None if options.pictures is None else str(options.pictures.resolve())
    most = 8 if folder is None else 2
    settings = {"pictures": folder, "seed": options.seed, "scale": options.scale, "second_order": most}
    count = {name: -(-images // RUNGS[name].pictures) for name in names}
    needed = max(count[name] * RUNGS[name].pictures for name in names)
    if folder is not None and needed > (held := RungClients("start", settings, options.out).available):
        raise ConfigError("--pictures", folder, f"a folder whose clients hold {needed} images, not {held}")
    units = [
        Unit.of(options, f"{name}/{number}", {"rung": name, "number": number, **settings})
        for number in range(images)
        for name in names
        if number < count[name]
    ]
    units += [
        Unit.of(options, f"{name}/beside of {number}", {"rung": name, "beside": number, **settings})
        for name in names
        for number in [count[name] if folder is None else 1]
    ]
    model = [Unit.of(options, "trained", settings)] if any(RUNGS[name].trained for name in names) else []
    shown = partial(page, names=names, options=options)
    Study(arguments(), [options.seed], settings, [model, units], work, shown).run(options)


def page(entries: Sequence[Mapping[str, Any]], names: Sequence[str], options: argparse.Namespace) -> Page:
    """One table and a strip for each rung."""
    rows, record, best = [], [], {}
    for name in names:
        own = [entry for entry in entries if entry["unit"].rpartition("/")[0] == name]
        line = numbers(own)
        best[name] = line["best"]
        record.append([name, *(line[key] for key in NAMES[1:])])
        shown = [said(own, family, line[title]) for title, family in FAMILIES.items()]
        found = f"{line['recognisable']} of {line['pictures']}"
        moved = "the same" if line["moved"] > SAME else number(line["moved"], ".1f")
        guesses = [number(line[key], ".1f") for key in ("own_guess", "guess", "nearest")]
        rest = [number(line["own"], ".1f"), moved, *guesses]
        rows.append([name, str(line["pictures"]), *shown, found, *rest, beside_of(own), labels_of(own)])
    draw_strips(options.out, best)
    accuracy = next((entry["accuracy"] for entry in entries if "accuracy" in entry), None)
    return Page(
        "realism",
        "The realism ladder",
        "From one picture at initial weights, whose gradient of one step of SGD in float32 is shared, to training as "
        "people do it: each thing alone, then together, each with all before it. Median dB over the pictures, against "
        "what the model saw. A floor is what the best of these attacks reached, no more: one at the guess proves "
        "nothing, and there leakage is open.",
        [Table("realism", "Rungs", [*HEADER, "reference / rounding alone", "labels"], rows, (NAMES, record))],
        differs(options, accuracy),
        {"realism.png": "For each rung: the client's picture, what the model saw, the best attack, the guess"},
    )


def differs(options: argparse.Namespace, accuracy: float | None) -> list[str]:
    """What a reader of the table has to know."""
    said = [
        "The best attack is chosen with the truth in hand, by its median over the rung; so is the nearest public "
        "picture. In batches results are matched to pictures, which favours attacks and not the guess.",
        "A picture that an attack has no image for counts as 0 dB: closed forms of one image, given a batch. *None*: "
        "most pictures of the rung have no image.",
        "Against the own: the best attack's estimate of the client's own picture, which behind augmentation is a mean "
        "over what may have been done to it. Beside it what the model saw and a guess, held against the same.",
        "Recognisable is a picture of 20 dB and more that is 1 dB above its guess.",
        "The reference takes the rounding of the update for Gaussian noise and pictures for Gaussian ones with the "
        "public moments: dB of the mean error; of --pictures, of the first update alone. Rounding alone is what it "
        "leaves near the pictures. Neither is a theorem.",
        "`gauss_newton` runs up to eight digits or two larger pictures an update, whose derivatives take up to 64 "
        "passes of one picture, as a batch of eight's do; elsewhere it is not run, not refused: ten such have 640.",
    ]
    if accuracy is not None:
        said.append(
            f"Trained weights: {STEPS[options.scale]} steps of Adam, {100 * accuracy:.0f} % right on test data."
        )
    return said


def numbers(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a row holds; None where there is nothing. An attack counts that answered for all pictures."""
    guess = [entry for entry in entries if entry.get("attack") == "guess"]
    held, guessed, nearest = (
        [value for entry in guess for value in entry[key]] for key in ("psnrs", "psnrs", "nearest")
    )
    each = {name: psnrs(entries, name) for family in FAMILIES.values() for name in family}
    found = {name: median(values) for name, values in each.items() if values and len(values) == len(guessed)}
    best = max(found, key=lambda name: found[name], default=None)
    line: dict[str, Any] = {"pictures": len(held), "guess": median(guessed), "nearest": median(nearest), "best": best}
    for title, family in FAMILIES.items():
        line[title] = max((found[name] for name in family if name in found), default=None)
    pairs = zip(each[best], guessed, strict=True) if best else ()
    line["moved"] = median(value for entry in guess for value in entry["moved"])
    line["recognisable"] = sum(is_recognisable(value, at) for value, at in pairs)
    line["own"] = median(psnrs(entries, best, "private")) if best else None
    line["own_guess"] = median(values) if (values := psnrs(entries, "guess", "private")) else None
    beside = next((entry for entry in entries if "unknowns" in entry), {})
    return line | {key: beside.get(key) for key in ("reference", "rounding")}


def psnrs(entries: Sequence[Mapping[str, Any]], name: str, key: str = "psnrs") -> list[float]:
    """Of one attack on all pictures; nothing where it was refused on one."""
    own = [entry for entry in entries if entry.get("attack") == name]
    return [] if any(key not in entry for entry in own) else [value for entry in own for value in entry[key]]


def said(entries: Sequence[Mapping[str, Any]], family: Sequence[str], value: float | None) -> str:
    """A family's cell: its best, or why there is none."""
    if value == NO_IMAGE:
        return "none"
    if value is not None:
        return number(value, ".1f")
    return "refused" if any(entry.get("attack") in family for entry in entries) else "not run"


def beside_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """What stands beside a rung, or why nothing does."""
    none: dict[str, Any] = {"none": f"over {LARGEST_SYSTEM:,} unknowns"}
    found = next((entry for entry in entries if "unknowns" in entry or "none" in entry), none)
    if "none" in found:
        return str(found["none"])
    rounding = found["rounding"]
    left = f"{found['rank']} of {found['unknowns']} directions" if rounding is None else number(rounding, ".1f")
    return f"{number(found['reference'], '.1f')} / {left}"


def labels_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """The mean share of labels that are right."""
    shares = [entry["labels"] for entry in entries if entry.get("attack") == LABELS and "labels" in entry]
    return f"{100 * sum(shares) / len(shares):.0f} %" if shares else "refused"
