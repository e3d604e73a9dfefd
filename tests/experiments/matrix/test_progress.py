"""What a row says of its trainings holds of all of them."""

import json
from types import MappingProxyType, SimpleNamespace

import pytest

from experiments.matrix import progress
from experiments.matrix.progress import MatrixProgress, describe_end, read_matrix
from experiments.matrix.rows import Asked
from experiments.matrix.units import ASKED, AUDIT, TRAINING, MatrixRun, UnitEnd
from fedsim.bounds.robustness import blow_up
from fedsim.storage import json_lines
from fedsim.storage.run_folder import UNCHANGED


@pytest.fixture
def row(tmp_path):
    """`row(…)`: of a row behind `dp_sgd` whose seeds measured these; None: that training has not ended.

    Its audits are of `states`, and have noted `asked`.
    """

    def make(*seeds, states=(), asked=MappingProxyType({"copies": 1})):
        trained = {"defense": {"dp_sgd": {}}, "model": {}, "client": {"batch_size": 1, "share": "gradient"}}
        units = [MatrixRun("dp", TRAINING, str(k), tmp_path / str(k), trained) for k in range(len(seeds))]
        for unit, measured in zip(units, seeds, strict=True):
            unit.folder.mkdir(exist_ok=True)
            (unit.folder / "metrics.jsonl").unlink(missing_ok=True)
            json_lines.append_row(unit.folder / "metrics.jsonl", {"round": 1, "accuracy": 0.5, **(measured or {})})
        audits = [MatrixRun("dp", AUDIT, state, tmp_path / state, trained) for state in states]
        for unit in audits:
            unit.folder.mkdir(exist_ok=True)
            (unit.folder / ASKED).write_text(json.dumps({"updates": 1, **asked}))
        audit = SimpleNamespace(count=1, batch_size=1)
        settings = {"audit": audit, "client": SimpleNamespace(batch_size=1, share="delta"), "model": {"name": "m"}}
        settings |= {"num_clients": 2, "num_rounds": 1, "data": {}, "strategy": {}, "seed": 0}
        config = SimpleNamespace(**settings, matrix=SimpleNamespace(seeds=len(seeds), states=("initial",)))
        ends = {unit: UnitEnd("done") for unit, measured in zip(units, seeds, strict=True) if measured is not None}
        progress = MatrixProgress(config, tmp_path, [Asked("dp", (), ())], (), [*units, *audits], ends=ends)
        (found,) = read_matrix(progress).rows
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


def test_the_same_noise_in_both_states_is_no_release_of_its_own(row):
    assert row(seed(1.0), states=("initial", "trained")).gamma == row(seed(1.0), states=("initial",)).gamma
    assert row(seed(1.0), states=("initial",)).gamma == pytest.approx(blow_up(1e-3, 1.25**0.5))


def test_equal_images_among_the_audited_ones_are_one_image(row):
    """Two clients hold one image each; an update of both: μ² is 2/1.5² of the training and (2/1.5)² of the update."""
    held = seed(2**0.5 / 1.5, dp_sgd_gdp_releases=2.0)
    twice = row(held, states=("initial",), asked={"copies": 2})
    assert twice.gamma == pytest.approx(blow_up(1e-3, (2 / 1.5**2 + (2 / 1.5) ** 2) ** 0.5))
    assert row(held, states=("initial",), asked={}).gamma is None, "an earlier version did not count them"


def test_rounds_without_an_aggregate_are_those_of_all_seeds(row):
    failures = [{"client": None, "error": UNCHANGED}, {"client": 1, "error": "x"}, {"client": 2, "error": "y"}]
    found = row({"failures": failures}, {"failures": failures[:1]}, {})
    assert (found.unchanged, found.client_failures) == (2, 2)


def test_the_line_of_a_training_has_its_own_accuracy_and_not_the_mean_over_seeds(tmp_path):
    settings = {"defense": {}, "model": {}, "client": {"batch_size": 1}}
    units = [MatrixRun("none", TRAINING, str(seed), tmp_path / str(seed), settings) for seed in range(2)]
    for unit, accuracy in zip(units, (0.5, 0.9), strict=True):
        unit.folder.mkdir()
        json_lines.append_row(unit.folder / "metrics.jsonl", {"round": 1, "accuracy": accuracy})
    ends = {unit: UnitEnd("done") for unit in units}
    progress = MatrixProgress(SimpleNamespace(), tmp_path, [Asked("none", (), ())], (), units, ends=ends)
    lines = [describe_end(progress, unit, ends[unit]) for unit in units]
    assert ["accuracy 50.0 %" in lines[0], "accuracy 90.0 %" in lines[1]] == [True, True]


def test_a_run_is_logged_by_its_title_and_not_by_all_of_its_settings(tmp_path):
    unit = MatrixRun("mjp", TRAINING, "0", tmp_path, {"seed": 0})
    assert str(unit) == "row mjp (training, seed 0)"


@pytest.mark.parametrize(("written", "before"), [('{"seconds": 90.5}', 90.5), ('{"seco', 0.0), ("{}", 0.0)])
def test_a_damaged_matrix_file_costs_the_seconds_of_earlier_calls_alone(written, before, tmp_path):
    (tmp_path / "matrix.json").write_text(written)
    assert MatrixProgress(SimpleNamespace(), tmp_path, [], (), []).seconds - before == pytest.approx(0, abs=5)


def test_what_a_training_has_of_its_own_is_what_the_first_row_s_is_not_set_to():
    first = {"seed": 0, "defense": {}, "num_rounds": 80, "client": {"batch_size": 16, "optimizer": {"lr": 0.1}}}
    gate = {**first, "seed": 1, "defense": {"gate": {}}, "client": {**first["client"], "batch_size": 1}}
    assert progress._own(first, gate) == ("client.batch_size=1",)
    assert progress._own(first, {**first, "num_rounds": 400}) == ("num_rounds=400",)
    unlike = {"finetune": {"kind": "lora"}, "round_timeout": 1.0, "client": {**first["client"], "max_grad_norm": 1.0}}
    assert progress._own(first, {**first, **unlike}) == (), "how a defense is set, or how long a round may take"


@pytest.mark.parametrize(("client", "releases"), [("gradient", 1), ("delta", 5)])
def test_an_audited_update_is_one_release_of_an_image_or_as_many_as_local_steps(client, releases):
    assert progress._releases({"share": client, "local_steps": 5, "local_epochs": 1}) == releases
    assert progress._releases({"share": client, "local_steps": None, "local_epochs": 1}) == 1
