"""How good a defense is against the undefended runs, by numbers alone. No wording."""

from collections.abc import Sequence
from typing import Literal

from fedsim.report.chance import clearly_fewer
from fedsim.report.leakage import Leakage
from fedsim.report.pooling import Pool
from fedsim.report.thresholds import GUESS_MARGIN

Level = Literal["safe", "partial", "leaked", "unknown"]


def held_against(pool: Pool, plains: Sequence[Pool]) -> Pool | None:
    """The undefended runs that tell most of the defense: with the same attacks, or else with as many as there are.

    Those by which nothing can be said come last; the order of the runs does not count.
    """

    def telling(plain: Pool) -> tuple[bool, int, int, int, int, list[str]]:
        says = level_of(pool, plain) != "unknown" and same_by_both(pool, plain)
        common = len(plain.tried & pool.tried)
        return says, common, -len(plain.tried), plain.seeds, plain.leakage.recognisable, sorted(plain.tried)

    return max(plains, key=telling, default=None)


def level_of(pool: Pool, plain: Pool | None) -> Level:
    """What becomes of the pictures with the defense.

    Returns:
        `safe`: none is recognisable. `partial`: a smaller share is than undefended, by more than chance; or no larger
        one, and of all pictures the attacks know less by more than `GUESS_MARGIN` dB on average. `leaked`: neither.
        `unknown`: nothing was measured, with the defense or without it.
    """
    if not pool.attacks or not measured(pool):
        return "unknown"
    if not pool.leakage.recognisable:
        return "safe"
    if plain is None or not measured(plain) or plain.strongest is None or pool.strongest is None:
        return "unknown"
    here, there = pool.leakage, plain.leakage
    more = here.recognisable * there.pictures - there.recognisable * here.pictures
    if more > 0:
        return "leaked"
    if more < 0 and _clearly_fewer(here, there):
        return "partial"
    if here.mean_known is None or there.mean_known is None:
        return "unknown"
    return "partial" if there.mean_known - here.mean_known > GUESS_MARGIN else "leaked"


def _clearly_fewer(here: Leakage, there: Leakage) -> bool:
    """A picture that several updates were made of is one draw; where one side alone tells, nothing is clear."""
    if here.different is None and there.different is None:
        return clearly_fewer(here.recognisable, here.pictures, there.recognisable, there.pictures)
    if here.different is None or there.different is None:
        return False
    ours, theirs = (one.different_recognisable or 0 for one in (here, there))
    return clearly_fewer(ours, here.different, theirs, there.different)


def same_by_both(pool: Pool, plain: Pool) -> bool:
    """Whether the attacks that came to an end on both sides say the same of the defense as all of them do.

    Where none breaks it, nothing has to be the same: `untested` looks after what was left out.
    """
    level = level_of(pool, plain)
    if level in ("safe", "unknown"):
        return True
    common = _ended(pool) & _ended(plain)
    return level_of(pool.only(common), plain.only(common)) == level


def _ended(pool: Pool) -> set[str]:
    """The attacks that came to an end on some update."""
    return {row.attack for row in pool.attacks if row.done + row.refused}


def unguessed(pool: Pool, plain: Pool | None) -> bool:
    """Whether nothing can be said because a guess is missing for what was refused."""
    if plain is None or plain.strongest is None or pool.strongest is None:
        return False
    missing = pool.leakage.mean_known is None or plain.leakage.mean_known is None
    return missing and level_of(pool, plain) == "unknown"


def too_weak(pool: Pool, plains: Sequence[Pool]) -> bool:
    """Whether nothing is recognisable, with the defense or without it."""
    known = [plain for plain in plains if measured(plain)]
    return measured(pool) and bool(known) and not any(one.leakage.recognisable for one in (pool, *known))


def untested(pool: Pool, plains: Sequence[Pool]) -> bool:
    """Whether an attack that may break the defense did not end on some update, or was not tried at all.

    One that rebuilt nothing recognisable without the defense, and did end there on every update, may not.
    """
    plain_rows = [(row, plain) for plain in plains for row in plain.attacks]
    if any(row.recognisable and row.attack not in pool.tried for row, _ in plain_rows):
        return True
    for attack in unended(pool):
        known = [(row, plain) for row, plain in plain_rows if row.attack == attack]
        if not known or any(row.recognisable or row.done < plain.leakage.observations for row, plain in known):
            return True
    return False


def unended(pool: Pool) -> dict[str, int]:
    """On how many updates each attack failed or never ran."""
    ended = dict.fromkeys(sorted(pool.tried), 0) | {row.attack: row.done + row.refused for row in pool.attacks}
    updates = pool.leakage.observations
    return {attack: updates - number for attack, number in ended.items() if number < max(updates, 1)}


def measured(pool: Pool) -> bool:
    """Whether something was scored, or every attack refused every update."""
    return pool.leakage.scored > 0 or all_refused(pool)


def all_refused(pool: Pool) -> bool:
    """Whether attacks on pictures were made, and every one of them refused every update."""
    return bool(pool.attacks) and all(row.refused == row.observations for row in pool.attacks)
