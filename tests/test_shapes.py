"""Every module that states shapes has them checked while the tests run."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_modules_with_shapes_are_checked():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    (listed,) = (word for word in options["addopts"].split() if word.startswith("--jaxtyping-packages="))
    checked = tuple(f"{name}." for name in listed.partition("=")[2].split(",")[:-1])
    paths = [
        path for room in ("fedsim", "attacks", "defenses", "clients", "server") for path in ROOT.glob(f"{room}/**/*.py")
    ]
    stated = [path.relative_to(ROOT) for path in paths if "jaxtyping import" in path.read_text(encoding="utf-8")]
    assert len(stated) > 80
    assert [path for path in stated if not f"{'.'.join(path.with_suffix('').parts)}.".startswith(checked)] == []
