"""The largest ε over clients and rounds."""

import math

import pytest

from fedsim.bounds.privacy import began_anew, gdp, held_by_several, is_budget, largest_budgets


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("dp_sgd_epsilon", True),
        ("local_dp_epsilon", True),
        ("epsilon", True),
        ("dp_sgd_gdp_mu", True),
        ("local_dp_gdp_releases", True),
        ("mixup_mu", False),
        ("dp_sgd_delta", False),
        ("upsilon", False),
        ("dp_sgd_epsilon_spent_share", False),
    ],
)
def test_names(metric: str, expected: bool) -> None:
    assert is_budget(metric) == expected


def test_every_client_is_within_what_is_reported() -> None:
    reports = [{"a_epsilon": 4.38, "loss": 9.0}, {"a_epsilon": 15.46, "b_epsilon": 0.5}, {"a_epsilon": 2.0}]
    assert largest_budgets(reports) == {"a_epsilon": 15.46, "b_epsilon": 0.5}
    assert largest_budgets([]) == {}
    before = {"a_epsilon": 20.0}
    assert largest_budgets([before, *reports])["a_epsilon"] == 20.0


def test_releases_and_copies_are_of_the_client_whose_mu_is_the_largest() -> None:
    """One image five times in 10 releases at σ = 10, beside 100 releases of another client's."""
    often = {"a_gdp_mu": 1.0, "a_gdp_releases": 100.0, "a_gdp_copies": 1.0}
    alike = {"a_gdp_mu": 5 * math.sqrt(10) / 10, "a_gdp_releases": 10.0, "a_gdp_copies": 5.0}
    for reports in ([often, alike], [alike, often], [largest_budgets([often]), alike]):
        assert largest_budgets(reports) == alike


@pytest.mark.parametrize("value", [math.nan, math.inf, "much", None, [1.0]])
def test_what_is_no_number_bounds_nothing(value: object) -> None:
    for reports in ([{"a_epsilon": value}, {"a_epsilon": 1.0}], [{"a_epsilon": 1.0}, {"a_epsilon": value}]):
        assert largest_budgets(reports) == {"a_epsilon": math.inf}


def test_what_a_client_counts_anew_is_forgotten_whatever_it_counts() -> None:
    before = {"a_epsilon": 2.0, "a_gdp_mu": 1.0, "a_gdp_releases": 4.0, "a_epsilon_since": 1.0}
    assert began_anew(before, before) == []
    assert began_anew(before, before | {"a_epsilon_since": 5.0}) == ["a_epsilon", "a_gdp_mu", "a_gdp_releases"]
    assert began_anew(before, before | {"a_gdp_releases": 3.0}) == ["a_gdp_releases"]


def test_an_image_that_several_clients_hold_is_released_by_each() -> None:
    budgets = {"a_epsilon": 3.0, "a_gdp_mu": 0.5, "a_gdp_releases": 4.0, "a_gdp_copies": 2.0}
    assert held_by_several(budgets, 1) == budgets
    assert held_by_several(budgets, 9) == budgets | {"a_gdp_mu": 1.5, "a_gdp_releases": 36.0}
    assert held_by_several(budgets, None) == {"a_epsilon": 3.0, "a_gdp_copies": 2.0}
    assert gdp(budgets) == {"a": (0.5, 4)}
    assert gdp({name: value for name, value in budgets.items() if name != "a_gdp_copies"}) == {}
