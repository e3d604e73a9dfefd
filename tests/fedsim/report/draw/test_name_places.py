"""Names in a plot hide neither each other nor the points, as long as there is room."""

import numpy as np
import pytest

from fedsim.report.draw.name_places import DISTANCES, crowding, place_names
from fedsim.report.draw.name_places import apart as stand_apart

FRAME = (0.0, 0.0, 500.0, 400.0)


def boxes(points, sizes, places):
    for (x, y), (width, height), place in zip(points, sizes, places, strict=True):
        middle = (x + place.dx, y + place.dy)
        yield (middle[0] - width / 2, middle[1] - height / 2, middle[0] + width / 2, middle[1] + height / 2)


def apart(one, other):
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("gap", [100.0, 25.0, 12.0])
def test_names_in_a_row_stay_apart_and_inside(gap):
    points = np.array([[120.0 + gap * index, 200.0] for index in range(7 if gap < 50 else 3)])
    sizes = np.full((len(points), 2), [60.0, 11.0])
    obstacles = [(x - 5, y - 5, x + 5, y + 5) for x, y in points.tolist()]
    places = place_names(points, sizes, FRAME, obstacles, range(len(points)))
    found = list(boxes(points, sizes, places))
    assert all(apart(a, b) for i, a in enumerate(found) for b in found[:i])
    assert all(apart(name, point) for name in found for point in obstacles)
    assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= 500 and b[3] <= 400 for b in found)


def test_a_lonely_name_stands_beside_its_point_without_a_line():
    (place,) = place_names(np.array([[250.0, 200.0]]), np.array([[40.0, 10.0]]), FRAME, [], [0])
    assert (place.dx, place.dy, place.line) == (DISTANCES[0] + 20.0, 0.0, False)


def test_a_point_at_the_right_edge_has_its_name_inside():
    points, sizes = np.array([[495.0, 200.0]]), np.array([[80.0, 10.0]])
    (box,) = boxes(points, sizes, place_names(points, sizes, FRAME, [], [0]))
    assert box[2] <= 500


def test_the_first_in_the_order_has_the_choice():
    points, sizes = np.array([[200.0, 200.0], [200.0, 200.0]]), np.array([[40.0, 10.0], [40.0, 10.0]])
    first, second = place_names(points, sizes, FRAME, [], [1, 0])[::-1]
    assert (first.dx, first.dy) == (29.0, 0.0)
    assert (second.dx, second.dy) != (29.0, 0.0)


def test_crowding_grows_with_neighbours():
    near, other, lonely = crowding(np.array([[0.0, 0.0], [1.0, 0.0], [300.0, 300.0]]))
    assert near == pytest.approx(other, abs=0.01)
    assert near > 0.5 > lonely


def test_points_that_would_hide_each_other_stand_side_by_side():
    shared = [[100.0, 50.0]] * 7 + [[103.0, 50.0]]
    points = np.array([*shared, [200.0, 50.0]])
    moves = stand_apart(points, 8.0)
    placed = points + moves
    distances = np.linalg.norm(placed[:, None] - placed[None], axis=-1) + 100 * np.eye(len(points))
    assert distances.min() >= 8.0
    assert not moves[-1].any()  # alone where it is
    assert np.abs(moves).max() <= 3.0 * 8.0
    assert np.allclose(stand_apart(points[-2:], 8.0), 0.0)
