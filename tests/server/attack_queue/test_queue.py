"""What becomes of an observation: recorded, attacked but for what has ended, kept for a run that goes on."""

import errno
from dataclasses import replace

import pytest

from fedsim.observation import Observation
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.pending import PendingObservations
from server.attack_queue.queue import AttackQueue
from server.attack_queue.results import ResultWriter
from server.attack_queue.scheduling import InlineAttacks
from tests.support.clients import observe_client

SMALL = ("data=digits", "model=vit_nano")
ATTACKS = {"patch_gradient": {"_target_": "attacks.analytic.PatchGradient"}}


@pytest.fixture
def queue(tmp_path):
    folder, said = RunFolder(tmp_path), []
    writer = ResultWriter(folder, Trackers({}, tmp_path), "model", [])
    pending = PendingObservations(tmp_path / "pending", folder.observations, Observation.load)
    return AttackQueue(InlineAttacks(ATTACKS, 0, writer.write), writer, pending, folder.observations, said.append), said


def test_what_has_ended_is_not_attacked_again(queue, tmp_path):
    attacking, said = queue
    seen = observe_client(*SMALL)
    attacking(*seen)
    attacking(*seen)
    assert len(list(RunFolder(tmp_path).rows("attacks"))) == attacking.keep() == 1
    assert Observation.load(tmp_path / "observations" / seen[0].name).update.kind == seen[0].update.kind
    assert not said


def test_a_full_disk_costs_the_copy_and_not_the_attack(queue, tmp_path, monkeypatch):
    def full(observation, folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(Observation, "save", full)
    attacking, said = queue
    attacking(*observe_client(*SMALL))
    assert [row["status"] for row in RunFolder(tmp_path).rows("attacks")] == ["done"]
    assert said == ["observation round-00000-client-00000 could not be saved: No space left on device"]


ROUNDS = {"rounds": {"_target_": "tests.server.faulty_attacks.Rounds"}}
"""An attack that reads several."""


@pytest.mark.parametrize(
    ("images", "attacks", "rounds"), [(2, ATTACKS | ROUNDS, 2), (3, ATTACKS | ROUNDS, 1), (2, ATTACKS, 1)]
)
def test_rounds_are_read_together_where_a_batch_holds_all_images(queue, images, attacks, rounds):
    attacking = replace(queue[0], scheduler=Listening(attacks, 0, print), history=True)
    steps = (*SMALL, "client.share=delta", "client.local_steps=1", "client.batch_size=2")
    observation, truth = observe_client(*steps, positions=range(images))
    for server_round in (1, 2):
        attacking(replace(observation, server_round=server_round), truth)
    assert attacking.scheduler.read == [1, rounds]


def test_an_earlier_round_that_is_damaged_is_left_out(queue, tmp_path):
    attacking, said = replace(queue[0], scheduler=Listening(ROUNDS, 0, print), history=True), queue[1]
    observation, truth = observe_client(*SMALL, "client.share=delta", "client.local_steps=1")
    for server_round in (1, 2):
        attacking(replace(observation, server_round=server_round), truth)
    (tmp_path / "observations" / "round-00001-client-00000" / "update.safetensors").write_bytes(b"x")
    for server_round in (3, 4):
        attacking(replace(observation, server_round=server_round), truth)
    assert attacking.scheduler.read == [1, 2, 2, 3]
    (line,) = said
    assert line.startswith("round-00001-client-00000: no attack reads it with later rounds: ")


class Listening(InlineAttacks):
    """Counts the rounds that each attack would read."""

    def submit(self, observation, truth, skip=frozenset(), earlier=()):
        vars(self).setdefault("read", []).append(1 + len(earlier))
