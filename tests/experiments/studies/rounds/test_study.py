from functools import partial

import pytest


@pytest.fixture
def call(call_main, tmp_path):
    return partial(call_main, "experiments.studies.rounds.__main__", "--out", str(tmp_path), "--workers", "1")


@pytest.mark.usefixtures("failing_attacks")
def test_an_attack_that_fails_is_tried_again(call, tmp_path):
    code, _, err = call("--images", "1", "--rounds", "1")
    assert code == 2
    assert "OutOfMemoryError: full; the same command tries it again" in err
    assert not (tmp_path / "results.jsonl").exists()
