"""A session keeps the last whole state of an attack, and gives it to the same attack alone."""

import json
from dataclasses import replace

import pytest
import torch

from attacks.base import Attack, Frame, NotApplicable, Reconstruction, finished
from attacks.running import run_attack_on_many
from attacks.session import PROGRESS, FolderSession, Session, discard, fingerprint, folder_name

NAMES = ["round-00001-client-00000"]


@pytest.fixture
def session(tmp_path):
    def make(attack="walk", names=NAMES, fingerprint="same"):
        return FolderSession(tmp_path, names, attack, lambda: fingerprint)

    return make


def state(value=1.0):
    base = torch.full((4, 4), value)
    return {"a": base[1:], "b": base, "c": base.t(), "rng": torch.Generator().get_state(), "d": torch.tensor(True)}


def test_another_try_finds_what_was_saved_last(session):
    first = session()
    assert first.load() is None
    first.save(state(1.0), {"step": 1})
    first.save(state(2.0), {"step": 2, "rows": [{"x": 0.5}]})
    tensors, record = session().load()
    assert record == {"step": 2, "rows": [{"x": 0.5}]}
    assert set(tensors) == set(state())
    for name, tensor in state(2.0).items():
        assert torch.equal(tensors[name], tensor)


def test_other_settings_attacks_observations_and_parts_find_nothing(session):
    session().save(state(), {})
    assert session(fingerprint="other").load() is None
    assert session(attack="other").load() is None
    assert session(names=["round-00001-client-00001"]).load() is None
    assert session(names=[*NAMES, "round-00001-client-00001"]).load() is None
    assert session().part("2").load() is None
    session().part("2").save(state(2.0), {"step": 2})
    assert session().part("2").load()[1] == {"step": 2}
    assert session().load()[1] == {}


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b"", lambda b: b"{" + b, lambda b: bytes(len(b))])
def test_a_damaged_state_is_none(session, damage):
    session().save(state(), {})
    path = session().folder / "state.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert session().load() is None


def test_a_state_half_written_leaves_the_earlier_one(session, monkeypatch, caplog):
    working = session()
    working.save(state(1.0), {"step": 1})

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attacks.session.save_file", full)
    working.save(state(2.0), {"step": 2})
    working.save(state(3.0), {"step": 3})
    assert len(caplog.records) == 1
    assert session().load()[1] == {"step": 1}
    assert [path.name for path in session().folder.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("attack", ["../../etc/x", "a/b", "..", "", "\0", "x" * 300, "ä\n", "C:\\x"])
def test_names_never_leave_the_folder(session, tmp_path, attack):
    own = session(attack=attack)
    own.save(state(), {"step": 1})
    assert own.folder.parent == tmp_path
    assert session(attack=attack).load()[1] == {"step": 1}
    assert folder_name(NAMES, attack) != folder_name(NAMES, attack + "_")
    discard(tmp_path, NAMES, attack)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_written_at_most_once_a_second_and_at_the_end(session, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("attacks.session.time.monotonic", lambda: now[0])
    own, seen = session(), []
    for step in range(1, 31):
        now[0] += 0.1
        own.progress(step, 30, {"objective": 1.0 / step})
        seen.append(json.loads((own.folder / PROGRESS).read_text())["done"])
    assert len(set(seen)) <= 5
    assert seen[-1] == 30


class Saving(Attack):
    """Ends as it is told, having saved; with an attack at once for several victims."""

    end = ""

    def run(self, observation, rng, device):
        self.session.save(state(), {"step": 1})
        if self.end == "fails":
            raise ZeroDivisionError
        if self.end == "refuses":
            raise NotApplicable("no")
        return Reconstruction(images=torch.zeros(1, *observation.image_shape))

    def run_many(self, observations, rngs, device):
        return [self.run(one, rng, device) for one, rng in zip(observations, rngs, strict=True)]


@pytest.mark.parametrize("victims", [1, 2])
@pytest.mark.parametrize("end", ["", "fails", "refuses"])
def test_what_has_ended_is_said_to_run_no_more_and_keeps_what_it_saved(tools, tmp_path, monkeypatch, end, victims):
    monkeypatch.setattr(Saving, "end", end)
    one = tools.observe(tools.tiny(kwargs={"depth": 1}), tools.detailed(), [1])
    several = [replace(one, client=client) for client in range(victims)]
    run_attack_on_many(several, "saving", {}, 0, torch.device("cpu"), tmp_path, Saving())
    assert list(tmp_path.glob("*/*.safetensors"))
    assert not list(tmp_path.glob(f"*/{PROGRESS}"))


def test_the_fingerprint_knows_settings_seed_device_and_update(tools):
    spec = tools.tiny(kwargs={"depth": 1})
    one, other = (tools.observe(spec, tools.detailed(), [label]) for label in (1, 2))
    cpu = torch.device("cpu")
    prints = [
        fingerprint([one], {"steps": 1}, 0, cpu),
        fingerprint([one], {"steps": 2}, 0, cpu),
        fingerprint([one], {"steps": 1}, 1, cpu),
        fingerprint([one], {"steps": 1}, 0, torch.device("cuda")),
        fingerprint([other], {"steps": 1}, 0, cpu),
        fingerprint([one, other], {"steps": 1}, 0, cpu),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint([one], {"steps": 1}, 0, cpu) == prints[0]


def test_the_fingerprint_knows_what_is_in_a_checkpoint(tools, tmp_path):
    """A generator that is trained again under the same name is another."""
    seen = tools.observe(tools.tiny(kwargs={"depth": 1}), tools.detailed(), [1])
    path = tmp_path / "generator.safetensors"
    settings = {"steps": 1, "generator": {"checkpoint": str(path)}}
    prints = []
    for content in (None, b"first", b"second", b"first"):
        if content is not None:
            path.write_bytes(content)
        prints.append(fingerprint([seen], settings, 0, torch.device("cpu")))
    assert len(set(prints)) == 3
    assert prints[1] == prints[3]


def test_outside_a_run_nothing_is_kept():
    session = Session()
    session.save(state(), {})
    session.progress(1, 2, {})
    assert session.load() is None
    assert session.part("x") is session


class Guess(Attack):
    def run(self, observation, rng, device):
        if observation.client:
            raise NotApplicable("not this one")
        return Reconstruction(images=torch.rand(1, *observation.image_shape, generator=rng, requires_grad=True))


def test_several_victims_one_by_one(tools, rng):
    from dataclasses import replace

    one = tools.observe(tools.tiny(kwargs={"depth": 1}), tools.detailed(), [1])
    first, second = Guess().run_many([one, replace(one, client=1)], [rng, rng], torch.device("cpu"))
    assert not first.images.requires_grad
    assert first.seconds > 0
    assert str(second) == "not this one"


def test_frames_have_the_shape_of_the_result():
    images = torch.zeros(1, 3, 4, 4)
    assert len(finished(Reconstruction(images=images, frames=(Frame(1, images),)), 1.0).frames) == 1
    with pytest.raises(ValueError, match="step 7"):
        finished(Reconstruction(images=images, frames=(Frame(7, images[0]),)), 1.0)
