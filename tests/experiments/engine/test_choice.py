"""`simulation=auto`: what a setting asks for, what the machine has, and then what should end sooner."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import yaml
from torch import nn

from experiments.cli import validation
from experiments.engine import choice as engine_choice
from experiments.engine.choice import (
    Estimate,
    estimate_audit,
    estimate_jobs,
    estimate_run,
    forward_flops,
    on_engine,
    with_engine,
)
from experiments.engine.folders import as_began, comparable, open_or_resume
from experiments.engine.ray_only import KEYS
from experiments.engine.setup import prepare
from experiments.python.load_config import load_config
from fedsim.errors import ConfigError
from fedsim.settings.commands import MatrixConfig, config_of
from fedsim.settings.schema import parse, plain
from tests.experiments.audit.test_command import table
from tests.experiments.run_files import rows, same_state

LONG, SHORT = Estimate(inline=100.0, on_ray=40.0, workers=4), Estimate(inline=10.0, on_ray=20.0, workers=4)
AUDIT = ("data=digits", "model=vit_nano")


@pytest.fixture
def machine(monkeypatch):
    """As many cores, and a CUDA device or none."""

    def has(cores, gpu=False):
        for module in (engine_choice, validation):
            monkeypatch.setattr(module, "cores", lambda: cores)
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)

    has(4)
    return has


def chosen(config, estimate):
    return with_engine(config_of(config), "4 updates", lambda: estimate).simulation.engine


@pytest.mark.parametrize("name", ["run", "audit", "matrix"])
def test_every_command_begins_with_auto(name):
    assert load_config(name)["simulation"]["engine"] == "auto"


def test_what_should_end_sooner_is_chosen_and_said(machine, capsys):
    config = load_config("audit", *AUDIT)
    assert chosen(config, SHORT) == "inline"
    assert capsys.readouterr().out == "in this process: 4 updates; simulation=ray uses workers\n"
    assert chosen(config, LONG) == "ray"
    assert capsys.readouterr().out == "on 4 workers of Ray: 4 updates; simulation=inline stays in this process\n"
    machine(1)
    assert chosen(config, LONG) == "inline"


@pytest.mark.parametrize("engine", ["ray", "inline"])
def test_an_engine_that_was_named_is_taken(machine, capsys, engine):
    config = config_of(
        load_config("audit", *AUDIT, f"simulation={engine}", "simulation.workers=2", "client.device=cpu")
    )
    assert with_engine(config, "4 updates", lambda: pytest.fail("asked")) is config
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_in_a_process_that_was_named_clients_have_its_gpu_wherever_the_run_goes_on(machine, gpu, device):
    machine(4, gpu=gpu)
    began = with_engine(config_of(load_config("audit", *AUDIT, "simulation=inline")), "4 updates")
    assert began.client.device == device
    machine(4, gpu=not gpu)
    assert with_engine(began, "4 updates").client.device == device


ONLY_RAY = {
    "workers": "simulation.workers=1",
    "num_gpus": "simulation.num_gpus=0.5",
    "resources": "+simulation.resources={big: 1}",
    "attack_workers": "simulation.attack_workers=2",
    "attack_num_gpus": "simulation.attack_num_gpus=0.5",
    "attack_resources": "+simulation.attack_resources={big: 1}",
    "attack_crews": "+simulation.attack_crews={patch_gradient: {timeout: 60.0}}",
    "attack_timeout": "simulation.attack_timeout=60.0",
    "address": "ray.address=127.0.0.1:6379",
}


@pytest.mark.parametrize("key", [*KEYS, "address"])
def test_what_only_ray_can_serve_chooses_ray(machine, capsys, key):
    machine(1)
    assert chosen(load_config("run", ONLY_RAY[key]), SHORT) == "ray"
    assert f"{key}=" in capsys.readouterr().out


def test_in_this_process_clients_have_no_gpu_that_workers_would_not_have(machine):
    machine(4, gpu=True)
    config = config_of(load_config("audit", *AUDIT))
    assert with_engine(config, "4 updates", lambda: SHORT).client.device == "cpu"
    assert with_engine(config, "4 updates", lambda: LONG).client.device == "cpu"
    wanted = with_engine(config_of(load_config("audit", *AUDIT, "client.device=cuda")), "4 updates", lambda: LONG)
    assert (wanted.simulation.engine, wanted.client.device) == ("inline", "cuda")


@pytest.mark.parametrize(
    ("gpu", "settings", "device"),
    [
        (True, [], "cpu"),
        (True, ["simulation.num_gpus=0.5"], "cuda"),
        (True, ["client.device=cuda", "simulation.num_gpus=0.5"], "cuda"),
        (False, [], "cpu"),
        (False, ["ray.address=127.0.0.1:6379"], "cpu"),
    ],
)
def test_workers_that_asked_for_no_gpu_have_none(machine, gpu, settings, device):
    machine(4, gpu=gpu)
    config = config_of(load_config("audit", *AUDIT, "simulation=ray", *settings))
    assert on_engine(config, "ray").client.device == device
    assert with_engine(config, "4 updates", lambda: pytest.fail("asked")).client.device == device


@pytest.mark.parametrize("gpus", [(False, True), (True, False)])
def test_what_began_on_one_machine_goes_on_in_this_process_on_another(machine, gpus):
    began, goes_on = [], [config_of(load_config("audit", *AUDIT, *words)) for words in ([], ["ray.address=auto"])]
    for gpu in gpus:
        machine(4, gpu=gpu)
        began += [plain(with_engine(config, "4 updates", lambda: SHORT)) for config in goes_on]
    assert len({yaml.safe_dump(comparable(config)) for config in began}) == 1


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({}, {"device": "cpu"}, True),
        ({}, {"device": "cuda"}, True),
        ({"num_gpus": 0.5}, {"device": "cuda"}, True),
        ({"num_gpus": 0.5}, {"device": "cuda", "num_gpus": 1.0}, True),
        ({"num_gpus": 0.5}, {"device": "cpu"}, False),
        ({"device": "cpu"}, {"device": "cuda"}, False),
    ],
)
def test_folders_of_earlier_versions_leave_open_what_their_machine_had(before, now, same, tmp_path):
    def config(device="auto", num_gpus=0.0):
        given = config_of(load_config("audit", *AUDIT))
        simulation = replace(given.simulation, num_gpus=num_gpus)
        return replace(given, client=replace(given.client, device=device), simulation=simulation)

    open_or_resume(config(**before), tmp_path)
    with nullcontext() if same else pytest.raises(ConfigError, match=r"client\.device"):
        open_or_resume(config(**now), tmp_path)


def test_what_began_on_the_cpu_stays_there_where_there_is_a_gpu_and_not_the_other_way_round(machine, tmp_path):
    given = config_of(load_config("audit", *AUDIT, "simulation=inline"))
    for place, gpu in (("cpu", False), ("cuda", True)):
        machine(4, gpu=gpu)
        open_or_resume(with_engine(as_began(given, tmp_path / place), "4 updates"), tmp_path / place)
        machine(4, gpu=not gpu)
        again = with_engine(as_began(given, tmp_path / place), "4 updates")
        assert again.client.device == "cpu"
        with pytest.raises(ConfigError, match="device=cpu now, cuda there") if gpu else nullcontext():
            open_or_resume(again, tmp_path / place)
    on_workers = replace(given, simulation=replace(given.simulation, engine="ray", num_gpus=0.5))
    assert as_began(on_workers, tmp_path / "cpu") is on_workers


def test_a_gpu_that_is_not_there_is_refused(machine):
    with pytest.raises(ConfigError, match=r"client\.device=cuda: must be auto or cpu"):
        prepare(load_config("audit", *AUDIT, "client.device=cuda"))


def test_the_tutorial_and_the_demo_stay_in_the_process_and_long_work_does_not(machine):
    machine(2)
    small = prepare(load_config("audit", *AUDIT, "audit.num_images=2"))
    assert chosen(small.config, estimate_audit(small, 2)) == "inline"
    large = prepare(load_config("audit", "model.name=vit_small_patch32_224"))
    assert chosen(large.config, estimate_audit(large, 1000)) == "ray"
    run = prepare(load_config("run"))
    assert chosen(run.config, estimate_run(run)) == "inline"
    machine(16)
    slow = prepare(load_config("run", "strategy=fedavg", "client.batch_size=16", "client.local_epochs=20"))
    assert chosen(slow.config, estimate_run(slow)) == "ray"


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 100, 1000])
def test_more_cores_make_workers_no_slower_and_this_process_no_faster(machine, groups):
    setup = prepare(load_config("audit", *AUDIT))
    estimates = []
    for cores in (2, 4, 16):
        machine(cores)
        estimates.append(estimate_audit(setup, groups))
    assert len({one.inline for one in estimates}) == 1
    assert [one.on_ray for one in estimates] == sorted((one.on_ray for one in estimates), reverse=True)


def test_searches_count_by_their_steps(machine):
    search = [*AUDIT, "attack=[inverting_gradients]"]
    few, many = (prepare(load_config("audit", *search, f"attack.inverting_gradients.steps={n}")) for n in (10, 1000))
    assert estimate_audit(many, 1).inline > 50 * estimate_audit(few, 1).inline


def test_observed_clients_count(machine):
    def inline(*settings):
        return estimate_run(prepare(load_config("run", "num_clients=10", "num_rounds=9", *settings))).inline

    nobody, three, everybody = (
        inline(f"observe.every={every}", f"observe.clients={clients}")
        for every, clients in ((0, "all"), (3, "[1,2,3]"), (3, "all"))
    )
    assert (everybody - nobody) / (three - nobody) == pytest.approx(10 / 3)


def test_jobs_take_at_least_as_long_as_the_longest(machine):
    config = parse(MatrixConfig, load_config("matrix"))
    assert estimate_jobs(config, [60.0, 1.0, 1.0]).on_ray == engine_choice.RAY_SECONDS + 60.0
    assert estimate_jobs(config, [30.0] * 8).on_ray == engine_choice.RAY_SECONDS + 60.0


def test_flops_of_a_forward_pass():
    class Broken(nn.Linear):
        def forward(self, image):
            raise RuntimeError("no pictures")

    model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.Flatten(), nn.Dropout(), nn.Linear(5 * 4, 7)).train()
    assert forward_flops(model, 8) == 2 * (4 * 5 * 3 * 16 + 20 * 7)
    assert model.training
    assert forward_flops(Broken(1, 1), 8) == 0.0


def test_counting_flops_leaves_nothing_in_the_model():
    class Caching(nn.Linear):
        def forward(self, image):
            self.cache = image.flatten(1)
            return super().forward(self.cache)

    model = Caching(12, 3)
    model.register_buffer("cache", None)
    assert forward_flops(model, 2) == 2 * 12 * 3
    assert model.cache is None


def test_the_choice_stands_in_the_folder_and_changes_no_bit(fedsim, command, ray_on_this_machine, tmp_path):
    inline, on_ray = fedsim("attack=[labels]"), fedsim("attack=[labels]", "simulation.workers=2")
    engines = [yaml.safe_load((run / "config.yaml").read_text())["simulation"]["engine"] for run in (inline, on_ray)]
    assert engines == ["inline", "ray"]
    assert (inline / "metrics.jsonl").read_bytes() == (on_ray / "metrics.jsonl").read_bytes()
    assert same_state(inline, on_ray)


def test_an_audit_goes_on_whatever_was_chosen_before(command, tmp_path, ray_on_this_machine):
    settings = [*AUDIT, "audit.num_images=2", "attack=[labels]", f"run_dir={tmp_path / 'run'}"]
    for more in (["simulation=ray", "simulation.workers=1"], ["simulation=inline"], []):
        code, out, err = command("fedsim-audit", *settings, *more)
        assert code == 0, err
    assert "2 of 2 updates were finished by an earlier call" in out
    assert len(table(tmp_path / "run")) == len(rows(tmp_path / "run", "attacks")) == 2
