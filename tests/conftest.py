"""Fixtures that every test may use."""

import sys
from pathlib import Path

import pytest
import torch

from experiments import audit, federated, leakage_matrix, measure, prior
from fedsim.simulation.ray_cluster import ray_cluster

COMMANDS = {
    "fedsim": federated.main,
    "fedsim-audit": audit.main,
    "fedsim-measure": measure.main,
    "fedsim-matrix": leakage_matrix.main,
    "fedsim-prior": prior.main,
}
collect_ignore = ["plugin_example"]  # a package of its own: test_plugin.py installs it and runs its tests
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """800 class folders with one or more 224 px JPEGs each; the test is skipped where they are missing."""
    return _folder("imagenet-sample")


@pytest.fixture(scope="session")
def cifar10_sample() -> Path:
    """`train/` and `val/` of ten class folders of 32 px PNGs or JPEGs."""
    return _folder("cifar10-sample")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _folder(name: str) -> Path:
    folder = SHARED_DATA / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not beside the repository")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def ray_on_this_machine():
    """One Ray for the whole test run: starting it takes longer than most tests."""
    with ray_cluster(None, num_cpus=6, num_gpus=0):
        yield


@pytest.fixture
def command(monkeypatch, capsys):
    """`command("fedsim", "key=value", …)`: exit code, standard output and errors."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = 0
        try:
            COMMANDS[name]()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
