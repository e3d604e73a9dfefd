"""What a row of the table makes of its pictures."""

from statistics import stdev

import pytest

from experiments.studies.mjp_table5.rows import plan
from experiments.studies.mjp_table5.tables import INTRODUCTION, MEASURES, _line


def test_the_spread_is_the_standard_deviation_over_pictures():
    row = plan([0.9])[0]
    scores = [{**dict.fromkeys(MEASURES, 0.0), "psnr": value} for value in (10.0, 13.0)]
    entries = [
        {"number": n, "status": "done", row.against: one, "certified": False, "masked": None}
        for n, one in enumerate(scores)
    ]
    key = (row.case.name, row.attack)
    assert _line(row, {key: entries}).psnr_std == pytest.approx(stdev([10.0, 13.0]))
    assert _line(row, {key: entries[:1]}).psnr_std is None
    assert "standard deviation over pictures" in INTRODUCTION
