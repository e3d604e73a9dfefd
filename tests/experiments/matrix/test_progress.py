"""What a row says of its trainings holds of all of them."""

from types import SimpleNamespace

import pytest

from experiments.matrix.progress import MatrixProgress, read_matrix
from experiments.matrix.rows import Asked
from experiments.matrix.units import TRAINING, MatrixRun, UnitEnd
from fedsim.bounds.robustness import blow_up
from fedsim.storage import json_lines


@pytest.fixture
def row(tmp_path):
    """`row(…)`: of a row behind `dp_sgd` whose seeds measured these; None: that training has not ended."""

    def make(*seeds):
        trained = {"defense": {"dp_sgd": {}}, "model": {}, "client": {"batch_size": 1}}
        units = [MatrixRun("dp", TRAINING, str(k), tmp_path / str(k), trained) for k in range(len(seeds))]
        for unit, measured in zip(units, seeds, strict=True):
            unit.folder.mkdir(exist_ok=True)
            (unit.folder / "metrics.jsonl").unlink(missing_ok=True)
            json_lines.append_row(unit.folder / "metrics.jsonl", {"round": 1, "accuracy": 0.5, **(measured or {})})
        audit = SimpleNamespace(select=None, num_images=1, batch_size=1)
        settings = {"audit": audit, "client": SimpleNamespace(batch_size=1, share="delta"), "model": {"name": "m"}}
        settings |= {"num_clients": 2, "num_rounds": 1, "data": {}, "strategy": {}, "seed": 0}
        config = SimpleNamespace(**settings, matrix=SimpleNamespace(seeds=len(seeds), states=("initial",)))
        ends = {unit: UnitEnd("done") for unit, measured in zip(units, seeds, strict=True) if measured is not None}
        (found,) = read_matrix(MatrixProgress(config, tmp_path, [Asked("dp", (), ())], (), units, ends=ends)).rows
        return found

    return make


def seed(mu, **more):
    return {
        "dp_sgd_gdp_mu": mu,
        "dp_sgd_gdp_releases": 4.0,
        "dp_sgd_gdp_copies": 1.0,
        "dp_sgd_clipped_share": mu,
        **more,
    }


def test_gamma_is_of_the_seed_that_released_most(row):
    assert row(seed(0.5), seed(2.0), seed(1.0)).gamma == pytest.approx(blow_up(1e-3, 2.0))
    assert row(seed(2.0), seed(0.5)).gamma == pytest.approx(blow_up(1e-3, 2.0))
    assert row(seed(0.5), seed(2.0)).measured["dp_sgd_clipped_share"] == 0.5, "what is no budget is the first seed's"


def test_without_a_theorem_of_every_seed_there_is_none(row):
    assert row(seed(0.5), {}).gamma is None
    assert row({}, seed(0.5)).gamma is None
    assert row(seed(0.5), None).gamma is None, "its training is still to come"
    assert row(seed(0.5), seed(float("inf"))).gamma is None
    assert row(None, None).gamma is None
