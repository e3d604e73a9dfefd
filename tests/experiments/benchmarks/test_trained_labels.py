"""The benchmark's rules on the same batches; its page holds what was measured."""

from types import SimpleNamespace

import pytest
import torch

from attacks.label.recover import COUNTED_ALONE
from experiments.benchmarks.trained_labels import LOCAL, command
from experiments.benchmarks.trained_labels.command import (
    SIMULATED,
    local_steps,
    one_step,
    page,
    rules_of,
    states,
)
from experiments.studies.harness.study import code_and_machine
from fedsim.data import Digits


@pytest.fixture(scope="module")
def untrained():
    return next(states("digits", Digits(), 0.05, (0,)))


def test_every_rule_is_right_at_initialisation_and_a_guess_is_not(untrained):
    entries = {entry["rule"]: entry for entry in one_step(untrained, 8, 5)}
    assert entries.keys() == rules_of(untrained).keys()
    assert entries["class_moments"]["exact"] == entries["bias_prior"]["exact"] == 1.0
    assert entries["no gradient"]["overlap"] < 0.8


def test_local_steps_leave_the_model_as_it_was(untrained):
    before = [tensor.clone() for tensor in untrained.head]
    entries = local_steps(untrained, 8, LOCAL[0], 0.001, 1)
    assert {entry["rule"]: entry["exact"] for entry in entries}[SIMULATED] == 1.0
    for tensor, was in zip(untrained.head, before, strict=True):
        assert tensor.equal(was)


def test_the_page_has_a_row_for_each_rule(untrained):
    text = page(one_step(untrained, 8, 1), 1, 0.05)
    assert f", {code_and_machine('cpu')}." in text
    assert "| bias_prior | 100 / 100 |" in text
    assert "0 steps, B = 8" in text


def test_few_images_go_by_the_counts_that_alone_explain_the_head(untrained, monkeypatch):
    """With a rule of larger batches that knows nothing."""
    monkeypatch.setattr(command, "fit_counts", lambda *_: SimpleNamespace(counts=torch.zeros(10).long(), misfit=0.0))
    exact = {size: one_step(untrained, size, 1)[0]["exact"] for size in (COUNTED_ALONE, COUNTED_ALONE + 1)}
    assert exact == {COUNTED_ALONE: 1.0, COUNTED_ALONE + 1: 0.0}
