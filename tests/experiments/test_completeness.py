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
