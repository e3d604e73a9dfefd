"""Attacks and defenses that fedsim knows nothing of are judged by what they say of themselves, on every page."""

import json
import tempfile
from dataclasses import dataclass, replace

import pytest
import torch

import fedsim
from attacks.base import Attack, Certificate, Reconstruction
from defenses import Defense
from fedsim.effects import Effect
from fedsim.errors import ConfigError
from fedsim.report.render import build_comparison
from tests.experiments.run_files import rows

HERE = "tests.experiments.audit.test_own_parts"
TURNED = f"+defense.own._target_={HERE}.Turned"
EIGHT = ["audit.num_images=8", "model=vit_nano"]


class Orientation(Attack):
    """Which way up a client holds its camera: neither an image nor its label."""

    recovers = "orientation"

    def run(self, observation, rng, device):
        return Reconstruction(certificate=Certificate("none", "landscape"))


class ZeroLabels(Attack):
    """Labels, and a grey image that it does not vouch for."""

    recovers = "labels"

    def run(self, observation, rng, device):
        batch = observation.protocol.batch_size
        return Reconstruction(torch.full((batch, *observation.image_shape), 0.5), torch.zeros(batch, dtype=torch.long))


@dataclass(frozen=True)
class Turns(Effect):
    """The model sees each image turned round."""

    KEEPS = ("gradient", "equations", "head")


class Turned(Defense):
    repeatable = True

    def effects(self):
        return (Turns(),)

    def transform_batch(self, batch, rng):
        return replace(batch, images=batch.images.rot90(2, (-2, -1)))


class SilentlyTurned(Turned):
    """The same, and says nothing of it."""

    def effects(self):
        return Defense.effects(self)


@pytest.fixture
def judged(audit):
    """The verdict of an audit with these parts, and its folder."""

    def call(*arguments):
        folder = audit(*EIGHT, *arguments)
        return json.loads((folder / "summary.json").read_text())["verdict"], folder

    return call


def attack(kind):
    return f"+attack.own._target_={HERE}.{kind.__name__}"


def test_an_attack_with_a_target_of_its_own_says_nothing_of_images(judged):
    alone, folder = judged(attack(Orientation), TURNED, "attack=[]")
    assert {row["target"] for row in rows(folder, "attacks")} == {"orientation"}
    assert alone["level"] == "not tested"
    assert alone["sentence"].startswith(
        "Only orientation was attacked: no attack tried to rebuild the 8 observed images"
    )
    beside, other = judged(attack(Orientation), "attack=[patch_gradient]")
    plain, _ = judged("attack=[patch_gradient]")
    assert beside == plain
    assert beside["level"] == "broken"
    page = build_comparison([folder, other], folder / "comparison.html").read_text()
    assert "Only orientation was attacked" in page


def test_labels_of_ones_own_attack_are_labels_whatever_comes_with_them(judged):
    found, _ = judged(attack(ZeroLabels), "attack=[]")
    assert found["level"] == "not tested"
    assert found["sentence"].startswith("Only labels were attacked")


def test_a_defense_is_judged_by_the_effect_that_it_publishes(judged):
    said, folder = judged(TURNED, "attack=[patch_gradient]")
    assert (said["level"], said["certified"], said["recognisable_as_seen"]) == ("broken", 8, 8)
    assert "as the model saw" in said["sentence"]
    assert "as the model saw" in (folder / "report.html").read_text()
    silent, _ = judged(f"+defense.own._target_={HERE}.SilentlyTurned", "attack=[patch_gradient]")
    assert (silent["level"], silent["certified"], silent["recognisable_as_seen"]) == ("broken", 0, 8)


MODEL = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
DATA = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"attacks": [{"dlg": {"steps": 1}}, {"dlg": {"steps": 2}}]}, "^attacks=dlg: must be each attack once"),
        ({"attacks": [ZeroLabels(), ZeroLabels()]}, "^attacks=ZeroLabels: must be each attack once"),
        ({"bounds": ["determined", {"determined": {}}]}, "^bounds=determined: must be each bound once"),
        ({"defenses": []}, r"^defenses=\[\]: .*\[\[\]\] is one run without a defense"),
    ],
)
def test_what_names_a_part_twice_or_no_run_is_refused(parts, words):
    with pytest.raises(ConfigError, match=words):
        fedsim.audit(MODEL, DATA, **{"attacks": "labels", "num_images": 1, **parts})


@pytest.mark.parametrize(
    ("alone", "name"), [("half", "half"), ({"half": {}}, "half"), (Turned(), "Turned"), (["half"], "half")]
)
def test_one_defense_alone_is_one_run(alone, name):
    assert list(fedsim.audit(MODEL, DATA, "labels", alone, num_images=1).folders) == [name]


def test_an_audit_that_began_without_a_gpu_is_the_same_where_there_is_one(monkeypatch, tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    data, found = (torch.rand(2, 3, 4, 4), torch.arange(2)), []
    for gpu in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpu=gpu: gpu)
        found.append(fedsim.audit(model, data, ["labels"], num_images=2, run_dir=tmp_path).table)
    assert found[0].equals(found[1])


def test_a_refusal_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"audit\.num_images"):
        fedsim.audit(MODEL, DATA, ["labels"], ["secure_aggregation"], num_images=1)
    assert list(tmp_path.iterdir()) == []
