"""The benchmark of second order: its floors are counted, and no product is below them by FLOPs alone."""

import pytest
import torch

from experiments.benchmarks import second_order


def test_a_product_is_counted_in_training_steps():
    calls, floors = second_order._calls(second_order.drawn("built"), torch.device("cpu"))
    assert calls.keys() == floors.keys()
    assert floors["training step"] == 1.0
    for whole in ("gradient of ‖r‖²", "Jacobian-vector, forward mode", "J kept"):
        assert 1.5 < floors[whole] < 4.0
    for kept in ("Jacobian-vector", "vector-Jacobian"):
        assert 1.0 < floors[kept] < 2.0
    assert floors["Gauss-Newton"] == pytest.approx(floors["Jacobian-vector"] + floors["vector-Jacobian"])
    assert floors["J whole"] == pytest.approx(192 * floors["Jacobian-vector, forward mode"])
