"""Where points and their names go in a plot, so that none hides another. Pure geometry."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in any unit of length."""

DISTANCES = (9, 16, 25, 36, 49, 64, 81)
"""From a point to the edge of its name, in points; the first needs no line."""

ANGLES = tuple(range(0, 360, 15))

HIDDEN, OUTSIDE, CROSSED, FAR, SLANTED = 8.0, 8.0, 60.0, 3.0, 2.0
"""What it costs to hide something and to leave the frame (for each unit of area), to draw a line over something, to be
far (for each unit of length), to be slanted."""


@dataclass(frozen=True)
class Place:
    """The middle of a name, relative to its point; `line` where it stands too far off to be understood without one."""

    dx: float
    dy: float
    line: bool


def place_names(
    points: Float[np.ndarray, "points 2"],
    sizes: Float[np.ndarray, "points 2"],
    frame: Box,
    obstacles: Sequence[Box],
    order: Sequence[int],
) -> list[Place]:
    """A place for each name, chosen greedily in this order: the cheapest that is left.

    Args:
        sizes: width and height of each name, in the unit of the points (1/72 inch).
        obstacles: what is not to be hidden besides the names: the points themselves, other texts.
        order: of the points, those first that matter most.
    """
    taken = np.array(list(obstacles), dtype=float).reshape(-1, 4)
    far = np.repeat(np.array(DISTANCES, dtype=float), len(ANGLES))
    angle = np.radians(np.tile(np.array(ANGLES, dtype=float), len(DISTANCES)))
    slanted = np.tile([0.0 if degrees % 90 == 0 else SLANTED for degrees in ANGLES], len(DISTANCES))
    places: dict[int, Place] = {}
    for index in order:
        half = sizes[index] / 2
        offsets = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (far[:, None] + half)
        middles = points[index] + offsets
        room = half + np.array([2.0, 0.0])
        boxes = np.concatenate([middles - room, middles + room], axis=1)
        area = float(np.prod(2 * room))
        cost = HIDDEN * _common(boxes, taken).sum(axis=1) + FAR * far + slanted
        cost += OUTSIDE * (area - _common(boxes, np.array([frame], dtype=float))[:, 0])
        with_line = far > DISTANCES[0]
        cost += CROSSED * np.where(with_line, _crossed(points[index], middles, taken), 0)
        best = int(cost.argmin())
        places[index] = Place(float(offsets[best, 0]), float(offsets[best, 1]), bool(with_line[best]))
        taken = np.concatenate([taken, boxes[best : best + 1]])
    return [places[index] for index in range(len(points))]


def apart(points: Float[np.ndarray, "points 2"], size: float, across: int = 6) -> Float[np.ndarray, "points 2"]:
    """How far to move each, so that none hides another: those within `size` of each other stand side by side.

    Args:
        across: how many stand in a row; more make rows above it.
    """
    groups: list[list[int]] = []
    for index in np.lexsort((points[:, 1], points[:, 0])).tolist():
        near = (group for group in groups if np.linalg.norm(points[group[0]] - points[index]) < size)
        group = next(near, None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    moves = np.zeros_like(points)
    for group in groups:
        middle = points[group].mean(axis=0)
        for place, index in enumerate(group):
            row, column = divmod(place, across)
            wide = min(across, len(group) - row * across)
            moves[index] = middle + size * np.array([column - (wide - 1) / 2, row]) - points[index]
    return moves


def crowding(points: Float[np.ndarray, "points 2"]) -> list[float]:
    """For each point a number that grows as others come near."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    near = 1.0 / (1.0 + distances)
    return [float(value) for value in near.sum(axis=1) - 1.0]


def _common(
    boxes: Float[np.ndarray, "boxes 4"], others: Float[np.ndarray, "others 4"]
) -> Float[np.ndarray, "boxes others"]:
    """Area that each box has in common with each other one."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common: np.ndarray = np.clip(high - low, 0.0, None).prod(axis=-1)
    return common


def _crossed(
    start: Float[np.ndarray, " 2"], ends: Float[np.ndarray, "ends 2"], others: Float[np.ndarray, "others 4"]
) -> Float[np.ndarray, " ends"]:
    """How many boxes a line from `start` to each end runs over, less those that it starts in."""
    steps = np.linspace(0.0, 1.0, 12)[None, :, None]
    places = (start + (ends - start)[:, None] * steps)[:, :, None]
    inside = ((places >= others[:, :2]) & (places <= others[:, 2:])).all(axis=-1)
    crossed: np.ndarray = (inside.any(axis=1) & ~inside[:, 0]).sum(axis=-1)
    return crossed.astype(float)
