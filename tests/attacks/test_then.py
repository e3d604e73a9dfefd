"""`then`: another attack goes on from an attack's images."""

import json
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsim
from attacks.base import Attack, NotApplicable, Reconstruction
from attacks.building import build_attack
from attacks.running import run_built
from attacks.session import PROGRESS, FolderSession
from fedsim.errors import ConfigError
from fedsim.settings.options import option

DIGITS = (torch.from_numpy(load_digits().images / 16).float()[:, None]).contiguous()
CPU = torch.device("cpu")
FEW = {"gauss_newton": {"steps": 12, "frames": 0}}


class Nearly(Attack):
    """Gives an image near the client's own."""

    def run(self, observation, rng, device):
        noise = 0.1 * torch.randn(DIGITS[7:8].shape, generator=rng)
        return Reconstruction(images=(DIGITS[7:8] + noise).clamp(0, 1), trace=({"step": 0.0, "noise": 0.1},))


class NearlyTogether(Nearly):
    """Serves several victims at once, and several rounds of one."""

    def run_many(self, observations, rngs, device):
        return [self.run(one, rng, device) for one, rng in zip(observations, rngs, strict=True)]

    def run_history(self, history, rng, device):
        return self.run(history.observations[0], rng, device)


class Walk(Attack):
    """Six random steps from an image, each saved; is killed after as many as `dies_after` says, once."""

    def __init__(self, dies_after=0):
        self.dies_after, self.taken = dies_after, []

    def run(self, observation, rng, device):
        raise NotApplicable("goes on from others alone")

    def polish(self, observation, result, rng, device):
        images, first = result.images, 0
        if (saved := self.session.load()) is not None:
            images, first = saved[0]["images"], saved[1]["step"]
            rng.set_state(saved[0]["rng"])
        for step in range(first + 1, 7):
            images = (images + 0.05 * torch.randn(images.shape, generator=rng)).clamp(0, 1)
            self.taken.append((observation.client, step))
            self.session.progress(step, 6, {"walked": float(step)})
            self.session.save({"images": images, "rng": rng.get_state()}, {"step": step})
            if len(self.taken) == self.dies_after:
                raise KeyboardInterrupt
        return replace(result, images=images)


class Hungry(Walk):
    """Fits into memory once its chunk is small; so does its `run`."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk

    def shrink(self, device):
        if self.chunk == 1:
            return ""
        self.chunk //= 2
        return f"chunk={self.chunk}"

    def _room(self):
        if self.chunk > 2:
            raise MemoryError

    def run(self, observation, rng, device):
        self._room()
        return Nearly().run(observation, rng, device)

    def polish(self, observation, result, rng, device):
        self._room()
        return super().polish(observation, result, rng, device)


def before_then(first, then):
    first.then = then
    return first


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))
    return fedsim.observe(model, DIGITS[7:8], [7])


def error(result):
    return float((result.images - DIGITS[7:8]).square().mean())


def test_what_is_near_is_polished_to_what_explains_the_update(seen):
    alone, polished = Nearly(), Nearly()
    polished.then = build_attack("gauss_newton", option_of(FEW))
    before, after = fedsim.attack(alone, seen), fedsim.attack(polished, seen)
    assert error(before) > 1e-3
    assert error(after) < 1e-9
    assert after.certified
    assert after.attack == "Nearly"
    assert after.trace[0] == {"step": 0.0, "noise": 0.1}
    assert len(after.trace) > 1


def test_a_search_is_polished_by_one_key(seen):
    steps = {"steps": 30, "restarts": 1, "frames": 0}
    before = fedsim.attack("inverting_gradients", seen, **steps)
    after = fedsim.attack("inverting_gradients", seen, then=FEW, **steps)
    assert error(after) < min(1e-6, error(before))
    assert fedsim.attack("inverting_gradients", seen, then=None, **steps).images.equal(before.images)


def test_a_polisher_written_out_whole_may_say_what_holds_without_it():
    whole = {"certify": True, "then": None, **FEW["gauss_newton"]}
    assert build_attack("row_space", option_of({"row_space": {"then": {"gauss_newton": whole}}})).then is not None


def test_an_attack_of_ones_own_is_named_with_its_class(seen):
    own = {"mine": {"_target_": f"{Nearly.__module__}.{Nearly.__qualname__}"}}
    with pytest.raises(ConfigError, match=r"attack\.row_space\.then=mine: must be an attack that goes on from"):
        fedsim.attack("row_space", seen, then=own)
    polisher = build_attack("row_space", option("attack", "row_space", {"then": {"mine": {**OWN, "steps": 3}}})).then
    assert type(polisher).__name__ == "GaussNewton"


def test_where_it_does_not_apply_the_result_stays(seen):
    polished = Nearly()
    polished.then = build_attack("gauss_newton", option_of({"gauss_newton": {"max_unknowns": 3}}))
    result = fedsim.attack(polished, seen)
    assert result.images.equal(fedsim.attack(Nearly(), seen).images)
    assert result.reason.startswith("GaussNewton did not go on from it: ")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("labels", "attack.row_space.then=labels: must be an attack that goes on from another's images"),
        ("gaus_newton", "attack.row_space.then=gaus_newton: there is no such option. Did you mean 'gauss_newton'"),
        ("mine", "One of your own: {mine: {_target_: MODULE.CLASS}}."),
        (["gauss_newton"], "must be a name of conf/attack, or one name with its settings"),
        ({"gauss_newton": {"certify": False}}, "attack.row_space.then.gauss_newton.certify=False: must be left out"),
        ({"gauss_newton": {"then": "gauss_newton"}}, "attack.row_space.then.gauss_newton.then=gauss_newton: must be"),
        ({"gauss_newton": {"stesp": 3}}, "attack.row_space.then.gauss_newton.stesp=3: "),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_runs(chosen, words):
    with pytest.raises(ConfigError) as caught:
        fedsim.attack("row_space", None, then=chosen)
    assert words in str(caught.value)


def test_what_reads_no_update_goes_on_by_what_reads_none(seen):
    blind = {"steps": 3, "restarts": 1, "frames": 0, "target": "random"}
    with pytest.raises(ConfigError, match=r"attack\.dlg\.then=gauss_newton: must be a baseline too"):
        fedsim.attack("dlg", seen, then="gauss_newton", **blind)
    polished = fedsim.attack(
        "inverting_gradients", seen, then={"gauss_newton": {"target": "random", "steps": 3}}, **blind
    )
    assert polished.baseline
    assert error(polished) > 1e-3


@pytest.mark.parametrize("dies_after", [4, 9])
def test_a_killed_polisher_goes_on_from_its_last_step_each_victim_from_its_own(seen, tmp_path, dies_after):
    victims = [seen, replace(seen, client=1)]
    undisturbed = run_built(victims, "x", before_then(NearlyTogether(), Walk()), 0, CPU)
    walks = []
    for dies in (dies_after, 0):
        walks.append(Walk(dies))
        attack = before_then(NearlyTogether(), walks[-1])
        attack.session = FolderSession(tmp_path, [one.name for one in victims], "x", lambda: "same")
        if dies:
            with pytest.raises(KeyboardInterrupt):
                run_built(victims, "x", attack, 0, CPU)
        else:
            again = run_built(victims, "x", attack, 0, CPU)
    whole = [(client, step) for client in (0, 1) for step in range(1, 7)]
    assert walks[0].taken + walks[1].taken == whole
    for one, other in zip(again, undisturbed, strict=True):
        assert torch.equal(one.images, other.images)
    assert not torch.equal(again[0].images, again[1].images)


def test_a_polisher_says_how_far_it_is(seen, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(FolderSession, "end", lambda self: None)  # what was said last stays
    attack = before_then(Nearly(), Walk())
    attack.session = FolderSession(tmp_path, [seen.name], "x", lambda: "same")
    run_built([seen], "x", attack, 0, CPU)
    said = json.loads((attack.session.folder / PROGRESS).read_text())
    assert (said["done"], said["total"], said["values"]) == (6, 6, {"walked": 6.0})
    fedsim.attack(before_then(Nearly(), Walk()), seen, progress=True)
    assert "6/6" in capsys.readouterr().err


def test_after_its_work_a_polisher_keeps_no_session(seen, tmp_path):
    attack = before_then(Nearly(), Walk())
    attack.session = FolderSession(tmp_path, [seen.name], "x", lambda: "same")
    run_built([seen], "x", attack, 0, CPU)
    assert attack.then.session.load() is None


def test_in_a_group_each_is_polished_as_alone(seen):
    victims = [seen, replace(seen, client=1), replace(seen, client=2)]
    together = fedsim.attack(before_then(NearlyTogether(), Walk()), victims)
    for victim, result in zip(victims, together, strict=True):
        alone = fedsim.attack(before_then(NearlyTogether(), Walk()), victim)
        assert torch.equal(result.images, alone.images)


def test_who_runs_out_of_memory_takes_less(seen):
    polisher = Hungry(16)
    result = fedsim.attack(before_then(Nearly(), polisher), seen)
    assert (result.status, result.reason, polisher.chunk) == ("done", "out of memory until then.chunk=2", 2)
    first, polisher = Hungry(2), Hungry(8)
    result = fedsim.attack(before_then(first, polisher), seen)
    assert (result.reason, first.chunk, polisher.chunk) == ("out of memory until then.chunk=2", 2, 2)
    first, polisher = Hungry(8), Hungry(2)
    result = fedsim.attack(before_then(first, polisher), seen)
    assert (result.reason, first.chunk, polisher.chunk) == ("out of memory until chunk=2", 2, 2)
    small = fedsim.attack(before_then(Hungry(2), Hungry(2)), seen)
    assert torch.equal(result.images, small.images)


def test_of_several_rounds_it_would_read_one_and_is_refused(seen):
    rounds = [seen, replace(seen, server_round=1)]
    refused = fedsim.attack(before_then(NearlyTogether(), Walk()), fedsim.History(rounds))
    assert (refused.status, refused.reason) == (
        "refused",
        "`then` goes on from one round, not from 2: leave it out (then=null)",
    )
    assert fedsim.attack(NearlyTogether(), fedsim.History(rounds)).status == "done"
    walk = Walk()
    assert fedsim.attack(before_then(NearlyTogether(), walk), fedsim.History(rounds[:1])).status == "done"
    assert len(walk.taken) == 6


OWN = {"_target_": "attacks.optimization.GaussNewton"}


def option_of(named):
    ((name, settings),) = named.items()
    return option("attack", name, settings)
