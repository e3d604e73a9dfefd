"""Pictures that the generator can make: the attacks must find them, and go on after a kill to the same bits."""

import json
from dataclasses import replace

import pytest
import torch

from attacks.generative import GGL, GIAS, GIFD, Generator, GeneratorSamples
from attacks.generative.gradient_free import Evolution
from attacks.optimization import Cosine, Descent, OptimiserSettings, Schedule, SquaredL2
from attacks.optimization.priors import TotalVariation
from attacks.optimization.search.search import NotFiniteError, SearchState
from attacks.session import Session
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec


class Kept(Session):
    """Keeps states in memory, and may be told to die after so many."""

    def __init__(self, store, budget):
        self.store, self.budget, self.name = store, budget, ""

    def load(self):
        return self.store.get(self.name)

    def save(self, tensors, record):
        self.store[self.name] = ({n: t.detach().clone() for n, t in tensors.items()}, json.loads(json.dumps(record)))
        self.budget[0] -= 1
        if self.budget[0] == 0:
            raise KeyboardInterrupt

    def part(self, name):
        part = Kept(self.store, self.budget)
        part.name = f"{self.name}/{name}"
        return part


@pytest.fixture
def scene(painter, tools):
    """An observation of one picture that the generator makes, the picture, and the generator."""
    generator = Generator(module=painter())
    latent = 0.7 * torch.randn(1, 6, generator=torch.Generator().manual_seed(3))
    pictures = generator.pictures(latent, None).double()
    return tools.observe(ModelSpec("lenet_dlg_32", 10, img_size=16), pictures, [3]), pictures, generator


def searches(generator, steps=40):
    """The searches behind the first take half as many steps; states are kept at each quarter of the first's."""
    common = {
        "objective": Cosine(),
        "optimiser": OptimiserSettings(lr=0.05),
        "schedule": Schedule("cosine"),
        "steps": steps,
        "restarts": 2,
        "frames": 3,
        "save_every": max(1, steps // 4),
    }
    return {
        "gias": GIAS(generator=generator, weight_steps=steps // 2, weight_lr=1e-3, **common),
        "gifd": GIFD(
            generator=generator,
            layers=[1, 2],
            radii=[0.5, 0.5],
            layer_steps=[steps // 2] * 2,
            layer_lrs=[0.01, 0.01],
            **common,
        ),
        "ggl": GGL(
            generator=generator,
            objective=SquaredL2(relative=True),
            generations=steps,
            population=16,
            frames=3,
            save_every=steps // 4,
        ),
    }


@pytest.mark.parametrize("name", ["gias", "gifd", "ggl"])
def test_it_finds_what_the_generator_can_make(scene, tools, cpu, rng, name):
    observation, pictures, generator = scene
    found = searches(generator)[name](observation, rng, cpu)
    baseline = GeneratorSamples(generator, 64)(observation, torch.Generator().manual_seed(0), cpu)
    reached, guessed = tools.psnr(found.images, pictures), tools.psnr(baseline.images, pictures)
    assert reached > guessed + 3
    steps = [frame.step for frame in found.frames]
    assert steps == sorted(steps)
    torch.testing.assert_close(found.frames[-1].images, found.images.float(), atol=1e-5, rtol=0)
    random = searches(generator)[name]
    random.problem = replace(random.problem, target="random")
    blind = random(observation, torch.Generator().manual_seed(0), cpu)
    assert tools.psnr(blind.images, pictures) < reached - 3


def test_a_search_without_derivatives_runs_in_double_precision(painter, tools, cpu, rng):
    spec = ModelSpec("lenet_dlg_32", 10, img_size=16, dtype="float64")
    seen = tools.observe(spec, tools.photographs(16)[:1], [3])
    found = searches(Generator(module=painter()), steps=4)["ggl"](seen, rng, cpu)
    assert bool(found.images.isfinite().all())


@pytest.mark.parametrize(("name", "deaths"), [("gias", (2, 4)), ("gifd", (5,)), ("ggl", (2,))])
def test_a_killed_search_comes_to_the_same_bits(scene, cpu, name, deaths):
    observation, _, generator = scene

    def attack(session):
        chosen = searches(generator, steps=12)[name]
        chosen.session = session
        return chosen.run(observation, torch.Generator().manual_seed(5), cpu)

    whole = attack(Session())
    for death in deaths:
        store = {}
        with pytest.raises(KeyboardInterrupt):
            attack(Kept(store, [death]))
        again = attack(Kept(store, [-1]))
        assert torch.equal(again.images, whole.images)
        assert again.trace == whole.trace
        assert again.certificate == whole.certificate


def test_the_feature_search_keeps_the_best_layer_and_the_weight_search_its_last(scene, cpu):
    observation, _, generator = scene
    # Features can be smoother than any latent's, which the prior rewards more than what they lose in matching.
    common = {"priors": {"smooth": TotalVariation(10.0)}, "optimiser": OptimiserSettings(lr=0.05), "frames": 2}
    harmful = GIFD(generator=generator, layers=[1], radii=[5.0], layer_steps=[5], layer_lrs=[0.1], steps=40, **common)
    kept = harmful(observation, torch.Generator().manual_seed(0), cpu).certificate.values
    harmful.search = replace(harmful.search, keep_least=False)
    last = harmful(observation, torch.Generator().manual_seed(0), cpu).certificate.values
    assert (kept["stage"], last["stage"]) == (0.0, 1.0)
    assert kept["matching"] < last["matching"]
    weights = GIAS(generator=generator, steps=10, weight_steps=2, weight_lr=0.1, **common)
    assert weights(observation, torch.Generator().manual_seed(0), cpu).certificate.values["stage"] == 1.0


@pytest.mark.parametrize("name", ["gias", "gifd"])
def test_soft_labels_are_searched_for_once(scene, cpu, monkeypatch, name):
    """The searches behind the first have its labels, which its pictures were found with."""
    observation, _, generator = scene
    chosen = searches(generator, steps=10)[name]
    chosen.problem = replace(chosen.problem, labels="joint")
    given, found = [], []
    search = Descent.run

    def watched(self, task, rngs):
        given.append(task.problems[0].labels)
        found.append(search(self, task, rngs))
        return found[-1]

    monkeypatch.setattr(Descent, "run", watched)
    result = chosen(observation, torch.Generator().manual_seed(0), cpu)
    assert given[0] is None
    assert all(torch.equal(labels, found[0][0].labels) for labels in (*given[1:], found[-1][0].labels))
    assert len(given) > 1
    assert result.labels.tolist() == found[0][0].labels.argmax(dim=-1).tolist()


@pytest.mark.parametrize("name", ["gias", "gifd"])
def test_each_search_begins_between_the_weights_where_the_last_ended(painter, tools, cpu, monkeypatch, name):
    seen = tools.observe(ModelSpec("lenet_dlg_32", 10, img_size=16), tools.photographs(16)[:1], [3], lr=0.1)
    chosen = searches(Generator(module=painter()), steps=6)[name]
    chosen.problem = replace(chosen.problem, local_updates="surrogate")
    begun, ended, run = [], [], SearchState.run

    def watched(self, session):
        begun.append(self.variables["alpha"][0].item())
        found = run(self, session)
        ended.append(found[0].values["alpha"])
        return found

    monkeypatch.setattr(SearchState, "run", watched)
    chosen(seen, torch.Generator().manual_seed(0), cpu)
    assert begun == [0.5, *ended[:-1]]
    assert 0.5 not in ended


def test_a_prior_that_starts_late_counts_from_there(scene, cpu):
    """The best is chosen under the last weights: smooth pictures, though the others match better."""
    observation, _, generator = scene
    found = {}
    for start, end in ((0.0, 0.5), (0.5, 1.0)):
        priors = {"smooth": TotalVariation(10.0, start=start, end=end)}
        ggl = GGL(generator=generator, objective=SquaredL2(relative=True), priors=priors, generations=20, population=8)
        values = ggl(observation, torch.Generator().manual_seed(0), cpu).certificate.values
        found[start] = values["objective"] - values["matching"]
    assert found[0.0] == pytest.approx(0.0, abs=1e-6)
    assert found[0.5] > 0.1


def test_a_restart_without_a_finite_candidate_costs_no_other(scene, cpu, monkeypatch, caplog):
    observation, _, generator = scene
    ggl = GGL(generator=generator, objective=SquaredL2(relative=True), generations=3, population=8, restarts=2)
    evolve, bad = Evolution.evolve, [True, False]

    def faulty(self, problem, evaluate, *rest):
        broken = bad.pop(0)
        lost = torch.full((8,), torch.nan)
        return evolve(self, problem, lambda *asked: (lost, lost) if broken else evaluate(*asked), *rest)

    monkeypatch.setattr(Evolution, "evolve", faulty)
    assert ggl(observation, torch.Generator().manual_seed(0), cpu).images.isfinite().all()
    assert "restart 0" in caplog.text
    bad[:] = [True, True]
    with pytest.raises(NotFiniteError, match="of any restart"):
        ggl(observation, torch.Generator().manual_seed(0), cpu)


def test_several_victims_at_once(scene, cpu):
    observation, pictures, generator = scene
    gias = searches(generator, steps=4)["gias"]
    twice = [observation, replace(observation, client=1)]
    found = gias.run_many(twice, [torch.Generator().manual_seed(n) for n in (0, 1)], cpu)
    assert [one.images.shape for one in found] == [pictures.shape, pictures.shape]


def test_all_samples_for_the_scorer_or_their_mean(scene, cpu):
    observation, _, generator = scene
    every = GeneratorSamples(generator, 8, "best")(observation, torch.Generator().manual_seed(0), cpu).images
    mean = GeneratorSamples(generator, 8, "mean")(observation, torch.Generator().manual_seed(0), cpu).images
    assert every.shape == (8, 3, 16, 16)
    torch.testing.assert_close(mean[0], every.mean(dim=0))


def test_an_evolution_of_one_candidate_after_the_other_cannot_do_with_less_memory(scene, cpu):
    observation, _, generator = scene
    for room, smaller in ((4.0, "memory_gib=2"), (1e-9, "")):
        ggl = GGL(generator=generator, generations=1, population=4, memory_gib=room)
        ggl(observation, torch.Generator().manual_seed(0), cpu)
        assert ggl.shrink(cpu) == smaller


class Shades(torch.nn.Module):
    """Somebody's conditional generator: a class is a shade of grey."""

    latent, num_classes = 6, 4

    def forward(self, latent, labels):
        return (labels / 4.0).reshape(-1, 1, 1, 1).expand(-1, 3, 16, 16)


def test_samples_of_a_foreign_generator_are_of_all_its_classes(scene, cpu):
    observation, _, _ = scene
    samples = GeneratorSamples(Generator(module=Shades()), 64, "best")
    drawn = samples(observation, torch.Generator().manual_seed(0), cpu).images
    assert drawn[:, 0, 0, 0].unique().tolist() == [0.0, 0.25, 0.5, 0.75]


class Painter(torch.nn.Module):
    """Somebody's conditional generator, which has no picture of "any" class."""

    latent = 6

    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes
        self.classes, self.paint = torch.nn.Embedding(num_classes, 6), torch.nn.Linear(6, 3 * 16 * 16)

    def forward(self, latent, labels):
        return self.paint(latent + self.classes(labels)).sigmoid().unflatten(1, (3, 16, 16))


@pytest.mark.parametrize("settings", [{"conditional": False}, {"labels": "joint"}, {"num_classes": 2}])
def test_a_foreign_generator_that_is_told_no_class_is_refused(scene, cpu, settings):
    """The picture's class is 3: a generator of 2 classes knows none of that number."""
    observation, _, _ = scene
    settings = {"num_classes": 10, **settings}
    generator = Generator(module=Painter(settings.pop("num_classes")))
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(NotApplicable, match="must be told one of its"):
        GIAS(generator=generator, steps=3, weight_steps=3, **settings)(observation, rng, cpu)
    assert (
        GIAS(generator=Generator(module=Painter(4)), steps=3, weight_steps=3)(observation, rng, cpu).images is not None
    )


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"layers": [2, 1]}, "layers"),
        ({"layers": [1, 9]}, "layers"),
        ({"radii": [1.0]}, "radii"),
        ({"layer_lrs": [0.1, -1.0]}, "layer_lrs"),
    ],
)
def test_wrong_layers_are_named(painter, settings, key):
    good = {"layers": [1, 2], "radii": [1.0, 1.0], "layer_steps": [5, 5], "layer_lrs": [0.1, 0.1]}
    with pytest.raises(ConfigError, match=key):
        GIFD(generator=Generator(module=painter()), **{**good, **settings})


def test_wrong_settings_are_named(painter):
    generator = Generator(module=painter())
    for settings, key in (({"covariance": "round"}, "covariance"), ({"population": 2}, "population")):
        with pytest.raises(ConfigError, match=key):
            GGL(generator=generator, **settings)
    for settings, key in (({"labels": "joint"}, "labels"), ({"sigma": 0.0}, "sigma")):
        with pytest.raises(ConfigError, match=key):
            GGL(generator=generator, **settings)
    with pytest.raises(ConfigError, match="weight_lr"):
        GIAS(generator=generator, weight_lr=0.0)
    with pytest.raises(ConfigError, match="adam"):
        GIAS(generator=generator, optimiser=OptimiserSettings("lbfgs"))
    with pytest.raises(ConfigError, match="pick"):
        GeneratorSamples(generator, pick="worst")
