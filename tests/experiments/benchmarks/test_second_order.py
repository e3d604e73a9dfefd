"""The benchmark of second order: its floors are counted, and no product is below them by FLOPs alone."""

import pytest

from experiments.benchmarks import second_order


def test_a_product_is_counted_in_training_steps():
    calls, floors = second_order._calls(second_order.drawn("built"))
    assert calls.keys() == floors.keys()
    assert floors["training step"] == 1.0
    assert 1.5 < floors["Jacobian-vector"] < 4.0
    assert 1.5 < floors["vector-Jacobian"] < 4.0
    assert floors["J whole"] == pytest.approx(192 * floors["Jacobian-vector"])
