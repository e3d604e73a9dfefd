"""Every node runs this process's code, and gets nothing else."""

import json
import os

import pytest

from fedsim.memory.kept import KEPT_MEMORY
from fedsim.simulation.shipping import JOB, PACKAGES, absolute, runtime_env


@pytest.fixture(autouse=True)
def outside_of_jobs(monkeypatch):
    monkeypatch.delenv(JOB, raising=False)


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_a_checkout_is_the_working_directory_without_runs_and_pictures(checkout):
    sent = runtime_env(checkout, {}, [checkout / "mine" / "pictures", checkout.parent, checkout])
    assert sent["working_dir"] == str(checkout)
    assert "/mine/pictures" in sent["excludes"]
    assert "/runs" in sent["excludes"]
    assert not {"/", "/.", "/.."} & set(sent["excludes"])
    assert "py_modules" not in sent


def test_ray_leaves_out_what_is_excluded_and_nothing_of_the_packages(checkout):
    from ray._private.runtime_env.packaging import _get_excludes

    excluded = _get_excludes(checkout, runtime_env(checkout, {}, [checkout / "pictures"])["excludes"])
    for kept in ("fedsim/data/hub.py", "conf/data/digits.yaml", "tests/server/faulty_attacks.py", "mine.py"):
        assert not excluded(checkout / kept)
    for left in ("data/a.png", "runs/1/metrics.jsonl", "pictures/a/b.jpg"):
        assert excluded(checkout / left)


def test_of_an_installed_wheel_the_packages_travel(tmp_path):
    sent = runtime_env(tmp_path, {})
    assert sent["py_modules"] == [str(tmp_path / name) for name in PACKAGES]
    assert "working_dir" not in sent


def test_attacks_of_ones_own_travel_where_they_are_named(checkout, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_travelling_attack.py").touch()
    monkeypatch.syspath_prepend(folder)
    config = {"attack": {"mine": {"_target_": "my_travelling_attack.Mine"}}, "x": [{"_target_": "torch.optim.SGD"}]}
    assert runtime_env(checkout, config)["py_modules"] == [str(folder / "my_travelling_attack.py")]


@pytest.mark.parametrize("job", [{"working_dir": "gcs://a.zip"}, {"py_modules": ["gcs://a.zip"]}])
def test_a_submitted_job_keeps_what_it_brought(checkout, monkeypatch, job):
    monkeypatch.setenv(JOB, json.dumps({"runtime_env": job}))
    assert set(runtime_env(checkout, {})) == {"env_vars"}
    assert runtime_env(checkout, {})["env_vars"]["FLWR_TELEMETRY_ENABLED"] == "0"
    of_the_job = {"FLWR_TELEMETRY_ENABLED": "1"}  # Ray refuses a variable that both ask for
    monkeypatch.setenv(JOB, json.dumps({"runtime_env": job | {"env_vars": of_the_job}}))
    assert "FLWR_TELEMETRY_ENABLED" not in runtime_env(checkout, {})["env_vars"]
    assert "MALLOC_ARENA_MAX" in runtime_env(checkout, {})["env_vars"]
    monkeypatch.setenv(JOB, json.dumps({"runtime_env": {}}))
    assert runtime_env(checkout, {})["working_dir"] == str(checkout)


def test_paths_are_absolute_for_workers_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    config = {"data": {"path": "pictures", "name": "local", "cache_dir": "~/c"}, "seed": 0}
    assert absolute(config)["data"] == {
        "path": str(tmp_path / "pictures"),
        "name": str(tmp_path / "local"),
        "cache_dir": os.path.expanduser("~/c"),  # noqa: PTH111 - what a shell would make of it
    }
    assert absolute({"data": {"name": "uoft-cs/cifar10"}})["data"] == {"name": "uoft-cs/cifar10"}


def test_checkpoints_are_absolute_wherever_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.safetensors").touch()
    there = str(tmp_path / "a.safetensors")
    config = {
        "data": {},
        "model": {"name": "vit_nano", "checkpoint": "a.safetensors"},
        "attack": {
            "gias": {"generator": {"checkpoint": "a.safetensors"}, "steps": 3},
            "many": {"priors": [{"network": {"checkpoint": "a.safetensors"}}, 1.0]},
            "other": {"checkpoint": "a name that some hub knows", "path": "a.safetensors"},
        },
        "defense": {"leakage_gate": {"attack": {"generator": {"checkpoint": "a.safetensors"}}}},
    }
    sent = absolute(config)
    assert sent["model"] == {"name": "vit_nano", "checkpoint": there}
    assert sent["attack"]["gias"] == {"generator": {"checkpoint": there}, "steps": 3}
    assert sent["attack"]["many"] == {"priors": [{"network": {"checkpoint": there}}, 1.0]}
    assert sent["attack"]["other"] == config["attack"]["other"]
    assert sent["defense"] == {"leakage_gate": {"attack": {"generator": {"checkpoint": there}}}}
    assert config["model"]["checkpoint"] == "a.safetensors"


def test_what_the_user_set_here_goes_before_what_fedsim_would_set(checkout, monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    variables = runtime_env(checkout, {})["env_vars"]
    assert variables["MALLOC_ARENA_MAX"] == "4"
    assert variables["MALLOC_TRIM_THRESHOLD_"] == KEPT_MEMORY["MALLOC_TRIM_THRESHOLD_"]
