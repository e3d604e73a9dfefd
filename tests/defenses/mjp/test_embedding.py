import copy

import pytest
import torch

from defenses import Batch, MaskedJigsawPuzzle
from defenses.mjp import UNKNOWN
from fedsim.models import ModelSpec
from tests.defenses.mjp import slow

VITS = {
    "vit": ModelSpec("vit_tiny_patch16_224", 5, 32, 8, dtype="float64", kwargs={"depth": 2}),
    "distilled": ModelSpec("deit_tiny_distilled_patch16_224", 5, 32, 8, dtype="float64", kwargs={"depth": 2}),
    "no_embed_class": ModelSpec("deit3_small_patch16_224", 5, 32, 8, dtype="float64", kwargs={"depth": 2}),
    "registers": ModelSpec("vit_tiny_patch16_224", 5, 32, 8, dtype="float64", kwargs={"depth": 1, "reg_tokens": 2}),
}
OTHERS = {
    "eva": ModelSpec("vit_small_patch16_rope_ape_224", 5, 32, 8, dtype="float64", kwargs={"depth": 1}),
    "beit": ModelSpec(
        "beit_base_patch16_224",
        5,
        32,
        8,
        dtype="float64",
        kwargs={"depth": 1, "embed_dim": 96, "use_abs_pos_emb": True},
    ),
    "cait": ModelSpec("cait_xxs24_224", 5, 32, 8, dtype="float64", kwargs={"depth": 1}),
    "convit": ModelSpec("convit_tiny", 5, 32, 8, dtype="float64", kwargs={"depth": 1, "use_pos_embed": True}),
}


def pictures(count=3):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def masks(count=3):
    return torch.rand(count, 16, generator=torch.Generator().manual_seed(2)) < 0.3


def wrapped(spec, **settings):
    mjp = MaskedJigsawPuzzle(0.3, **settings)
    return mjp, mjp.wrap_model(spec.build(0)).eval()


@pytest.mark.parametrize("name", VITS)
def test_tokens_and_gradients_are_those_of_a_loop_over_positions(name):
    mjp, model = wrapped(VITS[name])
    images, mask = pictures(), masks()
    prefixes = [getattr(model, part, None) for part in ("cls_token", "dist_token")]
    prefixes = [token for token in prefixes if token is not None]
    if name == "registers":
        prefixes += [model.reg_token[:, i : i + 1] for i in range(2)]
    unknown = model.get_parameter(UNKNOWN)

    def gradients(features):
        loss = features.square().sum()
        names = ("pos_embed", UNKNOWN, "cls_token", "patch_embed.proj.weight")
        return loss, torch.autograd.grad(loss, [model.get_parameter(n) for n in names], allow_unused=True)

    with mjp.masking(mask):
        found, grads = gradients(model.forward_features(images))
    tokens = slow.tokens_of(model, images, mask.tolist(), unknown, prefixes, name != "no_embed_class")
    expected, wanted = gradients(model.norm(model.blocks(tokens)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*VITS, *OTHERS])
def test_masked_rows_get_no_gradient_and_the_unknown_one_theirs(name):
    mjp, model = wrapped((VITS | OTHERS)[name])
    with mjp.masking(masks()[:1]):
        model(pictures(1)).square().sum().backward()
    gradient = model.pos_embed.grad[0, -16:]
    mask = masks()[0]
    assert not gradient[mask].any()
    assert gradient[~mask].any(dim=1).all()
    total = gradient.sum(dim=0) + model.get_parameter(UNKNOWN).grad
    torch.testing.assert_close(total, model.patch_embed.proj.bias.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*VITS, *OTHERS])
def test_without_a_mask_it_is_the_stock_model_bit_by_bit(name):
    spec = (VITS | OTHERS)[name]
    mjp, model = wrapped(spec)
    stock = spec.build(0).eval()
    assert torch.equal(model(pictures()), stock(pictures()))
    with mjp.masking(masks()):
        assert not torch.equal(model(pictures()), stock(pictures()))
    with mjp.masking(torch.zeros(3, 16, dtype=torch.bool)):
        assert torch.equal(model(pictures()), stock(pictures()))
    assert torch.equal(model(pictures()), stock(pictures()))


def test_masked_positions_are_alike_to_the_model():
    """The order of masked patches is nowhere in what the model sees."""
    mjp, model = wrapped(VITS["vit"])
    mask = masks(1)
    order = torch.arange(16)
    order[mask[0]] = order[mask[0]].flip(0)
    patches = pictures(1).unfold(2, 8, 8).unfold(3, 8, 8).flatten(2, 3)
    other = patches[:, :, order].unflatten(2, (4, 4)).permute(0, 1, 2, 4, 3, 5).reshape(1, 3, 32, 32)
    assert not torch.equal(other, pictures(1))
    with mjp.masking(mask):
        torch.testing.assert_close(model(pictures(1)), model(other), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(model(pictures(1)), model(other), rtol=1e-3)


def test_class_tokens_may_take_the_unknown_one():
    mjp, model = wrapped(VITS["vit"], class_token="unknown")
    mask = masks()
    mask[1] = False
    own, _ = MaskedJigsawPuzzle(0.3), None
    reference = own.wrap_model(VITS["vit"].build(0)).eval()
    with mjp.masking(mask), own.masking(mask):
        found, expected = model(pictures()), reference(pictures())
        changed = (found != expected).any(dim=1)
    assert changed.tolist() == [True, False, True]
    with torch.no_grad():
        reference.pos_embed[0, 0] = reference.get_parameter(UNKNOWN)
    with own.masking(mask):
        torch.testing.assert_close(found[[0, 2]], reference(pictures())[[0, 2]])


def test_index_embeddings_go_to_every_token_in_every_pass():
    mjp, model = wrapped(VITS["vit"], embedding="indexed")
    stock = VITS["vit"].build(0).eval()
    assert torch.equal(model(pictures()), stock(pictures()))  # zeros at first
    with torch.no_grad():
        model.index_embed.copy_(torch.randn(model.index_embed.shape, generator=torch.Generator().manual_seed(3)))
        stock.pos_embed.add_(model.index_embed)
    torch.testing.assert_close(model(pictures()), stock(pictures()))
    with mjp.masking(masks()):
        torch.testing.assert_close(model(pictures()), stock(pictures()))
    model(pictures()).sum().backward()
    assert torch.equal(model.index_embed.grad, model.pos_embed.grad)


def test_the_parameter_is_in_place_again_after_a_failure():
    mjp, model = wrapped(VITS["vit"])
    own = model.pos_embed
    with mjp.masking(masks()), pytest.raises(AssertionError, match="height"):
        model(torch.zeros(3, 3, 30, 30, dtype=torch.float64))
    assert model.pos_embed is own
    with mjp.masking(masks()), pytest.raises(RuntimeError, match="masked 3 pictures and the model was given 2"):
        model(pictures(2))
    assert dict(model.named_parameters())["pos_embed"] is own


def test_functional_calls_and_copies_are_masked_too():
    mjp, model = wrapped(VITS["vit"])
    twin = copy.deepcopy(model)
    parameters = {name: p.detach() * 1.1 for name, p in model.named_parameters()}
    with mjp.masking(masks()):
        expected = torch.func.functional_call(model, parameters, (pictures(),))
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.copy_(parameters[name])
    with mjp.masking(masks()):
        assert torch.equal(twin(pictures()), expected)
    assert not torch.equal(twin(pictures()), expected)
    assert torch.equal(model(pictures()), wrapped(VITS["vit"])[1](pictures()))


def test_a_mask_serves_one_forward_pass_of_its_batch(rng):
    mjp, model = wrapped(VITS["vit"])
    stock = VITS["vit"].build(0).eval()
    batch = mjp.transform_batch(Batch(pictures(), torch.arange(3)), rng)
    assert not torch.equal(model(batch.images), stock(batch.images))
    assert torch.equal(model(batch.images), stock(batch.images))
