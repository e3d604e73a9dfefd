"""Observations outlive the process that was to attack them, with what only the scorer reads."""

from dataclasses import replace

import pytest
import torch

from experiments.engine.setup import prepare
from fedsim.ground_truth import GroundTruth
from fedsim.observation import observation_name
from server.attack_queue.pending import PendingObservations, Unfinished
from tests.support.federation import Federation, settings


@pytest.fixture(scope="module")
def seen():
    """Two observations with their truth."""
    found = []
    config = settings("config", "num_clients=2", "client.batch_size=3")
    federation = Federation(config, prepare(config))
    federation.start(federation.observed(found), num_rounds=1)
    return found


@pytest.fixture
def pending(tmp_path):
    return PendingObservations(tmp_path / "pending", tmp_path / "observations")


@pytest.fixture
def said():
    return []


def unfinished(pair, server_round=1):
    observation = replace(pair[0], server_round=server_round)
    name = observation_name(server_round, observation.client)
    return Unfinished(name, server_round, pair[1], lambda: observation)


def same(left: GroundTruth, right: GroundTruth):
    tensors = zip((left.images, left.labels, left.private), (right.images, right.labels, right.private), strict=True)
    return left.ids == right.ids and all(torch.equal(a, b) for a, b in tensors)


def test_observations_and_truths_come_back(seen, pending, said, tmp_path):
    pending.keep([unfinished(pair) for pair in seen])
    assert pending.names() == {"round-00001-client-00000", "round-00001-client-00001"}
    assert len(list(tmp_path.glob("pending/round-00001/global-*.safetensors"))) == 1
    found = list(PendingObservations(tmp_path / "pending", tmp_path / "observations").load(1, said.append))
    (first, _), (second, _) = found
    assert all(second.global_state[name] is tensor for name, tensor in first.global_state.items())
    for (observation, truth), (expected, expected_truth) in zip(found, seen, strict=True):
        assert observation.protocol == expected.protocol
        for name, tensor in expected.update.tensors.items():
            assert torch.equal(observation.update.tensors[name], tensor)
        assert all(torch.equal(observation.global_state[n], t) for n, t in expected.global_state.items())
        assert same(truth, expected_truth)
    assert said == []


def test_public_images_of_a_round_are_there_once(seen, pending, said):
    public = torch.rand(3, 3, 8, 8)
    pending.keep([unfinished((one.with_public_images(public), truth)) for one, truth in seen])
    (first, _), (second, _) = pending.load(1, said.append)
    assert first.public_images is second.public_images
    assert len(first.public_images) == 3


def test_a_recorded_observation_is_not_written_twice(seen, pending, said, tmp_path):
    one = unfinished(seen[0])
    seen[0][0].save(tmp_path / "observations" / one.name)
    pending.keep([replace(one, load=lambda: pytest.fail("it is on disk"))])
    assert {path.name for path in tmp_path.glob("pending/*/*/*")} == {"truth.json", "truth.safetensors"}
    ((observation, truth),) = pending.load(1, said.append)
    assert observation.client == 0
    assert same(truth, seen[0][1])


def test_what_is_finished_is_removed_with_its_round(seen, pending, tmp_path):
    pending.keep([unfinished(seen[0], 1), unfinished(seen[1], 1), unfinished(seen[0], 2)])
    pending.keep([unfinished(seen[1], 1)])
    assert pending.names() == {"round-00001-client-00001"}
    assert [path.name for path in (tmp_path / "pending").iterdir()] == ["round-00001"]
    pending.keep([])
    assert list((tmp_path / "pending").iterdir()) == []


def test_later_rounds_come_again_by_themselves(seen, pending, said):
    pending.keep([unfinished(seen[0], number) for number in (1, 2, 3)])
    assert [observation.server_round for observation, _ in pending.load(2, said.append)] == [1, 2]
    assert pending.names() == {"round-00001-client-00000", "round-00002-client-00000"}


def test_without_audit_there_is_no_truth(seen, pending, said):
    pending.keep([replace(unfinished(seen[0]), truth=None)])
    ((_, truth),) = pending.load(1, said.append)
    assert truth is None


def test_what_was_not_sealed_is_written_anew(seen, pending, said, tmp_path):
    one = unfinished(seen[0])
    (tmp_path / "pending" / "round-00001" / one.name).mkdir(parents=True)
    assert list(pending.load(1, said.append)) == []
    pending.keep([one])
    assert len(list(pending.load(1, said.append))) == 1


@pytest.mark.parametrize("name", ["update.safetensors", "truth.safetensors", "truth.json"])
def test_a_damaged_observation_is_said_and_the_others_come(seen, pending, said, tmp_path, name):
    pending.keep([unfinished(pair) for pair in seen])
    path = tmp_path / "pending" / "round-00001" / "round-00001-client-00000" / name
    assert path.is_file()
    path.write_bytes(b"x")
    assert [observation.client for observation, _ in pending.load(1, said.append)] == [1]
    assert len(said) == 1
    assert "round-00001-client-00000" in said[0]
