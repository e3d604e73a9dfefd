"""What each defense is worth: its level by its own runs, and beside it a comparison with the undefended ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.metrics.chance import chance_between
from fedsim.report.compare.against_undefended import Finding, compare, held_against, measured, unended
from fedsim.report.compare.pooling import PooledRuns, pool_runs
from fedsim.report.compare.settings import Settings, defense_name, own_settings, telling_settings
from fedsim.report.level import Level, with_theorem
from fedsim.report.level_wording import TAGS, few_images, few_test_images, judged, nothing_learned, of_images
from fedsim.report.run.baseline import against_guess
from fedsim.report.run.bounds.records import cautions
from fedsim.report.run.certificates import certificate_sentences
from fedsim.report.run.label_attacks import only_attacked
from fedsim.report.run.read import RecordedRun
from fedsim.report.wording import count, listed, percent


@dataclass(frozen=True)
class DefenseVerdict:
    """One defense with one set of settings, under one set of attacks.

    Attributes:
        name: its names, and the settings that tell it from others of the same names.
        level: by its own runs alone, as that of a run; proven where a theorem holds of each of them.
        sentence: what was rebuilt, of how much, and what is without the update.
        comparison: whether that is less than without the defense; never a level.
        cautions: where a theorem and what was found do not go together, and what few images leave open.
        seeds: how many it rests on.
    """

    name: str
    level: Level
    sentence: str
    comparison: str
    cautions: tuple[str, ...]
    details: tuple[str, ...]
    seeds: int

    @property
    def tag(self) -> str:
        return TAGS[self.level]


def judge_defenses(runs: Sequence[RecordedRun]) -> list[DefenseVerdict]:
    """A verdict for each defense among the runs; the undefended ones are what it is held against.

    Two runs compare where they differ in defenses, attacks, bounds, seeds and engine alone.
    """
    pools = pool_runs(runs)
    sentences = []
    for pool in pools:
        if pool.defense:
            plains = [one for one in pools if one.others == pool.others and not one.defense]
            sentences.append(_judge(_name(pool, pools), pool, plains))
    return sorted(sentences, key=lambda verdict: verdict.name)


def _name(pool: PooledRuns, pools: list[PooledRuns]) -> str:
    """The names of the defenses, and what tells this pool from others of these names."""
    name = defense_name(pool.example)
    own = own_settings(pool.defense, [one.defense for one in pools if _names(one.defense) == _names(pool.defense)])
    words = [word.removeprefix(f"{name}.") for word in own]
    name = f"{name} ({', '.join(words)})" if words else name
    apart = telling_settings(pool.others, [one.others for one in pools if one.defense == pool.defense])
    name = f"{name}, with {listed(apart)}" if apart else name
    alike = [one for one in pools if (one.others, one.defense) == (pool.others, pool.defense)]
    return f"{name}, attacked by {listed(sorted(pool.tried)) or 'nothing'}" if len(alike) > 1 else name


def _names(defense: Settings) -> set[str]:
    return {value for key, value in defense if not key}


def _judge(name: str, pool: PooledRuns, plains: list[PooledRuns]) -> DefenseVerdict:
    plain = held_against(pool, plains)
    counted = pool.leakage.counts.level
    proof, beyond_guess = pool.proof, pool.leakage.counts.beyond_guess
    level = with_theorem(counted, proof is not None, beyond_guess)
    untested = counted == "not tested"
    shown = _untested(pool) if untested else judged(pool.leakage, pool.attacks, pool.example.changes)
    details = [
        *_guess(pool),
        *_utility(pool, plain),
        *certificate_sentences(pool.records, asked=False),
        *_refused(pool),
        *_failed(pool, "Failed or never ran"),
        *_missing(pool, plains),
        *(_failed(plain, "Failed or never ran without the defense") if plain else []),
    ]
    return DefenseVerdict(
        name,
        level,
        f"{proof.sentence} {shown}" if proof is not None and level == "proven" else shown,
        "" if plain is None else _comparison(pool, plain, compare(pool, plain, plains)),
        (*_at_odds(pool), *few_images(pool.leakage.counts), *_few_test_images(pool)),
        tuple(details),
        pool.seeds,
    )


def _untested(pool: PooledRuns) -> str:
    if not pool.attacks:
        return f"{only_attacked(pool.records)}." if pool.labels else "No attack has run on it."
    if all(row.refused == row.observations for row in pool.attacks):
        return "No image was rebuilt: every attack refused."
    if pool.leakage.returned:
        return "Images came out, and none is certified; they were compared with no originals: judge by eye."
    return "No attack came to an end with an image."


def _comparison(pool: PooledRuns, plain: PooledRuns, found: Finding) -> str:
    if not measured(pool) or not measured(plain):
        side = "on it" if measured(plain) else "without the defense"
        return f"Not compared with undefended: no image was measured {side}."
    shown = f"{pool.leakage.counts.recognisable:,} of {of_images(pool.leakage)} recognisable"
    numbers = f"{shown}, undefended {plain.leakage.counts.recognisable:,} of {of_images(plain.leakage)}"
    sentences: dict[Finding, str] = {
        "less": f"Leaks less than undefended: {numbers}.",
        "no less": f"Leaks no less than undefended: {numbers}.",
        "chance": f"Chance may explain the difference from undefended: {numbers}.",
        "few": f"Too few {_units(pool, plain)} to tell whether it leaks less than undefended: {numbers}.",
        "nothing to stop": f"These attacks give it nothing to stop: {numbers}; stronger ones may tell.",
        "unmatched": f"Not comparable with undefended, where other attacks came to an end: {numbers}.",
        "untested": (
            f"Not comparable with undefended: {numbers}, but an attack that may rebuild more failed on it or was not "
            "tried."
        ),
    }
    return sentences[found]


def _units(pool: PooledRuns, plain: PooledRuns) -> str:
    """What there is too little of."""
    batches = any(one.independent < one.images for one in (pool.leakage.counts, plain.leakage.counts))
    return "updates" if batches else "different images"


def _at_odds(pool: PooledRuns) -> dict[str, None]:
    counts = pool.leakage.counts
    bounds = [one for of_seed in pool.bounds for one in of_seed]
    return dict.fromkeys(cautions(bounds, counts.beyond_guess if pool.proof is not None else 0, counts.unguessed))


def _few_test_images(pool: PooledRuns) -> list[str]:
    words = few_test_images(pool.accuracies, pool.test_images)
    return [f"The accuracy rests on {words}."] if words else []


def _guess(pool: PooledRuns) -> list[str]:
    if pool.strongest is None or pool.strongest.mean_leaked is None or pool.strongest.as_seen:
        return []
    if pool.baseline is None:
        return [
            "Not held against a guess: these runs recorded none, and no attack among them ran without the gradient."
        ]
    return [against_guess(pool.strongest.attack, pool.baseline, pool.strongest.pictures)]


def _utility(pool: PooledRuns, plain: PooledRuns | None) -> list[str]:
    if pool.accuracy is None:
        return []
    text = f"Accuracy {percent(pool.accuracy)}"
    if plain is None or plain.accuracy is None:
        return [f"{text}."]
    points = f"{100 * (pool.accuracy - plain.accuracy):+.1f}"
    if (within := chance_between(pool.accuracy_reach, plain.accuracy_reach)) is not None:
        points = f"{points} ± {100 * within:.1f}"
    seeds = f"{count(pool.seeds, 'seed')} against {count(plain.seeds, 'seed')}"
    sentences = [f"{text} against {percent(plain.accuracy)} without it: {points} points ({seeds})."]
    if pool.only_guessed and plain.only_guessed:
        sentences.append(f"{nothing_learned('Neither', plain.guess)}.")
    return sentences


def _refused(pool: PooledRuns) -> list[str]:
    sentences = []
    names = [row.attack for row in pool.attacks if row.refused == row.observations]
    if names:
        more = "a stronger attack may not need what they lack" if len(names) == len(pool.attacks) else "others ran"
        sentences.append(f"Refused on every update: {listed(names)}; {more}.")
    part = [
        f"{row.attack} on {row.refused:,} of {row.observations:,}"
        for row in pool.attacks
        if 0 < row.refused < row.observations
    ]
    return [*sentences, f"Refused on a part of the updates: {listed(part)}."] if part else sentences


def _failed(pool: PooledRuns, words: str) -> list[str]:
    updates = count(pool.leakage.observations, "update")
    found = [f"{attack} on {number:,} of {updates}" if number else attack for attack, number in unended(pool).items()]
    who = "it" if len(found) == 1 else "they"
    return [f"{words}: {listed(found)}; what {who} would have rebuilt is not known."] if found else []


def _missing(pool: PooledRuns, plains: list[PooledRuns]) -> list[str]:
    if not plains:
        return ["There is no undefended run with the same other settings among these: nothing to hold it against."]
    without = {attack for plain in plains for attack in plain.tried}
    missing, more = without - pool.tried, pool.tried - without
    sentences = [f"Not tried against the defense: {listed(sorted(missing))}."] if missing else []
    return [*sentences, f"Not tried without the defense: {listed(sorted(more))}."] if more else sentences
