"""Optional trackers: what is missing is named in one line, and a run is found again."""

import sys
from types import SimpleNamespace

import pytest

from fedsim.errors import ConfigError
from fedsim.tracking import Trackers
from fedsim.tracking.services import flat, keep_run, kept_run, run_settings

CLASSES = {"mlflow": "fedsim.tracking.MLflow", "wandb": "fedsim.tracking.WeightsAndBiases"}


@pytest.mark.parametrize("name", CLASSES)
def test_a_library_that_is_not_there_is_named_with_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"^tracker={name}: .*pip install -e '\.\[{name}\]' in the clone$"
    ) as refused:
        Trackers({name: {"_target_": CLASSES[name]}}, tmp_path)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CLASSES)
def test_the_command_says_it_in_one_line(name, tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, name, None)
    code, _, err = command("fedsim", f"tracker=[{name}]", "simulation=inline", f"run_dir={tmp_path / 'run'}")
    assert code == 2
    (line,) = [line for line in err.splitlines() if not line.endswith("…")]
    assert line.startswith(f"error: tracker={name}: ")
    assert f"pip install -e '.[{name}]'" in line


def test_a_run_is_found_again(tmp_path):
    assert kept_run(tmp_path) is None
    keep_run(tmp_path, "abc", rows=3)
    assert kept_run(tmp_path) == {"id": "abc", "rows": 3}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 3}', "{"])
def test_a_damaged_name_of_a_run_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"run\.json: must be a file that names a run"):
        kept_run(tmp_path)


def test_settings_are_those_beside_the_trackers_folder(tmp_path):
    assert run_settings(tmp_path / "mlflow") == {}
    (tmp_path / "config.yaml").write_text("seed: 3\nclient: {batch_size: 1}\n")
    assert run_settings(tmp_path / "mlflow") == {"seed": 3, "client": {"batch_size": 1}}


def test_settings_become_flat():
    nested = {"a": {"b": {"c": 1}, "none": None}, "list": [1, {"x": 2}], "text": "t", "empty": {}}
    expected = {"a.b.c": "1", "a.none": "null", "list": '[1, {"x": 2}]', "text": "t", "empty": "{}"}
    assert dict(flat(nested)) == expected


@pytest.mark.parametrize("fails", ["log", "finish"])
def test_a_service_of_weights_and_biases_that_died_is_left_out(fails, tmp_path, monkeypatch, caplog):
    class Refused(Exception):  # noqa: N818 - the library calls its own Error
        """In place of wandb.errors.Error, which is no OSError either."""

    def call(name):
        def answer(*_, **__):
            if name == fails:
                raise Refused("the service\nis gone")

        return answer

    run = SimpleNamespace(dir=str(tmp_path), define_metric=call("define"), log=call("log"), finish=call("finish"))
    fake = SimpleNamespace(init=lambda **_: run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setitem(sys.modules, "wandb.errors", SimpleNamespace(Error=Refused))
    with Trackers({"wandb": {"_target_": CLASSES["wandb"]}}, tmp_path) as trackers:
        trackers.log(1, {"accuracy": 0.5})
    assert "tracker.wandb gets nothing from here on: the service is gone" in caplog.text
