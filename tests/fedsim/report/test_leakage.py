"""Which of the observed pictures are one, and what the attacks took of all of them."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.leakage import Leakage, summarise_leakage
from fedsim.report.read import read_run


@pytest.fixture
def leakage(write_run: Any, records: Any) -> Any:
    """`leakage((client, seed, PSNR, picture, guess), …)`: an update of one picture each."""
    folders = iter(range(100))

    def make(*updates: tuple[object, int, float, str, float | None]) -> Leakage:
        rows = [
            records.attack(number, 0, records.image(psnr, name, guess_psnr=guess)) | {"client": client}
            for number, (client, _, psnr, name, guess) in enumerate(updates)
        ]
        run = read_run(write_run(rows, name=f"run-{next(folders)}"))
        seeded = [replace(one, seed=seed) for one, (_, seed, *_) in zip(run.attacks, updates, strict=True)]
        return summarise_leakage(replace(run, attacks=tuple(seeded)))

    return make


def test_the_guess_tells_pictures_of_one_name_apart(leakage: Any) -> None:
    found = leakage((0, 0, 30.0, "a", 10.0), (0, 0, 10.0, "a", 10.0), (1, 0, 15.0, "a", 11.0))
    assert (found.pictures, found.different) == (3, 2)
    assert (found.recognisable, found.different_recognisable) == (1, 1)


def test_one_picture_in_two_sums_is_one(leakage: Any) -> None:
    found = leakage(("0 (sum of 2 clients)", 0, 30.0, "a", 10.0), ("3 (sum of 2 clients)", 0, 30.0, "a", 10.0))
    assert (found.pictures, found.different, found.different_recognisable) == (2, 1, 1)


def test_without_a_guess_another_clients_picture_is_another(leakage: Any) -> None:
    assert leakage((0, 0, 30.0, "a", None), (1, 0, 30.0, "a", None)).different == 2


def test_another_seed_has_another_guess_and_maybe_other_clients(leakage: Any) -> None:
    both = (0, 0, 30.0, "a", 10.0), (1, 0, 30.0, "b", 9.0), (5, 1, 30.0, "a", 10.1), (6, 1, 10.0, "b", 9.1)
    found = leakage(*both)
    assert (found.pictures, found.different, found.different_recognisable) == (4, 2, 2)
    assert leakage(*both, (7, 1, 30.0, "a", 12.0)).different is None  # two of that name under one seed


def test_the_mean_is_over_all_pictures_and_none_is_below_its_guess(leakage: Any) -> None:
    found = leakage((0, 0, 90.0, "a", 10.0), (1, 0, 30.0, "b", 11.0), (2, 0, 5.0, "c", 12.0))
    assert found.mean_known == pytest.approx((40.0 + 30.0 + 12.0) / 3)


def test_a_picture_that_could_not_be_read_is_in_no_mean(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, 0, records.image(30.0, "a", guess_psnr=10.0))]
    rows.append(records.attack(2, 0, records.image(None, "b"), status="failed", scored=False))
    assert summarise_leakage(read_run(write_run(rows))).mean_known == 30.0
    guessed = records.refusal(2, 0, "withheld", attack="other", images=[records.image(None, "b", guess_psnr=12.0)])
    for number, order in enumerate(([*rows, guessed], [guessed, *rows])):
        found = summarise_leakage(read_run(write_run(order, name=f"run-{number}")))
        assert found.mean_known == pytest.approx((30.0 + 12.0) / 2)


@pytest.mark.parametrize(("guess", "mean"), [(12.0, (30.0 + 12.0) / 2), (None, None)])
def test_what_is_refused_counts_as_its_guess(
    write_run: Any, records: Any, guess: float | None, mean: float | None
) -> None:
    picture = records.image(None, "b", guess_psnr=guess)
    rows = [records.attack(1, 0, records.image(30.0, "a")), records.refusal(2, 0, "withheld", images=[picture])]
    assert summarise_leakage(read_run(write_run(rows))).mean_known == (mean if mean is None else pytest.approx(mean))
    unnamed = records.refusal(3, 0, "withheld")
    assert summarise_leakage(read_run(write_run([*rows, unnamed], name="unnamed"))).mean_known is None
