"""Names that only the clients of a round together can tell: those that most of them used are the right ones."""

from collections import Counter
from collections.abc import Iterable

from fedsim.bounds.privacy import is_budget
from fedsim.wire.reply.values import shown

Names = tuple[str, ...]


def usual_names(names: Iterable[Names], fullest: bool, counting: Iterable[str] = ()) -> Names:
    """What most replies have; one without names, an error or a silent client, has no vote.

    Args:
        fullest: of several sets with as many votes the one with the most names, else that with the fewest. Who leaves
            a tensor out lacks something, who reports a metric that others do not has added it.
        counting: defenses that report a privacy budget: who reports less of theirs than others lacks a defense.
    """
    votes = Counter(one for one in names if one)

    def budgets(one: Names) -> int:
        return sum(any(is_budget(name) and name.startswith(f"{defense}_") for name in one) for defense in counting)

    def believed(one: Names) -> tuple[int, int, int, Names]:
        return votes[one], budgets(one), len(one) if fullest else -len(one), one

    return max(votes, key=believed, default=())


def unlike(what: str, own: Names, usual: Names) -> str:
    """What is wrong with other names than the usual ones, by one that makes the difference."""
    missing = next((name for name in usual if name not in own), None)
    odd = f"{shown(next(name for name in own if name not in usual))} is additional" if missing is None else ""
    return f"its {what} are not those of most clients: {odd or f'{shown(missing)} is missing'}"
