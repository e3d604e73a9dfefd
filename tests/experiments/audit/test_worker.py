"""Where a fault is said to be: in the line of whoever wrote it."""

import importlib.util
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from ray.exceptions import ActorDiedError

from attacks.running import BROKEN
from experiments.audit import command, worker
from experiments.audit.worker import AuditBatch, AuditWorker, Group, failed, where
from experiments.engine.setup import prepare
from fedsim.errors import ConfigError, RunError
from fedsim.simulation import actor_pool
from tests.experiments.run_files import SMALL_AUDIT
from tests.support.federation import settings

FAULTS = ("statistics.fmean([])", "torch.nn.Linear(2, 3)(torch.ones(5))", "1 / 0")
"""In the standard library, in a package, and in the line itself."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_the_line_of_its_author(tmp_path, fault):
    source = tmp_path / "own.py"
    source.write_text(f"import statistics, torch\n\ndef raises():\n    {fault}\n")
    spec = importlib.util.spec_from_file_location("own", source)
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    with pytest.raises((statistics.StatisticsError, RuntimeError, ZeroDivisionError)) as raised:
        own.raises()
    assert where(raised.value) == f"{type(raised.value).__name__}: {raised.value} in {source}:4"


def test_a_refused_setting_says_itself_where():
    assert where(ConfigError("a.b", 3, "at most 2")) == str(ConfigError("a.b", 3, "at most 2"))


@pytest.mark.parametrize("fault", [None, RuntimeError("no such client")])
def test_an_update_is_computed_once_for_all_attacks_on_it(monkeypatch, fault):
    def observe(worker, batch):
        computed.append(batch.number)
        if fault is not None:
            raise fault
        return AuditWorker._observe(worker, batch)

    names, computed = ("patch_gradient", "labels"), []
    setup = prepare(settings("audit", *SMALL_AUDIT, f"attack=[{','.join(names)}]"))
    own = AuditWorker(setup.config, setup=setup)
    monkeypatch.setattr(own, "_observe", lambda batch: observe(own, batch))
    group = Group(AuditBatch(number, (number,), names, number) for number in (0, 1))
    found = [(one.result.attack, one.uncomputed) for part in group.by_attack() for one in own.run(part)]
    assert found == [(name, fault is not None) for name in names for _ in group]
    assert computed == [0, 1]


def test_what_a_worker_keeps_is_built_with_its_own_threads(monkeypatch):
    setup = prepare(settings("audit", *SMALL_AUDIT, "attack=[labels]", "simulation.threads=2"))
    found, before = [], torch.get_num_threads()
    monkeypatch.setattr(worker, "AuditedClients", lambda _: found.append(torch.get_num_threads()))
    AuditWorker(setup.config, setup=setup).ready()
    assert (found, torch.get_num_threads()) == ([2], before)


def test_what_a_worker_lacks_is_said_by_the_updates_that_it_gets():
    own = AuditWorker(settings("audit", *SMALL_AUDIT, "attack=[labels]", "data=imagefolder", "data.path=/gone"))
    own.ready()
    with pytest.raises(ConfigError, match="gone"):
        own.run([AuditBatch(0, (0,), ("labels",), 0)])


class Started:
    """In place of an actor, whose call is lost with it."""

    def __init__(self, number):
        self.ready = SimpleNamespace(remote=lambda: f"start at {id(self)}")


def test_a_worker_does_not_count_the_gpus_of_all_on_its_own(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    gpus = ["simulation=ray", "simulation.workers=2", "simulation.num_gpus=1", "client.device=cpu"]
    config = settings("audit", *SMALL_AUDIT, "attack=[labels]", *gpus)
    with pytest.raises(ConfigError, match="all workers ask for 2 of 1"):
        prepare(config)
    (found,) = AuditWorker(config).run(Group([AuditBatch(0, (0,), ("labels",), 0)]))
    assert found.result.status == "done", found.result.reason


def test_the_death_of_a_worker_is_told_with_the_updates_that_it_attacked(monkeypatch, caplog):
    def get(reference):
        if reference == "call":
            raise ActorDiedError

    monkeypatch.setattr(actor_pool, "ray", SimpleNamespace(get=get, kill=lambda actor: None))
    pool = actor_pool.ActorPool(Started, 1, max_retries=0)
    pool.submit(Group(AuditBatch(number, (number,), ("dlg",), number) for number in (4, 5)), lambda _: "call")
    pool.take(pool.references)
    (end,) = pool.take(["call"])
    assert end.error == "its worker died once"
    (said,) = caplog.messages
    assert said.startswith("a worker died at round-00000-client-00004, round-00000-client-00005: ")


class OnePool:
    """In place of the pool, with one worker: each call ends at the next look."""

    actor = "the only one"
    limits: ClassVar[list[tuple[str, float]]] = []

    def __init__(self, *given, **_):
        self.running = None

    @property
    def pending(self):
        return int(self.running is not None)

    @property
    def has_nothing_to_do(self):
        return self.running is None

    def submit(self, group, call, kept_by=None):
        self.running = group
        return kept_by == self.actor

    def wait(self, timeout):
        return []

    def expire(self, limit):
        if self.running is None:
            return []
        group, self.running = self.running, None
        self.limits.append((group[0].attacks[0], limit(group, 1)))
        return [actor_pool.Finished(group, 1, value=[], actor=self.actor)]

    def close(self):
        pass


@pytest.mark.parametrize(("last", "limits"), [((0, 1), [4.0, 4.0]), ((0,), [4.0, 2.0])])
def test_an_attack_has_time_to_compute_what_its_worker_has_not(monkeypatch, last, limits):
    """After the first attack on update 0 its worker has that one and no other."""
    ray = ["simulation=ray", "simulation.workers=1", "simulation.attack_timeout=2", "audit.victims=1"]
    setup = prepare(settings("audit", *SMALL_AUDIT, "attack=[labels,patch_gradient]", *ray))
    monkeypatch.setattr(actor_pool, "ActorPool", OnePool)
    monkeypatch.setattr(OnePool, "limits", [])
    first = {0: ("labels", "patch_gradient"), 1: ("patch_gradient",)}
    group = Group(AuditBatch(number, (number,), first[number], number) for number in last)
    list(command._results(setup, [group], None))
    assert OnePool.limits == list(zip(("labels", "patch_gradient"), limits, strict=True))


def test_an_attack_that_broke_cuda_in_this_process_is_the_last(monkeypatch):
    def broken(_, group):
        return failed(group[0], setup, f"an assert; {BROKEN}")

    setup = prepare(settings("audit", *SMALL_AUDIT, "attack=[labels]", "simulation=inline"))
    monkeypatch.setattr(AuditWorker, "run", broken)
    ends, left = [], [Group([AuditBatch(number, (number,), ("labels",), number)]) for number in (0, 1)]
    with pytest.raises(RunError, match=r"^labels on round-00000-client-00000: an assert; CUDA"):
        ends.extend(command._results(setup, left, None))
    assert len(ends) == 1


def test_an_attack_that_broke_cuda_in_an_earlier_call_comes_last_and_is_the_one_that_is_named(monkeypatch):
    def broken(_, group):
        (attack,) = group[0].attacks
        first, *others = (one for batch in group for one in failed(batch, setup, "an assert"))
        reason = f"an assert; {BROKEN}" if attack == "labels" else ""
        return [replace(first, result=replace(first.result, reason=reason)), *others]

    setup = prepare(settings("audit", *SMALL_AUDIT, "attack=[labels,patch_gradient]", "simulation=inline"))
    monkeypatch.setattr(AuditWorker, "run", broken)
    ends = []
    left = [Group(AuditBatch(n, (n,), ("labels", "patch_gradient"), n) for n in pair) for pair in ((0, 1), (2, 3))]
    with pytest.raises(RunError, match=r"^labels on round-00000-client-00000: an assert; CUDA"):
        ends.extend(command._results(setup, left, None, {"labels"}))
    assert [(own[0].attacks[0], own[0].number) for own, *_ in ends] == [
        ("patch_gradient", 0), ("patch_gradient", 2), ("labels", 0),
    ]  # fmt: skip
