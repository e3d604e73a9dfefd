"""Attacks beside the training: faults lose nothing and name themselves."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attacks.running import BROKEN
from fedsim.errors import RunError
from fedsim.result import AttackResult
from fedsim.simulation.actor_pool import ActorPool
from fedsim.simulation.placement import Request
from server.attack_queue import scheduling
from server.attack_queue.scheduling import Crew, InlineAttacks, RayAttacks

COSTLY = "tests.server.faulty_attacks.Costly"
HUNGRY = "tests.server.faulty_attacks.Hungry"
HALF = Request(cpus=0.5)
FAULTY = "tests.server.faulty_attacks.Faulty"
WALK = "tests.server.faulty_attacks.Walk"


@pytest.fixture
def observed(federate):
    """Two observations with their truth."""
    federation = federate("num_clients=2")
    seen = []
    federation.start(federation.observed(seen), num_rounds=1)
    return seen


@pytest.fixture
def run(observed, ray_on_this_machine):
    def scheduled(attacks, inline=False, **options):
        results = {}
        crew = Crew(options.pop("workers", 1), HALF, timeout=options.pop("timeout", 3600.0))

        def keep(result, truth):
            assert (result.client, result.attack) not in results, "a result came twice"
            results[(result.client, result.attack)] = (result, result.scores, result.attempts)

        scheduler = (
            InlineAttacks(attacks, 0, keep, **options) if inline else RayAttacks(attacks, 0, keep, crew=crew, **options)
        )
        try:
            for observation, truth in observed:
                scheduler.submit(observation, truth)
            scheduler.drain()
        finally:
            scheduler.close()
        assert scheduler.finished == scheduler.submitted == len(results)
        return results

    return scheduled


def test_inline_and_ray_give_the_same_results(run):
    attacks = {
        "patch_gradient": {"_target_": "attacks.analytic.PatchGradient"},
        "random": {"_target_": FAULTY, "fault": "none"},
    }
    inline, on_ray = run(attacks, inline=True), run(attacks, workers=2)
    assert set(inline) == set(on_ray)
    for key, (outcome, scores, _) in inline.items():
        assert outcome.status == "done"
        assert torch.equal(outcome.images, on_ray[key][0].images)
        assert scores == on_ray[key][1]


def test_earlier_rounds_reach_a_worker(observed, ray_on_this_machine):
    results = {}
    (observation, truth), earlier = observed[0], replace(observed[0][0], server_round=0)
    attacks = {"rounds": {"_target_": "tests.server.faulty_attacks.Rounds"}}
    for kind in (InlineAttacks, RayAttacks):
        scheduler = kind(attacks, 0, lambda result, truth, kind=kind: results.update({kind: result}))
        try:
            scheduler.submit(observation, truth, earlier=[earlier])
            scheduler.drain()
        finally:
            scheduler.close()
    assert {result.reason for result in results.values()} == {"rounds 0 and 1"}
    assert {result.observation for result in results.values()} == {observation.name}


def test_a_killed_worker_is_replaced_and_its_attack_tried_again(run, tmp_path):
    results = run({"mortal": {"_target_": FAULTY, "fault": "die", "marker": str(tmp_path / "m")}})
    assert {outcome.status for outcome, _, _ in results.values()} == {"done"}
    assert sorted(attempts for _, _, attempts in results.values()) == [1, 2]


def test_an_attack_that_always_kills_its_worker_fails_alone(run):
    results = run(
        {"deadly": {"_target_": FAULTY, "fault": "die"}, "sound": {"_target_": FAULTY, "fault": "none"}}, max_retries=0
    )
    assert results[(0, "deadly")][0].status == "failed"
    assert results[(0, "deadly")][0].reason == "its worker died once"
    assert results[(0, "deadly")][0].fault == ""
    assert results[(0, "sound")][0].status == results[(1, "sound")][0].status == "done"


def test_refusals_and_faults_are_results(run, caplog):
    results = run({name: {"_target_": FAULTY, "fault": name} for name in ("refuse", "raise")})
    assert (results[(0, "refuse")][0].status, results[(0, "refuse")][0].reason) == ("refused", "not today")
    assert results[(0, "raise")][0].status == "failed"
    assert results[(0, "raise")][0].reason == "ZeroDivisionError: by zero"
    assert results[(0, "raise")][1] is None
    (first, second) = (record.message for record in caplog.records if record.name == "server.attack_queue.scheduling")
    assert {first.splitlines()[0], second.splitlines()[0]} == {
        f"attack raise failed on round-00001-client-0000{client}:" for client in range(2)
    }
    assert "faulty_attacks.py" in first  # the traceback of another process


def test_an_attack_that_broke_cuda_in_this_process_is_the_last(observed, monkeypatch):
    def broken(observation, name, *_):
        return AttackResult.of(observation, name, "failed", f"RuntimeError: an assert; {BROKEN}")

    monkeypatch.setattr(scheduling, "run_attack", broken)
    written = []
    scheduler = InlineAttacks({"a": {}, "b": {}}, 0, lambda result, _: written.append(result.attack))
    with pytest.raises(RunError, match=r"^a on round-00001-client-0000[01]: RuntimeError: an assert; CUDA"):
        scheduler.submit(*observed[0])
    assert written == ["a"]


def test_what_one_attack_wrote_no_other_reads(observed):
    vandal, other = {"_target_": "tests.server.faulty_attacks.Vandal"}, {"_target_": "attacks.analytic.PatchGradient"}
    found = []
    for attacks in ({"other": other}, {"vandal": vandal, "other": other}):
        results = {}
        scheduler = InlineAttacks(attacks, 0, lambda result, truth, kept=results: kept.update({result.attack: result}))
        scheduler.submit(replace(observed[0][0]), None)  # without what it has computed
        found.append(results)
    alone, among = found
    assert (among["vandal"].status, among["other"].status, alone["other"].status) == ("failed", "done", "done")
    assert torch.equal(among["other"].images, alone["other"].images)


def test_an_attack_that_hangs_is_stopped(run, tmp_path):
    attacks = {"slow": {"_target_": FAULTY, "fault": "hang", "marker": str(tmp_path / "m")}}
    results = run(attacks, timeout=6.0)  # the other's worker is new; its start takes none of the time
    assert results[(0, "slow")][0].reason == "no result within 6 s"
    assert results[(1, "slow")][0].status == "done"


def test_a_full_queue_makes_training_wait_not_memory_grow(observed, ray_on_this_machine):
    results = []
    attacks = {f"a{i}": {"_target_": FAULTY, "fault": "none"} for i in range(3)}
    scheduler = RayAttacks(attacks, 0, lambda *result: results.append(result), crew=Crew(1, HALF), backlog=1)
    try:
        for observation, truth in observed:
            scheduler.submit(observation, truth)
            assert scheduler.pending <= 1
        scheduler.drain()
    finally:
        scheduler.close()
    assert len(results) == 6


def test_training_does_not_wait_for_workers_that_nothing_has_room_for(observed, ray_on_this_machine, monkeypatch):
    monkeypatch.setattr(scheduling, "PATIENCE", 0.5)
    crew = Crew(1, Request(0.5, resources={"moon": 1}))
    attacks = {"a": {"_target_": FAULTY, "fault": "none"}}
    scheduler = RayAttacks(attacks, 0, lambda *_: None, crew=crew, backlog=0)
    try:
        for observation, truth in observed:
            scheduler.submit(observation, truth)
        assert scheduler.pending == 2
    finally:
        scheduler.close()


class FakePool(ActorPool):
    """Holds what it is given; its workers start when they are told to, and end nothing."""

    size, started, waiting, running, pending = 1, 0, 0, 0, 0

    def __init__(self, *_):
        """Starts nobody."""

    def submit(self, *_):
        self.pending += 1

    def expire(self, seconds):
        return []


def test_a_full_queue_without_workers_is_waited_for_once_and_not_for_each_observation(observed, monkeypatch):
    now = [0.0]

    def passing(pools, seconds):
        now[0] += seconds
        return []

    monkeypatch.setattr(scheduling, "ActorPool", FakePool)
    monkeypatch.setattr(scheduling, "wait_for", passing)
    monkeypatch.setattr(scheduling, "ray", SimpleNamespace(remote=lambda cls: cls, put=lambda value: value))
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(monotonic=lambda: now[0]))
    scheduler = RayAttacks({"a": {"_target_": FAULTY, "fault": "none"}}, 0, lambda *_: None, backlog=0)
    for observation, truth in observed:
        scheduler.submit(observation, truth)
    assert now[0] == scheduling.PATIENCE
    (pool,) = scheduler._pools.values()
    pool.started = 1
    scheduler.collect()
    pool.started = 0  # and is lost again: waited for anew
    scheduler.submit(*observed[0])
    assert now[0] == 2 * scheduling.PATIENCE


def test_the_observations_of_a_round_share_one_state_in_the_store(observed, monkeypatch):
    monkeypatch.setattr(scheduling, "ActorPool", FakePool)
    monkeypatch.setattr(scheduling, "ray", SimpleNamespace(remote=lambda cls: cls, put=lambda value: object()))
    scheduler = RayAttacks({"a": {"_target_": FAULTY, "fault": "none"}}, 0, lambda *_: None)
    (first, _), (second, _) = observed
    put = [scheduler._put_shared(scheduling._shared_of(one)) for one in (first, second)]
    assert put[0] is put[1]
    later = {name: tensor.clone() for name, tensor in first.global_state.items()}
    assert scheduler._put_shared(later) is not put[0]


def test_public_images_lie_beside_the_state_and_come_back_with_it(observed):
    one = observed[0][0].with_public_images(torch.rand(3, 3, 8, 8), torch.tensor([0, 1, 2]))
    light = scheduling._light(one)
    assert (light.global_state, light.public_images) == ({}, None)
    again = scheduling._whole(light, scheduling._shared_of(one))
    assert again.global_state.keys() == one.global_state.keys()
    assert torch.equal(again.public_images.pixels, one.public_images.pixels)
    assert again.public_images.labels.tolist() == [0, 1, 2]
    assert scheduling._whole(light, one.global_state).public_images is None


def test_clients_without_room_get_that_of_attacks_and_no_attack_is_lost(observed, ray_on_this_machine):
    results = []
    attacks = {"a": {"_target_": FAULTY, "fault": "none"}}
    scheduler = RayAttacks(attacks, 0, lambda *result: results.append(result), crew=Crew(1, HALF), lazy=True)
    try:
        assert [pool.size for pool in scheduler._pools.values()] == [0]
        (first, truth), (second, other_truth) = observed
        scheduler.submit(first, truth)
        assert [pool.size for pool in scheduler._pools.values()] == [1]
        scheduler.give_way()
        scheduler.submit(second, other_truth)
        scheduler.collect()  # as at every look: clients have just asked for the room
        assert [pool.size for pool in scheduler._pools.values()] == [0]
        scheduler._back = 0.0  # nobody has asked for a while
        scheduler.collect()
        assert [pool.size for pool in scheduler._pools.values()] == [1]
        scheduler.give_way()
        scheduler.drain()
    finally:
        scheduler.close()
    assert [outcome.status for outcome, _ in results] == ["done", "done"]


def test_cheap_attacks_first_and_dear_ones_on_workers_of_their_own(run, tmp_path):
    def costly(log, name, cost):
        return {"_target_": COSTLY, "log": str(tmp_path / log), "name": name, "cost": cost}

    attacks = {
        "search": costly("shared", "search", 100.0),
        "closed": costly("shared", "closed", 0.0),
        "own": costly("own", "own", 1.0),
    }
    results = run(attacks, crews={"own": Crew(1, Request(cpus=0.25), threads=2)}, lazy=True)
    assert {outcome.status for outcome, _, _ in results.values()} == {"done"}
    assert (tmp_path / "own").read_text().splitlines() == ["own 2", "own 2"]
    order = [line.split()[0] for line in (tmp_path / "shared").read_text().splitlines()]
    assert order in (["closed", "closed", "search", "search"], ["closed", "search", "closed", "search"])


def test_out_of_memory_is_answered_by_a_smaller_chunk_where_there_is_one(run):
    def hungry(says, chunk=16, fits=3):
        return {"_target_": HUNGRY, "chunk": chunk, "fits": fits, "says": says}

    words = ("memory", "cuda", "cpu")
    attacks = {says: hungry(says) for says in words} | {"never": hungry("cuda", 8, 0), "other": hungry("other", 8, 4)}
    results = run(attacks, inline=True)
    small = run({says: hungry(says, chunk=2) for says in words}, inline=True)
    for key, (outcome, scores, _) in small.items():
        assert (results[key][0].status, results[key][0].reason) == ("done", "out of memory until chunk=2")
        assert torch.equal(results[key][0].images, outcome.images)
        assert results[key][1] == scores
        assert outcome.reason == ""
    said = {name: outcome.reason for (_, name), (outcome, _, _) in results.items()}
    assert said["never"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert said["other"] == "RuntimeError: shapes do not match"


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_a_killed_search_goes_on_from_its_last_saved_step(run, scratch, tmp_path):
    def walk(log, **settings):
        return {"walk/../x": {"_target_": WALK, "log": str(tmp_path / log), **settings}}

    whole = run(walk("whole"), inline=True)
    results = run(walk("killed", dies_at=8), scratch=scratch)
    assert sorted(attempts for _, _, attempts in results.values()) == [1, 2]
    for key, (outcome, scores, _) in results.items():
        expected, expected_scores, _ = whole[key]
        assert torch.equal(outcome.images, expected.images)
        assert len(outcome.frames) == 10
        assert scores == expected_scores
    steps = [line.split() for line in (tmp_path / "killed").read_text().splitlines()]
    died = steps[0][0]
    assert [int(step) for name, step in steps if name == died] == [*range(1, 9), *range(7, 11)]
    assert [int(step) for name, step in steps if name != died] == [*range(1, 11)]
    assert list(scratch.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "whole", "killed", "killed.died"}


def test_what_was_stopped_for_its_time_is_kept_for_another_call(run, scratch, tmp_path):
    attacks = {"walk": {"_target_": WALK, "log": str(tmp_path / "w"), "steps": 200, "pause": 0.25}}
    results = run(attacks, scratch=scratch, timeout=6.0, workers=2)  # a state is saved each 0.75 s
    assert {outcome.reason for outcome, _, _ in results.values()} == {"no result within 6 s"}
    assert len(list(scratch.glob("*/state.safetensors"))) == 2


@pytest.mark.parametrize("gone", [True, False])
def test_without_room_for_its_state_an_attack_runs_on(run, tmp_path, gone, caplog):
    scratch = tmp_path / "scratch"
    if not gone:
        scratch.write_text("a file in its place")
    results = run({"walk": {"_target_": WALK, "log": str(tmp_path / "w")}}, inline=True, scratch=scratch)
    assert {outcome.status for outcome, _, _ in results.values()} == {"done"}
    assert len([record for record in caplog.records if "could not be resumed" in record.message]) == 2


def test_frames_are_scored_as_the_result_was_matched(run, tmp_path):
    results = run({"walk": {"_target_": WALK, "log": str(tmp_path / "w")}}, inline=True)
    for outcome, scores, _ in results.values():
        assert outcome.status == "done"
        assert [len(curve) for curve in scores.frames] == [10] * len(scores.images)
        for image, curve in zip(scores.images, scores.frames, strict=True):
            assert curve[-1] == pytest.approx(image.psnr)
            assert curve[0] > curve[-1]


def test_a_dead_workers_attack_is_named_and_not_its_record():
    lost = AttackResult("round-00001-client-00002", "dlg", "failed")
    assert str(scheduling._Queued(lost, None)) == "dlg on round-00001-client-00002"
