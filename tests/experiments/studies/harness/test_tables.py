"""Tables as text."""

import csv

import pytest

from experiments.studies.harness.tables import markdown, mean, number, write_csv


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
