"""Whether fewer images are recognisable with a defense than without it, and whether chance explains that. No wording.

A comparison of numbers, and never a level: what a defense leaks at all is told by its own runs.
"""

from collections.abc import Sequence
from typing import Literal

from fedsim.metrics.chance import clearly_fewer
from fedsim.report.compare.pooling import PooledRuns

Finding = Literal["less", "no less", "chance", "few", "nothing to stop", "unmatched", "untested", "unknown"]


def held_against(pool: PooledRuns, plains: Sequence[PooledRuns]) -> PooledRuns | None:
    """The undefended runs that tell most of the defense: with the same attacks, or else with as many as there are.

    Those by which nothing can be said come last; the order of the runs does not count.
    """

    def telling(plain: PooledRuns) -> tuple[bool, int, int, int, int, list[str]]:
        says = _by_counts(pool, plain) in ("less", "no less", "chance") and _same_by_both(pool, plain)
        common = len(plain.tried & pool.tried)
        return says, common, -len(plain.tried), plain.seeds, plain.leakage.counts.recognisable, sorted(plain.tried)

    return max(plains, key=telling, default=None)


def compare(pool: PooledRuns, plain: PooledRuns | None, plains: Sequence[PooledRuns]) -> Finding:
    """How many images are recognisable with the defense, against without it.

    Args:
        plain: what `held_against` chose of `plains`.

    Returns:
        `less`: a smaller share is, of the different images by more than chance. `no less`: no smaller one is, of
        enough images to have shown it. `chance`: a smaller one is, and chance explains it. `few`: of so few images,
        or updates, nothing could have shown it. `nothing to stop`: none is without the defense either. `unmatched`:
        attacks that ran on one side alone make the difference. `untested`: an attack that may break the defense failed
        on it or was not tried. `unknown`: nothing was measured, with the defense or without it.
    """
    if plain is None:
        return "unknown"
    found = _by_counts(pool, plain)
    appears = pool.leakage.counts.recognisable and not plain.leakage.counts.recognisable
    if (found in ("less", "no less") or (found == "few" and appears)) and not _same_by_both(pool, plain):
        return "unmatched"
    return "untested" if found == "less" and untested(pool, plains) else found


def _by_counts(pool: PooledRuns, plain: PooledRuns) -> Finding:
    if not measured(pool) or not measured(plain):
        return "unknown"
    here, there = pool.leakage.counts, plain.leakage.counts
    if not there.recognisable:
        if not here.recognisable:
            return "nothing to stop"
        return "no less" if _fewer(0, plain, pool) else "few"
    observed, plainly = pool.leakage, plain.leakage
    as_large = (
        observed.shown * plainly.pictures >= plainly.shown * observed.pictures
        or here.recognisable * there.images >= there.recognisable * here.images
    )
    if not as_large and _fewer(here.recognisable, pool, plain):
        return "less"
    if not _fewer(0, pool, plain):
        return "few"
    return "no less" if as_large else "chance"


def _fewer(shown: int, pool: PooledRuns, plain: PooledRuns) -> bool:
    """Whether a share of so many shown lies below the other pool's, each rounded against that."""
    here, there = pool.leakage.counts, plain.leakage.counts
    of, other = here.independent, there.independent
    plainly = there.recognisable * other // there.images
    if there.updates is not None:  # one update that leaks may hold them all
        plainly = min(plainly, there.leaking)
    return clearly_fewer(-(-shown * of // here.images), of, plainly, other)


def _same_by_both(pool: PooledRuns, plain: PooledRuns) -> bool:
    """Whether the attacks that came to an end on both sides say the same of the defense as all of them do.

    Where none breaks it, nothing has to be the same: `untested` looks after what was left out.
    """
    if not pool.leakage.counts.recognisable:
        return True
    common = _ended(pool) & _ended(plain)
    return _by_counts(pool.only(common), plain.only(common)) == _by_counts(pool, plain)


def _ended(pool: PooledRuns) -> set[str]:
    """The attacks that came to an end on some update."""
    return {row.attack for row in pool.attacks if row.done + row.refused}


def untested(pool: PooledRuns, plains: Sequence[PooledRuns]) -> bool:
    """Whether an attack that may break the defense did not end on some update, or was not tried at all.

    One that rebuilt nothing recognisable without the defense, and did end there on every update, may not.
    """
    plain_rows = [(row, plain) for plain in plains for row in plain.attacks]
    if any(row.recognisable + row.as_seen and row.attack not in pool.tried for row, _ in plain_rows):
        return True
    for attack in unended(pool):
        known = [(row, plain) for row, plain in plain_rows if row.attack == attack]
        if not known or any(
            row.recognisable + row.as_seen or row.done < plain.leakage.observations for row, plain in known
        ):
            return True
    return False


def unended(pool: PooledRuns) -> dict[str, int]:
    """On how many updates each attack failed or never ran."""
    ended = dict.fromkeys(sorted(pool.tried), 0) | {row.attack: row.done + row.refused for row in pool.attacks}
    updates = pool.leakage.observations
    return {attack: updates - number for attack, number in ended.items() if number < max(updates, 1)}


def measured(pool: PooledRuns) -> bool:
    """Whether something was held against its original."""
    return pool.leakage.scored > 0
