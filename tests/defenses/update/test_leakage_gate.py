"""The gate: attacks its own client, shares or withholds, and imports nothing that a record names."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from attacks.analytic import PatchGradient
from attacks.base import Attack, NotApplicable, Reconstruction
from attacks.running import run_attack
from clients.app import ClientRuntime
from defenses import (
    DPSGD,
    GradientNoise,
    LeakageGate,
    LocalDP,
    Plan,
    SecureAggregation,
    TopK,
    WithholdPositionEmbedding,
)
from defenses.compose import load_wrappers
from defenses.update.leakage_gate import nearest_images, relative_leakage
from experiments.engine.setup import prepare
from fedsim.errors import ConfigError, NotFiniteError
from fedsim.storage.observation_files import load_observation, save_observation
from tests.experiments.run_files import final_state, rows
from tests.support.federation import settings

AUDIT = ("data=digits", "model=vit_nano", "attack=[patch_gradient]")
RUN = ("num_clients=3", "num_rounds=2", "evaluate_every=1", "observe.every=1", "simulation=inline", "tracker=[]")


class Client:
    """Trains on given pictures, and shares."""

    def __init__(self, *overrides):
        self.config = settings("audit", *AUDIT, "client.batch_size=64", *overrides)
        self.setup = prepare(self.config)
        self.runtime = ClientRuntime(self.config, self.setup.data)
        self.state = {name: tensor.detach().clone() for name, tensor in self.setup.model.state_dict().items()}
        self.memory = {}

    @property
    def gate(self):
        return self.runtime.defenses.defenses["leakage_gate"]

    def share(self, *positions, server_round=0):
        pictures = self.setup.data.train.subset(positions)
        self.runtime.load(self.state)
        self.result = self.runtime.train(pictures, 3, server_round, audit=True, memory=self.memory)
        self.sent = self.runtime.share(self.result, self.state, len(positions), 3, server_round)
        self.memory = self.runtime.defenses.memory()
        return self.sent.update

    def observation(self, update):
        return self.setup.factory().make(replace(self.sent, update=update, server_round=0), self.state)


@pytest.fixture(scope="module")
def gated():
    return Client("defense=[leakage_gate]", "defense.leakage_gate.threshold=inf")


@pytest.fixture
def client(gated):
    """One that only measures; settings of its gate may be changed."""
    gate = gated.gate
    before = dict(vars(gate))
    gated.memory = {}
    yield gated
    vars(gate).clear()
    vars(gate).update(before)


class Fake:
    """An attack that gives what it is told."""

    def __init__(self, images=None, refusal=None, fault=None):
        self.images, self.refusal, self.fault, self.seen, self.draws = images, refusal, fault, [], []
        self.devices = []

    def check(self, observation):
        if self.refusal:
            raise NotApplicable(self.refusal)

    def run(self, observation, rng, device):
        if self.fault:
            raise self.fault
        self.seen.append(observation)
        self.devices.append(device.type)
        self.draws.append((torch.rand(2, generator=rng), torch.rand(2)))
        return Reconstruction(self.images)


def leakage(client):
    return client.runtime.defenses.measurements()["leakage_gate_relative_leakage"]


def test_relative_leakage_against_skimage_and_at_its_fixed_points(rng):
    originals = torch.rand(3, 3, 12, 12, generator=rng)
    images = (originals + 0.1 * torch.randn(originals.shape, generator=rng)).clamp(0, 1)
    prior = torch.full_like(originals, 0.5)
    found = relative_leakage(originals, images, prior, "psnr")
    for index in range(3):
        picture = originals[index].double().numpy()
        rebuilt, guess = (
            peak_signal_noise_ratio(picture, other[index].double().numpy(), data_range=1) for other in (images, prior)
        )
        assert float(found[index]) == pytest.approx((rebuilt - guess) / guess)
    for measure in ("psnr", "ssim"):
        assert relative_leakage(originals, prior, prior, measure).tolist() == [0.0] * 3
        exact, noisy = (relative_leakage(originals, x, prior, measure) for x in (originals, images))
        assert bool((exact > noisy).all())
        assert bool((noisy > 0).all())


def test_it_attacks_where_the_client_trains_unless_told_otherwise(client, monkeypatch):
    client.runtime.load(client.state)  # it trains on the CPU, whatever there is
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    gate = client.gate
    gate.attack = Fake(client.setup.data.train.images([0]))
    client.share(0)
    gate.device, client.memory = "cuda", {}
    client.share(0)
    assert gate.attack.devices == ["cpu", "cuda"]


def test_a_prior_that_says_nothing_divides_by_something(rng):
    white, black = torch.ones(1, 3, 4, 4), torch.zeros(1, 3, 4, 4)
    assert math.isfinite(float(relative_leakage(white, white, black, "psnr")))


def test_rebuilt_pictures_are_held_against_the_nearest(client, rng):
    pictures = client.setup.data.train.subset(range(90))
    images = pictures.images([80, 3, 80]).double()
    noisy = (images + 0.02 * torch.randn(images.shape, generator=rng)).clamp(0, 1)
    assert nearest_images(pictures, noisy).equal(images)


def test_measuring_alone_changes_no_bit(client):
    plain = Client()
    for positions in ((5,), (5, 8, 2)):
        found, expected = client.share(*positions), plain.share(*positions)
        assert list(found.tensors) == list(expected.tensors)
        assert all(found.tensors[name].equal(tensor) for name, tensor in expected.tensors.items())
        assert found.withheld == expected.withheld


@pytest.mark.parametrize(
    "changed", ["client.augment=[{RandomHorizontalFlip:{p:1.0}}]", "defense=[mjp_jp,leakage_gate]"]
)
def test_what_comes_out_as_the_model_saw_it_leaks_too(changed):
    """A mirrored or shuffled image is far from the client's own, and is that image."""
    client = Client("defense=[leakage_gate]", changed)
    update = client.share(5)
    assert leakage(client) > 3.0
    assert update.tensors == {}


NOISY = ("defense=[gradient_noise,leakage_gate]", "defense.gradient_noise.relative_norm=1e-4")


@pytest.mark.parametrize(
    ("defended", "share", "least"),
    [(("defense=[leakage_gate]",), share, 30) for share in ("gradient", "delta", "weights")]
    + [(NOISY, "gradient", 10)],
)
def test_it_measures_what_the_servers_attack_reaches(defended, share, least):
    client = Client(*defended, "defense.leakage_gate.threshold=inf", f"client.share={share}")
    update = client.share(5)
    attack = client.config["attack"]["patch_gradient"]
    observed = replace(client.observation(update), image_prior=None)  # a client has no public images
    outcome = run_attack(observed, "patch_gradient", attack, 0, torch.device("cpu"))
    picture = client.setup.data.train.subset([5]).images([0])[0].double().numpy()
    reached, guess = (
        peak_signal_noise_ratio(picture, other, data_range=1)
        for other in (outcome.images[0].double().numpy(), 0 * picture + 0.5)
    )
    assert reached > least
    # float32 weights leave fewer digits of a delta, and the last of them decide an almost exact picture's dB.
    assert leakage(client) == pytest.approx((min(reached, 300.0) - guess) / guess, rel=0.05)


class Polish(Attack):
    """Goes on to the images that it is told."""

    def __init__(self, images):
        self.images = images

    def run(self, observation, rng, device):
        raise NotApplicable("it goes on from another attack's images")

    def polish(self, observation, result, rng, device):
        return replace(result, images=self.images)


def test_it_judges_what_another_attack_makes_of_the_images(rng):
    client = Client(*NOISY, "defense.leakage_gate.threshold=inf")
    client.share(5)
    alone, client.memory = leakage(client), {}
    client.gate.attack.then = Polish(client.setup.data.train.subset([5]).images([0]).double())
    client.share(5)
    assert leakage(client) > alone + 1


def test_an_exact_picture_is_withheld_and_a_mixture_shared():
    client = Client("defense=[leakage_gate]")
    update = client.share(5)
    assert (update.tensors, update.buffers, update.num_examples) == ({}, {}, 1)
    assert set(update.withheld) == {name for name, _ in client.setup.model.named_parameters()}
    assert set(update.withheld.values()) == {"leakage_gate"}
    measured = client.runtime.defenses.measurements()
    assert measured["leakage_gate_withheld"] == measured["leakage_gate_attacked"] == 1.0
    assert measured["leakage_gate_relative_leakage"] > 1
    client.memory = {}
    assert client.share(*range(8)).tensors
    assert client.runtime.defenses.measurements()["leakage_gate_withheld"] == 0.0


def test_the_threshold_is_the_largest_leakage_that_is_shared(client):
    client.share(5)
    reached = leakage(client)
    for threshold, shared in ((reached, True), (reached - 1e-9, False)):
        client.memory, client.gate.threshold = {}, threshold
        assert bool(client.share(5).tensors) == shared


def test_it_judges_what_defenses_before_it_leave(rng):
    noisy = Client(
        "defense=[gradient_noise,leakage_gate]",
        "defense.gradient_noise.relative_norm=10.0",
        "defense.leakage_gate.threshold=inf",
    )
    seen = noisy.gate.attack = Fake(torch.rand(1, 3, 8, 8, generator=rng))
    update = noisy.share(5)
    (observation,) = seen.seen
    assert all(observation.update.tensors[name].equal(tensor) for name, tensor in update.tensors.items())
    assert observation.protocol == noisy.result.protocol
    assert observation.global_state["head.weight"].equal(noisy.state["head.weight"])
    assert [described["name"] for described in observation.defenses] == ["gradient_noise", "leakage_gate"]
    assert observation.build_model() is not noisy.runtime.model


def test_the_client_is_attacked_when_due_and_the_verdict_holds_in_between(client):
    attack = PatchGradient()
    calls = []
    run, attack.run = attack.run, lambda *arguments: calls.append(1) or run(*arguments)
    client.gate.attack, client.gate.every, client.gate.threshold = attack, 3, 0.5
    shared, attacked = [], []
    for server_round, positions in ((2, (5,)), (3, range(8)), (4, range(8)), (7, range(8)), (8, (5,)), (10, (5,))):
        shared.append(bool(client.share(*positions, server_round=server_round).tensors))
        attacked.append(client.runtime.defenses.measurements()["leakage_gate_attacked"])
    assert attacked == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    assert len(calls) == 3
    assert shared == [False, False, False, True, True, False]


def test_it_replays_from_the_seed_and_leaves_global_generators_alone(client, rng):
    fake = client.gate.attack = Fake(torch.rand(1, 3, 8, 8, generator=rng))
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.random.get_rng_state()
        client.memory = {}
        client.share(5)
        assert torch.random.get_rng_state().equal(expected)
    (first, second) = fake.draws
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    client.memory = {}
    client.share(5, server_round=1)
    assert not any(a.equal(b) for a, b in zip(first, fake.draws[2], strict=True))


@pytest.mark.parametrize(
    "fake",
    [Fake(refusal="it cannot"), Fake(fault=NotFiniteError("no start")), Fake(torch.full((1, 3, 8, 8), torch.nan))],
)
def test_where_the_attack_gives_nothing_the_update_is_shared(client, fake):
    client.gate.attack, client.gate.threshold = fake, 0.0
    assert client.share(5).tensors
    measured = client.runtime.defenses.measurements()
    assert measured["leakage_gate_relative_leakage"] == measured["leakage_gate_withheld"] == 0.0
    assert measured["leakage_gate_attacked"] == float(fake.refusal is None and fake.fault is None)


def test_an_attack_without_pictures_is_an_error_and_shares_nothing(client):
    client.gate.attack = Fake(None)
    with pytest.raises(ConfigError, match=r"leakage_gate\.attack=Fake: must be an attack that rebuilds pictures"):
        client.share(5)


def test_withheld_tensors_stop_its_attack_too():
    client = Client("defense=[withhold_pe,leakage_gate]", "defense.leakage_gate.threshold=-1.0")
    update = client.share(5)
    assert client.runtime.defenses.measurements()["leakage_gate_attacked"] == 0.0
    # 0 is more than -1: a threshold below 0 withholds everything.
    assert set(update.withheld.values()) == {"withhold_pe", "leakage_gate"}
    outcome = run_attack(
        client.observation(update), "patch_gradient", client.config["attack"]["patch_gradient"], 0, torch.device("cpu")
    )
    assert (outcome.status, "leakage_gate" in outcome.reason) == ("refused", True)


@pytest.mark.parametrize("attack", ["dlg", "labels", "inverting_gradients", "first_block", "row_space"])
def test_attacks_refuse_an_update_with_nothing_in_it(client, attack):
    client.gate.threshold = -1.0
    observation = client.observation(client.share(5))
    configured = settings("audit", "data=digits", "model=vit_nano", f"attack=[{attack}]")["attack"]
    outcome = run_attack(observation, attack, configured[attack], 0, torch.device("cpu"))
    assert (outcome.status, outcome.reason) == ("refused", "the whole update is withheld by leakage_gate")


def test_an_empty_observation_survives_the_disk(client, tmp_path):
    client.gate.threshold = -1.0
    observation = client.observation(client.share(5))
    save_observation(observation, tmp_path / "one")
    loaded = load_observation(tmp_path / "one", load_wrappers)
    assert (loaded.update.tensors, loaded.update.withheld) == ({}, observation.update.withheld)
    with pytest.raises(NotApplicable, match="withheld by leakage_gate"):
        _ = loaded.gradient


def test_a_record_names_an_attack_and_nothing_is_imported_or_built(client, tmp_path):
    (tmp_path / "planted_module.py").write_text("raise SystemExit('imported')")
    observation = client.observation(client.share(5))
    save_observation(observation, tmp_path / "one")
    record = json.loads((tmp_path / "one" / "observation.json").read_text())
    (described,) = record["defenses"]
    assert described["attack"]["_target_"] == "attacks.analytic.PatchGradient"
    described["attack"] = {"_target_": "planted_module.Attack", "nested": {"_target_": "os.system", "command": "false"}}
    (tmp_path / "one" / "observation.json").write_text(json.dumps(record))
    sys.path.insert(0, str(tmp_path))
    try:
        loaded = load_observation(tmp_path / "one", load_wrappers)
    finally:
        sys.path.remove(str(tmp_path))
    assert "planted_module" not in sys.modules
    (gate,) = loaded.architecture.wrappers
    assert gate.attack == described["attack"]
    assert loaded.build_model() is not None
    with pytest.raises(ConfigError, match=r"leakage_gate\.attack="):
        gate.check(plan(leakage_gate=gate))


def plan(**defenses):
    return Plan(torch.nn.Linear(1, 1), {}, {}, defenses)


def test_it_comes_last():
    gate = LeakageGate(PatchGradient())
    gate.check(plan(noise=GradientNoise(), leakage_gate=gate, secure_aggregation=SecureAggregation()))
    for other in (GradientNoise(), WithholdPositionEmbedding()):
        with pytest.raises(ConfigError, match=r"defense=\[leakage_gate, other\]: must be leakage_gate behind other"):
            gate.check(plan(leakage_gate=gate, other=other))


def test_an_error_that_is_fed_back_is_of_what_was_shared():
    gate = LeakageGate(PatchGradient())
    gate.check(plan(topk=TopK(error_feedback=False), leakage_gate=gate))
    with pytest.raises(ConfigError, match=r"defense\.topk\.error_feedback=True: must be false beside leakage_gate"):
        gate.check(plan(topk=TopK(), leakage_gate=gate))


@pytest.mark.parametrize("other", [DPSGD(), LocalDP()])
@pytest.mark.parametrize("threshold", [0.5, math.inf])
def test_no_privacy_budget_holds_beside_a_verdict_on_the_pictures(other, threshold):
    gate = LeakageGate(PatchGradient(), threshold=threshold)
    with pytest.raises(ConfigError, match=r"defense=\[other, leakage_gate\]: must be other or the gate: .* without"):
        gate.check(plan(other=other, leakage_gate=gate))


@pytest.mark.parametrize("name", ["dp_sgd", "local_dp"])
def test_a_privacy_budget_beside_it_is_refused_before_anything_starts(name):
    with pytest.raises(ConfigError, match=rf"{name} or the gate"):
        prepare(settings("audit", *AUDIT, f"defense=[{name},leakage_gate]"))


def test_its_silence_tells_pictures_apart_whatever_the_noise():
    """Why: two clients that differ in pictures alone, both with more noise than gradient, and one of them is silent."""
    client = Client("defense=[gradient_noise,leakage_gate]", "defense.gradient_noise.relative_norm=10.0")
    client.gate.attack = Fake(client.setup.data.train.subset([5]).images([0]).double())
    silent = {}
    for position in (5, 8):
        client.memory = {}
        silent[position] = not client.share(position).tensors
    assert silent == {5: True, 8: False}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("measure", "lpips", "one of ssim, psnr"),
        ("prior", "black", "one of grey, mean"),
        ("threshold", math.nan, "a number"),
        ("every", 0, "1 or more"),
        ("device", "tpu", "one of auto, cpu, cuda"),
    ],
)
def test_settings_that_make_no_sense(key, value, words):
    with pytest.raises(ConfigError, match=rf"defense\.leakage_gate\.{key}={value}: must be {words}"):
        LeakageGate(PatchGradient(), **{key: value})


@pytest.mark.parametrize("attack", [{}, "patch_gradient", PatchGradient, GradientNoise()])
def test_its_attack_must_be_one(attack):
    gate = LeakageGate(attack)
    with pytest.raises(ConfigError, match=r"defense\.leakage_gate\.attack=.*_target_ and its settings"):
        gate.check(plan(leakage_gate=gate))


def test_without_a_turn_it_cannot_judge(client, rng):
    update = client.share(5)
    gate = LeakageGate(PatchGradient())
    with pytest.raises(RuntimeError, match="call begin"):
        gate.transform_update(replace(update), rng)


def test_an_audit_says_who_withheld(command, tmp_path):
    folder = tmp_path / "run"
    over = ["audit.num_images=3", "simulation=inline", "defense=[leakage_gate]", "attack=[patch_gradient,dlg,labels]"]
    code, _, err = command("fedsim-audit", "data=digits", "model=vit_nano", *over, f"run_dir={folder}")
    assert code == 0, err
    found = rows(folder, "attacks")
    assert len(found) == 9
    reason = "the whole update is withheld by leakage_gate"
    assert {(row["status"], row["reason"]) for row in found} == {("refused", reason)}
    assert reason in (folder / "report.html").read_text()


def test_a_run_goes_on_without_who_withholds(command, tmp_path):
    # A gradient of one picture shows it: all three clients withhold theirs. That of sixteen is a mixture.
    over = ["defense=[leakage_gate]", "attack=[patch_gradient]", "checkpoint_every=1"]
    silent, speaking = tmp_path / "silent", tmp_path / "speaking"
    code, _, err = command("fedsim", *RUN, *over, f"run_dir={silent}")
    assert code == 0, err
    code, _, err = command("fedsim", *RUN, *over, "client.batch_size=16", f"run_dir={speaking}")
    assert code == 0, err
    metrics, others = rows(silent, "metrics"), rows(speaking, "metrics")
    assert [row["leakage_gate_withheld"] for row in metrics[1:]] == [1.0, 1.0]
    assert [row["leakage_gate_withheld"] for row in others[1:]] == [0.0, 0.0]
    assert len({row["loss"] for row in metrics}) == 1
    assert len({row["loss"] for row in others}) == 3
    assert not any(row["failures"] for row in metrics)
    first, second = (final_state(folder) for folder in (silent, speaking))
    assert not all(first[name].equal(tensor) for name, tensor in second.items())
    assert {row["status"] for row in rows(silent, "attacks")} == {"refused"}
    assert {row["status"] for row in rows(speaking, "attacks")} == {"done"}
    assert "withheld by leakage_gate" in (silent / "report.html").read_text()
