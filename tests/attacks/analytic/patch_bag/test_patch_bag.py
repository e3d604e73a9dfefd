"""Patches without positions: a set by the first MLP, an order by the first attention or the whole gradient."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.analytic.first_block.subspaces import AffineSet
from attacks.analytic.linear.patches import patchify
from attacks.analytic.patch_bag import PatchBag, attack
from attacks.analytic.patch_bag.attack import _bag, _system, _unpatched
from attacks.analytic.patch_bag.attention import pair_logits
from attacks.analytic.patch_bag.block import unplaced_block
from attacks.analytic.patch_bag.order import find_order, order_of_pairs, twins
from attacks.analytic.patch_bag.search import find_tokens
from attacks.analytic.patch_bag.tokens import spanned
from attacks.building import build_attack
from experiments.benchmarks.backbones import photograph
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec
from tests.attacks.test_attack_conf import loaded

CPU = torch.device("cpu")
SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2, "init_values": 0.1}
ROTARY, RELATIVE = "vit_small_patch16_dinov3", "beit_base_patch16_224"


def model(name, side=24, **kwargs):
    return ModelSpec(name, 10, img_size=side, patch_size=8, dtype="float64", kwargs={**SMALL, **kwargs}).build(0)


@pytest.fixture(scope="module")
def image():
    return photograph()


@pytest.fixture(scope="module")
def small(image):
    """Four patches of it, which take a third of the time of nine."""
    return image[..., 4:20, 4:20].contiguous()


@pytest.fixture(scope="module")
def seen(image):
    return fedsim.observe(model(ROTARY), image, [3])


@pytest.fixture(scope="module")
def found(seen):
    return run(seen)


def patches_of(seen, image):
    return patchify(seen.normalised(image), seen.roles.patch)


def run(seen, **settings):
    return PatchBag(**settings)(seen, torch.Generator().manual_seed(0), CPU)


def test_the_image_comes_back_in_its_order(image, small, found):
    relative = run(fedsim.observe(model(RELATIVE, 16), small, [3]))
    for result, own in ((found, image), (relative, small)):
        assert result.certificate.certified, result.certificate
        torch.testing.assert_close(result.images.double(), own.double(), rtol=0, atol=1e-6)


def test_linear_conditions_leave_every_mean_of_patches(seen, image):
    """Why the first MLP is needed: mixtures satisfy all row spaces before it, and no row space of its output."""
    system, true = _system(seen, CPU), patches_of(seen, image)
    mixed = true.mean(dim=0, keepdim=True)

    def off(allowed: AffineSet, patch):
        away = patch - allowed.base
        return float((away - away @ allowed.directions @ allowed.directions.T).norm() / patch.norm())

    assert off(system.tokens.patches, mixed) < 1e-8
    assert system.free == len(true) - 1
    weights = torch.rand(len(true), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = _tokens(system, seen, image)
    coordinates = (tokens - system.tokens.tokens.base) @ system.tokens.tokens.directions
    assert float(system.relative(coordinates).max()) < 1e-9
    assert float(system.relative((weights / weights.sum() @ coordinates)[None])) > 1e-3


def _tokens(system, seen, image):
    block = system.block
    read = block.forward(seen.normalised(image))[0][0]
    return patches_of(seen, image) @ block.norm.patch_weight.T + block.norm.known + read @ block.weight.T + block.bias


def test_what_the_first_block_read_spans_its_gradients(seen, image):
    """W_1 of a pre-norm block, against the model's own forward pass, and what a layer scale leaves of the attention."""
    block = unplaced_block(seen, CPU)
    module = block.module
    own = {}
    hook = module.register_forward_hook(lambda _, inputs, output: own.update(z=inputs[0], out=output))
    block.model.forward_features(seen.normalised(image))
    hook.remove()
    z = own["z"][0, block.norm.prefix_tokens :]
    torch.testing.assert_close(z, patches_of(seen, image) @ block.norm.patch_weight.T + block.norm.known)
    middle = _tokens(_system(seen, CPU), seen, image)
    after = middle + module.gamma_2 * module.mlp(module.norm2(middle))
    torch.testing.assert_close(after, own["out"][0, block.norm.prefix_tokens :])


def test_the_jacobian_is_the_derivative(seen):
    system = _system(seen, CPU)
    x = torch.randn(2, system.free, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = torch.zeros_like(x)
    step[:, 3] = 1e-6
    slope = (system.residual(x + step)[0] - system.residual(x - step)[0]) / 2e-6
    torch.testing.assert_close(slope, system.jacobian(x)[..., 3], rtol=1e-5, atol=1e-8)


def test_the_true_order_costs_nothing_in_pairs(seen, image):
    block, patches = unplaced_block(seen, CPU), patches_of(seen, image)
    shuffled = torch.randperm(len(patches), generator=torch.Generator().manual_seed(1))
    outputs = block.forward(seen.normalised(image))[0][0][shuffled]

    def picture(some):
        return torch.cat([_unpatched(seen, one) for one in some])

    costs = pair_logits(block, patches[shuffled], outputs, picture).costs()
    rows = torch.arange(len(patches))
    right = costs[rows[:, None], rows, shuffled[:, None], shuffled]
    assert float(right.max()) < 1e-12 < 1e-6 < float(costs.flatten(2).amax(dim=2).min())
    assert torch.equal(order_of_pairs(costs), torch.argsort(shuffled))


def test_exchanges_and_replacements_find_an_order_with_repeats():
    hidden = torch.tensor([0, 1, 1, 2, 0])
    found, error = find_order([torch.zeros(5, dtype=torch.long)], 3, lambda some: (some != hidden).sum(dim=1).double())
    assert torch.equal(found, hidden)
    assert error == 0.0


def test_no_position_at_all_leaves_the_order_open(small, monkeypatch):
    """The patches that it found are looked at, beside the image that it makes of them."""
    tokens = []

    def searched(*given):
        found = find_tokens(*given)
        tokens.append(found[0])
        return found

    monkeypatch.setattr(attack, "find_tokens", searched)
    without = fedsim.observe(model("vit_base_patch16_224", 16, pos_embed="none"), small, [3])
    removed = fedsim.observe(model("vit_base_patch16_224", 16), small, [3], defense=["no_pe"])
    for seen in (without, removed):
        result = run(seen)
        assert "up to their order" in result.certificate.reason
        assert not result.certificate.certified
        assert result.certificate.values["patches_found"] == 1.0
        true = patches_of(seen, small)
        found = patches_of(seen, PatchBag()._image(seen, _bag(_system(seen, CPU), tokens[-1]).patches)[0])
        assert float(torch.cdist(true, found).amin(dim=1).max()) < 1e-5


def turned_alike():
    """A model whose relative positions are the same upside down."""
    kwargs = {"depth": 2, "embed_dim": 48, "num_heads": 2}
    alike = ModelSpec(RELATIVE, 5, img_size=16, patch_size=8, kwargs=kwargs).build(0)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for block in alike.blocks:
            table = block.attn.relative_position_bias_table
            table[:9] = torch.randn(9, table.shape[1], generator=rng)
            table[:9] += table[:9].flip(0).clone()
    return alike


@pytest.mark.parametrize("told", [True, False])
def test_an_image_upside_down_is_not_certified_where_the_first_block_reads_both_alike(told):
    """Exchanges of two places led to one of them, whose next best was far off: 8 dB were certified as 88."""
    image = torch.randint(0, 256, (1, 3, 16, 16), generator=torch.Generator().manual_seed(0)) / 255
    withheld = [] if told else [{"withhold": {"patterns": ["*relative_position_bias_table"]}}]
    result = fedsim.attack("patch_bag", fedsim.observe(turned_alike(), image, [2], defense=withheld))
    assert result.certificate.certified is told
    if told:
        torch.testing.assert_close(result.images.double(), image.double(), rtol=0, atol=1e-4)
    else:
        assert result.certificate.reason.startswith("the patches up to their order")


def test_twins_have_the_same_neighbours():
    order = torch.arange(4)
    assert {tuple(one) for one in twins(order, (2, 2)).tolist()} >= {(3, 2, 1, 0), (1, 0, 3, 2), (2, 0, 3, 1)}
    assert (1, 2, 0, 4, 5, 3) in {tuple(one) for one in twins(torch.arange(6), (2, 3)).tolist()}
    assert len(twins(torch.zeros(4, dtype=torch.long), (2, 2))) == 0


def test_patches_that_are_alike_count_once(small):
    blank = small.clone()
    blank[..., :8, :] = 1.0
    seen = fedsim.observe(model("vit_base_patch16_224", 16, pos_embed="none"), blank, [3])
    assert _system(seen, CPU).distinct == 3
    placed = run(fedsim.observe(model(ROTARY, 16), blank, [3]))
    torch.testing.assert_close(placed.images.double(), blank.double(), rtol=0, atol=1e-6)


def test_a_span_has_the_dimensions_that_stand_out():
    rng = torch.Generator().manual_seed(0)
    low = torch.randn(40, 3, generator=rng, dtype=torch.float64) @ torch.randn(
        3, 20, generator=rng, dtype=torch.float64
    )
    assert len(spanned(low, 8).basis) == 3
    assert len(spanned(torch.randn(40, 20, generator=rng, dtype=torch.float64), 8).basis) == 8


def test_the_same_seed_gives_the_same_bits(seen, found):
    assert torch.equal(found.images, run(seen).images)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda image: fedsim.observe(model("vit_base_patch16_siglip_224"), image, [3]), "position embedding is added"),
        (lambda image: fedsim.observe(model(ROTARY), image.repeat(2, 1, 1, 1), [3, 4]), "2 images behind the update"),
        (
            lambda image: fedsim.observe(model(ROTARY), image, [3], share="delta", lr=0.1, local_steps=3),
            "3 local steps: the row spaces are those of one",
        ),
        (lambda image: fedsim.observe(model(ROTARY, depth=1), image, [3]), "one block alone"),
        (lambda image: fedsim.observe(model(ROTARY, embed_dim=12, num_heads=3), image, [3]), "14 tokens >= width 12"),
        (
            lambda image: fedsim.observe(model(ROTARY, use_post_norm=True), image, [3]),
            "EvaBlockPostNorm is no pre-norm block",
        ),
    ],
)
def test_refusals(change, reason, image):
    result = fedsim.attack("patch_bag", change(image))
    assert result.status == "refused"
    assert reason in result.reason


def test_a_withheld_gradient_is_named(seen):
    tensors = {name: tensor for name, tensor in seen.update.tensors.items() if "mlp.fc2" not in name}
    held = replace(seen, update=replace(seen.update, tensors=tensors))
    with pytest.raises(NotApplicable, match=r"blocks\.0\.mlp\.fc2\.weight"):
        run(held)


@pytest.mark.parametrize(("name", "attack"), [(ROTARY, "patch_bag"), ("vit_small_patch16_224", "first_block")])
def test_norms_and_biases_are_not_asked_for(name, attack, small):
    withheld = {"withhold": {"patterns": ["blocks.0.norm*", "blocks.0.*.bias"]}}
    held = fedsim.observe(model(name, 16), small, [3], defense=[withheld])
    assert {"blocks.0.norm2.weight", "blocks.0.mlp.fc2.bias"} <= set(held.update.withheld)
    build_attack(attack, loaded(attack)).check(held)


def test_settings_have_ranges():
    with pytest.raises(ConfigError, match=r"attack\.patch_bag\.starts=0: must be 1 or more"):
        PatchBag(starts=0)
