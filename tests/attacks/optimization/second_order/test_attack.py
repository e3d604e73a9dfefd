"""Second-order matching on a small module of one's own, and on digits where the closed forms' tensors are withheld."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import fedsim
from attacks.base import Frame, Reconstruction
from attacks.optimization import GaussNewton, LevenbergMarquardt, Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import BestCandidate
from attacks.optimization.second_order.attack import _of_own_model
from attacks.optimization.second_order.label_orders import MAX_ORDERS, label_orders
from attacks.optimization.second_order.posterior.mode import STEPS
from attacks.optimization.second_order.residual.residual import make_residuals
from attacks.session import Session
from defenses import GradientNoise, LeakageGate, TopK, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture, ModelSpec
from tests.attacks.optimization.test_engine import Kept, KilledError
from tests.support.clients import observe_client

WHITE = GaussianPrior(image_std=0.29, decay=0, colour=1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(), torch.nn.Linear(24, 5)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


@pytest.fixture
def images():
    return torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def psnr(found, images):
    return -10 * math.log10(float((found.double() - images.double()).square().mean()))


def solved(seen, **settings):
    given = {"starts": ["mean", "prior"], "prior": WHITE, "frames": 0, **settings}
    return fedsim.attack(GaussNewton(**given), seen)


def test_all_that_a_batch_shares_gives_both_images_back(model, images):
    seen = fedsim.observe(model, images[:2], torch.tensor([1, 4]))
    result = solved(seen)
    assert result.status == "done", result.reason
    assert max(psnr(result.images, images[:2]), psnr(result.images.flip(0), images[:2])) > 60
    assert result.certificate.values["explained"] == 1.0


def test_images_of_a_batch_are_put_to_the_labels_that_they_fit(model, images, rng, cpu):
    seen = fedsim.observe(model, images[:2], torch.tensor([1, 4]))
    near = 0.02 * torch.rand(2, 3, 4, 4, generator=rng) + 0.98 * images[:2]
    swapped = Reconstruction(images=near.flip(0), labels=torch.tensor([1, 4]))
    found = GaussNewton(steps=1, prior=WHITE, frames=0).polish(seen, swapped, rng, cpu)
    assert psnr(found.images, images[:2]) > 30 > psnr(near.flip(0), images[:2])


def test_one_image_of_all_that_is_shared_is_certified(model, images):
    result = solved(fedsim.observe(model, images[:1], torch.tensor([1])))
    assert result.certificate.status == "certified", result.certificate.reason
    assert psnr(result.images, images[:1]) >= result.certificate.values["promised_psnr"] > 60


def test_equations_that_leave_directions_open_are_solved_and_never_certified(model, images):
    """Without the first layer's tensors 24 numbers of its output are all that is known of 48 pixels."""
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[Withhold(["1.*"])])
    result = solved(seen)
    assert result.certificate.values["explained"] == 1.0
    assert result.certificate.values["replayed"] < 1e-5
    assert psnr(result.images, images[:1]) < 20
    assert result.certificate.status == "uncertified"


@pytest.fixture
def sure():
    """A model that is sure of class 3: the gradient there is zero, to the last digit."""
    torch.manual_seed(0)
    layers = torch.nn.Flatten(), torch.nn.Linear(48, 5)
    with torch.no_grad():
        layers[1].bias[3] = 1e3
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_a_zero_update_is_refused(sure, images, share):
    seen = fedsim.observe(sure, images[:1], [3], share=share, local_steps=None if share == "gradient" else 1)
    for settings, reason in (({}, "a gradient of zero tells no label"), ({"labels": [3]}, "the update is zero")):
        result = fedsim.attack("gauss_newton", seen, **settings)
        assert result.status == "refused"
        assert reason in result.reason


def test_a_client_that_attacks_itself_shares_a_zero_update(sure, images):
    seen = fedsim.observe(sure, images[:1], [3], defense=[LeakageGate(GaussNewton())])
    assert sorted(seen.update.tensors) == ["1.bias", "1.weight"]


def test_an_error_is_predicted_only_where_the_result_is_trusted(images):
    """Rounds of other images than one explain nothing together."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5)
    model, noise = torch.nn.Sequential(torch.nn.Flatten(), *layers), GradientNoise(std=1e-3)
    same, other = (
        fedsim.History([fedsim.observe(model, one, [1], defense=[noise], server_round=r) for r, one in enumerate(each)])
        for each in (images[[0, 0]].split(1), images[:2].split(1))
    )
    known, mixed = (solved(history, starts=["mean"], draws=8, steps=10).certificate.values for history in (same, other))
    assert (known["trust"], mixed["trust"]) == (1.0, 0.0)
    assert "predicted_psnr" in known
    assert "predicted_psnr" not in mixed


def test_it_goes_on_with_labels_that_no_rule_could_read(model, images, rng, cpu):
    """And with the steps and pictures of the attack before it."""
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[Withhold(["5.*"])])
    frame = Frame(7, images[:1], {})
    given = Reconstruction(images=images[:1], labels=torch.tensor([1]), trace=({"step": 7.0},), frames=(frame,))
    found = GaussNewton(steps=2, prior=WHITE, frames=2).polish(seen, given, rng, cpu)
    assert found.labels.tolist() == [1]
    steps = [row["step"] for row in found.trace]
    assert steps == [7.0, *(8.0 + number for number in range(len(steps) - 1))]
    assert found.frames[0].step == 7
    assert all(one.step > 7 for one in found.frames[1:])
    assert psnr(found.images, images[:1]) > 60


def test_rounds_that_carry_errors_of_earlier_ones_are_left_out_but_behind_noise(model, images, monkeypatch):
    solved_for = []

    def run(self, task, rngs):
        solved_for.append(len(task.problems[0].rounds))
        raise NotApplicable("stopped here")

    monkeypatch.setattr(LevenbergMarquardt, "run", run)
    topk, noise = TopK(0.5), GradientNoise(relative_norm=1.0)
    for defense in ([topk], [TopK(0.5, error_feedback=False)], [topk, noise]):
        kinds = {"defense": defense}
        seen = [fedsim.observe(model, images[:1], [1], server_round=n, **kinds) for n in (1, 2, 3)]
        solved(fedsim.History(seen))
    assert solved_for == [1, 3, 3]


@pytest.mark.parametrize("trust", [0.0, 1.0])
def test_more_rounds_go_on_from_an_image_that_explains_the_first_few(model, images, monkeypatch, trust):
    starts = []

    def run(self, task, rngs):
        (problem,) = task.problems
        starts.append(problem.start)
        values = dict.fromkeys(("objective", "within_errors", "explained", "kept"), 0.0) | {"trust": trust}
        rows = [{"step": 0.0}, {"step": 1.0}]
        return [BestCandidate(torch.zeros(1, 3, 4, 4), problem.labels, values, torch.zeros(1), rows)]

    monkeypatch.setattr(LevenbergMarquardt, "run", run)
    seen = [fedsim.observe(model, images[:1], [1], server_round=number) for number in range(6)]
    found = solved(fedsim.History(seen))
    assert [start is None for start in starts] == [True, trust == 0.0]
    assert [row["step"] for row in found.trace] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, [False, False]),
        ({"finetune": "lora"}, [False, False]),
        ({"finetune": {"lora": {"aggregate": "local_pair"}}}, [False, True]),
        ({"defense": [Withhold(["norm.*"], mode="local")]}, [False, True]),
    ],
)
def test_from_its_second_round_a_client_has_a_model_of_its_own(settings, own):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    steps = {"share": "delta", "local_steps": 1, **settings}
    each = [fedsim.observe(vit, torch.rand(1, 3, 8, 8), [0], server_round=number, **steps) for number in (1, 2)]
    assert [_of_own_model(seen) for seen in each] == own


def test_from_a_random_gradient_it_finds_nothing(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]))
    guess = solved(seen, target="random", restarts=1, steps=10)
    assert psnr(guess.images, images[:1]) < 12
    assert guess.certificate.values.get("explained", 0.0) == 0.0


@pytest.mark.parametrize("relative", [1e-3, 1e-1])
def test_behind_noise_it_shrinks_to_the_prior_on_a_small_module(model, images, relative):
    noise = [GradientNoise(relative_norm=relative)]
    seen = fedsim.observe(model, images[:1], torch.tensor([0]), defense=noise)
    found = solved(seen, draws=4, starts=["closed_form", "mean"], labels="bias_sign").images  # none applies
    assert float((found - images[0]).square().mean()) < float((images[0] - 0.5).square().mean()) / 30


def test_where_the_posterior_is_narrow_its_mean_is_about_its_likeliest_image(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([0]), defense=[GradientNoise(relative_norm=0.3)])
    likeliest, mean = (
        float((solved(seen, draws=draws, starts=["mean"], labels="bias_sign").images - images[0]).square().mean())
        for draws in (0, 8)
    )
    assert mean != likeliest
    assert mean == pytest.approx(likeliest, rel=0.1)
    assert mean < 0.1 * float((images[0] - 0.5).square().mean())


def test_what_was_pruned_is_not_compared(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[TopK(0.5, error_feedback=False)])
    assert psnr(solved(seen).images, images[:1]) > 50


def test_rows_of_a_position_embedding_that_were_pruned_leave_the_residual_its_floor(cpu):
    image = torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(-1, 3, -1, -1)
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    seen = fedsim.observe(vit, image, torch.tensor([0]), defense=[TopK(0.01, error_feedback=False)])
    rows = seen.update.tensors[seen.roles.pos_embed].flatten(0, -2)
    assert float(rows.norm(dim=1).median()) == 0.0
    labels = torch.tensor([0])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    (residual,) = make_residuals(problem, "gradient", WHITE, labels, cpu)
    at_image = float(residual(seen.normalised(image.double()).flatten()).square().sum())
    assert at_image < residual.floor < 1e-8


def test_ends_that_disagree_draw_the_result_to_the_mean_and_the_right_one_stays(model, images):
    """Of 24 numbers of 48 pixels a start tells as much as the update; what two of them share is the image's."""
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[Withhold(["1.*"])])
    public = PublicPrior.of(torch.rand(40, 3, 4, 4, generator=torch.Generator().manual_seed(5)))
    noisy = {
        n: t * (1 + 0.05 * torch.randn(t.shape)) for n, t in seen.update.tensors.items() if not n.endswith("5.bias")
    }
    wrong = replace(seen.update, tensors={**seen.update.tensors, **noisy})
    seen = replace(seen, image_prior=public)
    settings = {"starts": ["prior"], "restarts": 3, "frames": 0, "prior": None}
    right = solved(seen, **settings)
    assert right.certificate.values["trust"] == 1.0
    for steps in (3, 40):  # the best goes on behind three, and the others still speak against it
        found = solved(replace(seen, update=wrong), **{**settings, "steps": steps})
        assert found.certificate.values["explained"] == 0.0
        assert 0.0 < found.certificate.values["trust"] < 0.99
    apart = (found.images.double() - public.mean).norm()
    assert float(apart) < float((right.images.double() - public.mean).norm())


def test_what_too_few_numbers_leave_open_is_the_likeliest(model, images, monkeypatch):
    """Of 24 numbers of 48 pixels a search from a draw leaves the draw's other half, the prior's mode its mean."""
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[Withhold(["1.*"])])
    public = PublicPrior.of(torch.rand(40, 3, 4, 4, generator=torch.Generator().manual_seed(5)))
    seen, settings = replace(seen, image_prior=public), {"starts": ["prior"], "restarts": 1, "prior": None}
    likely = solved(seen, **settings)
    monkeypatch.setattr("attacks.optimization.second_order.victim.likeliest", lambda residual, z, *_: z * math.nan)
    found = solved(seen, **settings)
    assert likely.certificate.values["explained"] == found.certificate.values["explained"] == 1.0
    errors = [float((one.images - images[:1]).square().mean()) for one in (likely, found)]
    assert errors[0] < 0.75 * errors[1]


@pytest.mark.usefixtures("few_last_steps")
def test_labels_of_local_batches_are_searched_in_other_orders_than_the_sorted(model, images):
    """Only the client knows which image it trained on first."""
    protocol = {"share": "delta", "local_epochs": 1, "batch_size": 1, "lr": 0.1}
    labels = torch.tensor([1, 4])
    seen = [fedsim.observe(model.double(), images[:2], labels, seed=seed, **protocol) for seed in (0, 1)]
    found = [solved(one, starts=["mean"]) for one in seen]
    assert {tuple(result.labels.tolist()) for result in found} == {(1, 4), (4, 1)}
    for result in found:
        assert result.certificate.values["explained"] == 1.0
        in_order = images[:2] if result.labels.tolist() == [1, 4] else images[:2].flip(0)
        assert psnr(result.images, in_order) > 60


class Scripted:
    """Ends as it is told to, and keeps what it was given."""

    ends, given, has_posterior = ((1.5, 0.0), (1.0, 1.0), (0.9, 1.0)), [], False

    def __init__(self, settings, task, problem, rng, place=(0, 1)):
        self.given.append((problem.labels.tolist(), place))
        self.labels = problem.labels

    def run(self):
        objective, within = self.ends[len(self.given) - 1]
        values = {"objective": objective, "within_errors": within, "explained": 1.0}
        return BestCandidate(torch.zeros(3, 3, 4, 4), self.labels, values, torch.zeros(1))


@pytest.mark.parametrize(("epochs", "orders"), [(1, 2), (2, 1)])
def test_the_order_whose_errors_fit_ends_the_search_and_later_epochs_have_others(
    model, images, rng, cpu, monkeypatch, epochs, orders
):
    """Behind noise twice its errors is no match: the floor is a count of all that was shared."""
    seen = fedsim.observe(
        model, images, torch.tensor([1, 2, 4]), share="delta", batch_size=1, lr=0.1, local_epochs=epochs
    )
    monkeypatch.setattr(Scripted, "given", [])
    monkeypatch.setattr("attacks.optimization.second_order.search.VictimSearch", Scripted)
    attack = GaussNewton(prior=WHITE)
    problem = attack._problem(seen, rng, cpu)
    (found,) = attack.search.run(attack._task([problem], cpu, Session()), [rng])
    assert [place for _, place in Scripted.given] == ([(0, 6), (1, 6)] if orders == 2 else [(0, 1)])
    assert found.labels.tolist() == Scripted.given[-1][0]
    assert len({tuple(labels) for labels, _ in Scripted.given}) == orders


def test_orders_of_labels_differ_in_what_a_batch_holds(rng):
    assert len(label_orders(torch.tensor([1, 4, 4]), 3, rng)) == 1
    found = [order.tolist() for order in label_orders(torch.tensor([1, 4, 4]), 1, rng)]
    assert found[0] == [1, 4, 4]
    assert sorted(found) == [[1, 4, 4], [4, 1, 4], [4, 4, 1]]
    assert len(label_orders(torch.arange(6), 2, rng)) == MAX_ORDERS
    assert len(label_orders(torch.zeros(40, dtype=torch.long), 1, rng)) == 1


@pytest.mark.parametrize("limit", [None, 0.3])
def test_local_steps_are_simulated(model, images, limit):
    protocol = {"share": "delta", "local_steps": 3, "batch_size": 1, "lr": 0.1, "max_grad_norm": limit}
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), **protocol)
    result = solved(seen)
    assert result.status == "done", result.reason
    assert psnr(result.images, images[:1]) > 40


def test_without_its_clipping_no_image_explains_clipped_steps(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), share="delta", local_steps=3, max_grad_norm=0.3)
    told = replace(seen, protocol=replace(seen.protocol, max_grad_norm=None))
    without, with_it = (solved(one, starts=["mean"], steps=6).images for one in (told, seen))
    assert psnr(without, images[:1]) < 30 < psnr(with_it, images[:1])


class Told(Session):
    def __init__(self):
        self.told = []

    def progress(self, done, total, values):
        self.told.append((done, total))


def test_it_says_how_far_it_is(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]))
    attack = GaussNewton(starts=["mean"], restarts=1, steps=7)
    attack.session = Told()
    _run(attack, seen)
    assert attack.session.told
    assert all(0 < done <= total == 7 + STEPS for done, total in attack.session.told)


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_killed_attack_goes_on_with_the_same_bits(model, images, dies_at):
    seen = fedsim.observe(model, images[:2], torch.tensor([1, 4]), defense=[Withhold(["1.*"])])
    settings = {"starts": ["mean", "prior"], "steps": 8, "save_every": 1, "frames": 4, "labels": "auto"}
    whole = _run(GaussNewton(**settings), seen)
    attack = GaussNewton(**settings)
    attack.session = Kept(dies_at)
    with pytest.raises(KilledError):
        _run(attack, seen)
    resumed = _run(attack, seen)
    assert torch.equal(resumed.images, whole.images)
    assert resumed.trace == whole.trace
    assert [frame.step for frame in resumed.frames] == [frame.step for frame in whole.frames]


@pytest.mark.usefixtures("few_last_steps")
def test_what_an_earlier_version_saved_is_passed_over(model, images):
    seen = fedsim.observe(model, images[:1], torch.tensor([1]), defense=[Withhold(["1.*"])])
    settings = {"starts": ["mean"], "steps": 6, "save_every": 2, "frames": 0}
    whole = _run(GaussNewton(**settings), seen)
    attack = GaussNewton(**settings)
    attack.session = Kept(2)
    with pytest.raises(KilledError):
        _run(attack, seen)
    del attack.session.saved[1]["trail"]
    assert _run(attack, seen).trace == whole.trace


def _run(attack, seen):
    return attack(seen, torch.Generator().manual_seed(3), torch.device("cpu"))


def test_digits_come_back_where_all_that_closed_forms_read_is_withheld():
    image = torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(-1, 3, -1, -1)
    kept_back = Withhold(["patch_embed.*", "pos_embed", "blocks.0.attn.qkv.*", "blocks.0.mlp.*"])
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 24}), (), 0).build(keep=True)
    seen = fedsim.observe(vit, image, torch.tensor([0]), defense=[kept_back])
    assert fedsim.attack("row_space", seen).status == "refused"
    result = fedsim.attack("gauss_newton", seen, starts=["mean"], restarts=1, frames=0)
    assert psnr(result.images, image) > 60


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize(("count", "defense"), [(2, []), (1, ["mjp"])])
def test_it_starts_from_what_a_closed_form_makes_of_a_batch_and_behind_mjp(count, defense):
    images = torch.from_numpy(load_digits().images[:count] / 16).float()[:, None].expand(-1, 3, -1, -1)
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 32, "depth": 1})
    vit = Architecture(spec, (), 0).build(keep=True)
    seen = fedsim.observe(vit, images, torch.arange(count), defense=defense)
    result = fedsim.attack("gauss_newton", seen, starts=["closed_form"], steps=1)
    assert result.status == "done", result.fault or result.reason
    assert result.images.shape == images.shape
    assert bool(result.images.isfinite().all())


def test_more_unknowns_than_are_asked_for_are_refused_with_the_limit(model, images):
    seen = fedsim.observe(model, images, torch.tensor([1, 2, 3]))
    result = fedsim.attack("gauss_newton", seen, max_unknowns=100)
    assert result.status == "refused"
    assert "144 unknowns, 100 at most" in result.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": "joint"},
        {"local_updates": "surrogate"},
        {"starts": []},
        {"starts": ["gray"]},
        {"steps": 0},
        {"draws": -1},
        {"first_order": -1},
        {"max_unknowns": 0},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GaussNewton(**wrong)


def test_a_search_that_explains_no_more_than_the_public_mean_gives_that(model, images, rng):
    public = PublicPrior.of(torch.rand(40, 3, 4, 4, generator=rng))
    seen = fedsim.observe(model, images[:1], [3])
    wild = {name: 100.0 * torch.randn(tensor.shape, generator=rng) for name, tensor in seen.update.tensors.items()}
    wild |= {name: seen.update.tensors[name] for name in wild if name.endswith("5.bias")}
    wrong = replace(seen, update=replace(seen.update, tensors=wild), image_prior=public)
    result = fedsim.attack("gauss_newton", wrong, steps=3, starts=["mean"], frames=0)
    assert torch.allclose(result.images.double(), wrong.image_prior.mean[None], atol=1e-6)
    right = replace(seen, image_prior=public)
    found = fedsim.attack("gauss_newton", right, steps=15, starts=["mean"], frames=0)
    assert not torch.allclose(found.images.double(), right.image_prior.mean[None], atol=0.1)


def test_numbers_of_a_change_count_by_how_coarsely_their_weights_are_rounded():
    """Biases that begin at zero are exact: as near as the worst of J's directions allows, not as tensors' norms do."""
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 48})
    model = Architecture(spec, (), 0).build(keep=True)
    image = torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(1, 3, 8, 8).contiguous()
    seen = fedsim.observe(model, image, torch.tensor([0]), share="weights", lr=0.1, local_steps=1)
    result = fedsim.attack("gauss_newton", seen, steps=10, starts=["closed_form"], frames=0)
    assert psnr(fedsim.attack("patch_gradient", seen, levels=None).images, image) < 75
    assert psnr(result.images, image) > 90


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_behind_autocast_it_stays_at_a_closed_form_whose_own_equations_hold(precision):
    model = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    image = torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(1, 3, 8, 8).contiguous()
    seen = fedsim.observe(model, image, torch.tensor([0]), precision=precision)
    result = fedsim.attack("gauss_newton", seen, steps=10, starts=["closed_form"], frames=0)
    exact = fedsim.attack("patch_gradient", seen)
    assert psnr(result.images, image) == pytest.approx(psnr(exact.images, image), abs=0.1)
    assert psnr(result.images, image) > 35
    assert not result.certified
    assert "autocast" in result.certificate.reason


def test_weights_whose_features_were_pruned_are_left_out():
    """Balunović et al. 2022 on Soteria: whatever is left is the gradient of the image."""
    seen, truth = observe_client("data=digits", "model=vit_nano", "+model.kwargs.depth=1", "defense=soteria")
    result = fedsim.attack("gauss_newton", seen, steps=2, starts=["closed_form"], frames=0)
    assert psnr(result.images, truth.images) > 60
    assert result.certificate.values["explained"]
    assert not result.certified


def test_behind_dropout_it_stays_at_a_closed_form_whose_own_equations_hold():
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"pos_drop_rate": 0.1, "drop_path_rate": 0.1})
    image = torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(1, 3, 8, 8).contiguous()
    seen = fedsim.observe(Architecture(spec, (), 0).build(keep=True), image, torch.tensor([0]))
    result = fedsim.attack("gauss_newton", seen, steps=3, frames=0)
    exact = fedsim.attack("patch_gradient", seen)
    assert torch.allclose(result.images.double(), exact.images.double(), atol=1e-6)
    assert psnr(result.images, image) > 60
    assert not result.certified
    assert "no dropped unit changes" in result.certificate.reason
    assert result.trace == ()
