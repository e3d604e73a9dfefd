"""A start that leaves open which patch is where."""

import pytest
import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer

import fedsim
from attacks.analytic.linear.patches import patchify, unpatchify
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual import make_residuals
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from attacks.optimization.second_order.warm_start.soft_permutation import SoftPermutation
from defenses import Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec

SHAPE = (1, 3, 8, 8)


@pytest.fixture
def image():
    return torch.from_numpy(load_digits().images[:1] / 16).float()[:, None].expand(SHAPE).contiguous()


def order_of(seen, cpu, count=1):
    labels = torch.arange(count)
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    residual = make_residuals(problem, "gradient", GaussianPrior(), labels, cpu)[0]
    known_logits = KnownLogits.of(problem, residual, "gradient", cpu)
    return None if known_logits is None else SoftPermutation.of(known_logits, seen.roles)


@pytest.fixture
def seen(image):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    return fedsim.observe(vit, image, torch.tensor([0]))


@pytest.fixture
def shuffled(seen, image, rng):
    """The image's patches in another order, with the positions that they belong to."""
    order = torch.randperm(16, generator=rng)
    patches = patchify(seen.normalised(image.double()), (2, 2))[order]
    return torch.cat([unpatchify(patches, (4, 4), (2, 2)).flatten(), torch.eye(16).double()[order].flatten()])


def test_every_order_of_the_right_patches_solves_it(seen, image, shuffled, cpu):
    order = order_of(seen, cpu)
    free, x = order.free(SHAPE), seen.normalised(image.double()).flatten()
    wrong = order.begin(shuffled[: x.numel()])
    assert float(free(order.begin(x)).square().sum()) < 1e-9
    assert float(free(shuffled).square().sum()) < 1e-9
    assert float(free(wrong).square().sum()) > 1e-3
    assert seen.roles.pos_embed not in free.names
    assert seen.roles.patch_weight in free.names


def test_patches_go_to_where_their_positions_belong(seen, image, shuffled, cpu):
    found = order_of(seen, cpu).placed(shuffled, SHAPE)
    assert torch.allclose(found, seen.normalised(image.double()).flatten(), atol=1e-10)


def test_positions_that_are_a_little_off_are_taken_for_the_nearest(seen, image, shuffled, rng, cpu):
    noise = torch.cat([torch.zeros(192), 0.05 * torch.randn(256, generator=rng)]).double()
    found = order_of(seen, cpu).placed(shuffled + noise, SHAPE)
    assert float((found - seen.normalised(image.double()).flatten()).abs().max()) < 0.5


def test_an_image_that_its_patches_do_not_cover_stays_as_it_was_found(rng, cpu):
    torch.manual_seed(0)
    model = VisionTransformer(9, 2, embed_dim=24, depth=1, num_heads=1, num_classes=10)
    order = order_of(fedsim.observe(model, torch.rand(1, 3, 9, 9), torch.tensor([0])), cpu)
    x = torch.rand(243, generator=rng).double()
    assert torch.equal(order.placed(order.begin(x), (1, 3, 9, 9)), x)


def test_it_is_for_one_image_with_an_embedded_position_for_each_patch(seen, image, cpu):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    assert order_of(fedsim.observe(plain, image, torch.tensor([0])), cpu) is None
    vit = seen.build_model()
    pair = fedsim.observe(vit, image.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    assert order_of(pair, cpu, count=2) is None
    places_alone = Withhold(["cls_token", "patch_embed.*", "blocks.*", "norm.*", "head.*"])
    assert order_of(fedsim.observe(vit, image, torch.tensor([0]), defense=[places_alone]), cpu) is None
    wide = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 12}), (), 0)
    assert order_of(fedsim.observe(wide.build(keep=True), image, torch.tensor([0])), cpu) is None
