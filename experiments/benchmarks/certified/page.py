"""What the sweep found, as a page: how many were certified, how many of them wrong, and where coverage falls."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from experiments.benchmarks.certified.defended import DEFENSES
from experiments.benchmarks.certified.models import STATES
from experiments.benchmarks.certified.protocols import PROTOCOLS
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.tables import markdown, number

ATTACKS = (
    *("patch_gradient", "row_space", "april", "mjp_adaptive", "fc_bias", "rgap", "first_block"),
    *("labels", "labels_certified"),
)
_NAMED = ("attack", "model", "state", "defense", "protocol", "kind", "size", "fault")
"""What tells a wrong certificate from another, in the order of its row."""

_SORT = ("model", "state", "defense", "protocol", "kind", "size")
"""What two attacks on one update have in common."""

SHOWN = 40
"""Wrong certificates that the page names one by one."""

_SETTING = (
    "Attacks on what clients share, over models, states of training, defenses, local steps and kinds of batches, by "
    "the code that runs in a federation."
)
_JUDGED = (
    "Each certificate is compared with what the model saw: certified labels must be the client's, with their counts; a "
    "certified image must have at least 58 dB (rounding to 8 bits leaves 58.9) and at least what its certificate "
    "promises, which is tested up to 130 dB: the model saw pixels in float32."
)
_BOUND = (
    "None wrong of k different updates means a rate of at most 3/k at 95 %, for draws like these. Several attacks "
    "judge one update, `labels` by the test of `labels_certified`; so many updates are different at least"
)
_OF_LABELS = ("labels", "labels_certified")
_WORDS = (
    "*Coverage* is the share of certified results among those of attacks that were not refused, *margin* the least of "
    "true minus promised dB, a promise above 130 dB counted as 130 and one below 58 as 58."
)

_HOW_NAMES_READ = (
    "How to read the names:\n"
    "\n"
    "- **State of training**: steps of Adam (0, 30, 100, 300), *fitted* to a train accuracy of 1.0 where it was "
    "reached, *label_noise*: the same with 30 % of the labels random, *saturated*: 300 steps and the head times "
    "4.\n"
    "- **Models**: `_2` has two classes, where others have ten; `vit_nano_16` reads 16 pixels and `mlp_relu_32` "
    "32, `vit_tiny_8` has patches of 8; `april` is `vit_nano` with APRIL's first block, `april_64` the same in "
    "float64; `cnn6` is the CNN of R-GAP; `vit_dropout` drops units.\n"
    "- **Protocols**: *delta_0.1* is the change of the weights by one step of SGD at 0.1, and so on; *smoothed* "
    "has label smoothing of 0.1, *evaluation* the model out of training mode; several steps are on the same "
    "batch.\n"
    "- **Kinds of batch**: of one image *plain*, *relabelled* (a random label), *low_contrast*, *faint* (low "
    "contrast between the levels of 8 bits), *dark*; of several images also *own* (their own labels), *random* "
    "(random labels), *same_label*, and with random labels *one_class* (images of one class), *twins* (each image"
    " twice), *burst* (one image), *shifted* (each beside its copy a pixel apart), *mirrored* (each beside its "
    "mirror image).\n"
    "- **Defenses** are those of fedsim at the setting in their names (`dp_sgd_0_layers`: no noise, clipping by "
    "layer; `ats_sharpness`: only sharpens or blurs; `withhold_qkv`: withholds qkv), and constructed ones that a "
    "certificate must not be fooled by: *scaled_tensors* multiplies each tensor by a factor of its own, "
    "*clipped_tensors* and *clipped_entries* clip each, *random_mirror* and *random_roll* (a shift by a pixel) "
    "change the batch at random in each step, *added_image* adds a constant image, *neighbour_mean* trains on "
    "means of two images, *second_look* on the mirror image too.\n"
)


def certified(entries: Iterable[Entry]) -> list[Entry]:
    """Entries whose certificate promises something."""
    return [entry for entry in entries if entry.get("certificate") == "certified"]


def wrong(entries: Iterable[Entry]) -> list[Entry]:
    """Entries whose certificate did not keep its promise."""
    return [entry for entry in certified(entries) if entry["fault"]]


def page(entries: Sequence[Entry], command: str, stamp: str) -> str:
    """The whole of it in Markdown."""
    runs = [entry for entry in entries if "attack" in entry]
    kept = certified(runs)
    faults = Counter(entry["fault"] for entry in wrong(runs))
    lines = [
        "# Do certificates keep their word?",
        "",
        f"{_SETTING} {_JUDGED}",
        "",
        f"<!-- needs: minutes, DIR -->\n```bash\n{command}\n```",
        "",
        stamp,
        "",
        f"**{len(kept):,} certificates, {faults.total():,} wrong.** {_counts(entries, runs)}",
        "",
        _WORDS,
        "",
        _HOW_NAMES_READ,
        "## Attack by state of training, undefended",
        "",
        _states(runs),
        "## Attack",
        "",
        _each(runs, "attack", ATTACKS, seconds=True),
        "## Model",
        "",
        _each(runs, "model", sorted({entry["model"] for entry in runs})),
        "## Protocol",
        "",
        _each(runs, "protocol", PROTOCOLS),
        "## Kind of batch",
        "",
        _each(runs, "kind", sorted({entry["kind"] for entry in runs})),
        "## Defense by attack",
        "",
        "Certified of those done; wrong ones in bold.",
        "",
        _defenses(runs),
    ]
    if faults:
        lines += ["## Wrong", "", ", ".join(f"{count} {name}" for name, count in faults.items()) + ":", ""]
        lines += [_wrong(runs)]
    return "\n".join(lines)


def _counts(entries: Sequence[Entry], runs: Sequence[Entry]) -> str:
    """What the tables stand on, in sentences."""
    kept, became = certified(runs), Counter(entry["status"] for entry in runs)
    bound = "" if wrong(runs) or not kept else f"{_BOUND}: {_rates(kept)}. "
    rest = became["done"] - len(kept)
    left_out = sum(entry["status"] == "invalid" for entry in entries)
    beside = sum(entry["label_fault"] for entry in kept)
    return (
        f"{bound}{len(runs):,} attacks were run: {became['refused']:,} refused, {became['failed']:,} failed, {rest:,} "
        f"done and uncertified. {left_out:,} combinations do not go together and were left out. Labels that come with "
        f"a certified image promise nothing; {beside:,} were not the client's."
    )


def _rates(kept: Sequence[Entry]) -> str:
    """3/k of each kind, with no fewer different updates than k: the most of one attack among updates of one sort."""
    told = []
    for kind in ("images", "labels"):
        counts: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
        for entry in kept:
            if (entry["attack"] in _OF_LABELS) == (kind == "labels"):
                counts[tuple(entry.get(name) for name in _SORT)][entry["attack"]] += 1
        if updates := sum(max(each.values()) for each in counts.values()):
            told.append(f"{updates:,} of {kind}, {3 / updates:.2g}")
    return "; ".join(told)


def _figures(runs: Sequence[Entry]) -> list[str]:
    refused = sum(entry["status"] == "refused" for entry in runs)
    answered = sum(entry["status"] == "done" for entry in runs)
    kept = certified(runs)
    margins = [entry["margin"] for entry in kept if entry["margin"] is not None]
    share = f"{100 * len(kept) / answered:.0f} %" if answered else "-"
    count = len(wrong(runs))
    wrongs = f"**{count}**" if count else "0"
    return [str(len(runs)), str(refused), str(len(kept)), wrongs, share, f"{min(margins):.1f}" if margins else "-"]


FIGURES = ("tried", "refused", "certified", "wrong", "coverage", "margin, dB")


def _states(runs: Sequence[Entry]) -> str:
    plain = [entry for entry in runs if entry["defense"] == "none" and entry["attack"] != "first_block"]
    rows = []
    for attack in ATTACKS:
        for state in STATES:
            cell = [entry for entry in plain if entry["attack"] == attack and entry["state"] == state]
            if cell:
                rows.append([attack, state, *_figures(cell)])
    return markdown(("attack", "state", *FIGURES), rows)


def _each(runs: Sequence[Entry], axis: str, names: Iterable[str], seconds: bool = False) -> str:
    rows = []
    for name in names:
        cell = [entry for entry in runs if entry[axis] == name]
        if cell:
            took = [entry["seconds"] for entry in cell if entry["status"] == "done"]
            shown = [f"{1000 * median(took):.0f}" if took else "-"]
            rows.append([name, *_figures(cell), *(shown if seconds else [])])
    return markdown((axis, *FIGURES, *(["ms, median"] if seconds else [])), rows)


def _defenses(runs: Sequence[Entry]) -> str:
    cells: dict[tuple[str, str], list[Entry]] = {}
    for entry in runs:
        cells.setdefault((entry["defense"], entry["attack"]), []).append(entry)
    rows = [[name, *(_share(cells.get((name, attack), [])) for attack in ATTACKS)] for name in DEFENSES]
    return markdown(("defense", *ATTACKS), rows)


def _share(cell: Sequence[Entry]) -> str:
    answered = sum(entry["status"] == "done" for entry in cell)
    if not answered:
        return "refused" if cell else ""
    faults = len(wrong(cell))
    return f"{len(certified(cell))} of {answered}" + (f", **{faults}**" if faults else "")


def _wrong(runs: Sequence[Entry]) -> str:
    """The worst of each kind first, one of each combination of attack and defense before a second."""
    worst = sorted(wrong(runs), key=lambda entry: entry["margin"] if entry["margin"] is not None else -1000.0)
    seen: Counter[tuple[str, str]] = Counter()
    order = []
    for entry in worst:
        pair = entry["attack"], entry["defense"]
        order.append((seen[pair], entry))
        seen[pair] += 1
    first = [entry for _, entry in sorted(order, key=lambda ranked: ranked[0])][:SHOWN]
    rows = [
        [
            *(str(entry[name]) for name in _NAMED),
            number(entry["promised"], ".1f"),
            number(entry["true"], ".1f"),
        ]
        for entry in first
    ]
    header = ("attack", "model", "state", "defense", "protocol", "batch", "size", "wrong", "promised dB", "true dB")
    return markdown(header, rows)
