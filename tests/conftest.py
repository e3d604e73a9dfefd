"""Fixtures that every test may use. What they need is imported when one asks for them: most tests need none of it."""

import atexit
import gc
import os
import random
import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from tests.support import remembered_pictures, remembered_settings
from tests.support.preloaded_workers import preloaded_workers
from tests.support.process_guard import ProcessGuard
from tests.support.shapes import check_stated_alone
from tests.support.slow import read as slow_tests

STARTS = {"ray_on_this_machine": "ray", "mortal": "subprocess", "site": "subprocess", "command": "command"}
"""Fixtures, and the marker of the tests that use them."""
# Ray's workers are nice by 15: beside the tests of other processes they would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Processes that are forked from one whose OpenMP has several threads wait for them for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")
guard = ProcessGuard()
# Nothing that collection and its imports make is garbage; looking for some takes seconds in each of xdist's processes.
gc.disable()
check_stated_alone()  # before any package of ours is imported
COLLECTIONS = (20_000, 20, 20)
"""New objects before garbage is collected: Python's own 700 cost a twentieth of the tests' time."""
set_aside = {"modules": 0}
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
def rng():
    import torch

    return torch.Generator().manual_seed(0)


def _folder(name: str) -> Path:
    folder = SHARED_DATA / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not beside the repository")
    return folder


def pytest_sessionstart() -> None:
    """From a console a study ends its process at once; here that is the process of all tests.

    No fixture of a folder does it: where paths are named in turns, pytest 9 loses those.
    """
    from experiments.commands.stage import CommandStage
    from experiments.studies.harness import options

    options.start = lambda name, work: work(CommandStage(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    may = any(item.get_closest_marker(name) for name in ("ray", "subprocess"))
    guard.test = None if may else item.nodeid
    _seed_what_is_imported()
    remembered_settings.remember()
    remembered_pictures.remember()
    try:
        return (yield)
    finally:
        guard.test = None
        if len(sys.modules) > set_aside["modules"] + 200:
            _set_libraries_aside()


def _seed_what_is_imported() -> None:
    """What a test draws without a seed of its own is the same in every run, whichever tests ran before it.

    So are the bits of what it computes: some commands leave their process another number of torch's threads.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish(session: pytest.Session) -> None:
    _set_libraries_aside()
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError("xdist does not see the groups of tests: each process would make what they share")


def _set_libraries_aside() -> None:
    """Flower collects garbage at every array that it decodes: half a second each, over all that was imported here."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    set_aside["modules"] = len(sys.modules)


# Libraries count as leaked what is still there when Python ends; pytest's own last collections need not see it.
atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    slow = slow_tests()
    for item in items:
        for fixture in STARTS.keys() & set(item.fixturenames):
            item.add_marker(STARTS[fixture])
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")
        if (group := _shared(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")  # after the shuffle
def pytest_who_waits_comes_first(items: list[pytest.Function]) -> None:
    """Rays and processes, of which one that began late would end alone."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("ray", "subprocess")))


def _shared(item: pytest.Function) -> str | None:
    """What several tests would otherwise make in each of xdist's processes: a Ray, a server, a module's fixture."""
    if {"mortal", "warm"} & set(item.fixturenames):
        return "commands"
    if item.get_closest_marker("ray"):
        return "commands" if "/experiments/" in item.nodeid else "ray"
    fixtures = [found[-1] for found in item._fixtureinfo.name2fixturedefs.values()]
    return item.nodeid.partition("::")[0] if any(one.scope == "module" for one in fixtures) else None


@pytest.fixture(scope="session")
def ray_on_this_machine(tmp_path_factory):
    """One Ray for the whole test run: starting it takes longer than most tests. Gives the folder of its workers."""
    from fedsim.simulation.ray_cluster import ray_cluster

    folder = tmp_path_factory.mktemp("ray")
    with preloaded_workers(folder), ray_cluster(None, num_cpus=6, num_gpus=0):
        yield folder


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A `python` whose processes have the libraries imported as they start; Flower's programs are beside it."""
    from tests.experiments.flower.processes import PROGRAMS
    from tests.support.warm_python import warm_python

    with warm_python(tmp_path_factory.mktemp("warm"), *PROGRAMS) as python:
        yield python


def _empty_plot(figure, prefix, description):
    from markupsafe import Markup

    return Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 1 1"></svg>').format(description)


@pytest.fixture
def few_last_steps(monkeypatch):
    """Searches by second order go two steps towards the likeliest image and no more: for tests of something else."""
    monkeypatch.setattr("attacks.optimization.second_order.posterior.mode.STEPS", 2)


@pytest.fixture
def plots():
    """For tests that look at the plots of a command's page: without it `command` leaves them empty."""


@pytest.fixture
def call_main(monkeypatch, capsys):
    """`call_main("a.module", "--word", …)`: exit code, output and errors of a module's `main`, or of a command."""

    def call(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = 0
        try:
            if module.endswith(".__main__"):
                runpy.run_module(module, run_name="__main__")
            elif "." in module:
                import_module(module).main()
            else:
                from experiments.cli.call import run_command
                from experiments.commands.stage import CommandStage

                run_command(CommandStage(module))
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def command(monkeypatch, call_main, request):
    """`command("fedsim", "key=value", …)`: exit code, standard output and errors."""
    # What takes longer than the runs themselves: a search through all that the tests of this process have left, ...
    monkeypatch.setattr("server.app.settled", nullcontext)
    # ... all settings composed only to see whether they set Hydra's own mode, which no test does here, ...
    monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)
    # ... and plots, which tests/fedsim/report draws and reads.
    if "plots" not in request.fixturenames:
        monkeypatch.setattr("fedsim.report.draw.svg.markup", _empty_plot)

    return call_main
