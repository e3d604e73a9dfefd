"""What each defense is worth, in a sentence: against the undefended run, and against a guess without the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.report.baseline import against_guess
from fedsim.report.chance import chance_between
from fedsim.report.defense_level import (
    Level,
    all_refused,
    held_against,
    level_of,
    measured,
    same_by_both,
    too_weak,
    unended,
    unguessed,
    untested,
)
from fedsim.report.pooling import Pool, pool_runs
from fedsim.report.read import RunFolder
from fedsim.report.settings import Settings, defense_name, own_settings
from fedsim.report.thresholds import RECOGNISABLE
from fedsim.report.wording import as_seen_words, below, count, decibels, listed, observed_pictures, percent

TAGS: dict[Level, str] = {
    "safe": "Nothing recognisable under these attacks",
    "partial": "Leaks less",
    "leaked": "Does not help",
    "unknown": "Not comparable",
}

TOO_WEAK = "Not known: nothing recognisable without it either"
"""The tag where the attacks give the defense nothing to stop."""

AS_SEEN = "Rebuilt as the model saw it: look"
"""The tag where no more is recognisable, but pictures came out as a defense had changed them. Goes before others."""

UNMATCHED = "Not comparable: other attacks ran without it"
"""The tag where attacks that ran on one side alone make the difference."""

REFUSED = "These attacks do not apply"
"""The tag where every attack on pictures was refused on every update: nothing is known of those that were not tried."""


@dataclass(frozen=True)
class DefenseVerdict:
    """One defense with one set of settings, under one set of attacks.

    Attributes:
        name: its names, and the settings that tell it from others of the same names.
        level: as `level_of` has it, and `unknown` too where that cannot be said: an attack that may break the defense
            failed on it or was not tried, attacks that ran on one side alone make the difference, or those that were
            rebuild nothing recognisable without it either, or were all refused, or they rebuilt what the model saw:
            PSNR does not tell whether an eye finds the client's picture in it.
        seeds: how many it rests on.
    """

    name: str
    level: Level
    tag: str
    sentence: str
    details: tuple[str, ...]
    seeds: int


def judge_defenses(runs: Sequence[RunFolder]) -> list[DefenseVerdict]:
    """A verdict for each defense among the runs; the undefended ones are what it is held against.

    Two runs compare where they differ in defenses, attacks, seeds and engine alone.
    """
    pools = pool_runs(runs)
    told = []
    for pool in pools:
        if pool.defense:
            plains = [one for one in pools if one.others == pool.others and not one.defense]
            told.append(_judge(_name(pool, pools), pool, plains))
    return sorted(told, key=lambda verdict: verdict.name)


def _name(pool: Pool, pools: list[Pool]) -> str:
    """The names of the defenses, what tells these settings from others of these names, and if need be the attacks."""
    name = defense_name(pool.example)
    own = own_settings(pool.defense, [one.defense for one in pools if _names(one.defense) == _names(pool.defense)])
    words = [word.removeprefix(f"{name}.") for word in own]
    name = f"{name} ({', '.join(words)})" if words else name
    alike = [one for one in pools if (one.others, one.defense) == (pool.others, pool.defense)]
    return f"{name}, attacked by {listed(sorted(pool.tried)) or 'nothing'}" if len(alike) > 1 else name


def _names(defense: Settings) -> set[str]:
    return {value for key, value in defense if not key}


def _judge(name: str, pool: Pool, plains: list[Pool]) -> DefenseVerdict:
    plain = held_against(pool, plains)
    level, weak = level_of(pool, plain), too_weak(pool, plains)
    left_open = level in ("safe", "partial") and untested(pool, plains)
    refused = level == "safe" and all_refused(pool) and not weak and not left_open
    as_seen = level in ("safe", "partial") and pool.leakage.as_seen > 0
    unmatched = plain is not None and not same_by_both(pool, plain)
    if weak or left_open or refused or as_seen or unmatched:
        level = "unknown"
    tag = UNMATCHED if unmatched else REFUSED if refused else TAGS[level]
    tag = AS_SEEN if as_seen else TOO_WEAK if weak else tag
    sentence = f"{_as_seen(pool)}{_leak(pool)}{_against(pool, plain)}."
    details = [
        *(["Without the defense these attacks rebuild nothing recognisable either: stronger ones may tell."] * weak),
        *_guess(pool),
        *_utility(pool, plain),
        *(["What a guess reaches on pictures that were refused was not recorded."] * unguessed(pool, plain)),
        *_refused(pool),
        *_failed(pool, "Failed or never ran"),
        *_missing(pool, plains),
        *(_failed(plain, "Failed or never ran without the defense") if plain else []),
    ]
    return DefenseVerdict(name, level, tag, sentence, tuple(details), pool.seeds)


def _as_seen(pool: Pool) -> str:
    leakage = pool.leakage
    if not leakage.as_seen:
        return ""
    names = pool.example.names("defense")
    return (
        f"The server {as_seen_words(leakage.as_seen, leakage.pictures, leakage.seen_psnr, leakage.own_psnr, names)}. "
    )


def _leak(pool: Pool) -> str:
    if not pool.attacks:
        return "Only labels were attacked" if pool.labels else "No attack has run on it"
    if not measured(pool):
        return "No picture was compared with its original"
    of = observed_pictures(pool.leakage.pictures, pool.leakage.different)
    text = f"{pool.leakage.recognisable:,} of {of} recognisable (PSNR ≥ {RECOGNISABLE:.0f} dB)"
    if pool.strongest is None:
        return f"{text}: every attack refused"
    mean = pool.strongest.mean_leaked
    reached = decibels(mean) if pool.leakage.recognisable else below(mean, RECOGNISABLE)
    return f"{text}: {pool.strongest.attack} is strongest, at {reached} on average"


def _against(pool: Pool, plain: Pool | None) -> str:
    if plain is None or not measured(plain):
        return ""
    text = f"; without the defense {plain.leakage.recognisable:,} of {plain.leakage.pictures:,}"
    strongest = plain.strongest
    return text if strongest is None else f"{text}, {strongest.attack} at {decibels(strongest.mean_leaked)}"


def _guess(pool: Pool) -> list[str]:
    if pool.strongest is None or pool.strongest.mean_leaked is None:
        return []
    if pool.baseline is None:
        return [
            "Not held against a guess: these runs recorded none, and no attack among them ran without the gradient."
        ]
    return [against_guess(pool.strongest.attack, pool.baseline)]


def _utility(pool: Pool, plain: Pool | None) -> list[str]:
    if pool.accuracy is None:
        return []
    text = f"Accuracy {percent(pool.accuracy)}"
    if plain is None or plain.accuracy is None:
        return [f"{text}."]
    points = f"{100 * (pool.accuracy - plain.accuracy):+.1f}"
    if (within := chance_between(pool.accuracy_reach, plain.accuracy_reach)) is not None:
        points = f"{points} ± {100 * within:.1f}"
    seeds = f"{count(pool.seeds, 'seed')} against {count(plain.seeds, 'seed')}"
    return [f"{text} against {percent(plain.accuracy)} without it: {points} points ({seeds})."]


def _refused(pool: Pool) -> list[str]:
    told = []
    names = [row.attack for row in pool.attacks if row.refused == row.observations]
    if names:
        more = "a stronger attack may not need what they lack" if len(names) == len(pool.attacks) else "others ran"
        told.append(f"Refused on every update: {listed(names)}; {more}.")
    part = [
        f"{row.attack} on {row.refused:,} of {row.observations:,}"
        for row in pool.attacks
        if 0 < row.refused < row.observations
    ]
    return [*told, f"Refused on a part of the updates: {listed(part)}."] if part else told


def _failed(pool: Pool, words: str) -> list[str]:
    updates = count(pool.leakage.observations, "update")
    found = [f"{attack} on {number:,} of {updates}" if number else attack for attack, number in unended(pool).items()]
    return [f"{words}: {listed(found)}; what they would have rebuilt is not known."] if found else []


def _missing(pool: Pool, plains: list[Pool]) -> list[str]:
    if not plains:
        return ["There is no undefended run with the same other settings among these: nothing to hold it against."]
    without = {attack for plain in plains for attack in plain.tried}
    missing, more = without - pool.tried, pool.tried - without
    told = [f"Not tried against the defense: {listed(sorted(missing))}."] if missing else []
    return [*told, f"Not tried without the defense: {listed(sorted(more))}."] if more else told
