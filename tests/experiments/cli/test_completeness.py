"""Groups of options keep their shape whatever is typed."""

import pytest

from experiments.python.load_config import load_config
from fedsim.settings.commands import MatrixConfig, RunConfig
from fedsim.settings.schema import parse, plain


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("fedsim", ["defense=[mjp]", "defense.mjp=3"], "defense.mjp=3"),
        ("fedsim", ["attack.labels=null"], "attack.labels=None"),
        ("fedsim", ["tracker.tensorboard=3"], "tracker.tensorboard=3"),
        ("fedsim-audit", ["data=digits", "model=vit_nano", "attack=[labels]", "attack.labels=x"], "attack.labels=x"),
    ],
)
def test_an_option_without_settings_is_refused_before_anything_is_built(command, tmp_path, name, arguments, key):
    run = tmp_path / "run"
    code, _, err = command(name, f"run_dir={run}", *arguments)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert line.startswith(f"error: {key}: must be settings: ")
    assert not (run / "config.yaml").exists()


def test_an_option_whose_yaml_has_no_name_is_told_what_is_missing(command, tmp_path):
    (tmp_path / "attack").mkdir()
    (tmp_path / "attack" / "bare.yaml").write_text("_target_: bare.Bare\n")
    options = ["data=digits", "model=vit_nano", "attack=[bare]", f"run_dir={tmp_path / 'run'}"]
    code, _, err = command("fedsim-audit", "--config-dir", str(tmp_path), *options)
    assert code == 2
    assert "error: attack=bare.Bare: in its YAML a name around its settings" in err


OWN = {
    "top": ("num_round: 3", "num_round=3: there is no such setting. Did you mean 'num_rounds'?"),
    "observe": ("observe: {evry: 1}", "observe.evry=1: there is no such setting. Did you mean 'every'?"),
    "client": ("client: {batchsize: 4}", "client.batchsize=4: there is no such setting. Did you mean 'batch_size'?"),
    "ray": ("ray: {dashbord: true}", "ray.dashbord=True: there is no such setting. Did you mean 'dashboard'?"),
    "simulation": (
        "simulation: {attack_worker: 3}",
        "simulation.attack_worker=3: there is no such setting. Did you mean 'attack_workers'?",
    ),
}


@pytest.mark.parametrize("level", OWN)
def test_a_key_of_ones_own_file_that_nobody_reads_is_refused(command, tmp_path, level):
    text, line = OWN[level]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "typo.yaml").write_text(f"# @package _global_\n{text}\n")
    run = tmp_path / "run"
    code, _, err = command("fedsim", "--config-dir", str(tmp_path), "experiment=typo", f"run_dir={run}")
    assert code == 2
    assert err.strip() == f"error: {line}"
    assert not (run / "config.yaml").exists()


@pytest.mark.parametrize(
    ("name", "typed", "line"),
    [
        ("fedsim", "+client.foo=1", "client.foo=1: there is no such setting."),
        ("fedsim-audit", "+resume=RUN", "resume=RUN: there is no such setting."),
        ("fedsim-audit", "+client.foo=1", "client.foo=1: there is no such setting."),
        ("fedsim-audit", "+audit.victim=2", "audit.victim=2: there is no such setting. Did you mean 'victims'?"),
        ("fedsim-matrix", "+matrix.row=[none]", "matrix.row=['none']: there is no such setting. Did you mean 'rows'?"),
        ("fedsim-measure", "+measure.hrd=x", "measure.hrd=x: there is no such setting. Did you mean 'hard'?"),
        ("fedsim-prior", "+thread=2", "thread=2: there is no such setting. Did you mean 'threads'?"),
    ],
)
def test_a_key_that_was_added_and_that_nobody_reads_is_refused(command, tmp_path, name, typed, line):
    code, _, err = command(name, typed, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    assert err.startswith(f"error: {line}")


def test_what_classes_and_users_name_is_left_open():
    given = load_config("run")
    given["client"] |= {
        "share": "delta",
        "optimizer": {"_target_": "torch.optim.SGD", "nesterov": True},
        "scheduler": {"y": 1},
    }
    given["simulation"]["resources"] = {"big": 1}
    given |= {"defense": {"mine": {"z": 1}}, "data": {"w": 2}}
    assert plain(parse(RunConfig, given)) == given
    matrix = load_config("matrix")
    matrix["matrix"] |= {"defenses": {"mine": ["mjp"]}, "attacks": {"mine": ["dlg"]}}
    assert plain(parse(MatrixConfig, matrix)) == matrix
