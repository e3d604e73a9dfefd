"""What the gradient of the classifier's bias says of one image's logits."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch.func import functional_call
from torch.nn import functional

import fedsim
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual.residual import make_residuals
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from attacks.optimization.second_order.warm_start.logits import LogitErrors
from defenses import GradientNoise, TopK, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec
from tests.attacks.optimization.second_order.test_starts import trained

SHAPE = (1, 3, 8, 8)


@pytest.fixture
def image():
    return torch.from_numpy(load_digits().images[3:4] / 16).float()[:, None].expand(SHAPE).contiguous()


@pytest.fixture
def digits():
    images = torch.from_numpy(load_digits().images[3:6] / 16).float()[:, None]
    return images.expand(3, *SHAPE[1:]).contiguous()


@pytest.fixture
def vit():
    return Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)


def problem_of(seen, cpu, count=1):
    return make_problem(seen, shared_update(seen, "gradient", cpu), torch.arange(count) + 3, Pixels(), {}, cpu)


def known_logits_of(seen, cpu, count=1):
    problem = problem_of(seen, cpu, count)
    residual = make_residuals(problem, "gradient", GaussianPrior(), problem.labels, cpu)[0]
    return KnownLogits.of(problem, residual, "gradient", cpu)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_they_are_the_probabilities_less_the_label(vit, image, cpu, smoothing):
    seen = fedsim.observe(vit, image, torch.tensor([3]), label_smoothing=smoothing)
    errors = LogitErrors.of(problem_of(seen, cpu), "gradient")
    logits = functional_call(vit, seen.global_state, (seen.normalised(image).float(),)).double()
    assert torch.allclose(errors.log_probs, logits[0].log_softmax(0), atol=1e-5)
    assert float(errors.rows(logits).abs().max()) < 1e-5
    assert float(errors.rows(logits + 7.0).abs().max()) < 1e-5
    assert float(errors.rows(logits * 2.0).abs().max()) > 1e-3


def test_at_the_true_image_their_loss_has_the_clients_gradient_and_everywhere_the_clients_errors(vit, image, cpu):
    known_logits = known_logits_of(fedsim.observe(vit, image, torch.tensor([3])), cpu)
    params, target = known_logits.victim.params, known_logits.residual.target
    here, elsewhere = (known_logits.gradient(params, x.double()) for x in (2.0 * image - 1.0, 1.0 - 2.0 * image))
    assert torch.allclose(torch.cat([here[name].flatten() for name in params]), target, atol=1e-5)
    assert not torch.allclose(torch.cat([elsewhere[name].flatten() for name in params]), target, atol=1e-2)
    assert torch.equal(elsewhere["head.bias"], known_logits.errors.error[0])
    assert (
        float(known_logits.images(lambda x: x.view(SHAPE))((2.0 * image.double() - 1.0).flatten()).square().sum())
        < 1e-6
    )
    assert (
        float(known_logits.images(lambda x: x.view(SHAPE))((1.0 - 2.0 * image.double()).flatten()).square().sum())
        > 1e-2
    )


def test_withheld_biases_have_none_and_the_clients_loss_stays(vit, image, cpu):
    without = fedsim.observe(vit, image, torch.tensor([3]), defense=[Withhold(["head.bias"])])
    assert LogitErrors.of(problem_of(without, cpu), "gradient") is None
    known_logits = known_logits_of(without, cpu)
    of_images, x = known_logits.images(lambda x: x.view(SHAPE)), (1.0 - 2.0 * image.double()).flatten()
    assert of_images.before is None
    torch.testing.assert_close(of_images(x), known_logits.residual(x))
    assert known_logits.rows(image).numel() == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_of_a_batch_they_are_those_of_each_image(vit, digits, cpu, smoothing):
    """Labels are 3, 4 and 5."""
    seen = fedsim.observe(vit, digits, torch.arange(3) + 3, label_smoothing=smoothing)
    known_logits = known_logits_of(seen, cpu, count=3)
    errors, params = known_logits.errors, known_logits.victim.params
    images = (2.0 * digits - 1.0).double()
    logits = functional_call(vit, seen.global_state, (images.float(),)).double()
    assert torch.allclose(errors.error + errors.wanted, logits.softmax(1), atol=1e-5)
    assert float(errors.rows(logits).abs().max()) < 1e-5
    assert float(errors.rows(logits.flip(0)).abs().max()) > 1e-4
    here, elsewhere = known_logits.gradient(params, images), known_logits.gradient(params, -images)
    assert torch.allclose(torch.cat([here[n].flatten() for n in params]), known_logits.residual.target, atol=1e-5)
    assert torch.allclose(elsewhere["head.bias"], seen.gradient["head.bias"].double(), atol=1e-6)


def test_of_a_batch_they_are_not_known_with_other_labels_equal_images_or_noise(vit, digits, cpu):
    labels = torch.arange(3) + 3
    noisy = fedsim.observe(vit, digits, labels, defense=[GradientNoise(relative_norm=1e-3)])
    alike = fedsim.observe(vit, digits[[0, 1, 1]], labels)
    for seen in (noisy, alike, fedsim.observe(vit, digits, labels - 1)):
        assert LogitErrors.of(problem_of(seen, cpu, count=3), "gradient") is None
        assert known_logits_of(seen, cpu, count=3) is None


def test_rows_that_noise_or_pruning_hides_count_little(vit, image, cpu):
    label = torch.tensor([3])
    clear = LogitErrors.of(problem_of(fedsim.observe(vit, image, label), cpu), "gradient")
    noisy = fedsim.observe(vit, image, label, defense=[GradientNoise(relative_norm=10.0)])
    assert float(LogitErrors.of(problem_of(noisy, cpu), "gradient").weights.max()) < 0.1 * float(clear.weights.min())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_pruned_errors_are_what_the_others_leave(vit, image, cpu, smoothing):
    label, settings = torch.tensor([3]), {"label_smoothing": smoothing}
    clear = fedsim.observe(vit, image, label, **settings)
    pruned = fedsim.observe(vit, image, label, defense=[TopK(0.001, error_feedback=False)], **settings)
    known_logits = known_logits_of(pruned, cpu)
    assert 0 < int((known_logits.errors.error != 0).sum()) < known_logits.errors.error.numel()
    params = known_logits.victim.params
    here, elsewhere = (known_logits.gradient(params, x.double()) for x in (2.0 * image - 1.0, 1.0 - 2.0 * image))
    for name in params:
        assert torch.allclose(here[name], clear.gradient[name].double(), atol=1e-5)
    kept = known_logits.errors.kept
    assert torch.allclose(elsewhere["head.bias"][kept], clear.gradient["head.bias"][kept].double(), atol=1e-6)
    assert abs(float(elsewhere["head.bias"].sum())) < 1e-6
    assert float(known_logits.rows((2.0 * image - 1.0).double()).abs().max()) < 1e-5
    assert float(known_logits.rows((1.0 - 2.0 * image).double()).abs().max()) > 1e-4


def test_without_any_error_it_is_the_clients_own_loss(vit, image, cpu):
    seen = fedsim.observe(vit, image, torch.tensor([3]), defense=[TopK(0.001, error_feedback=False)])
    known = LogitErrors.of(problem_of(seen, cpu), "gradient")
    zero = torch.zeros(1, 1, dtype=torch.float64)
    none = replace(known, error=0.0 * known.error, kept=known.error[0] > 9.0, log_probs=zero, weights=zero)
    scores = torch.randn(1, 10, generator=torch.Generator().manual_seed(0)).double()
    assert float(none.loss(scores) - functional.cross_entropy(scores, torch.tensor([3]))) == pytest.approx(0, abs=1e-6)


def test_behind_a_clipping_defense_nothing_is_eased(vit, image, cpu):
    """The bias's gradient is then the errors times a factor that nobody but the client knows."""
    clipped = fedsim.observe(vit, image, torch.tensor([3]), defense=[{"gradient_clip": {"max_norm": 0.01}}])
    assert known_logits_of(clipped, cpu) is None


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
def test_behind_noise_they_are_joined_by_those_of_public_images(vit, image, cpu, noise):
    """Of one class, whose errors hardly differ at this model."""
    found, labels = load_digits(), torch.from_numpy(load_digits().target)
    public = torch.from_numpy(found.images[1000:] / 16).float()[:, None].expand(-1, *SHAPE[1:])
    true = known_logits_of(fedsim.observe(vit, image, torch.tensor([3])), cpu).errors.error
    spent = []
    for seed in range(10):
        defense = [GradientNoise(relative_norm=noise)] if noise else []
        seen = fedsim.observe(vit, image, torch.tensor([3]), defense=defense, seed=seed)
        alone = known_logits_of(seen, cpu).errors
        joined = known_logits_of(seen.with_public_images(public, labels[1000:]), cpu).errors
        if not noise:
            assert torch.equal(joined.error, alone.error)
            continue
        assert bool((joined.doubts < alone.doubts).all())
        off, sent = float((joined.error - true).norm()), float((alone.error - true).norm())
        assert off < (0.2 if noise == 0.5 else 1.0) * sent
        spent.append(off)
    assert not noise or max(spent) < 0.2


def test_behind_noise_errors_unlike_those_of_public_images_stay_as_they_were_shared(vit, image, cpu):
    """The client's image is no image of the class: its label is another one's."""
    seen = fedsim.observe(vit, image, torch.tensor([3]), defense=[GradientNoise(relative_norm=0.02)])
    sure = {name: tensor.clone() for name, tensor in seen.update.tensors.items()}
    sure["head.bias"] = torch.linspace(-0.5, 0.5, 10)
    wrong = replace(seen, update=replace(seen.update, tensors=sure))
    public = image.expand(20, *SHAPE[1:]) * torch.linspace(0.9, 1.0, 20)[:, None, None, None]
    wrong = wrong.with_public_images(public, torch.full((20,), 3))
    assert torch.allclose(known_logits_of(wrong, cpu).errors.error[0].float(), sure["head.bias"], atol=1e-6)


def test_at_a_trained_model_joined_errors_are_no_worse_than_shared_ones(cpu):
    """Of sixty digits behind noise of the gradient's own norm; some of them the model takes for another class."""
    found = load_digits()
    images = torch.from_numpy(found.images / 16).float()[:, None].expand(-1, *SHAPE[1:])
    labels = torch.from_numpy(found.target)
    torch.manual_seed(0)
    layers = torch.nn.Linear(192, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10)
    model = trained(torch.nn.Sequential(torch.nn.Flatten(), *layers), (images, labels), 150, 3e-3)
    squares = torch.zeros(2, dtype=torch.float64)
    for place in range(60):
        given = images[place : place + 1].contiguous(), labels[place : place + 1]
        true = LogitErrors.of(replace(problem_of(fedsim.observe(model, *given), cpu), labels=given[1]), "gradient")
        seen = fedsim.observe(model, *given, defense=[GradientNoise(relative_norm=1.0)], seed=place)
        problem = replace(problem_of(seen.with_public_images(images[1000:], labels[1000:]), cpu), labels=given[1])
        residual = make_residuals(problem, "gradient", GaussianPrior(), given[1], cpu)[0]
        joined = KnownLogits.of(problem, residual, "gradient", cpu).errors
        shared = LogitErrors.of(problem, "gradient")
        squares += torch.stack([(one.error - true.error).square().sum() for one in (joined, shared)])
    assert float(squares[0]) < 1.2 * float(squares[1])
