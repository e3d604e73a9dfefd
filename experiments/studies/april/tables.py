"""The tables of the reproduction of APRIL, and what they say beside the paper."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from experiments.studies.april.options import CLOSED_FORM, FIXED_PE, TWINS
from experiments.studies.april.plan import ARMS, KINDS, PART_ARMS
from experiments.studies.april.work import GREY, MEAN
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Table, spread_of
from experiments.studies.harness.tables import Value

RECOGNISED = 20.0
"""dB, a mean squared error of 0.01: a picture that can be recognised."""

TELLING = 0.5
"""dB below which two searches are as good as each other."""

GAINED = 1.0
"""dB above a guess from which an attack has learnt something of the picture."""

FEWEST = 5
"""Pairs of results on the same picture below which nothing is said of two searches."""

GUESSES = {MEAN: "no gradient: mean of public pictures", GREY: "no gradient: grey"}
ATTACKS = {
    "april": "APRIL, closed form",
    "april_optimization": "APRIL, optimisation",
    "plain": "plain matching (APRIL's without its alignment)",
    "inverting_gradients": "Inverting Gradients",
    "patch_gradient": "patch_gradient (ours)",
    "row_space": "row_space (ours)",
    **GUESSES,
}
BLOCKS = {"april": "the paper's", "stock": "stock, pre-norm"}
PUBLISHED = {"ViT-S/16, 224 px": "19.27 / .520 as measured by Ren et al. 2023, trained"}
"""What is printed of the closed form on the models of the table, PSNR and SSIM."""

CLAIMS = {
    "plain": "slower, more bad minima",
    "all": "converges faster, fewer bad minima",
    "withheld": "“twin data”: a low loss, another picture",
}
KIND_LABELS = {"frozen": "fixed at its initial values", "sincos": "fixed sin-cos"}
FIXED_CLAIMS = {
    "april": "stopped",
    "april_optimization": "stopped",
    "plain": "another picture",
    "inverting_gradients": "another picture",
}

Entries = Sequence[Entry]


def tables(entries: Entries, parts: Sequence[str]) -> list[Table]:
    """The tables of the parts that were asked for."""
    makers = {CLOSED_FORM: closed_form_table, "curves": curves_table, TWINS: twins_table, FIXED_PE: fixed_table}
    return [makers[part](entries) for part in parts]


def closed_form_table(entries: Entries) -> Table:
    found = [entry for entry in entries if entry["part"] == CLOSED_FORM]
    rows, record = [], []
    keys = dict.fromkeys((e["model"], e["variant"], e["attack"], e["dtype"]) for e in found)
    order = [*BLOCKS]
    for model in dict.fromkeys(key[0] for key in keys):
        own = [key for key in keys if key[0] == model]
        for key in sorted(own, key=lambda k: (k[2] in GUESSES, order.index(k[1]), [*ATTACKS].index(k[2]), k[3])):
            _, variant, attack, dtype = key
            group = [e for e in found if (e["model"], e["variant"], e["attack"], e["dtype"]) == key]
            one, guess = group[0], attack in GUESSES
            sizes = [one["tokens"], one["width"], one["pixels"]]
            printed = _closed_form_claim(model, one) if (attack, variant) == ("april", "april") else ""
            named = ["" if guess else BLOCKS[variant], ATTACKS[attack], "" if guess else dtype]
            rows.append([model, *map(str, sizes), *named, *_measured(group), printed])
            record.append([model, *sizes, variant, attack, dtype, *_recorded(group)])
    header = ["model", "tokens", "width", "pixels of a patch", "first block", "attack", "gradients"]
    names = ["model", "tokens", "width", "pixels", "first_block", "attack", "gradients", *RECORDED]
    title = "The closed form, by size of the grid"
    return Table("closed_form", title, [*header, *MEASURED, "paper"], rows, (names, record))


def curves_table(entries: Entries) -> Table:
    """The arms at the end of their search; guesses have no steps."""
    arms = _arms(entries, (*PART_ARMS["curves"], *GUESSES))
    rows, record = [], []
    for arm, group in arms.items():
        searched = "steps" in group[0]
        gains = _gains(group, arms["plain"])
        reached = [step for step in map(first_recognised, group) if step is not None] if searched else []
        share = f"{len(reached)} of {len(group)}" if searched else ""
        steps = f"{median(reached):.0f}" if reached else ""
        least = f"{min(gains):.1f}" if arm != "plain" else ""
        cells = [*_measured(group)[:-1], least, share, steps, f"{_over_seeds(group, 'loss', '.2g')}"]
        rows.append([_arm_label(arm), *cells, CLAIMS.get(arm, "")])
        record.append([arm, *_recorded(group), min(gains), len(reached), steps or None, _mean(group, "loss")])
    header = ["search", *MEASURED[:-1], "least gain", f"reached {RECOGNISED:.0f} dB", "median steps", "loss", "paper"]
    names = ["arm", *RECORDED, "least_gain", "reached", "median_steps", "loss"]
    return Table("curves", "Optimisation: what is aligned", header, rows, (names, record))


def twins_table(entries: Entries) -> Table:
    """Losses of what was found, on the tensors that all arms share and on the position embedding's gradient."""
    rows, record = [], []
    for arm, group in _arms(entries, (*PART_ARMS[TWINS], *GUESSES)).items():
        hidden = arm in ARMS and ARMS[arm].defense is not None
        known = "" if arm in GUESSES else "withheld" if hidden else "shared"
        losses = [_over_seeds(group, name, ".2g") for name in ("rest", "position")]
        rows.append([_arm_label(arm), known, *losses, *_measured(group)[:-1], CLAIMS.get(arm, "")])
        record.append([arm, known, _mean(group, "rest"), _mean(group, "position"), *_recorded(group)])
    header = ["search", "∂L/∂E_pos", "loss without ∂L/∂E_pos", "loss on ∂L/∂E_pos's patch rows"]
    names = ["arm", "position_gradient", "loss_without_position", "position_loss", *RECORDED]
    title = "Twin data: the position embedding's gradient is withheld"
    return Table("twins", title, [*header, *MEASURED[:-1], "paper"], rows, (names, record))


def fixed_table(entries: Entries) -> Table:
    found = [entry for entry in entries if entry["part"] == FIXED_PE]
    rows, record = [], []
    for kind in KINDS:
        for attack in ATTACKS:
            group = [e for e in found if (e["kind"], e["attack"]) == (kind, attack)]
            if group:
                above = _above_guess(group, [e for e in found if e["kind"] == kind and e["attack"] in GUESSES])
                gain = "" if above is None or attack in GUESSES else f"{above:+.1f}"
                rows.append([KIND_LABELS[kind], ATTACKS[attack], *_measured(group), gain, FIXED_CLAIMS.get(attack, "")])
                record.append([kind, attack, *_recorded(group), above])
    header = ["position embedding", "attack", *MEASURED, "above the better guess", "paper"]
    names = ["kind", "attack", *RECORDED, "above_better_guess"]
    return Table("fixed_pe", "The fixed position embedding", header, rows, (names, record))


def verdicts(entries: Entries, parts: Sequence[str]) -> list[str]:
    """Whether this run agrees with the paper's claims, in words with its numbers."""
    arms = _arms(entries, (*ARMS, *GUESSES))
    said = [_curves_verdict(arms)] if "curves" in parts else []
    said += [_twins_verdict(arms)] if TWINS in parts else []
    if FIXED_PE in parts:
        said += [_fixed_verdict([e for e in entries if e["part"] == FIXED_PE and e["kind"] == kind]) for kind in KINDS]
    return said


def _curves_verdict(arms: Mapping[str, Entries]) -> str:
    ends = {arm: _mean(group, "psnr") for arm, group in arms.items()}
    published, rows = ends["all"] - ends["plain"], ends["row"] - ends["plain"]
    pairs = len(_gains(arms["all"], arms["plain"]))
    order = "the paper's order" if published > TELLING else "the paper's order does not show"
    share = 100 * _mean(arms["plain"], "prefix_share")
    mostly = ", so that its cosine says more of them than of the patches" if share > 50 else ""
    return (
        f"Aligned as published the search ends {published:+.1f} dB from plain matching over {pairs} pairs of searches: "
        f"{order if pairs >= FEWEST else f'too few to tell, the least is {FEWEST}'}. Prefix tokens hold {share:.1f} % "
        f"of the squared norm of ∂L/∂E_pos{mostly}. Row by row the search ends {rows:+.1f} dB from plain matching."
    )


def _twins_verdict(arms: Mapping[str, Entries]) -> str:
    ends, losses = ({arm: _mean(group, name) for arm, group in arms.items()} for name in ("psnr", "rest"))
    guess = MEAN if MEAN in arms else GREY
    return (
        f"Without ∂L/∂E_pos plain matching ends at a loss of {losses['withheld']:.2g} on the other tensors and "
        f"{ends['withheld']:.1f} dB; with it the same search ends at {losses['plain']:.2g} and {ends['plain']:.1f} dB: "
        f"{_twins(arms, ends, losses, guess)}. A guess ({GUESSES[guess].removeprefix('no gradient: ')}) has "
        f"{losses[guess]:.2g} and {ends[guess]:.1f} dB. With that gradient and another objective, aligned row by row, "
        f"a search gets {ends['row']:.1f} dB."
    )


def _twins(arms: Mapping[str, Entries], ends: Mapping[str, float], losses: Mapping[str, float], guess: str) -> str:
    """Twin data: the loss on what is shared is low, the picture another, and not so where the gradient is shared."""
    if len(_gains(arms["withheld"], arms["plain"])) < FEWEST:
        return f"too few pairs of searches to tell, the least is {FEWEST}"
    if losses["withheld"] >= losses[guess] / 2:
        return "not what the paper calls twin data, the loss is not low"
    if ends["withheld"] >= RECOGNISED:
        return "not what the paper calls twin data, the picture is not another"
    if ends["withheld"] >= ends["plain"] - TELLING:
        return "withholding makes no difference to plain matching here"
    return "twin data, as the paper says"


def _gains(group: Entries, plain: Entries) -> list[float]:
    """dB from plain matching of the same picture with the same seed."""
    known = {(e["seed"], e["number"]): e["psnr"] for e in plain}
    return [e["psnr"] - known[e["seed"], e["number"]] for e in group if (e["seed"], e["number"]) in known]


def _fixed_verdict(group: Entries) -> str:
    named = {name: [e for e in group if e["attack"] == name] for name in ("row_space", published(group))}
    ours, theirs = named["row_space"], _mean(named[published(group)], "psnr")
    guesses = [e for e in group if e["attack"] in GUESSES]
    best, words = fmean(_best_guess(guesses).values()), "the better guess, grey or the mean of public pictures,"
    held = f"The best published search gets {theirs:.1f} dB, {words} {best:.1f} dB"
    above = _above_guess(ours, guesses)
    if above is None:
        return f"{KIND_LABELS[group[0]['kind']].capitalize()}: row_space refuses, {ours[0]['reason']}. {held}."
    certified = sum(bool(e.get("certified")) for e in ours)
    passed = " The paper's defense is one against attacks that read ∂L/∂E_pos." if above > GAINED else ""
    return (
        f"{KIND_LABELS[group[0]['kind']].capitalize()}: row_space is {above:+.1f} dB from a guess, {certified} of "
        f"{len(ours)} pictures certified. {held}.{passed}"
    )


def published(entries: Entries) -> str:
    """The attack in the literature that does best behind a fixed embedding, over both kinds."""
    found = [e for e in entries if e["part"] == FIXED_PE and e["status"] == "done"]
    names = ("plain", "inverting_gradients")
    return max(names, key=lambda name: fmean(e["psnr"] for e in found if e["attack"] == name))


def first_recognised(entry: Entry) -> int | None:
    """The first of the recorded steps at which the picture could be recognised."""
    pairs = zip(entry["steps"], entry["psnr_curve"], strict=True)
    return next((step for step, value in pairs if value >= RECOGNISED), None)


MEASURED = ("n", "PSNR", "worst", "SSIM", "certified")
RECORDED = ("pictures", "psnr", "psnr_worst", "ssim", "mse", "certified", "refused")


def _measured(group: Entries) -> list[str]:
    """Cells of `MEASURED`: the mean over the pictures, with its spread over the seeds."""
    done = [entry for entry in group if entry["status"] == "done"]
    if not done:
        return ["0", f"refused: {group[0]['reason']}", "", "", ""]
    certified = f"{sum(e['certified'] for e in done)}/{len(done)}" if "certified" in done[0] else ""
    worst = min(e["psnr"] for e in done)
    return [
        str(len(done)),
        _over_seeds(done, "psnr", ".1f"),
        f"{worst:.1f}",
        _over_seeds(done, "ssim", ".3f"),
        certified,
    ]


def _recorded(group: Entries) -> list[Value]:
    done = [entry for entry in group if entry["status"] == "done"]
    if not done:
        return [0, None, None, None, None, None, group[0]["reason"]]
    means = [_mean(done, name) for name in ("ssim", "mse")]
    certified = sum(e["certified"] for e in done) if "certified" in done[0] else None
    return [len(done), _mean(done, "psnr"), min(e["psnr"] for e in done), *means, certified, None]


def _over_seeds(group: Entries, name: str, form: str) -> str:
    seeds = dict.fromkeys(entry["seed"] for entry in group)
    return spread_of((_mean([e for e in group if e["seed"] == seed], name) for seed in seeds), form)


def _mean(group: Iterable[Mapping[str, float]], name: str) -> float:
    return fmean(entry[name] for entry in group)


def _best_guess(guesses: Entries) -> dict[tuple[int, int], float]:
    """The PSNR of each picture's better guess, by seed and number."""
    best: dict[tuple[int, int], float] = {}
    for entry in guesses:
        image = entry["seed"], entry["number"]
        best[image] = max(entry["psnr"], best.get(image, -math.inf))
    return best


def _above_guess(group: Entries, guesses: Entries) -> float | None:
    """dB on average from each picture's better guess; None where either has none."""
    guess = _best_guess(guesses)
    gains = [e["psnr"] - guess[e["seed"], e["number"]] for e in group if e["status"] == "done" and guess]
    return fmean(gains) if gains else None


def _arms(entries: Entries, names: Sequence[str]) -> dict[str, list[Entry]]:
    found = [entry for entry in entries if entry["part"] == "matching"]
    groups = {name: [entry for entry in found if entry["arm"] == name] for name in names}
    return {name: group for name, group in groups.items() if group}


def _arm_label(arm: str) -> str:
    return ARMS[arm].label if arm in ARMS else GUESSES[arm]


def _closed_form_claim(model: str, entry: Entry) -> str:
    exact = entry["tokens"] <= entry["width"] and entry["pixels"] <= entry["width"]
    return PUBLISHED.get(model, "exact" if exact else "")
