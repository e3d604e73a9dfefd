"""The guess without a gradient stands beside every picture that was scored."""

import json
import math
from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.base import Attack, Needs, NotApplicable
from defenses import MixUp
from defenses.base import Defense, DefenseChain
from defenses.mjp.defense import MaskedJigsawPuzzle
from experiments.engine.guess import changed_from, not_attacked, public_mean, seen_through
from experiments.engine.setup import prepare
from fedsim.bounds.public_prior import PublicPrior
from fedsim.data.copies import contents
from fedsim.effects import TransformsImages
from fedsim.errors import ConfigError, require
from fedsim.ground_truth import GroundTruth
from fedsim.models import ModelSpec
from fedsim.observation_factory import ObservationFactory
from fedsim.result import AttackResult
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from fedsim.update import Shared
from server.attack_queue.results import ResultWriter
from tests.support.federation import settings


class Pictures:
    """As many grey pictures as there are levels."""

    def __init__(self, *levels):
        self.levels = levels

    def __len__(self):
        return len(self.levels)

    def images(self, indices):
        return torch.stack([torch.full((3, 4, 4), self.levels[index]) for index in indices])


def test_the_guess_is_the_mean_of_public_pictures_or_grey():
    mean = public_mean(Pictures(0.2, 0.4), (3, 4, 4))
    torch.testing.assert_close(mean, torch.full((3, 4, 4), 0.3))
    grey = public_mean(Pictures(), (3, 6, 6))
    assert grey.shape == (3, 6, 6)
    assert set(grey.flatten().tolist()) == {0.5}


class Held(Pictures):
    def subset(self, positions):
        return Held(*(self.levels[position] for position in positions))


def test_copies_of_attacked_pictures_are_none_of_the_servers(caplog):
    held = Held(0.2, 0.4, 0.4, 0.6)
    assert not_attacked(held, (3, 4, 4), set()) is held
    assert not_attacked(held, (3, 4, 4), set(contents(Held(0.5)))) is held
    assert not caplog.text
    assert not_attacked(held, (3, 4, 4), set(contents(Held(0.4, 0.9)))).levels == (0.2, 0.6)
    assert "2 of the server's own images are copies of attacked ones" in caplog.text


def test_what_moves_up_for_a_copy_was_looked_at_too(monkeypatch):
    monkeypatch.setattr("experiments.engine.guess.MOST_IMAGES", 2)
    monkeypatch.setattr("experiments.engine.guess.most_of", lambda shape: 2)
    held = Held(0.4, 0.2, 0.4, 0.6)
    assert not_attacked(held, (3, 4, 4), set(contents(Held(0.4)))).levels == (0.2,)


def test_it_is_written_with_each_result_and_held_against_the_private_picture(tmp_path):
    asked = []

    def guess():
        asked.append(1)
        return torch.full((3, 4, 4), 0.5)

    folder = RunFolder(tmp_path)
    writer = ResultWriter(folder, Trackers({}, tmp_path), "vit", [], guess)
    seen, private = torch.zeros(2, 3, 4, 4), torch.stack([torch.full((3, 4, 4), level) for level in (0.6, 0.5)])
    truth = GroundTruth(seen, torch.tensor([0, 1]), ("a", "b"), private)
    for client in (0, 1):
        writer.write(AttackResult(f"o{client}", "dlg", "refused", "why", server_round=1, client=client), truth)
    writer.write(AttackResult("o2", "dlg", "refused", "why", server_round=1, client=2), None)
    rows = [json.loads(line) for line in (tmp_path / "attacks.jsonl").read_text().splitlines()]
    first, second = (image["guess_psnr"] for image in rows[1]["images"])
    assert math.isclose(first, 20.0, abs_tol=1e-4)
    assert second == 300.0
    assert [image["seen_guess_psnr"] for image in rows[1]["images"]] == [
        pytest.approx(20 * math.log10(2), abs=1e-4)
    ] * 2
    assert rows[2]["images"] == []
    assert asked == [1]


def test_what_needs_no_attack_is_computed_once_for_the_results_of_an_observation(tmp_path, monkeypatch):
    computed = []
    monkeypatch.setattr("server.attack_queue.results.content_of", lambda image: computed.append(1) or "x")
    writer = ResultWriter(RunFolder(tmp_path), Trackers({}, tmp_path), "vit", [])
    truth = GroundTruth(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]), ("a", "b"))
    for client, attack in ((0, "dlg"), (0, "labels"), (1, "dlg")):
        writer.write(AttackResult(f"o{client}", attack, "refused", "why", server_round=1, client=client), truth)
    assert len(computed) == 4
    rows = [json.loads(line) for line in (tmp_path / "attacks.jsonl").read_text().splitlines()]
    assert rows[0]["images"] == rows[1]["images"]


@pytest.mark.parametrize(("settings", "baseline"), [("target=random", True), ("target=observed", False)])
def test_results_say_whether_the_attack_reads_the_gradient(command, tmp_path, settings, baseline):
    run = tmp_path / "run"
    fixed = ["data=digits", "model=vit_nano", "audit.num_images=1", "simulation=inline", "attack=[tag]"]
    code, _, err = command(
        "fedsim-audit", *fixed, "attack.tag.steps=1", "attack.tag.frames=0", f"attack.tag.{settings}", f"run_dir={run}"
    )
    assert code == 0, err
    (line,) = (run / "attacks.jsonl").read_text().splitlines()
    assert json.loads(line)["baseline"] is baseline


def seen_by_model(*overrides):
    setup = prepare(settings("audit", "data=digits", "model=vit_nano", "attack=[patch_gradient]", *overrides))
    return setup._public[0]


class DrawnToMean(Attack):
    """Its needs are the usual ones."""

    shrinks_to_mean = True

    def run(self, observation, rng, device):
        raise NotApplicable("never run")


class Polisher(DrawnToMean):
    """Goes on from another attack's images, and brings a prior along."""

    shrinks_to_mean, cost = False, 3.0
    needs = Needs(auxiliary=True)
    learned_from = frozenset({"there"})

    def polish(self, observation, result, rng, device):
        return result

    def check_image_shape(self, image_shape):
        require("side", image_shape[1], image_shape[1] == 8, "8")


def prepared(*overrides):
    return prepare(settings("audit", "data=digits", "model=vit_nano", "attack=[fc_bias]", *overrides))


THEN = f"attack.fc_bias.then={{own: {{_target_: {__name__}.Polisher}}}}"


@pytest.mark.parametrize("overrides", [[f"+attack.own._target_={__name__}.DrawnToMean"], [THEN]])
def test_who_draws_to_a_mean_and_who_goes_on_from_an_attack_have_public_images(overrides):
    assert not prepared().wants_auxiliary
    assert prepared(*overrides).wants_auxiliary


def test_who_goes_on_from_an_attack_counts_as_an_attack():
    setup = prepared(THEN)
    assert (setup.attack_costs, setup.learned_from) == ((0.0, 3.0), {"fc_bias": {"there"}})
    with pytest.raises(ConfigError, match=r"^attack\.fc_bias\.then\.side=224: must be 8"):
        prepared(THEN, "model=vit_tiny")


def test_a_score_does_not_depend_on_the_other_attacks(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
    rng = torch.Generator().manual_seed(0)
    data = torch.rand(40, 3, 8, 8, generator=rng), torch.arange(40) % 5
    scores = [
        fedsim.audit(model, data, attacks, ["ats"], num_images=3, run_dir=tmp_path / str(len(attacks)))
        for attacks in (["fc_bias"], ["fc_bias", "labels"])
    ]
    alone, beside = (
        [one.scores for one in found.results["ats"] if one.attack == "fc_bias" and one.status == "done"]
        for found in scores
    )
    assert alone
    assert alone == beside


def test_what_defenses_make_of_images_is_measured_on_public_ones():
    plain = seen_by_model()
    assert plain.own_share is None
    jigsaw, hidden = (
        seen_by_model("defense=[mjp_jp]", "defense.mjp_jp.ratio=0.3"),
        seen_by_model("defense=[instahide]", "audit.batch_size=4"),
    )
    assert 0.4 < float(jigsaw.own_share) < 0.95
    assert float(hidden.own_share) < 0.1
    assert torch.equal(seen_by_model("defense=[mjp_jp]", "defense.mjp_jp.ratio=0.3").own_share, jigsaw.own_share)
    assert torch.equal(jigsaw.mean, plain.mean)


def test_what_models_see_is_of_the_rounds_in_which_images_are_changed():
    """Of images before them the server takes none for changed."""
    chain = DefenseChain({"mjp_jp": MaskedJigsawPuzzle(0.5, embedding="own", start_round=3)})
    model = ModelSpec("vit_nano_patch2_8", 10).build(0)
    chain.wrap_model(model)
    public = torch.rand(9, 3, 8, 8)
    changed = seen_through(chain, model, 3, torch.Generator())(public).float()
    assert not torch.allclose(changed, public, atol=0.1)
    assert changed_from(chain) == 3
    flipped = DefenseChain({**chain.defenses, "keyed": Keyed()})
    assert changed_from(flipped) == changed_from(DefenseChain({**chain.defenses, "mixup": MixUp()})) == 0
    seen = fedsim.observe(model, public[:1], torch.tensor([1]))
    factory = ObservationFactory(
        seen.architecture, model, (3, 8, 8), image_prior=PublicPrior.of(public, changed), images_change_from=3
    )
    priors = [
        factory.make(Shared(seen.update, seen.protocol, server_round=number), seen.global_state).image_prior
        for number in (2, 3)
    ]
    assert [prior.seen_mean is None for prior in priors] == [True, False]


class Keyed(Defense):
    """Images less what it drew as the client's turn began."""

    def effects(self):
        return (Dimmed(),)

    def begin(self, turn):
        self.key = turn.memory.setdefault("key", torch.tensor(float(turn.model is not None) / 2))

    def transform_batch(self, batch, rng):
        return replace(batch, images=batch.images * self.key)


class Dimmed(TransformsImages):
    """An effect by a name of its own."""


def test_a_defense_that_keeps_something_of_a_turn_is_begun_first():
    chain = DefenseChain({"keyed": Keyed()})
    seen = seen_through(chain, ModelSpec("vit_nano_patch2_8", 10).build(0), 2, torch.Generator())
    public = torch.full((3, 3, 8, 8), 0.9)
    torch.testing.assert_close(seen(public).float(), torch.full((3, 3, 8, 8), 0.7))


@pytest.mark.parametrize("chosen", ["[mjp]", "[gradient_noise]", "[precode]"])
def test_where_no_image_or_its_place_is_changed_nothing_is_measured(chosen):
    assert seen_by_model(f"defense={chosen}").own_share is None


def test_a_transformed_image_is_rebuilt_as_seen_and_guessed_at_as_held(command, tmp_path):
    run = tmp_path / "run"
    fixed = ["data=digits", "model=vit_nano", "audit.num_images=6", "simulation=inline", "attack=[patch_gradient]"]
    code, _, err = command("fedsim-audit", *fixed, "defense=[mjp_spp]", "defense.mjp_spp.ratio=0.5", f"run_dir={run}")
    assert code == 0, err
    images = [json.loads(line)["images"][0] for line in (run / "attacks.jsonl").read_text().splitlines()]
    assert min(one["psnr"] for one in images) > 100
    mean = [sum(10 ** (-one[name] / 10) for one in images) for name in ("private_psnr", "guess_psnr")]
    assert mean[0] < 1.05 * mean[1], "what it takes for the client's own is no worse than a guess"
