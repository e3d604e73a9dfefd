"""Runs that belong together: those of one seed count as one, those that differ in the seed alone are pooled."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from fedsim.metrics.chance import accuracy_reach, only_guessed
from fedsim.report.compare.settings import (
    KNOWS,
    Settings,
    apart_from_defense,
    defense_settings,
    flatten,
    own_settings,
    seeds,
)
from fedsim.report.run.baseline import Baseline, best_baseline, needs_no_gradient, unrun
from fedsim.report.run.bounds.records import BoundRecord, proof_of, weakest
from fedsim.report.run.images.leakage import Leakage, summarise_leakage
from fedsim.report.run.label_attacks import after_labels
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import (
    AttackSummary,
    final_accuracy,
    mean,
    summarise_attacks,
)

Arm = tuple[str, Settings]
"""An attack by its name and its settings."""

STATUS = {"done": 2, "refused": 1}
"""What is kept of one update attacked twice in the same way."""


@dataclass(frozen=True)
class PooledRuns:
    """Runs alike in everything but the seed, their pictures together.

    Runs of one seed that differ in their attacks alone observed the same pictures: they count as one run.

    Attributes:
        example: one of the runs.
        seeds: how many.
        tried: names of all attacks on pictures that were configured or ran, baselines left out. Attacks of one name
            with different settings have different names here.
        labels: names of the attacks on labels alone; they are in neither `tried` nor `attacks`.
        records: of all attacks but baselines, each update under each attack once.
        without: of the baselines.
        attacks: those on pictures that ran, strongest first.
        baseline: what the strongest is held against.
        accuracies: one for each seed that has any, in [0, 1].
        test_images: the fewest that one of them is a share of; None where nothing says.
        guess: the accuracy of who always names the commonest class of the test images; None where nothing says.
        bounds: of each seed those of its finished runs.
        unrun: a baseline was asked for that one of the runs has no line of.
    """

    others: Settings
    defense: Settings
    example: RecordedRun
    seeds: int
    tried: frozenset[str]
    labels: frozenset[str]
    records: tuple[AttackRecord, ...]
    without: tuple[AttackRecord, ...]
    attacks: tuple[AttackSummary, ...]
    leakage: Leakage
    baseline: Baseline | None
    accuracies: tuple[float, ...]
    test_images: int | None
    guess: float | None
    bounds: tuple[tuple[BoundRecord, ...], ...] = ()
    unrun: bool = False

    @property
    def proof(self) -> BoundRecord | None:
        """The weakest theorem of those that make each seed's run proven; None where one of them has none."""
        proofs = [proof_of(one) for one in self.bounds]
        known = [one for one in proofs if one is not None]
        return weakest(known) if len(known) == len(proofs) else None

    @property
    def only_guessed(self) -> bool:
        """Whether these runs learned no more than guessing."""
        return only_guessed(self.accuracies, self.test_images, self.guess)

    @property
    def accuracy(self) -> float | None:
        """Mean over the seeds, in [0, 1]."""
        return mean(self.accuracies)

    @property
    def accuracy_reach(self) -> float | None:
        """How far chance may have moved it; None where nothing says."""
        return accuracy_reach(self.accuracies, self.test_images)

    @property
    def strongest(self) -> AttackSummary | None:
        """The strongest attack of those that were scored."""
        return next((row for row in self.attacks if row.mean_leaked is not None), None)

    def only(self, names: Set[str]) -> "PooledRuns":
        """The pool as if no other attacks had been tried."""
        records = tuple(record for record in self.records if record.attack in names)
        return replace(
            self,
            tried=self.tried & names,
            labels=self.labels & names,
            records=records,
            attacks=tuple(row for row in self.attacks if row.attack in names),
            leakage=summarise_leakage(replace(self.example, attacks=records), self.without, self.labels, self.unrun),
        )


def pool_runs(runs: Sequence[RecordedRun]) -> list[PooledRuns]:
    """Each run is in one pool; runs with other attacks on another seed are in different ones.

    Attacks on labels alone make no difference: what is known about pictures is the same with them and without them.
    """
    names = _names(runs)
    labels = _labels(runs, names)
    merged: dict[tuple[Settings, Settings, Settings], list[RecordedRun]] = {}
    for run in runs:
        merged.setdefault((apart_from_defense(run), defense_settings(run), seeds(run)), []).append(run)
    alike: dict[tuple[Settings, Settings, frozenset[str]], list[list[RecordedRun]]] = {}
    for (others, defense, _), group in merged.items():
        arms = frozenset(names[_arm(run, attack)] for run in group for attack in _attacks(run))
        alike.setdefault((others, defense, arms - labels), []).append(group)
    return [_pool(others, defense, groups, names, labels) for (others, defense, _), groups in alike.items()]


def _pool(
    others: Settings,
    defense: Settings,
    groups: list[list[RecordedRun]],
    names: Mapping[Arm, str],
    labels: frozenset[str],
) -> PooledRuns:
    found = _records(groups, names)
    records = tuple(record for record, blind in found if not blind)
    without = tuple(record for record, blind in found if blind)
    pooled = replace(groups[0][0], attacks=records)
    rows = [row for row in summarise_attacks(pooled) if row.attack not in labels]
    silent = unrun(run for group in groups for run in group)
    strongest = next((row.attack for row in rows if row.mean_leaked is not None), "")
    means = [mean([value for run in group if (value := final_accuracy(run)) is not None]) for group in groups]
    tested = [run.test_pictures for group in groups for run in group if run.test_pictures is not None]
    tried = {
        names[_arm(run, attack)]
        for group in groups
        for run in group
        for attack in _attacks(run)
        if not needs_no_gradient(run, attack)
    }
    return PooledRuns(
        others=others,
        defense=defense,
        example=groups[0][0],
        seeds=len(groups),
        tried=frozenset(tried - labels),
        labels=frozenset(tried & labels),
        records=records,
        without=without,
        attacks=tuple(rows),
        leakage=summarise_leakage(pooled, without, labels, silent),
        unrun=silent,
        baseline=best_baseline(strongest, records, without),
        accuracies=tuple(value for value in means if value is not None),
        test_images=min(tested, default=None),
        guess=max((run.commonest_class for group in groups for run in group if run.commonest_class), default=None),
        bounds=tuple(tuple(one for run in group if run.finished for one in run.bounds) for group in groups),
    )


def _records(groups: list[list[RecordedRun]], names: Mapping[Arm, str]) -> list[tuple[AttackRecord, bool]]:
    """Each update under each attack once, and whether the attack is a baseline by the settings of its own run.

    A recorded update is the same one under every seed of its attacks.
    """
    best: dict[tuple[str, str], tuple[AttackRecord, bool]] = {}
    for seed, group in enumerate(groups):
        for run in group:
            drawn = 0 if run.recorded else seed
            for record in run.attacks:
                name, observation = names[_arm(run, record.attack)], f"{drawn}/{record.observation}"
                known = best.get((observation, name))
                if known is None or _rank(record) > _rank(known[0]):
                    named = replace(record, attack=name, observation=observation, seed=drawn)
                    best[observation, name] = named, needs_no_gradient(run, record.attack)
    return list(best.values())


def _rank(record: AttackRecord) -> tuple[int, float, bool]:
    values = [image.leaked for image in record.pictures.values() if image.leaked is not None]
    return STATUS.get(record.status, 0), mean(values) or 0.0, record.certified


def _attacks(run: RecordedRun) -> dict[str, None]:
    """Names of those that were configured, and of those that ran."""
    return dict.fromkeys([*run.names("attack"), *(record.attack for record in run.attacks)])


def _arm(run: RecordedRun, attack: str) -> Arm:
    # What it needs to know is said about it, and sets nothing.
    return attack, frozenset((key, value) for key, value in flatten(run.settings_of(attack)).items() if key != KNOWS)


def _labels(runs: Sequence[RecordedRun], names: Mapping[Arm, str]) -> frozenset[str]:
    """Of the names those of attacks on labels alone, by all runs together: one that refuses here may have run there."""
    made: dict[str, list[tuple[RecordedRun, str]]] = {}
    for run in runs:
        for attack in _attacks(run):
            made.setdefault(names[_arm(run, attack)], []).append((run, attack))
    return frozenset(name for name, found in made.items() if after_labels(found))


def _names(runs: Sequence[RecordedRun]) -> dict[Arm, str]:
    """The name of each attack, with the settings in brackets that tell it from others of the same name."""
    arms = dict.fromkeys(_arm(run, attack) for run in runs for attack in _attacks(run))
    names = {}
    for name, settings in arms:
        own = own_settings(settings, [one for known, one in arms if known == name])
        names[name, settings] = f"{name} ({', '.join(own)})" if own else name
    return names
