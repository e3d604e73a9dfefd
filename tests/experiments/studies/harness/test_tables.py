"""Tables as text."""

import csv

import pytest
import torch
from scipy import stats

from experiments.studies.harness.tables import interval, markdown, mean, number, write_csv


def test_markdown_keeps_its_columns():
    table = markdown(["a", "b"], [["x|y", "two\nlines"]])
    assert table == "| a | b |\n| --- | --- |\n| x\\|y | two lines |\n"


def test_csv_reads_back(tmp_path):
    write_csv(tmp_path / "t.csv", ["a", "b", "c"], [["x,y", None, 0.1 + 0.2]])
    with (tmp_path / "t.csv").open() as file:
        assert list(csv.reader(file)) == [["a", "b", "c"], ["x,y", "", "0.30000000000000004"]]


def test_no_value_is_no_number():
    assert [number(None), number(float("nan")), number(1.23456, ".2f")] == ["", "", "1.23"]
    assert mean([1.0, None, 2.0]) == pytest.approx(1.5)
    assert mean([None]) is None


def test_the_interval_is_students(rng):
    values = torch.randn(5, generator=rng, dtype=torch.float64).tolist()
    mean, reach = interval(values)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (mean - reach, mean + reach) == pytest.approx((low, high))
    assert interval(values[:1]) == (values[0], None)
