"""A row of the matrix that a theorem covers."""

from dataclasses import replace

import pytest

from fedsim.bounds.robustness import blow_up
from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixColumn, MatrixRow, RowState
from fedsim.report.matrix.verdict import verdicts
from fedsim.report.run.images.counts import Counts


def row(mu, certified=0, ended=1, **measured):
    counts = Counts(certified=certified, images=4 if ended else 0, ended=ended)
    cell = MatrixCell("patch_gradient", "initial", "done", done=4, pictures=4, batch=1, counts=counts)
    told = {"dp_sgd_gdp_mu": mu, "dp_sgd_gdp_releases": 9.0, "dp_sgd_gdp_copies": 1.0, **measured}
    return MatrixRow("dp", measured=told, cells=(cell,), counts=counts)


def test_gamma_is_after_all_releases_of_a_training():
    assert row(1.0).gamma == pytest.approx(blow_up(1e-3, 1.0))
    both = {"local_dp_gdp_mu": 0.5, "local_dp_gdp_releases": 1.0, "local_dp_gdp_copies": 1.0}
    assert row(1.0, **both).gamma == pytest.approx(blow_up(1e-3, 0.5)), "each holds by itself"
    assert MatrixRow("none").gamma is None
    before = MatrixRow("dp", measured={"dp_sgd_gdp_mu": 0.1, "dp_sgd_gdp_releases": 1.0})
    assert before.gamma is None, "of a version that took each copy for an image of its own"


def test_what_is_attacked_is_a_further_release():
    released = row(2**0.5, dp_sgd_gdp_releases=2.0)
    audited = replace(released, attacked=1)
    assert (released.level, audited.level) == ("proven", "open")
    assert audited.gamma == pytest.approx(blow_up(1e-3, 3**0.5))


def test_of_an_earlier_version_s_file_nothing_is_proven():
    released = replace(row(2**0.5, dp_sgd_gdp_releases=2.0), audits={"initial": RowState("done")})
    columns = (MatrixColumn("patch_gradient", "", ""),)
    values = Matrix("m", (), columns, ("initial",), (released,)).to_dict()
    for name in ("own", "attacked"):
        del values["rows"][0][name]
    (read,) = Matrix.from_dict(values).rows
    assert (read.attacked, read.own, read.gamma, read.level) == (None, None, None, "open")
    assert "An earlier version counted less" in verdicts(Matrix.from_dict(values))[-1]


def test_the_level_follows():
    assert (row(1.0).level, row(1.5).level, row(1.0, certified=1).level) == ("proven", "open", "broken")
    untested = row(1.0, ended=0)
    assert (untested.level, untested.tested, untested.leakage) == ("proven", False, None)


def test_it_is_said_with_its_numbers():
    matrix = Matrix("m", (), (MatrixColumn("patch_gradient", "", ""),), ("initial",), (row(1.0),), finished=True)
    released = "after all releases of a training and of the updates that are attacked"
    assert f"does so with at most 0.019 behind dp {released} (" in verdicts(matrix)[0]
    states = dict.fromkeys(("initial", "trained"), RowState("done"))
    both = replace(matrix, rows=(replace(row(1.0), audits=states),))
    assert f"behind dp {released}, in either state, each by itself (" in verdicts(both)[0]
