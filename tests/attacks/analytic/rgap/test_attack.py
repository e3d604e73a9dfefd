"""R-GAP end to end on small chains: exact where every layer has its equations, honest where not."""

from dataclasses import replace

import pytest
import torch

from attacks.analytic.rgap.attack import RGap, gradient_mismatch
from attacks.analytic.rgap.chain import layer_chain
from attacks.building import build_attack
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec
from tests.attacks.test_attack_conf import loaded

LAYERS = [[12, 4, 2, 2], [20, 3, 2, 1], [24, 3, 1, 1]]


def cnn(side=12, **kwargs):
    return ModelSpec("cnn_rgap_32", 10, img_size=side, kwargs={"layers": LAYERS, **kwargs})


def run(observation, cpu, **settings):
    return RGap(**settings)(observation, torch.Generator().manual_seed(0), cpu)


def rebuilt(observation, cpu):
    """Without its certificate, whose Jacobian takes longer."""
    return RGap().run(observation, torch.Generator().manual_seed(0), cpu).images


@pytest.fixture
def picture(tools):
    return (tools.photographs(12)[:1] * 255).round() / 255


@pytest.mark.parametrize("activation", ["leaky_relu", "tanh"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_small_cnn_gives_its_picture(activation, bias, picture, tools, cpu):
    found = run(tools.observe(cnn(activation=activation, bias=bias), picture, [6]), cpu, levels=None)
    assert tools.psnr(found.images, picture) > 80
    assert found.labels.tolist() == [6]
    assert found.certificate.certified, found.certificate.reason
    assert abs(min(found.certificate.values["expected_psnr"], 150) - tools.psnr(found.images, picture)) < 15


def test_whole_levels_are_the_truth(picture, tools, cpu):
    assert tools.psnr(rebuilt(tools.observe(cnn(), picture, [6]), cpu), picture) > 250


@pytest.mark.parametrize("activation", ["leaky_relu", "sigmoid"])
def test_an_mlp_without_biases(activation, picture, tools, cpu):
    spec = ModelSpec("mlp_32", 10, img_size=12, kwargs={"hidden": [60, 30], "activation": activation, "bias": False})
    found = run(tools.observe(spec, picture, [2]), cpu, levels=None)
    assert tools.psnr(found.images, picture) > 100
    assert found.certificate.status in ("certified", "uncertified")


def test_dlgs_lenet(picture, tools, cpu):
    observation = tools.observe(ModelSpec("lenet_dlg_32", 10, img_size=12), picture, [2])
    assert tools.psnr(rebuilt(observation, cpu), picture) > 60


def test_a_delta(picture, tools, cpu):
    found = run(tools.observe(cnn(), picture, [6], lr=0.1), cpu, levels=None)
    assert tools.psnr(found.images, picture) > 50


def test_too_few_equations_are_named_and_never_certified(picture, tools, cpu):
    narrow = cnn(layers=[[2, 3, 2, 1], [20, 3, 1, 1]])
    found = run(tools.observe(narrow, picture, [6]), cpu)
    assert not found.certificate.certified
    assert "rank-deficient" in found.certificate.reason
    assert "of body.0's input" in found.certificate.reason
    assert found.certificate.values["missing"] > 0


def test_a_random_gradient_gives_nothing(picture, tools, cpu):
    found = run(tools.random_gradient(tools.observe(cnn(), picture, [6])), cpu)
    assert tools.psnr(found.images, picture) < 15
    assert not found.certificate.certified


def test_the_mismatch_is_zero_at_the_truth_alone(picture, tools):
    observation = tools.observe(replace(cnn(), dtype="float64"), picture, [6])
    model, seen = observation.build_model(), (picture[0] - 0.5) / 0.5
    assert gradient_mismatch(model, observation.gradient, seen, 6) < 1e-12
    assert gradient_mismatch(model, observation.gradient, seen, 5) > 0.5
    assert gradient_mismatch(model, observation.gradient, seen + 0.1, 6) > 1e-3


def test_the_same_bits_again(picture, tools, cpu):
    observation = tools.observe(cnn(), picture, [6])
    assert torch.equal(rebuilt(observation, cpu), rebuilt(observation, cpu))


@pytest.mark.parametrize("spoilt", [True, False])
def test_a_bias_that_is_not_read_may_be_missing_or_spoilt(spoilt, picture, tools, cpu):
    observation = tools.observe(cnn(bias=True), picture, [6])
    tensors, bias = observation.update.tensors, "body.0.bias"
    given = {name: tensor for name, tensor in tensors.items() if name != bias}
    given |= {bias: torch.full_like(tensors[bias], torch.nan)} if spoilt else {}
    found = run(replace(observation, update=replace(observation.update, tensors=given)), cpu)
    assert tools.psnr(found.images, picture) > 100
    assert found.certificate.certified != spoilt, "what was spoilt does not come out the same again"


def test_a_classifiers_bias_that_was_not_trained_is_not_read(picture, tools, cpu):
    observation = tools.observe(cnn(bias=True), picture, [6])
    tensors = {**observation.update.tensors, "fc.bias": torch.zeros(10)}
    found = RGap().run(
        replace(observation, update=replace(observation.update, tensors=tensors)), torch.Generator().manual_seed(0), cpu
    )
    assert found.labels.tolist() == [6]
    assert tools.psnr(found.images, picture) > 100


def test_a_parameter_that_no_output_reads_has_a_gradient_of_zero(picture, tools):
    observation = tools.observe(replace(cnn(), dtype="float64"), picture, [6])
    model = observation.build_model()
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    gradient = {**observation.gradient, "unused": torch.zeros(3, dtype=torch.float64)}
    assert gradient_mismatch(model, gradient, (picture[0] - 0.5) / 0.5, 6) < 1e-12


def test_refusals(picture, tools, cpu):
    with pytest.raises(NotApplicable, match=r"ReLU.*no invertible"):
        run(tools.observe(cnn(activation="relu"), picture, [6]), cpu)
    with pytest.raises(NotApplicable, match="2 images behind the update: at most 1 can be served"):
        run(tools.observe(cnn(), tools.photographs(12), [6, 1]), cpu)
    pair = tools.observe(cnn(), tools.photographs(12), [6, 1])
    two_steps = replace(pair, protocol=replace(pair.protocol, batch_size=1, steps=2))
    with pytest.raises(NotApplicable, match="2 images behind the update: at most 1 can be served"):
        run(two_steps, cpu)
    with pytest.raises(NotApplicable, match="does not read the output"):
        run(tools.observe(ModelSpec("vit_nano_patch2_8", 10), tools.photographs(8)[:1], [0]), cpu)
    observation = tools.observe(cnn(), picture, [6])
    tensors = {name: tensor for name, tensor in observation.update.tensors.items() if name != "body.2.weight"}
    with pytest.raises(NotApplicable, match=r"body\.2\.weight's gradient is withheld by the client"):
        run(replace(observation, update=replace(observation.update, tensors=tensors)), cpu)
    tensors = {**observation.update.tensors, "fc.weight": torch.zeros_like(observation.update.tensors["fc.weight"])}
    with pytest.raises(NotApplicable, match="did not learn"):
        run(replace(observation, update=replace(observation.update, tensors=tensors)), cpu)
    with pytest.raises(ConfigError, match=r"attack\.rgap\.levels"):
        RGap(levels=0)


def test_images_whose_matrices_fill_the_memory_are_refused_before_any_is_made(tools):
    def seen(side):
        image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        return tools.observe(ModelSpec("lenet_dlg_32", 10, img_size=side), image, [2])

    RGap().check(seen(64))
    with pytest.raises(NotApplicable, match=r"body\.0's equations are a matrix of 6\.1 GB: 1\.6 GB at most"):
        RGap().check(seen(96))


def test_the_file_builds_it():
    assert isinstance(build_attack("rgap", loaded("rgap")), RGap)


def test_the_published_network_is_a_chain(tools):
    observation = tools.observe(ModelSpec("cnn_rgap_32", 10), tools.detailed(1, 32), [0])
    assert len(layer_chain(observation.build_model(), observation.image_shape)) == 7


def test_two_classes_without_a_bias_leave_a_twin(tools, cpu):
    spec = replace(cnn(), num_classes=2)
    faint = 0.5 + 0.05 * (tools.photographs(12)[:1] - 0.5)
    found = run(tools.observe(spec, faint, [1]), cpu)
    assert not found.certificate.certified
    assert "twin" in found.certificate.reason or "off" in found.certificate.reason
