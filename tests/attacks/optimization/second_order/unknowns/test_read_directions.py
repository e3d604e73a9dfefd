"""What a narrow model reads of its patches, and searches that vary no more than that."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.optimization import GaussNewton, Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual.residual import make_residuals
from attacks.optimization.second_order.unknowns.read_directions import ReadDirections, _orthonormal
from defenses import GradientNoise, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec
from tests.fedsim.models.test_stated import ROLES, OwnViT

PRIOR = GaussianPrior()
PATCH, WIDTH, TOKENS = 4, 16, 4


@pytest.fixture
def vit():
    """Reads 16 numbers of the 48 of a patch."""
    spec = ModelSpec("vit_nano_patch2_8", 10, 8, PATCH, kwargs={"embed_dim": WIDTH, "depth": 1, "num_heads": 2})
    return Architecture(spec, (), 0).build(keep=True)


@pytest.fixture
def images():
    return PRIOR.draw((2, 3, 8, 8), torch.Generator().manual_seed(1)).float()


def problem_of(seen, cpu):
    return make_problem(
        seen, shared_update(seen, "gradient", cpu), torch.tensor([3, 5])[: seen.num_images], Pixels(), {}, cpu
    )


def read_of(problem, cpu, local="gradient"):
    given = (problem, local, PRIOR, problem.labels, cpu)
    with torch.no_grad():
        return ReadDirections.of(problem, PRIOR, lambda: make_residuals(*given)[-1], lambda _: True, cpu)


def likeliest(seen, vit, image):
    """Of one image [c, h, w] in [0, 1]: μ + CAᵀ(ACAᵀ)⁺A(x - μ), A patch by patch, without the mean of channels."""
    weight, each = vit.patch_embed.proj.weight.detach().double(), torch.eye(192, dtype=torch.float64).view(192, 3, 8, 8)
    weight = weight - weight.mean(dim=0)
    std = torch.tensor(seen.std, dtype=torch.float64).view(1, 3, 1, 1)
    spread = (PRIOR.coloured(each) - PRIOR.coloured(torch.zeros_like(each))).flatten(1)
    C = spread.T @ spread
    rows = []
    for pixel in each / std:
        patches = pixel.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).permute(1, 2, 0, 3, 4).reshape(TOKENS, -1)
        rows.append((patches @ weight.flatten(1).T).flatten())
    A, mean = torch.stack(rows).T, PRIOR.centre((1, 3, 8, 8)).flatten()
    found = mean + C @ A.T @ torch.linalg.pinv(A @ C @ A.T) @ A @ (image.double().flatten() - mean)
    return found.view(3, 8, 8)


@pytest.mark.parametrize("count", [1, 2])
def test_a_point_is_the_likeliest_of_the_images_that_the_model_reads_alike(vit, images, count, cpu):
    seen = fedsim.observe(vit, images[:count], torch.tensor([3, 5])[:count], finetune="lora")
    read = read_of(problem_of(seen, cpu), cpu)
    assert read is not None
    assert read.count == count * TOKENS * (WIDTH - 1)
    point = seen.normalised(images[:count]).flatten()
    z = read.unknowns(point)
    found = seen.to_unit_range(read.point(z).view(count, 3, 8, 8))
    for image, one in zip(images, found, strict=False):
        torch.testing.assert_close(one, likeliest(seen, vit, image), rtol=0.0, atol=1e-9)
    torch.testing.assert_close(read.unknowns(read.point(z)), z, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(read.point(z.float()), read.point(z).float(), rtol=0.0, atol=1e-5)
    scores = [vit.double()(x.view(count, 3, 8, 8)) for x in (point, read.point(z))]
    torch.testing.assert_close(*scores, rtol=0.0, atol=1e-9)


def test_unknowns_are_in_standard_deviations_of_the_prior(vit, images, cpu):
    read = read_of(problem_of(fedsim.observe(vit, images[:1], torch.tensor([3]), finetune="lora"), cpu), cpu)
    z = torch.randn(read.count, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = read.observation.to_unit_range(read.point(z).view(1, 3, 8, 8))
    assert float(PRIOR.whitened(x).norm()) == pytest.approx(float(z.norm()), rel=1e-9)


def test_of_a_patch_projection_that_is_withheld_nothing_more_is_told(vit, images, cpu):
    withheld = Withhold(patterns=["patch_weight"])
    seen = fedsim.observe(vit, images[:1], torch.tensor([3]), defense=[withheld])
    assert read_of(problem_of(seen, cpu), cpu) is not None


def test_steps_that_move_a_withheld_projection_tell_more_than_the_model_reads(vit, images, cpu):
    """The second step reads what the first one made of the patch."""
    withheld = Withhold(patterns=["patch_weight"])
    about = {"share": "weights", "local_steps": 2, "batch_size": 1, "lr": 0.1}
    seen = fedsim.observe(vit, images[:1], torch.tensor([3]), defense=[withheld], **about)
    target = shared_update(seen, "unroll", cpu)
    problem = make_problem(seen, target, torch.tensor([3]), Pixels(), {}, cpu)
    assert read_of(problem, cpu, "unroll") is None


@pytest.mark.parametrize("why", ["shared", "wide", "noise", "given", "rounds"])
def test_pixels_are_varied_where_they_tell_more_or_are_asked_for(vit, images, why, cpu):
    finetune, defense = ("full" if why == "shared" else "lora"), [GradientNoise(std=1e-3)] if why == "noise" else []
    if why == "wide":
        spec = ModelSpec("vit_nano_patch2_8", 10, 8, PATCH, kwargs={"embed_dim": 64, "depth": 1})
        vit = Architecture(spec, (), 0).build(keep=True)
    seen = fedsim.observe(vit, images[:1], torch.tensor([3]), finetune=finetune, defense=defense)
    problem = problem_of(seen, cpu)
    if why == "given":
        problem = replace(problem, start=images[:1])
    if why == "rounds":
        problem = replace(problem, later=(problem,))
    assert read_of(problem, cpu) is None


def test_a_search_ends_at_the_likeliest_image_of_those_that_explain_the_update(vit, images):
    seen = fedsim.observe(vit, images[:1], torch.tensor([3]), defense=[Withhold(patterns=["patch_weight"])])
    result = fedsim.attack(GaussNewton(starts=["mean", "prior"], prior=PRIOR, frames=0), seen)
    assert result.status == "done", result.reason
    assert result.certificate.values["explained"] == 1.0
    expected = likeliest(seen, vit, images[0]).clamp(0, 1)
    assert float((result.images[0].double() - expected).square().mean().sqrt()) < 1e-5
    assert float((images[0].double() - expected).square().mean().sqrt()) > 1e-2


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("sides", [16, 8])
def test_a_module_of_ones_own_is_searched_whether_its_projection_reads_the_image_or_not(sides):
    """The 8 pixels are enlarged before."""
    torch.manual_seed(0)
    model = OwnViT(width=16)
    if sides < 16:
        model = torch.nn.Sequential(torch.nn.Upsample((16, 16)), model)
    stated = {
        role: f"1.{name}" if sides < 16 else name
        for role, name in ROLES.items()
        if role == "patch_weight" or sides == 16
    }
    picture = PRIOR.draw((1, 3, sides, sides), torch.Generator().manual_seed(1)).float()
    seen = fedsim.observe(model, picture, [3], roles=stated, defense=[Withhold(patterns=["patch_weight"])])
    result = fedsim.attack(GaussNewton(starts=["mean"], prior=PRIOR, steps=1, first_order=0, frames=0), seen)
    assert result.status == "done", result.reason


def test_a_projection_that_reads_nothing_leaves_pixels_as_they_are(vit, images, cpu):
    torch.nn.init.zeros_(vit.patch_embed.proj.weight)
    assert read_of(problem_of(fedsim.observe(vit, images[:1], torch.tensor([3]), finetune="lora"), cpu), cpu) is None


def test_more_unknowns_than_fit_are_not_looked_into(vit, images, cpu):
    problem, asked = problem_of(fedsim.observe(vit, images[:1], torch.tensor([3]), finetune="lora"), cpu), []

    def fit(unknowns):
        asked.append(unknowns)
        return False

    assert ReadDirections.of(problem, PRIOR, lambda: pytest.fail("a residual"), fit, cpu) is None
    assert asked == [TOKENS * (WIDTH - 1)]


def test_what_is_read_alike_keeps_its_basis_where_the_machine_rounds_otherwise():
    """Columns of equal lengths and no angles between them, whose singular vectors would be any."""
    rng = torch.Generator().manual_seed(0)
    columns = torch.linalg.qr(torch.randn(40, 10, generator=rng, dtype=torch.float64))[0]
    rounded = columns + 1e-14 * torch.randn(40, 10, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(_orthonormal(rounded), _orthonormal(columns), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(_orthonormal(columns), columns, rtol=0.0, atol=1e-12)
    twice = _orthonormal(torch.cat([columns[:, :1], columns], dim=1))
    assert twice.shape == (40, 10)
    torch.testing.assert_close(twice @ twice.T, columns @ columns.T, rtol=0.0, atol=1e-12)


def test_channels_that_read_nothing_are_left_out(vit, images, cpu):
    with torch.no_grad():
        vit.patch_embed.proj.weight[[2, 5]] = 0.0
    read = read_of(problem_of(fedsim.observe(vit, images[:1], torch.tensor([3]), finetune="lora"), cpu), cpu)
    assert read is not None
    assert read.count == TOKENS * (WIDTH - 2)
