"""What the study shows: recipes beside `full` seed by seed, and the learning rates that were tried."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from attacks.result import psnr_of
from experiments.studies.finetune_accuracy.scales import HELD_OUT, RECIPES, Scale
from experiments.studies.harness.intervals import CONFIDENCE, interval
from experiments.studies.harness.study import Page, Table, spread_of
from experiments.studies.harness.tables import number

FULL = "full"
Entries = Sequence[Mapping[str, Any]]


def page(
    scale: Scale,
    recipes: Sequence[str],
    drawn: Sequence[int],
    rates: Mapping[str, float],
    public: Mapping[str, Any],
    tried: Entries,
    done: Entries,
    leaks: Entries,
) -> Page:
    """Two tables."""
    introduction = (
        f"FedAvg from one public model on classes that it has not seen: {scale.clients} clients, {scale.rounds} "
        f"rounds, {scale.steps} steps of AdamW on batches of {scale.batch} in each. The difference to `full` is taken "
        f"seed by seed; ± behind it is the {CONFIDENCE:.0%} interval of Student's t over {len(drawn)} seeds, behind "
        "the accuracy their standard deviation. Seeds draw who holds what, batches and factors: test pictures and the "
        "public model are the same in all. Bytes are those of the trained tensors in float32, in a message there or "
        "back. Processor time is that of the run, by rounds, beside full's."
    )
    differs = [
        f"The public model was trained for {scale.public_steps} steps of {scale.public_batch} on the other half of the "
        f"classes: {public['accuracy']:.1%} on its own test pictures. Its classifier is drawn anew.",
        f"Learning rates were chosen after {scale.search_rounds} rounds on {HELD_OUT:.0%} of the training pictures "
        "that were held out, with another seed: as many for each recipe, around what its size bears.",
        *_at_the_edge(recipes, rates),
    ]
    if leaks:
        differs.append(
            "Leakage is that of one picture's gradient at the public model, by `patch_gradient` where it applies and "
            "`gauss_newton` from the mean elsewhere: floors that these attacks reached, no more."
        )
    tables = [_comparison(recipes, drawn, rates, done, leaks), _rates(recipes, rates, tried)]
    return Page("finetune_accuracy", "Fine-tuning recipes in a federation", introduction, tables, differs)


def _comparison(
    recipes: Sequence[str], drawn: Sequence[int], rates: Mapping[str, float], done: Entries, leaks: Entries
) -> Table:
    by = {(entry["recipe"], entry["seed"]): entry for entry in done}
    rows, record = [], []
    for recipe in recipes:
        own = [by[recipe, seed] for seed in drawn]
        full = [by[FULL, seed] for seed in drawn]
        mean, reach = interval([100 * (a["accuracy"] - b["accuracy"]) for a, b in zip(own, full, strict=True)])
        spent, whole = (_cpu(entries) for entries in (own, full))
        ratio = spent / whole if spent and whole else None
        leak = [entry for entry in leaks if entry["recipe"] == recipe and "squared_error" in entry]
        floor, guess = (
            psnr_of(fmean(one[key] for one in leak)) if leak else None for key in ("squared_error", "guess")
        )
        accuracy = [100 * entry["accuracy"] for entry in own]
        size = own[0]["bytes"]
        difference = "" if recipe == FULL else f"{mean:+.1f}" + ("" if reach is None else f" ± {reach:.1f}")
        row = [recipe, f"{rates[recipe]:g}", f"{size:,}", f"{size / full[0]['bytes']:.1%}", number(ratio, ".2f")]
        row += [spread_of(accuracy), difference]
        if leaks:
            row += [number(floor, ".1f"), number(guess, ".1f"), str(len(leak))]
        rows.append(row)
        record.append([recipe, rates[recipe], size, spent, ratio, fmean(accuracy), mean, reach, len(own), floor, guess])
    header = ["recipe", "learning rate", "bytes a message", "of full's", "processor time of the run, by rounds"]
    header += ["accuracy (%)", "points beside full"]
    header += ["dB of the mean error", "a guess", "pictures"] if leaks else []
    names = ["recipe", "rate", "bytes", "cpu_seconds", "cpu_ratio", "accuracy", "difference", "reach", "seeds"]
    names += ["floor", "guess"]
    return Table("finetune_accuracy", "Recipes beside training everything", header, rows, (names, record))


def _cpu(entries: Entries) -> float | None:
    """Seconds a round, of runs that one call did whole."""
    known = [entry["cpu"] for entry in entries if entry["cpu"] is not None]
    return fmean(known) if known else None


def _rates(recipes: Sequence[str], rates: Mapping[str, float], tried: Entries) -> Table:
    by = {(entry["recipe"], entry["rate"]): 100 * entry["accuracy"] for entry in tried}
    places = range(max(len(RECIPES[recipe].rates) for recipe in recipes))
    rows = [
        [recipe, *(f"{by[recipe, rate]:.1f} at {rate:g}" for rate in RECIPES[recipe].rates), f"{rates[recipe]:g}"]
        for recipe in recipes
    ]
    record = [[recipe, rate, by[recipe, rate]] for recipe in recipes for rate in RECIPES[recipe].rates]
    header = ["recipe", *("accuracy (%)" for _ in places), "chosen"]
    names = ["recipe", "rate", "accuracy"]
    return Table("finetune_accuracy_rates", "Learning rates that were tried", header, rows, (names, record))


def _at_the_edge(recipes: Sequence[str], rates: Mapping[str, float]) -> list[str]:
    """A sentence where a better rate may lie outside what was tried."""
    found = [name for name in recipes if rates[name] in (RECIPES[name].rates[0], RECIPES[name].rates[-1])]
    return [f"Of {', '.join(found)} the best rate is the first or last that was tried."] if found else []
