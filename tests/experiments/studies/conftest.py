"""Pictures small enough for the embedded model, and the command of MJP's Table 5 in this process."""

import numpy as np
import pytest
from PIL import Image

import fedsim
from fedsim.result import AttackResult


@pytest.fixture(autouse=True)
def figures_without_layout(monkeypatch):
    """Where the parts of a figure go is matplotlib's business, and half of the time that it takes."""
    monkeypatch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda *_: None)


NANO = ["--models", "vit_nano", "vit_nano", "--shown", "1"]


@pytest.fixture
def pictures(tmp_path):
    """Three classes with two pictures of 8x8 pixels each; smooth, as photographs are."""
    rng = np.random.default_rng(0)
    for name in ("n01440764_tench", "n01443537_goldfish", "n01484850_great_white"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(2):
            coarse = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
            coarse.resize((8, 8), Image.Resampling.BICUBIC).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


@pytest.fixture
def table5(call_main, pictures, tmp_path):
    """Exit code, standard output and errors; results go to `tmp_path/out`."""
    fixed = ["--pictures", str(pictures), "--out", str(tmp_path / "out")]

    def call(*arguments, models=NANO):
        return call_main("experiments.studies.mjp_table5.__main__", *fixed, *models, *arguments)

    return call


@pytest.fixture(scope="session")
def six_classes(tmp_path_factory):
    """Six classes with ten smooth pictures of 32x32 pixels each."""
    folder = tmp_path_factory.mktemp("six")
    rng = np.random.default_rng(0)
    for name in "abcdef":
        (folder / name).mkdir()
        for number in range(10):
            coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            coarse.resize((32, 32), Image.Resampling.BICUBIC).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def study(call_main, six_classes, tmp_path):
    """`study(module, *arguments)`: exit code, output and errors of a study's command; results in `tmp_path/out`."""

    fixed = ["--pictures", str(six_classes), "--out", str(tmp_path / "out"), "--workers", "1"]
    return lambda module, *arguments: call_main(f"{module.__package__}.__main__", *fixed, *arguments)


@pytest.fixture
def unshown(monkeypatch):
    """`unshown(module)`: from now on units give nothing, and there is no page."""

    def hide(module):
        monkeypatch.setattr(module, "work", lambda unit: [])
        monkeypatch.setattr(module, "page", lambda *_, **__: None)
        monkeypatch.setattr("experiments.studies.harness.study.publish", lambda *_: None)

    return hide


@pytest.fixture
def refuse_work(monkeypatch):
    """`refuse_work(module)`: from now on a unit that is computed is a failure."""

    def refuse(module):
        def work(unit):
            raise AssertionError(f"{unit.key} was computed again")

        monkeypatch.setattr(module, "work", work)

    return refuse


@pytest.fixture
def failing_attacks(monkeypatch):
    """From now on every call of `fedsim.attack` runs out of memory."""
    full = AttackResult("o", "a", "failed", "OutOfMemoryError: full")
    monkeypatch.setattr(fedsim, "attack", lambda *_, **__: full)
