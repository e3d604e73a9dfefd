"""The pool's own promises; what a Grid and a scheduler make of it is tested with them."""

import time
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError

from fedsim.errors import RunError
from fedsim.simulation import actor_pool
from fedsim.simulation.actor_pool import ActorPool
from tests.fedsim.simulation.pool_actors import Adder, Broken, Homeless


def pool_of(cls, size=2, **options):
    actor = ray.remote(cls)
    wanted = {"num_cpus": 0.1, **options.pop("wanted", {})}
    return ActorPool(lambda _: actor.options(**wanted).remote(), size, **options)


def everything(pool):
    ends = ended(pool)
    pool.close()
    return ends


def ended(pool):
    ends = []
    while pool.pending:
        ends += pool.wait(None)
    return ends


def test_every_call_ends_once(ray_on_this_machine):
    pool = pool_of(Adder)
    for number in range(20):
        pool.submit(number, lambda actor, number=number: actor.add.remote(number, 1))
    assert {end.tag: end.value for end in everything(pool)} == {number: number + 1 for number in range(20)}


def test_an_exception_is_an_end_and_the_actor_lives_on(ray_on_this_machine):
    pool = pool_of(Adder, size=1)
    pool.submit("bad", lambda actor: actor.fail.remote())
    pool.submit("good", lambda actor: actor.add.remote(1, 1))
    ends = {end.tag: end for end in everything(pool)}
    assert ends["bad"].error == "KeyError: 'a'"
    assert ends["good"].value == 2


def test_workers_that_cannot_start_are_an_error_not_a_loop(ray_on_this_machine):
    pool = pool_of(Broken, size=1)
    pool.submit("never", lambda actor: actor.add.remote(1, 1))
    with pytest.raises(RunError, match=r"workers cannot start: .*no data here"):
        everything(pool)
    pool.close()


class Started:
    """In place of an actor; `ray.get` is asked how its start ended."""

    def __init__(self, number):
        self.number = number
        self.ready = SimpleNamespace(remote=lambda: f"start of {number} at {id(self)}")


def pool_whose_starts_end_with(error, monkeypatch):
    def get(reference):
        raise error

    monkeypatch.setattr(actor_pool, "ray", SimpleNamespace(get=get))
    return ActorPool(Started, actor_pool.MAX_FAILED_STARTS)


def test_a_node_lost_with_all_its_starting_workers_is_no_failed_start(monkeypatch):
    # As the GCS words it; only the class is Ray's.
    lost = ActorDiedError()
    lost.error_msg = "The actor died because its node has died. Node Id: 6f\n\tthe actor's node was terminated"
    pool = pool_whose_starts_end_with(lost, monkeypatch)
    before = list(pool._numbers)
    assert pool.take(pool.references) == []
    assert (pool.size, pool.started) == (actor_pool.MAX_FAILED_STARTS, 0)
    assert not set(before) & set(pool._numbers)


def test_workers_that_die_as_they_start_are_an_error_not_a_loop(monkeypatch):
    pool = pool_whose_starts_end_with(ActorDiedError(), monkeypatch)
    with pytest.raises(RunError, match="workers cannot start"):
        pool.take(pool.references)


def test_who_is_spent_is_replaced_and_what_it_returned_is_kept(monkeypatch):
    killed = []
    monkeypatch.setattr(actor_pool, "ray", SimpleNamespace(get=lambda reference: reference, kill=killed.append))
    pool = ActorPool(Started, 1, max_retries=0, spent="broken".__eq__)
    pool.take(pool.references)
    (first,) = pool._numbers
    for value, gone in (("whole", []), ("broken", [first])):
        pool.submit(value, lambda _, value=value: value)
        (end,) = pool.take([value])
        assert (end.value, end.actor, killed) == (value, None if gone else first, gone)
    assert pool.size == 1
    assert first not in pool._numbers


def test_a_worker_without_its_data_ends_the_run_with_the_key_and_the_node(ray_on_this_machine):
    pool = pool_of(Homeless, size=1)
    pool.submit("never", lambda actor: actor.add.remote(1, 1))
    expected = r"^workers cannot start: data.path=/pictures: no such folder \(on node 10.0.0.2 of the cluster\)$"
    with pytest.raises(RunError, match=expected):
        everything(pool)
    pool.close()


def test_the_cheapest_go_first_then_in_the_order_of_submission(ray_on_this_machine):
    pool = pool_of(Adder, size=0)
    for cost, name in [(5.0, "search"), (0.0, "first"), (1.0, "short"), (0.0, "second")]:
        pool.submit(name, lambda actor: actor.add.remote(1, 1), cost)
    pool.add(1)
    assert [end.tag for end in everything(pool)] == ["first", "second", "short", "search"]


def test_a_call_goes_to_the_idle_actor_that_has_kept_what_it_needs(ray_on_this_machine):
    pool = pool_of(Adder)
    while pool.started < 2:
        pool.wait(0.1)
    for tag in ("one", "two"):
        pool.submit(tag, lambda actor: actor.add.remote(1, 1))
    actors = {end.tag: end.actor for end in ended(pool)}
    asked = []

    def call(actor):
        asked.append(actor)
        return actor.add.remote(1, 1)

    assert pool.submit("two again", call, kept_by=actors["two"])
    assert not pool.submit("two once more", call, kept_by=actors["two"])
    everything(pool)
    assert asked == [actors["two"], actors["one"]]


def test_released_actors_lose_no_call(ray_on_this_machine, tmp_path):
    pool = pool_of(Adder, size=1)
    marker = tmp_path / "running"
    pool.submit("nap", lambda actor: actor.nap.remote(str(marker), 1.0))
    pool.submit("add", lambda actor: actor.add.remote(1, 1))
    while not marker.exists():
        assert pool.wait(0.1) == []
    pool.release()
    assert (pool.size, pool.pending) == (0, 2)
    pool.add(1)
    ends = everything(pool)
    assert [(end.tag, end.value, end.attempts) for end in ends] == [("nap", 1.0, 1), ("add", 2, 1)]
    assert ends[0].seconds >= 1.0


def test_a_call_that_is_given_up_has_taken_its_time(ray_on_this_machine, tmp_path):
    pool = pool_of(Adder, size=1)
    pool.submit("nap", lambda actor: actor.nap.remote(str(tmp_path / "running"), 600.0))
    while not (tmp_path / "running").exists():
        assert pool.wait(0.1) == []
    assert pool.expire(lambda tag, attempt: {("nap", 1): 600.0}[tag, attempt]) == []
    (end,) = pool.expire(0.0)
    pool.close()
    assert "no result within 0 s" in str(end.error)
    assert 0.0 < end.seconds < 600.0


def test_waiting_for_room_is_told_and_ends_when_there_is_some(ray_on_this_machine, monkeypatch):
    monkeypatch.setattr(actor_pool, "PATIENCE", 0.2)
    told = []
    pool = pool_of(Adder, size=1, wanted={"resources": {"moon": 1}}, on_waiting=told.append)
    pool.submit("add", lambda actor: actor.add.remote(1, 1))
    started = time.monotonic()
    assert pool.wait(1.5) == []
    assert time.monotonic() - started < 60
    assert told
    assert all(seconds > 0 for seconds in told)
    assert pool.pending == 1
    pool.close()


def test_who_replaces_another_has_its_number(ray_on_this_machine):
    numbers = []
    actor = ray.remote(Adder)

    def make(number):
        numbers.append(number)
        return actor.options(num_cpus=0.1).remote()

    pool = ActorPool(make, 3)
    pool._swap(next(one for one, number in pool._numbers.items() if number == 1))
    pool.add(1)
    assert numbers == [0, 1, 2, 1, 3]
    pool.close()
