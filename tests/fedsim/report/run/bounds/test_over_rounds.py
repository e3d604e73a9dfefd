"""γ of a federation from what its clients count, and what is not counted."""

import math
from typing import Any

import pytest

from fedsim.bounds.robustness import blow_up
from fedsim.report.run.bounds.over_rounds import Released, over_rounds, released
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict


def test_the_strongest_defense_of_a_round_counts() -> None:
    row: dict[str, Any] = {"round": 3, "dp_sgd_gdp_mu": 2.0, "dp_sgd_gdp_releases": 4.0, "dp_sgd_gdp_copies": 1.0}
    assert released(row) == Released("dp_sgd", 2.0, 4)
    mine = {"mine_gdp_mu": 1.0, "mine_gdp_releases": 9, "mine_gdp_copies": 2}
    assert released(row | mine) == Released("mine", 1.0, 9)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"dp_sgd_epsilon": 1.0},
        {"dp_sgd_gdp_mu": 1.0, "dp_sgd_gdp_copies": 1},
        {"dp_sgd_gdp_mu": 1.0, "dp_sgd_gdp_releases": 1},
        {"dp_sgd_gdp_mu": 1.0, "dp_sgd_gdp_releases": 1, "dp_sgd_gdp_copies": math.nan},
        {"dp_sgd_gdp_mu": math.inf, "dp_sgd_gdp_releases": 1, "dp_sgd_gdp_copies": 1},
        {"dp_sgd_gdp_mu": 0.0, "dp_sgd_gdp_releases": 1, "dp_sgd_gdp_copies": 1},
        {"dp_sgd_gdp_mu": "1", "dp_sgd_gdp_releases": 1, "dp_sgd_gdp_copies": 1},
        {"dp_sgd_gdp_mu": 1.0, "dp_sgd_gdp_releases": 0, "dp_sgd_gdp_copies": 1},
    ],
)
def test_what_proves_nothing(row: dict[str, Any]) -> None:
    assert released(row) is None


def test_the_table_goes_on_to_the_last_round() -> None:
    rounds = [(number, Released("dp_sgd", 0.1 * math.sqrt(number), number)) for number in range(1, 101)]
    (found,) = over_rounds([(0, None), *rounds])
    assert (found.mu, found.releases) == (1.0, 100)
    assert [row[0] for row in found.rows] == ["1", "15", "29", "43", "58", "72", "86", "100"]
    assert float(found.rows[-1][4]) == pytest.approx(blow_up(1e-3, 1.0), abs=1e-3)
    assert over_rounds([*rounds, (101, None)]) == []
    assert over_rounds([]) == []


def test_no_bound_is_said_smaller_than_it_is() -> None:
    assert over_rounds([(1, Released("dp_sgd", 2**0.5, 2))])[0].rows[0][2] == "1.42"


@pytest.mark.parametrize(("mu", "level"), [(1.0, "proven"), (1.5, "open")])
def test_a_whole_run_is_proven_by_its_last_round(write_run: Any, records: Any, mu: float, level: str) -> None:
    told = {"accuracy": 0.5, "dp_sgd_gdp_copies": 1}
    rounds = [told | {"round": k, "dp_sgd_gdp_mu": mu * k / 2, "dp_sgd_gdp_releases": k} for k in (1, 2)]
    attacks = [records.attack(2, 0, records.image(9.0, "a", guess_psnr=10.0), certificate={})]
    found = verdict(read_run(write_run(attacks, rounds=rounds)))
    assert found.level == level
    assert ("after these 2 releases" in found.sentence) is (level == "proven")
