"""A defense of the user's own, one class and one YAML beside the call: in a run, and in what the run recorded."""

import sys

import pytest

MODULE = """
from dataclasses import replace

from defenses import Defense


class Doubled(Defense):
    def transform_update(self, update, rng):
        return replace(update, tensors={name: 2 * tensor for name, tensor in update.tensors.items()})
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "conf" / "defense").mkdir(parents=True)
    (tmp_path / "doubled_gradient.py").write_text(MODULE)
    (tmp_path / "conf" / "defense" / "doubled.yaml").write_text("doubled: {_target_: doubled_gradient.Doubled}\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("doubled_gradient", None)


def test_a_record_of_it_is_attacked_where_the_call_chooses_it(own, command):
    chosen = ["--config-dir", "conf", "defense=[doubled]"]
    small = ["num_clients=2", "num_rounds=1", "observe.every=1", "tracker=[]", "attack=[labels]"]
    code, _, err = command("fedsim", *chosen, *small, "simulation=inline", "run_dir=run")
    assert code == 0, err
    again = ["observation=run/observations", "simulation=inline", "attack=[labels]"]
    sys.modules.pop("doubled_gradient")  # as in another process
    code, _, err = command("fedsim-audit", *again, "run_dir=refused")
    assert code == 2
    assert "a recorded defense must be a loaded subclass of Defense" in err
    assert "doubled_gradient" not in sys.modules
    code, _, err = command("fedsim-audit", *chosen, *again, "run_dir=again")
    assert code == 0, err
