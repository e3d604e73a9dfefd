"""Groups of options keep their shape whatever is typed."""

import pytest


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
    assert line.startswith(f"error: {key}: settings: ")
    assert not (run / "config.yaml").exists()


def test_an_option_whose_yaml_has_no_name_is_told_what_is_missing(command, tmp_path):
    (tmp_path / "attack").mkdir()
    (tmp_path / "attack" / "bare.yaml").write_text("_target_: bare.Bare\n")
    options = ["data=digits", "model=vit_nano", "attack=[bare]", f"run_dir={tmp_path / 'run'}"]
    code, _, err = command("fedsim-audit", "--config-dir", str(tmp_path), *options)
    assert code == 2
    assert "error: attack=bare.Bare: in its YAML a name around its settings" in err
