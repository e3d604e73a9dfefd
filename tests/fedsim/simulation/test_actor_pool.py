"""The pool's own promises; what a Grid and a scheduler make of it is tested with them."""

import pytest
import ray

from fedsim.simulation.actor_pool import ActorPool
from tests.fedsim.simulation.pool_actors import Adder, Broken


def pool_of(cls, size=2):
    return ActorPool(ray.remote(cls).options(num_cpus=0.1).remote, size)


def everything(pool):
    ends = []
    while pool.pending:
        ends += pool.wait(None)
    pool.close()
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
    with pytest.raises(RuntimeError, match=r"workers cannot start: .*no data here"):
        everything(pool)
    pool.close()
