"""What no worker can ever get is refused, where no node can come that has it."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

import fedsim
from experiments.cli import validation
from experiments.engine import setup
from experiments.python.load_config import load_config
from fedsim.errors import ConfigError
from fedsim.settings.commands import RunConfig
from fedsim.settings.schema import parse
from fedsim.simulation import placement
from fedsim.simulation.placement import Node
from server.attack_queue.scheduling import InlineAttacks
from tests.support.federation import settings


@pytest.fixture(autouse=True)
def ray_of_ones_own(monkeypatch):
    """A Ray of two cores that nobody starts."""
    for module in (placement, validation):
        monkeypatch.setattr(module, "living_nodes", lambda: [Node("here", {"CPU": 2.0})])
    monkeypatch.setattr(setup, "ray_cluster", lambda *_, **__: nullcontext())


def config(address=None, grows=True, **simulation):
    given = load_config("run", "simulation=ray", "simulation.workers=1", "simulation.attack_timeout=60.0")
    given["simulation"] |= simulation
    ray = {"address": address, "dashboard": False, "grows": grows}
    return parse(RunConfig, given | {"attack": {"a": {}, "b": {}}, "ray": ray})


@pytest.mark.parametrize(
    ("simulation", "key"),
    [
        ({"resources": {"moon": 1}}, r"simulation\.resources=\{'moon': 1\}"),
        ({"attack_resources": {"moon": 1}}, r"simulation\.attack_resources=\{'moon': 1\}"),
        ({"attack_crews": {"b": {"resources": {"moon": 1}}}}, r"simulation\.attack_crews\.b\.resources="),
        ({"attack_crews": {"b": {"num_gpus": 1.0}}}, r"simulation\.attack_crews\.b\.num_gpus=1.0"),
        ({"attack_crews": {"b": {"timeout": 1.0}}, "attack_num_cpus": 9.0}, r"simulation\.attack_num_cpus=9.0"),
    ],
)
def test_what_a_ray_of_ones_own_never_has_is_refused(simulation, key):
    refused = pytest.raises(ConfigError, match=rf"^{key}.*no node is large enough for one")
    with refused, setup.engine(config(**simulation), 1):
        pass


def test_only_who_starts_must_find_room():
    with setup.engine(config(attack_resources={"moon": 1}), 1, attackers=False):
        pass
    with setup.engine(config(num_cpus=2.0, attack_crews={"c": {"num_gpus": 1.0}}), 1):
        pass


def test_to_a_cluster_a_node_may_come():
    with setup.engine(config("10.0.0.1:6379", resources={"moon": 1}), 1):
        pass
    refused = pytest.raises(ConfigError, match=r"^simulation\.resources=")
    with refused, setup.engine(config("10.0.0.1:6379", grows=False, resources={"moon": 1}), 1):
        pass


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_attack_workers_of_a_cluster_find_relative_checkpoints(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.safetensors").touch()
    monkeypatch.setattr(setup, "RayAttacks", lambda *given, **_: InlineAttacks(*given))
    settings = config(address, attack_backlog=1, attack_retries=0)
    settings = replace(settings, attack={"a": {"generator": {"checkpoint": "g.safetensors"}}})
    attacks = setup.make_scheduler(settings, lambda *_: None).attacks
    there = "g.safetensors" if address is None else str(tmp_path / "g.safetensors")
    assert attacks == {"a": {"generator": {"checkpoint": there}}}


@pytest.mark.parametrize(("device", "there"), [("cpu", True), ("cuda", True), ("auto", True), ("auto", False)])
def test_in_one_process_attacks_have_the_gpu_that_clients_have(device, there, monkeypatch):
    asked = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("server.attack_queue.scheduling.attack_device", asked.append)
    settings = config(None)
    alone = replace(settings.simulation, engine="inline")
    settings = replace(settings, simulation=alone, client=replace(settings.client, device=device))
    setup.make_scheduler(settings, lambda *_: None)
    assert asked == [1.0 if there and device != "cpu" else 0.0]


def test_an_audit_lets_each_attack_take_as_long_as_its_crew_would():
    settings = config(attack_crews={"b": {"timeout": 86400.0}})
    assert validation.attacks_timeout(settings, ["a", "b"]) == 86460.0
    assert validation.attacks_timeout(settings, ["a"]) == 60.0


def test_an_observation_of_the_run_itself_has_the_defenses_at_hand(tmp_path):
    """What recorded settings name is looked up for observations of others alone."""
    built = setup.prepare(settings("audit", "data=digits", "model=vit_nano", "attack=[labels]"))
    seen = fedsim.observe(built.model, torch.rand(1, 3, 8, 8), [3])
    replace(seen, defenses=({"name": "own", "_target_": "gone.Own"},)).save(tmp_path / "seen")
    with pytest.raises(ConfigError, match=r"gone\.Own"):
        setup.load_recorded(tmp_path / "seen")
    assert built.recorded(tmp_path / "seen").architecture is built.architecture


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("engine", "device", "gpus", "compiles"),
    [
        ("auto", "auto", 0.0, True),
        ("inline", "auto", 0.0, None),
        ("ray", "cpu", 0.5, True),
        ("ray", "auto", 0.5, False),
        ("inline", "cuda", 0.0, False),
    ],
)
def test_who_compiles_for_a_cpu_needs_a_compiler(engine, device, gpus, compiles, there, monkeypatch):
    """None: where this process has no GPU."""

    def none():
        raise InvalidCxxCompiler

    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
    given = config(engine=engine, num_gpus=gpus)
    given = replace(given, client=replace(given.client, device=device, compile=True))
    refused = not there if compiles is None else compiles
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler") if refused else nullcontext():
        validation.check_compiler(given)
