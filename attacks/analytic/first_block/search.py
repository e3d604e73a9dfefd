"""All solutions of every position: starts, deflation, and which of what was found are solutions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attacks.analytic.first_block.levenberg_marquardt import Squares, deflated, minimise
from attacks.analytic.first_block.residual import HiddenSystem
from attacks.analytic.first_block.solutions import Solutions
from attacks.analytic.first_block.subspaces import AffineSet
from attacks.session import Session

RIDGE = 0.1
"""Of the largest singular value: which directions of the outputs a start follows. Nearly uniform attention gives the
tokens of a picture nearly one output, so that B - 1 directions tell the pictures apart."""

JITTER = 0.5
"""Standard deviation of later starts, in typical ‖x‖."""

STRICTER = (0.03, 0.2, 1.0)
"""Of the tolerance, for the first quarter of the starts at most, the second, all others: where noise makes it wide,
another solution may come before the true one."""

FRUITLESS = (10, 10, 60)
"""Starts one after the other that find nothing by each of `STRICTER`: then the next holds, or the search ends."""

AGAIN = 5
"""Starts after which the missing tokens of an image are tried for again where nothing was found in between."""

SAVE_EVERY = 10
"""Starts."""

SAVED = ("x", "residual", "counts", "nearly", "nearly_residual")

DISTINCT = 0.01
"""Solutions closer than this share of the typical ‖x‖ are one."""


def find_solutions(
    system: HiddenSystem,
    outputs: AffineSet,
    batch: int,
    tolerance: float,
    starts: int,
    steps: int,
    rng: torch.Generator,
    possible: Callable[[Float[Tensor, "rows free"], Tensor], Bool[Tensor, " rows"]],
    missing: Callable[[Solutions, float, torch.Generator], Float[Tensor, "tokens free"]],
    session: Session,
) -> Solutions:
    """Search each position until it has `batch` solutions, or `starts` are spent; the first start is the base itself.

    Then random ones in turn with some near the output of a token found elsewhere, as unlike those found here as
    possible: most likely one of a picture that is missing here. Between them what `missing` says.

    Args:
        outputs: o_n as an affine set of the same x.
        tolerance: the largest relative residual of a solution.
        possible: whether x at those positions can be an image's; where noise makes the tolerance wide, much else fits.
        missing: an x that completes an image at a position, from all that was found and its typical size; inf where
            nothing does.
        session: where the search goes on after a kill.
    """
    base = system.tokens.base
    free = system.tokens.directions.shape[1]
    found = Solutions.none(base, batch, free)
    first, level, idle = _gone_on(session, system, found, tolerance, rng)
    for start in range(first, starts if free else 1):  # without unknowns the base is all there is
        rows = (found.counts < batch).nonzero()[:, 0]
        if idle >= FRUITLESS[level]:
            level, idle = level + 1, 0
        level = max(level, min(4 * start // starts, len(STRICTER) - 1)) if free else len(STRICTER) - 1
        if not len(rows) or level == len(STRICTER):
            break
        spread = _spread(found)
        drawn = torch.randn(len(base), free, generator=rng, dtype=base.dtype).to(base.device)[rows]
        if start == 0:
            x = torch.zeros_like(drawn)
        elif start % 2 or not bool(found.counts.any()):
            x = drawn * (spread / free**0.5)
        else:
            x = _towards_others(found, outputs, rows, rng) + drawn * (JITTER * spread / free**0.5)
        about = (spread, STRICTER[level] * tolerance, steps, possible)
        grown = _search(system, found, rows, x, *about)
        while free and bool(found.counts.any()) and not found.complete and (grown or start % AGAIN == 0):
            told = missing(found, _spread(found) / 2.0, rng)
            rows = told.isfinite().all(dim=1).nonzero()[:, 0]
            if not len(rows) or not _search(system, found, rows, told[rows], *about):
                break
            grown = True
        idle = 0 if grown else idle + 1
        session.progress(start + 1, starts, {"tokens found": float(found.counts.sum())})
        if (start + 1) % SAVE_EVERY == 0:
            tensors = {name: getattr(found, name) for name in SAVED} | {"rng": rng.get_state()}
            session.save(tensors, {"place": [start + 1, level, idle], "trace": found.trace})
    return found


def _gone_on(
    session: Session, system: HiddenSystem, found: Solutions, tolerance: float, rng: torch.Generator
) -> tuple[int, int, int]:
    """The start, the level and how many starts found nothing, from where a search that was killed goes on.

    From the first start where what it had saved are no solutions: another machine has other coordinates x.
    """
    saved = session.load()
    if saved is None:
        return 0, 0, 0
    tensors, record = saved
    own: dict[str, Any] = {name: tensors[name].to(found.x.device) for name in SAVED}
    kept = replace(found, **own)
    if any(kept_one.shape != getattr(found, name).shape for name, kept_one in own.items()):
        return 0, 0, 0
    for slot, known in enumerate(kept.known.T):
        rows = known.nonzero()[:, 0]
        at = system.at(rows, kept.x[rows, slot])
        if not bool((at.values.norm(dim=1) <= 2.0 * tolerance * at.size).all()):
            return 0, 0, 0
    for name, value in (own | {"trace": record["trace"]}).items():
        setattr(found, name, value)
    rng.set_state(tensors["rng"])
    first, level, idle = record["place"]
    return first, level, idle


def _towards_others(
    found: Solutions, outputs: AffineSet, rows: Tensor, rng: torch.Generator
) -> Float[Tensor, "rows free"]:
    """Ridge solutions of o_n(x) = the output of a solution of some position, drawn as k-means++ draws its centres."""
    known = found.known
    values = outputs.base[:, None] + torch.where(known[..., None], found.x, 0.0) @ outputs.directions.T
    pool = values[known]
    away = torch.cdist(values[rows].flatten(0, 1), pool).square().unflatten(0, values[rows].shape[:2])
    away = torch.where(known[rows][..., None], away, torch.inf).amin(dim=1)
    weights = torch.where(away.isfinite(), away, 1.0) + torch.finfo(away.dtype).tiny
    target = pool[torch.multinomial(weights.cpu(), 1, generator=rng)[:, 0].to(pool.device)]
    left, singular, right = torch.linalg.svd(outputs.directions, full_matrices=False)
    damped = singular / (singular.square() + (RIDGE * singular[0]).square())
    x: Tensor = ((target - outputs.base[rows]) @ left * damped) @ right
    return x


def _search(
    system: HiddenSystem,
    found: Solutions,
    rows: Tensor,
    x: Float[Tensor, "rows free"],
    spread: float,
    tolerance: float,
    steps: int,
    possible: Callable[[Float[Tensor, "rows free"], Tensor], Bool[Tensor, " rows"]],
) -> bool:
    """One start of the positions `rows`; what it finds goes into `found`, if anything."""

    def evaluate(x: Float[Tensor, "rows free"]) -> Squares:
        return deflated(_normal(system, rows, x), x, found.x[rows], 0.3 * spread)

    x, way = minimise(evaluate, x, steps)
    x, _ = minimise(lambda x: _normal(system, rows, x), x, 3)  # the deflated cost stops short of rounding level
    for row in way:
        found.trace.append({"step": float(len(found.trace)), "residual": row.cost, "damping": row.damping})
    at = system.at(rows, x)
    relative = at.values.norm(dim=1) / at.size
    away = (x[:, None] - found.x[rows]).norm(dim=2)
    nearest = torch.where(found.known[rows], away, torch.inf).amin(dim=1)
    other = (nearest > DISTINCT * spread) & possible(x, rows)
    new = (relative < tolerance) & other
    nearer = other & ~new & (relative < found.nearly_residual[rows])
    found.nearly[rows[nearer]], found.nearly_residual[rows[nearer]] = x[nearer], relative[nearer]
    where, slot = rows[new], found.counts[rows[new]]
    found.x[where, slot], found.residual[where, slot] = x[new], relative[new]
    found.counts[where] += 1
    return bool(new.any())


def _normal(system: HiddenSystem, rows: Tensor, x: Float[Tensor, "rows free"]) -> Squares:
    at = system.at(rows, x)
    transposed = at.jacobian.mT
    return Squares(at.values.square().sum(dim=1), (transposed @ at.values[..., None])[..., 0], transposed @ at.jacobian)


def _spread(found: Solutions) -> float:
    """Typical ‖x‖ of solutions: twice their median; before the first, that of the tokens is unknown and 1 serves."""
    sizes = found.x[found.known].norm(dim=1)
    return 2.0 * float(sizes.median()) if len(sizes) else 1.0
