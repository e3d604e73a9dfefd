"""Differences seed by seed, of records made by hand."""

import numpy as np
import pytest
from scipy import stats

from experiments.studies.harness.options import matching
from experiments.studies.mjp_training.recipes import beside_alone, between_recipes
from experiments.studies.mjp_training.scales import RECIPE_SCALES
from experiments.studies.mjp_training.tables import Measured
from experiments.studies.mjp_training.variants import TABLE_4, TABLE_8, plan

SCALE = RECIPE_SCALES["small"]
SEEDS = 3


def of_model(top1, mae):
    """What a record holds of the measures; without a position embedding where `mae` is None."""
    point = {"ratio": SCALE.headline, "consistency": {"mean": top1 / 2}}
    position = None if mae is None else {"mae_1d": {"mean": mae}, "mae_2d": {"mean": mae / 4}}
    return {"top1": top1, "jigsaw": {"points": [{"ratio": 0.01}, point]}, "position": position}


@pytest.fixture
def measured():
    """A, B and J by two recipes; in seeds the differences vary less than their terms."""
    rng = np.random.default_rng(0)
    level = rng.uniform(0.3, 0.5, SEEDS)
    variants = matching("--variants", plan(SCALE.ratio), ["A", "B", "J"])

    def records(gain, shift):
        noise = rng.normal(0.0, 0.01, SEEDS)
        models = {"A": (level + gain + noise, 2.0), "B": (level - noise, None), "J": (level + gain, 2.0 + shift)}
        return {name: [of_model(one, mae and mae + one) for one in values] for name, (values, mae) in models.items()}

    return {
        "plain": Measured(SCALE, variants, records(0.0, -0.5)),
        "both": Measured(SCALE, variants, records(0.05, 0.5)),
    }


def line(table, *labels):
    names, rows = table.record
    (found,) = [dict(zip(names, row, strict=True)) for row in rows if tuple(row[:2]) == labels]
    return found


def paired(ours, others):
    """Mean and half a width, by scipy's own interval."""
    low, high = stats.ttest_rel(ours, others).confidence_interval(0.95)
    return (low + high) / 2, (high - low) / 2


def test_recipes_are_compared_variant_by_variant(measured):
    (table,) = between_recipes(SCALE, measured)
    assert [tuple(row[:2]) for row in table.rows] == [("A", "both"), ("B", "both"), ("J", "both")]
    found = line(table, "A", "both")
    ours, others = ([100 * one["top1"] for one in measured[recipe].records["A"]] for recipe in ("both", "plain"))
    assert (found["top1"], found["top1_reach"]) == pytest.approx(paired(ours, others))
    assert f"{found['top1']:+.1f} ± {found['top1_reach']:.1f}" == table.rows[0][2]
    assert "paper_top1" not in found  # the paper compares no recipes


def test_one_recipe_is_compared_with_none(measured):
    assert between_recipes(SCALE, {"plain": measured["plain"]}) == []


def test_mjp_is_compared_with_the_vit_alone_in_each_recipe(measured):
    (table,) = beside_alone(SCALE, measured)
    assert [tuple(row[:2]) for row in table.rows] == [
        (name, recipe) for recipe in ("plain", "both") for name in ("B", "J")
    ]
    found = line(table, "J", "both")
    ours, others = (
        [one["position"]["mae_2d"]["mean"] for one in measured["both"].records[name]] for name in ("J", "A")
    )
    assert (found["mae_2d"], found["mae_2d_reach"]) == pytest.approx(paired(ours, others))
    assert found["mae_2d"] > 0 > line(table, "J", "plain")["mae_2d"]  # the order turns
    assert found["paper_mae_2d"] == pytest.approx(TABLE_8["J"][1] - TABLE_8["A"][1])
    assert found["paper_top1"] == pytest.approx(TABLE_4["J"][0] - TABLE_4["A"][0])


def test_what_a_model_lacks_is_left_empty(measured):
    (table,) = beside_alone(SCALE, measured)
    found = line(table, "B", "plain")
    assert found["mae_1d"] is None
    assert found["paper_mae_1d"] is None
    assert found["top1"] is not None


def test_without_the_vit_alone_there_is_nothing_beside_it(measured):
    only = {
        recipe: Measured(SCALE, matching("--variants", plan(SCALE.ratio), ["J"]), {"J": members.records["J"]})
        for recipe, members in measured.items()
    }
    assert beside_alone(SCALE, only) == []
