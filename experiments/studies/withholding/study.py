"""The smallest set of tensors whose withholding stops every closed form, and what it costs.

Its options are in `options`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.cli.call import console
from experiments.cli.progress import Bars
from experiments.matrix.units import TRAINING, MatrixRun, check_unit, finished, run_unit
from experiments.python.load_config import load_config
from experiments.studies.harness.ledger import Ledger, kept
from experiments.studies.withholding.hitting_set import Names
from experiments.studies.withholding.options import LEVELS
from experiments.studies.withholding.search import OWN, Audits, SmallestSets, own_attacks, search
from experiments.studies.withholding.tables import Cost, WithheldLine, never_applied, write_chart, write_tables
from fedsim.errors import ConfigError
from fedsim.report.matrix.read import read_training
from fedsim.settings.composition import Config

MODES = ("private", "frozen")


def run(options: argparse.Namespace) -> None:
    """From settings to tables and chart."""
    _check(options)
    audit = {variant: audit_config(options, variant) for variant in options.variants}
    training = training_config(options)
    with kept(options.out, _settings(options, audit)) as ledger:
        _carry_out(options, audit, training, ledger)


def _carry_out(options: argparse.Namespace, audit: Mapping[str, Config], training: Config, ledger: Ledger) -> None:
    lines: list[WithheldLine] = []
    found: dict[tuple[str, str], SmallestSets] = {}
    left_out: dict[tuple[str, str], str] = {}
    costs: list[Cost] = []
    with Bars(console) as bars:
        audits = {variant: Audits(variant, config, ledger) for variant, config in audit.items()}
        for variant in options.variants:
            for level in options.levels:
                note = Note(bars, ledger, f"{variant}, {level}")
                one = search(audits[variant], LEVELS[level], options.margin, note)
                new = table_lines(audits[variant], variant, level, one, options.margin, note)
                if why := inapplicable(level, new):
                    left_out[variant, level] = why
                else:
                    found[variant, level] = one
                    lines += new
                write_tables(options.out, lines, found, left_out, costs, ledger.entries)
        first = options.variants[0]
        sets = [s for (variant, _), one in found.items() if variant == first for s in one.smallest]
        if options.rounds:
            runs = training_runs(options, training, audits[first], list(dict.fromkeys(sets))[: options.train])
            for number, (unit, withheld, mode) in enumerate(runs):
                bars.set("trainings", number, len(runs), unit.title)
                costs.append(train(unit, withheld, mode))
                bars.set("trainings", number + 1, len(runs), unit.title)
                bars.say(f"trainings {number + 1}/{len(runs)}: {unit.title}")
    write_tables(options.out, lines, found, left_out, costs, ledger.entries)
    write_chart(options.out, lines, costs)
    console.print((options.out / "withholding.md").read_text(encoding="utf-8"), markup=False)
    written = [options.out / "withholding.md", *([options.out / "withholding.png"] if lines or costs else [])]
    console.print("\n".join(map(str, written)), markup=False)


@dataclass
class Note:
    """What is being measured, for the bar; the number of audits is not known beforehand."""

    bars: Bars
    ledger: Ledger
    title: str

    def __call__(self, text: str) -> None:
        done = len(self.ledger.entries)
        self.bars.set("attacks", done, done + 1, f"{self.title}: {text}")
        self.bars.say(f"attacks {done}, {self.title}: {text}")


def table_lines(
    audits: Audits, variant: str, level: str, found: SmallestSets, margin: float, note: Note
) -> list[WithheldLine]:
    """Nothing withheld, each group alone, and all sets that the search tried; in the order of their size."""
    single = [frozenset({group}) for group in audits.groups]
    sets = sorted(dict.fromkeys([frozenset[str](), *single, *found.tried]), key=len)
    lines = []
    for withheld in sets:
        note(f"withheld {' + '.join(sorted(withheld)) or 'nothing'}")
        leaks = [audits.leak(withheld, attack) for attack in LEVELS[level]]
        stops = not any(leak.succeeds(audits.guesses, margin) for leak in leaks)
        size = sum(audits.sizes[group] for group in withheld)
        share = size / sum(audits.sizes.values())
        smallest = withheld in found.smallest
        lines.append(WithheldLine(variant, level, withheld, leaks, audits.guesses, stops, smallest, share))
    return lines


def inapplicable(level: str, lines: Sequence[WithheldLine]) -> str:
    """Why the level is none of its own: none of its own attacks rebuilt anything, whatever was withheld."""
    refused = never_applied(lines)
    own = own_attacks(level)
    if not all(attack in refused for attack in own):
        return ""
    return "; ".join(f"{attack} does not apply ({refused[attack]})" for attack in own)


def training_runs(
    options: argparse.Namespace, training: Config, audits: Audits, sets: Sequence[Names]
) -> list[tuple[MatrixRun, Names, str]]:
    """Undefended first, then each set in each mode, with every seed.

    Raises:
        ConfigError: the folder holds a training of other settings.
    """
    runs = []
    for withheld, mode in [(frozenset[str](), ""), *((s, mode) for s in sets for mode in MODES)]:
        for seed in range(options.seed, options.seed + options.seeds):
            name = "-".join([*sorted(withheld), mode]) if withheld else "nothing"
            data = {**training["data"], "seed": seed}
            config = {**training, "seed": seed, "data": data, "defense": audits.config(withheld, mode)}
            folder = (options.out / "trainings" / name / f"training-{seed}").resolve()
            unit = MatrixRun(name, TRAINING, str(seed), folder, config)
            check_unit(unit)
            runs.append((unit, withheld, mode))
    return runs


def train(unit: MatrixRun, withheld: Names, mode: str) -> Cost:
    """Run one training, unless an earlier call has."""
    end = finished(unit) or run_unit(unit)
    if end.status != "done":
        return Cost(withheld, mode, int(unit.label), None, end.reason)
    return Cost(withheld, mode, int(unit.label), read_training(unit.folder, [])[0], "")


def audit_config(options: argparse.Namespace, variant: str) -> Config:
    """Settings of an audit of single pictures without defense, with every attack of every level."""
    config = _composed(
        options,
        "audit",
        f"model={options.model}",
        f"model.variant={variant}",
        "attack=[patch_gradient,april,row_space,fc_bias]",
        f"audit.num_images={options.count}",
    )
    return {**config, "attack": config["attack"] | OWN}


def training_config(options: argparse.Namespace) -> Config:
    """Settings of a federated run with local steps, that nobody attacks: the server sees whole weights."""
    return _composed(
        options,
        "run",
        "strategy=fedavg",
        f"model={options.model}",
        "attack=[]",
        "audit=false",
        "observe.every=0",
        "observe.clients=0",
        "observe.save=false",
        f"num_clients={options.clients}",
        f"num_rounds={max(1, options.rounds)}",
        "evaluate_every=0",
        "client.batch_size=16",
        "client.optimizer._target_=torch.optim.AdamW",
        f"client.optimizer.lr={options.lr}",
    )


def _composed(options: argparse.Namespace, name: str, *overrides: str) -> Config:
    common = ["tracker=[]", "simulation=inline", f"seed={options.seed}", f"simulation.threads={options.threads}"]
    if options.pictures is None:
        return load_config(name, "data=digits", *common, *overrides)
    return load_config(name, "data=imagefolder", *common, *overrides, data={"path": str(options.pictures)})


def _settings(options: argparse.Namespace, audit: Mapping[str, Config]) -> Mapping[str, object]:
    """What every audit depends on."""
    attacks = next(iter(audit.values()))["attack"]
    images = None if options.pictures is None else str(options.pictures.resolve())
    asked = {name: getattr(options, name) for name in ("model", "count", "seed")}
    return {**asked, "pictures": images, "attacks": attacks}


def _check(options: argparse.Namespace) -> None:
    for key in ("rounds", "train"):
        if getattr(options, key) < 0:
            raise ConfigError(f"--{key}", getattr(options, key), "0 or more")
    for key, what in (("margin", "dB, above 0"), ("lr", "above 0")):
        if not getattr(options, key) > 0:
            raise ConfigError(f"--{key}", getattr(options, key), what)
