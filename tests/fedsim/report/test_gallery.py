"""The gallery holds the best and the worst of each attack and spreads the rest."""

from typing import Any

import pytest

from fedsim.report.gallery import build_gallery
from fedsim.report.read import read_run


@pytest.fixture
def crowded(write_run: Any, records: Any, picture: Any) -> Any:
    rows = []
    for attack, rounds in (("many", 30), ("few", 3)):
        for number in range(1, rounds + 1):
            shown = records.image(
                10.0 + (number * 7) % 31, f"{attack}/{number}", reconstruction="reconstructions/a.png"
            )
            rows.append(records.attack(number, 0, shown, attack=attack))
    folder = write_run(rows)
    picture(folder)
    return read_run(folder)


def test_limit_best_worst_and_spread(crowded: Any) -> None:
    gallery = build_gallery(crowded, limit=10)
    assert len(gallery.pairs) == 10
    assert gallery.left_out == 23
    shown = {attack: [pair for pair in gallery.pairs if pair.record.attack == attack] for attack in ("many", "few")}
    assert len(shown["few"]) == 3
    assert len(shown["many"]) == 7
    every = [record.images[0].psnr for record in crowded.attacks if record.attack == "many"]
    values = [pair.image.psnr for pair in shown["many"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == max(every)
    assert values[-1] == min(every)
    rounds = sorted(pair.record.number for pair in shown["many"])
    assert len(set(rounds)) == 7
    assert rounds[0] <= 5
    assert rounds[-1] >= 24


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 33, 60])
def test_any_limit_is_kept(crowded: Any, limit: int) -> None:
    gallery = build_gallery(crowded, limit=limit)
    assert len(gallery.pairs) == min(limit, 33)
    assert gallery.left_out == 33 - len(gallery.pairs)
    assert len({(pair.record.observation, pair.record.attack) for pair in gallery.pairs}) == len(gallery.pairs)
