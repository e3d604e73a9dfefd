"""What an attack's `run` calls certified is a claim: whatever the attack, it goes through `Attack.confirm`."""

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import attacks
from attacks import running
from attacks.base import Attack, Certificate, Reconstruction
from tests.support.clients import observe_client

CPU = torch.device("cpu")


def subclasses(kind):
    return {kind, *(found for one in kind.__subclasses__() for found in subclasses(one))}


def every_attack():
    for module in pkgutil.walk_packages(attacks.__path__, "attacks."):
        import_module(module.name)
    found = [kind for kind in subclasses(Attack) if kind.__module__.startswith("attacks.")]
    return sorted((kind for kind in found if not inspect.isabstract(kind)), key=lambda kind: kind.__name__)


EVERY = every_attack()


@pytest.fixture(scope="module")
def alone():
    """An observation of which nobody knows how its client computes, and the images."""
    observation, truth = observe_client("data=digits", "model=vit_nano", "+model.kwargs.depth=1")
    return replace(observation, replayer=None), truth.images


def claiming(kind, images, monkeypatch):
    """An attack of this kind that calls the truth certified, in both of the ways that hand results out."""
    claim = Reconstruction(images, None, Certificate("certified", "says so"))
    attack = object.__new__(kind)
    monkeypatch.setattr(kind, "needs", Attack.needs)
    monkeypatch.setattr(kind, "check", lambda self, observation: None)
    monkeypatch.setattr(kind, "run", lambda self, observation, rng, device: claim)
    if kind.run_many is not Attack.run_many:
        monkeypatch.setattr(kind, "run_many", lambda self, observations, rngs, device: [claim for _ in observations])
    return attack


def test_there_are_attacks_of_every_folder():
    folders = {kind.__module__.split(".")[1] for kind in EVERY}
    assert folders >= {"analytic", "generative", "label", "learned", "optimization"}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_no_claim_is_handed_out_as_a_certificate(kind, alone, monkeypatch):
    observation, images = alone
    attack = claiming(kind, images, monkeypatch)
    assert attack.run(observation, torch.Generator(), CPU).certificate.certified
    result = attack(observation, torch.Generator(), CPU)
    assert result.certificate.status == "uncertified"
    assert "how the client computes is not known" in result.certificate.reason


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_no_claim_is_handed_out_where_several_are_attacked(kind, alone, monkeypatch):
    observation, images = alone
    attack = claiming(kind, images, monkeypatch)
    monkeypatch.setattr(running, "build_attack", lambda name, settings: attack)
    for outcome in running.run_attack_on_many([observation, replace(observation, client=1)], "one", {}, 0, CPU):
        assert outcome.status == "done", outcome.reason
        assert outcome.certificate.status == "uncertified"
