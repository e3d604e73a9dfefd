"""What somebody's own defense says of itself is honoured, and somebody's own attack is judged by what it says."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

import fedsim
from attacks.base import Attack, Reconstruction
from attacks.label.head.gradient import head_is_exact
from attacks.optimization import Cosine, GradientMatching, SquaredL2
from attacks.optimization.matching.objectives import Clipped
from attacks.optimization.problem import shared_update, with_clip
from attacks.positions import masked_rows
from attacks.session import Session
from defenses import Defense
from fedsim.effects import AddsNoise, Clips, Effect, MasksPositions, Quantises, Unpublished, Withholds
from fedsim.errors import NotApplicable
from fedsim.observation import Observation


class Shortened(Defense):
    """A clip that fedsim never saw."""

    def __init__(self, bound=0.05):
        self.bound = bound

    @property
    def repeatable(self):
        return True

    def effects(self):
        return (Clips(self.bound, "update"),)

    def transform_update(self, update, rng):
        norm = torch.stack([t.double().norm() for t in update.tensors.values()]).norm()
        return replace(update, tensors={n: t * min(1.0, self.bound / float(norm)) for n, t in update.tensors.items()})


@dataclass(frozen=True)
class Mirrors(Effect):
    """An effect of one's own, that says what it leaves alone."""

    KEEPS = ("gradient", "equations", "head")


class Mirrored(Defense):
    def effects(self):
        return (Mirrors(),)

    def transform_batch(self, batch, rng):
        return replace(batch, images=batch.images.flip(-1))


class Hidden(Defense):
    """Says nothing."""

    def transform_update(self, update, rng):
        return update


class Spread(Attack):
    """Labels of no image, in a module that no table of fedsim names."""

    recovers = "labels"

    def run(self, observation, rng, device):
        return Reconstruction(None, torch.arange(observation.protocol.batch_size))


class Grey(Attack):
    baseline = True

    def run(self, observation, rng, device):
        return Reconstruction(torch.full((1, *observation.image_shape), 0.5))


@pytest.fixture
def plain(small):
    return small()[0]


def test_a_clip_of_ones_own_is_in_the_distance(small, victim_of):
    clipped, pictures = small(defenses={"mine": Shortened()})
    victim, target = victim_of(clipped)
    found = victim.gradient(victim.params, ((pictures - 0.5) / 0.5).float(), torch.tensor([3]))
    objective = with_clip(SquaredL2(relative=True), clipped, "gradient")
    assert isinstance(objective, Clipped)
    assert float(objective(found, target)) < 1e-9 < float(SquaredL2(relative=True)(found, target))
    assert isinstance(
        with_clip(SquaredL2(), small(defenses={"mine": Shortened(float("inf"))})[0], "gradient"), SquaredL2
    )


def test_clipping_in_training_is_simulated_unless_directions_are_compared(plain, cpu):
    clipped = replace(plain, protocol=replace(plain.protocol, max_grad_norm=0.5))
    for objective, expected in ((SquaredL2(), "double_backward"), (Cosine(), "finite_difference")):
        matching = GradientMatching(objective=objective, labels="joint")
        task = matching._task([matching._problem(clipped, torch.Generator(), cpu)], cpu, Session())
        derivative, method = task.derivative("auto")
        assert method == expected
        assert derivative.update.plain == (expected == "finite_difference")
    matching = GradientMatching(objective=SquaredL2(), labels="joint")
    task = matching._task([matching._problem(clipped, torch.Generator(), cpu)], cpu, Session())
    with pytest.raises(NotApplicable, match=r"a gradient clipped to 0\.5 needs double_backward"):
        task.derivative("finite_difference")


@pytest.mark.parametrize("per", ["example", "tensor", "example_and_tensor"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_clip_of_each_example_is_the_updates_for_one_image_alone(plain, per, count):
    known = replace(plain, defenses=({"name": "mine"},), recorded_effects=(Clips(0.05, per),))
    known = replace(known, architecture=replace(known.architecture, wrappers=()))
    protocol, update = replace(known.protocol, batch_size=count), replace(known.update, num_examples=count)
    known = replace(known, protocol=protocol, update=update)
    assert known.num_images == count
    assert known.effect(Clips) == Clips(0.05, per)
    objective = with_clip(SquaredL2(), known, "gradient")
    assert isinstance(objective, Clipped) == (per == "example" and count == 1)
    assert known.keeps("equations") == (per == "example")


def test_a_clipped_step_of_adam_is_refused_whoever_clips(small, cpu):
    clipped, _ = small(lr=0.1, defenses={"mine": Shortened()})
    adaptive = replace(clipped, protocol=replace(clipped.protocol, optimizer="adam"))
    with pytest.raises(NotApplicable, match="clipped step of adam"):
        shared_update(adaptive, "gradient", cpu)


def test_an_effect_of_ones_own_is_trusted_as_far_as_it_goes(small):
    mirrored, hidden = small(defenses={"a": Mirrored()})[0], small(defenses={"b": Hidden()})[0]
    assert mirrored.effects == (Mirrors(),)
    assert head_is_exact(mirrored) == ""
    assert mirrored.keeps("equations")
    assert not mirrored.keeps("images")
    assert hidden.effects == (Unpublished("b"),)
    assert "whether it left the head's gradient as it was" in head_is_exact(hidden)
    assert not hidden.keeps("equations")


def test_a_mask_of_ones_own_is_in_the_victims_model(plain, cpu):
    class Blanked(Defense):
        def effects(self):
            return (MasksPositions("blank"),)

        def wrap_model(self, model):
            model.register_parameter("blank", torch.nn.Parameter(torch.ones(48)))
            return model

    architecture = replace(plain.architecture, wrappers=(Blanked(),))
    state = {**plain.global_state, "blank": torch.ones(48)}
    gradient = plain.update.tensors["pos_embed"].clone()
    gradient[:, 5] = 0
    update = replace(plain.update, tensors={**plain.update.tensors, "pos_embed": gradient})
    seen = replace(plain, architecture=architecture, global_state=state, update=update)
    assert masked_rows(plain) is None
    assert masked_rows(seen).nonzero().flatten().tolist() == [5]
    matching = GradientMatching(labels="joint")
    problem = matching._problem(seen, torch.Generator(), cpu)
    victim = matching._task([problem], cpu, Session()).derivative("auto")[0].update.victim
    assert victim.embeddings == ("pos_embed", "blank")
    images = torch.rand(1, 3, 16, 16)
    other = {**victim.params, "pos_embed": victim.params["pos_embed"].clone()}
    other["pos_embed"][:, 5] = 7.0
    torch.testing.assert_close(victim.scores(other, images), victim.scores(victim.params, images))


def test_effects_are_kept_beside_the_observation(small, tmp_path):
    known, _ = small(defenses={"mine": Shortened(), "other": Mirrored()})
    recorded = (
        {"name": "mine", "_target_": "somewhere.Shortened"},
        {"name": "other", "_target_": "somewhere.Mirrored"},
    )
    replace(known, defenses=recorded).save(tmp_path / "one")
    loaded = Observation.load(tmp_path / "one")
    assert loaded.effects == (Clips(0.05, "update"), Unpublished("Mirrors")), "an effect of one's own is not on record"
    assert not loaded.repeatable
    loaded.save(tmp_path / "two")
    assert Observation.load(tmp_path / "two").effects[0] == Clips(0.05, "update")


@pytest.mark.parametrize(
    ("target", "found"),
    [("defenses.GradientClip", Clips(0.5, "update")), ("defenses.TopK", Unpublished("mine"))],
)
def test_files_of_before_effects_were_recorded_are_read(small, tmp_path, target, found):
    import json

    known, _ = small()
    recorded = ({"name": "mine", "_target_": target, **({"max_norm": 0.5} if "Clip" in target else {})},)
    replace(known, defenses=recorded).save(tmp_path / "one")
    file = tmp_path / "one" / "observation.json"
    record = json.loads(file.read_text())
    del record["effects"]
    file.write_text(json.dumps(record))
    assert Observation.load(tmp_path / "one").effects == (found,)


def test_what_fedsims_own_defenses_publish():
    from defenses import DPSGD, GradientNoise, Half, SecureAggregation, TopK, Withhold

    assert GradientNoise(relative_norm=0.1).effects() == (AddsNoise(0.1, relative=True),)
    assert GradientNoise().effects() == TopK(1.0).effects() == Half(None).effects() == ()
    assert DPSGD(math.inf, 0.0, per_layer=True).effects() == ()
    assert DPSGD(2.0, 0.5).effects() == (Clips(2.0, "example"), AddsNoise(1.0, on="sum"))
    assert Half().effects() == (Quantises(2.0**-10, "coordinate", least=2.0**-24),)
    assert Withhold().effects() == (Withholds(),)
    assert SecureAggregation(3).effects()[0].clients == 3


def test_an_attack_is_judged_by_what_it_says(plain):
    labels, grey = fedsim.attack(Spread(), plain), fedsim.attack(Grey(), plain)
    assert (labels.target, labels.baseline) == ("labels", False)
    assert (grey.target, grey.baseline) == ("images", True)
    assert fedsim.attack(GradientMatching(steps=1, target="random"), plain).baseline
    scored = fedsim.score(labels, torch.rand(1, 3, 16, 16), [0])
    assert scored.scores.labels is not None
