"""The engine as a whole, on pictures of 16 px."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsim
from attacks.optimization import (
    Cosine,
    GaussNewton,
    GradientMatching,
    GroupConsistency,
    LevenbergMarquardt,
    OptimiserSettings,
    Pixels,
    PositionAlignment,
    Schedule,
    SquaredL2,
    TagDistance,
    engine,
)
from attacks.optimization.parametrisation import PatchRowSpace
from attacks.optimization.priors import BatchNormStatistics, FeatureTarget, ImageNorm, TotalVariation
from attacks.optimization.problem import random_target, shared_update
from attacks.optimization.search.search import SearchState
from attacks.optimization.second_order.victim import VictimSearch
from attacks.session import Session
from fedsim.errors import ConfigError, NotApplicable
from fedsim.update import Update


def aligned(**settings):
    """APRIL's attack by rows: the one that gets anywhere on a ViT in few steps."""
    settings = {"steps": 12, "frames": 3, "save_every": 4, **settings}
    return GradientMatching(
        objective=PositionAlignment(align="row"),
        parametrisation=Pixels(boxed=True),
        optimiser=OptimiserSettings("signed_adam", 0.1),
        schedule=Schedule("cosine"),
        **settings,
    )


def attack(matching, observation, seed=0, cpu=torch.device("cpu")):  # noqa: B008
    return matching(observation, torch.Generator().manual_seed(seed), cpu)


def test_it_beats_an_attack_without_a_gradient(small, tools):
    observation, pictures = small()
    found = attack(aligned(steps=100), observation)
    nothing = attack(aligned(steps=100, target="random"), observation)
    assert tools.psnr(found.images, pictures) > tools.psnr(nothing.images, pictures) + 1.5
    assert found.labels.tolist() == [3]
    assert found.certificate.status == "none"
    assert found.certificate.values["steps"] == 100


def turned(observation):
    """The observation with all entries of its update in reverse but the head bias's: other contents of equal norms."""
    tensors = {
        n: t if n == "head.bias" else t.flatten().flip(0).view_as(t) for n, t in observation.update.tensors.items()
    }
    return replace(observation, update=replace(observation.update, tensors=tensors))


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({"parametrisation": PatchRowSpace()}, {}),
        ({"priors": {"features": FeatureTarget(0.1)}}, {}),
        ({"priors": {"features": FeatureTarget(0.1, "centred_head_rows")}}, {}),
        ({"local_updates": "surrogate"}, {"lr": 0.05, "steps": 3}),
        ({}, {}),
    ],
)
def test_a_baseline_reads_nothing_but_norms_and_labels(small, settings, protocol):
    observation, _ = small(count=2, dtype="float64", **protocol)
    base = {"labels": "bias_corrected", "steps": 3, "frames": 0, "derivative": "double_backward", **settings}
    ours, other = (attack(GradientMatching(target="random", **base), o) for o in (observation, turned(observation)))
    torch.testing.assert_close(ours.images, other.images, rtol=0, atol=1e-6)
    assert ours.labels.tolist() == other.labels.tolist() == [3, 5]
    seeing = [attack(GradientMatching(**base), o).images for o in (observation, turned(observation))]
    assert float((seeing[0] - seeing[1]).abs().max()) > 1e-3


def test_a_baseline_draws_what_it_always_drew(small, rng, cpu):
    observation, _ = small()
    problem = aligned(target="random")._problem(observation, rng, cpu)
    again = torch.Generator().manual_seed(rng.initial_seed())
    expected = random_target(shared_update(observation, "gradient", cpu), again)
    assert all(torch.equal(problem.target[name], tensor) for name, tensor in expected.items())
    assert torch.equal(rng.get_state(), again.get_state())


def test_a_baseline_goes_on_without_what_noise_does_not_hold(tools):
    """Noise certifies no features; a prior that refuses the true update refuses the baseline too."""
    observation = tools.observe(tools.tiny(dtype="float64", kwargs={"depth": 1}), tools.photographs(32), [3, 5])
    certified = {"features": FeatureTarget(0.1, "certificate")}
    found = attack(GradientMatching(steps=2, priors=certified, target="random"), observation)
    assert found.labels.tolist() == [3, 5]
    plain = attack(GradientMatching(steps=2, target="random"), observation)
    assert torch.equal(found.images, plain.images)
    seeing = attack(GradientMatching(steps=2, priors=certified), observation)
    assert not torch.equal(seeing.images, attack(GradientMatching(steps=2), observation).images)
    for prior in (FeatureTarget(0.1), BatchNormStatistics(0.1)):
        matching = GradientMatching(steps=2, labels="joint", priors={"one": prior}, target="random")
        with pytest.raises(NotApplicable):
            attack(matching, observation)


def test_the_same_seed_gives_the_same_bits(small):
    observation, _ = small()
    first, second = attack(aligned(), observation), attack(aligned(), observation)
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, attack(aligned(), observation, seed=1).images)


@pytest.mark.parametrize("derivative", ["finite_difference", "double_backward"])
def test_restarts_together_are_those_one_by_one(small, derivative):
    observation, _ = small(dtype="float64")
    together = attack(aligned(restarts=3, steps=8, derivative=derivative), observation)
    chunked = attack(aligned(restarts=3, steps=8, derivative=derivative, memory_gib=1e-6), observation)
    torch.testing.assert_close(together.images, chunked.images, rtol=0, atol=1e-5)
    assert together.certificate.values["candidates"] == 3


def test_victims_together_are_those_one_by_one(small, tools, cpu, monkeypatch):
    """Of one model, of which each observation has a mapping of its own."""
    observation, _ = small(dtype="float64")
    other, _ = small(dtype="float64", labels=(7,))
    other = replace(other, global_state=dict(observation.global_state))
    matching, searched = aligned(steps=8, restarts=2), []
    run = type(matching.search).run
    monkeypatch.setattr(
        type(matching.search), "run", lambda search, task, rngs: searched.append(len(rngs)) or run(search, task, rngs)
    )
    together = matching.run_many([observation, other], [torch.Generator().manual_seed(s) for s in (1, 2)], cpu)
    assert searched == [2]
    for seed, (victim, found) in enumerate(zip((observation, other), together, strict=True), start=1):
        alone = attack(matching, victim, seed)
        torch.testing.assert_close(found.images, alone.images, rtol=0, atol=1e-5)
        assert found.labels.tolist() == alone.labels.tolist()


def test_victims_whose_points_have_other_shapes_are_searched_apart():
    """As with coordinates of a row space, of which each update may leave another number open."""
    shapes = [(3, 2), (4, 2), (3, 2)]
    spaces = [SimpleNamespace(initial=lambda rng, shape=shape: torch.zeros(shape)) for shape in shapes]
    assert engine._of_a_shape([SimpleNamespace(space=space) for space in spaces]) == [[0, 2], [1]]


def test_one_refusal_leaves_the_others_alone(small, cpu):
    observation, _ = small()
    broken = replace(observation, update=replace(observation.update, tensors={}))
    rngs = [torch.Generator().manual_seed(0) for _ in range(2)]
    refused, found = aligned(steps=5).run_many([broken, observation], rngs, cpu)
    assert isinstance(refused, NotApplicable)
    assert found.images.shape == (1, 3, 16, 16)


class KilledError(Exception):
    """What a killed worker's successor never sees."""


class Kept(Session):
    """In memory; dies at the save that it is told to."""

    def __init__(self, dies_at):
        self.saved, self.dies_at, self.saves = None, dies_at, 0

    def load(self):
        return self.saved

    def save(self, tensors, record):
        self.saves += 1
        self.saved = ({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, record)
        if self.saves == self.dies_at:
            raise KilledError


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"restarts": 2, "group": GroupConsistency(start=0.1, every=4, register=False)},
        {"patience": 500, "priors": {"total_variation": TotalVariation(1e-3)}},
    ],
)
def test_a_killed_attack_goes_on_with_the_same_bits(small, settings):
    observation, _ = small()
    whole = attack(aligned(**settings), observation)
    matching = aligned(**settings)
    matching.session = Kept(dies_at=2)
    with pytest.raises(KilledError):
        attack(matching, observation)
    resumed = attack(matching, observation)
    assert torch.equal(resumed.images, whole.images)
    assert resumed.trace == whole.trace
    assert [frame.step for frame in resumed.frames] == [frame.step for frame in whole.frames]


def test_candidates_are_compared_under_one_mean_of_the_group(small):
    """Where the mean is taken anew, nothing that was found under another one stays the best."""
    observation, _ = small()
    group = GroupConsistency(weight=1.0, start=0.25, every=5, register=False)
    wild = OptimiserSettings("signed_adam", 5.0, langevin=2.0)
    found = attack(GradientMatching(optimiser=wild, steps=20, frames=20, restarts=2, group=group), observation)
    anew = [row for row in found.trace if row["step"] in (5, 10, 15)]
    assert len(anew) == 3
    assert all(row["best"] == row["objective"] for row in anew)


def test_langevin_noise_is_drawn_again_after_a_kill(small):
    observation, _ = small()
    noisy = {"steps": 8, "save_every": 2, "optimiser": OptimiserSettings("adam", 0.1, langevin=0.2)}
    whole = attack(GradientMatching(**noisy), observation)
    silent = attack(GradientMatching(**{**noisy, "optimiser": OptimiserSettings("adam", 0.1)}), observation)
    assert not torch.equal(whole.images, silent.images)
    matching = GradientMatching(**noisy)
    matching.session = Kept(dies_at=3)
    with pytest.raises(KilledError):
        attack(matching, observation)
    resumed = attack(matching, observation)
    assert torch.equal(resumed.images, whole.images)
    assert resumed.trace == whole.trace


def test_traces_and_frames_tell_the_way(small):
    observation, _ = small()
    found = attack(aligned(), observation)
    steps = [row["step"] for row in found.trace]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] == 12
    assert found.trace[-1]["best"] < found.trace[0]["best"]
    assert [frame.step for frame in found.frames] == steps
    assert all(frame.images.min() >= 0 and frame.images.max() <= 1 for frame in found.frames)


def test_a_plateau_ends_the_search(small):
    observation, _ = small()
    found = attack(aligned(steps=2000, patience=2, target="random"), observation)
    assert found.certificate.values["steps"] < 2000


def test_what_is_not_finite_starts_anew(small, monkeypatch, caplog):
    observation, _ = small()
    broken = {"left": 2}
    plain = PositionAlignment.value

    def value(self, found, target):
        distance = plain(self, found, target)
        if broken["left"]:
            broken["left"] -= 1
            return distance * torch.nan
        return distance

    monkeypatch.setattr(PositionAlignment, "value", value)
    found = attack(aligned(), observation)
    assert found.certificate.values["restarted_after_nan"] == 2
    assert "not finite" in caplog.text
    assert bool(found.images.isfinite().all())
    monkeypatch.setattr(PositionAlignment, "value", lambda self, f, t: plain(self, f, t) * torch.nan)
    with pytest.raises(RuntimeError, match="not finite"):
        attack(aligned(), observation)


def test_a_candidate_that_starts_anew_has_all_of_its_patience(small, monkeypatch):
    observation, _ = small()
    plain, calls = PositionAlignment.value, [0]

    def value(self, found, target):
        calls[0] += 1
        best = plain(self, found, target) * (calls[0] > 1)
        return best + (plain(self, found, target) * torch.nan if calls[0] == 6 else 0.0)

    monkeypatch.setattr(PositionAlignment, "value", value)
    found = attack(aligned(steps=40, patience=8, derivative="double_backward"), observation)
    assert found.certificate.values["restarted_after_nan"] == 1
    assert found.certificate.values["steps"] > 12


def test_dlg_finds_soft_labels_with_the_picture(small):
    observation, _ = small(dtype="float64")
    dlg = GradientMatching(
        objective=SquaredL2(), optimiser=OptimiserSettings("lbfgs", 1.0), labels="joint", steps=5, frames=0, restarts=2
    )
    found = attack(dlg, observation)
    assert found.labels.tolist() == [3]
    assert found.trace[-1]["best"] < 0.1 * found.trace[0]["objective"]
    assert found.frames == ()


@pytest.mark.parametrize("local", ["unroll", "surrogate", "gradient"])
def test_several_local_steps(small, local):
    observation, _ = small(lr=0.05, steps=3)
    found = attack(replace_local(local), observation)
    nothing = attack(replace_local(local, target="random"), observation)
    assert found.certificate.values["objective"] < nothing.certificate.values["objective"]
    assert ("alpha" in found.certificate.values) == (local == "surrogate")


def replace_local(local, **settings):
    return GradientMatching(
        objective=Cosine(), optimiser=OptimiserSettings("signed_adam"), steps=6, local_updates=local, **settings
    )


def two_batches(observation, pictures, labels, lr):
    """The observation of a client that takes one picture after another, in this order."""
    model = observation.build_model()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (observation.mean, observation.std))
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for picture, label in zip(((pictures - mean) / std).float(), labels, strict=True):
        optimiser.zero_grad()
        F.cross_entropy(model(picture[None]), torch.tensor([label])).backward()
        optimiser.step()
    change = {name: p.detach() - start[name] for name, p in model.named_parameters()}
    protocol = replace(observation.protocol, batch_size=1, steps=2, lrs=(lr, lr), optimizer="sgd")
    return replace(observation, update=Update(change, "delta", 2), protocol=protocol)


def test_restarts_try_other_orders_of_labels_in_several_local_batches(small):
    """Sorted labels are the wrong way round for a client that trained on class 5 before class 3."""
    observation, pictures = small(count=2)
    other = two_batches(observation, pictures, (5, 3), lr=0.5)
    found = attack(replace_local("unroll", labels="bias_corrected", restarts=6), other)
    alone = attack(replace_local("unroll", labels="bias_corrected"), other)
    assert (found.labels.tolist(), alone.labels.tolist()) == ([5, 3], [3, 5])
    one_batch = replace(other, protocol=replace(other.protocol, batch_size=2))
    assert attack(replace_local("unroll", labels="bias_corrected", restarts=6), one_batch).labels.tolist() == [3, 5]


def test_adams_first_step_is_served_or_refused(small):
    observation, _ = small(lr=0.1)
    gradient = observation.gradient
    for eps, served in ((1e-3, True), (1e-14, False)):
        tensors = {n: (-0.01 * g / (g.abs() + eps)).float() for n, g in gradient.items()}
        protocol = replace(observation.protocol, optimizer="adam", lrs=(0.01,), eps=eps)
        stepped = replace(observation, update=replace(observation.update, tensors=tensors), protocol=protocol)
        matching = GradientMatching(steps=3, labels="bias_sign" if served else "auto", local_updates="gradient")
        if served:
            from attacks.optimization.problem import shared_update

            found = shared_update(stepped, "gradient", torch.device("cpu"))
            name = "head.bias"
            torch.testing.assert_close(found[name].double(), gradient[name], rtol=0.05, atol=1e-5)
        else:
            with pytest.raises(NotApplicable):
                attack(matching, stepped)


def test_a_batchnorm_prior_is_refused_on_a_vit(small):
    observation, _ = small()
    matching = GradientMatching(steps=2, priors={"batch_norm": BatchNormStatistics(0.1)})
    with pytest.raises(NotApplicable, match="BatchNorm"):
        attack(matching, observation)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("steps", {"steps": 0}),
        ("restarts", {"restarts": 0}),
        ("derivative", {"derivative": "forward"}),
        ("local_updates", {"local_updates": "none"}),
        ("target", {"target": "truth"}),
        ("labels", {"labels": "truth"}),
        ("frames", {"frames": -1}),
        ("memory_gib", {"memory_gib": 0}),
        ("matching_weight", {"matching_weight": [[0.5, 1.0]]}),
        ("group", {"group": GroupConsistency()}),
    ],
)
def test_wrong_settings_are_named(key, settings):
    with pytest.raises(ConfigError, match=key):
        GradientMatching(**settings)


def test_the_order_of_names_does_not_matter(small):
    """Observations read from disk come back in alphabetical order."""
    observation, _ = small()
    tensors = observation.update.tensors
    mixed = replace(observation.update, tensors={name: tensors[name] for name in sorted(tensors)})
    matching = GradientMatching(objective=TagDistance(), steps=5, frames=0)
    first, second = attack(matching, observation), attack(matching, replace(observation, update=mixed))
    torch.testing.assert_close(first.images, second.images, rtol=0, atol=1e-4)


def test_a_term_that_begins_late_is_no_plateau(small):
    observation, _ = small()
    late = aligned(steps=12, patience=2, priors={"image_norm": ImageNorm(1.0, start=0.5)})
    assert attack(late, observation).certificate.values["steps"] > 8


def test_what_stopped_before_a_late_term_is_judged_with_it(small, monkeypatch):
    observation, _ = small()
    after_step = SearchState._after_step

    def first_stops_early(search, factor):
        after_step(search, factor)
        search.done[0] |= search.step == 2

    monkeypatch.setattr(SearchState, "_after_step", first_stops_early)
    late = aligned(steps=12, restarts=2, patience=8, priors={"image_norm": ImageNorm(100.0, start=0.5)})
    found = attack(late, observation).certificate.values
    assert found["objective"] > found["matching"] + 100.0


def test_a_bounded_derivative_serves_all_variables(small):
    observation, _ = small(lr=0.05, steps=2)
    matching = GradientMatching(
        optimiser=OptimiserSettings("adam", clip=1.0), steps=3, local_updates="surrogate", frames=0
    )
    assert bool(attack(matching, observation).images.isfinite().all())


def test_a_plateau_of_all_goes_on_with_the_term_that_begins_late(small, monkeypatch):
    observation, _ = small()
    after_step = SearchState._after_step
    taken = []

    def all_stop_early(search, factor):
        after_step(search, factor)
        taken.append(search.step)
        search.done[:] |= search.step in (2, 7)

    monkeypatch.setattr(SearchState, "_after_step", all_stop_early)
    late = aligned(steps=12, restarts=2, patience=11, priors={"image_norm": ImageNorm(100.0, start=0.5)})
    found = attack(late, observation).certificate.values
    assert taken == [0, 1, 2, 6, 7], "what lies between is skipped, and then nothing begins any more"
    assert found["steps"] == 8
    assert found["objective"] > found["matching"] + 100.0


def test_candidates_lost_before_a_late_term_leave_the_best_of_before(small, monkeypatch):
    observation, _ = small()
    guard = SearchState._guard

    def lost_from_step_1(search, totals):
        guard(search, totals)
        if search.step:
            totals[:] = torch.nan
            search.bad[:] = True

    monkeypatch.setattr(SearchState, "_guard", lost_from_step_1)
    late = aligned(steps=40, restarts=2, priors={"image_norm": ImageNorm(1.0, start=0.5)})
    values = attack(late, observation).certificate.values
    assert values["objective"] < float("inf")
    assert (values["steps"], values["restarted_after_nan"]) == (12, 20)


def test_what_ends_before_a_mean_is_taken_anew_is_judged_by_the_mean_that_it_had(small):
    observation, _ = small()
    group = GroupConsistency(weight=1.0, start=0.0, every=5, register=False)
    wild = OptimiserSettings("signed_adam", 5.0, langevin=2.0)
    settings = {"optimiser": wild, "steps": 20, "frames": 20, "restarts": 2, "group": group, "patience": 4}
    found = attack(GradientMatching(**settings), observation)
    assert found.certificate.values["steps"] == 5
    assert found.trace[-1]["best"] == found.trace[-2]["best"], "the best of before it ended"


def test_patience_that_no_mean_of_the_group_leaves_is_refused():
    group = GroupConsistency(start=0.0, every=4)
    with pytest.raises(ConfigError, match=r"patience=4: must be less than group\.every"):
        GradientMatching(restarts=2, group=group, patience=4)
    GradientMatching(restarts=2, group=group, patience=3)


def test_a_term_without_weight_is_left_out_whatever_it_would_need(small):
    observation, _ = small()
    silent = aligned(priors={"batch_norm": BatchNormStatistics(0.0)})
    assert attack(silent, observation).images.equal(attack(aligned(), observation).images)


def test_one_that_is_refused_in_its_search_costs_the_others_nothing(cpu, monkeypatch):
    """All of them were searched for again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 5))
    seen = [fedsim.observe(model, image[None], [3]) for image in torch.rand(2, 3, 4, 4)]
    nothing = {name: torch.zeros_like(tensor) for name, tensor in seen[0].update.tensors.items()}
    seen.append(replace(seen[0], update=replace(seen[0].update, tensors=nothing)))
    searched, descend = [], VictimSearch.descend
    monkeypatch.setattr(VictimSearch, "descend", lambda self: (searched.append(self), descend(self)))
    search = GaussNewton(LevenbergMarquardt(steps=1, restarts=1, starts=["mean"]), labels=[3])
    found = search.run_many(seen, [torch.Generator().manual_seed(n) for n in range(3)], cpu)
    assert [isinstance(one, NotApplicable) for one in found] == [False, False, True]
    assert len(searched) == 2
