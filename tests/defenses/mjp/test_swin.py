"""MJP on Swin: no class token, patches in a grid, and an embedding that only `swin_ape` has."""

import pytest
import torch

from clients.app import ClientRuntime
from defenses import Batch, ClientRound, MaskedJigsawPuzzle
from defenses.mjp import LOCALISER, UNKNOWN
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.settings.composition import build_data
from tests.defenses.mjp import slow
from tests.support.federation import settings

NAME = "swin_ape_tiny_patch4_window7_224"
KWARGS = {"window_size": 4, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 2]}
SMALL = ModelSpec(NAME, 5, 16, 2, dtype="float64", kwargs=KWARGS)
NAMES = ("pos_embed", UNKNOWN, "patch_embed.proj.weight", "head.fc.weight")


def batch_of(count=3, side=16):
    rng = torch.Generator().manual_seed(1)
    return Batch(torch.randn(count, 3, side, side, generator=rng, dtype=torch.float64), torch.arange(count))


def by_hand(model, images, mask):
    """Token by token: its patch, its own or the unknown embedding."""
    patches, unknown = model.patch_embed(images), model.get_parameter(UNKNOWN)
    rows = []
    for b in range(len(images)):
        row = [
            patches[b, n // 8, n % 8] + (unknown if mask[b][n] else model.pos_embed[0, n]) for n in range(len(mask[b]))
        ]
        rows.append(torch.stack(row).reshape(8, 8, -1))
    return model.forward_head(model.norm(model.layers(torch.stack(rows))))


def test_outputs_and_gradients_are_those_with_the_embedding_put_in_by_hand(rng):
    mjp = MaskedJigsawPuzzle(0.3)
    model = mjp.wrap_model(SMALL.build(0)).eval()
    batch = mjp.transform_batch(batch_of(), rng)
    mask = mjp._pending
    assert mask.shape == (3, 64)
    assert len({tuple(one) for one in mask.tolist()}) == 3
    found = model(batch.images)
    expected = by_hand(model, batch.images, mask.tolist())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found, model(batch.images), rtol=1e-3)  # the mask served one pass
    parameters = [model.get_parameter(name) for name in NAMES]
    grads, wanted = (torch.autograd.grad(out.square().sum(), parameters) for out in (found, expected))
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_localisation_reaches_unmasked_rows_alone(rng):
    mjp = MaskedJigsawPuzzle(0.4, dal="nonlinear", lambda_dal=0.3)
    model = mjp.wrap_model(SMALL.build(0))
    mjp.begin(ClientRound(1, 1))
    batch = mjp.transform_batch(batch_of(1), rng)
    mask = mjp._pending
    loss = mjp.extra_loss(model, batch)
    layers = model.get_submodule(LOCALISER).layers
    torch.testing.assert_close(loss, 0.3 * slow.localisation_loss(layers, model.pos_embed[0], mask.tolist(), (8, 8)))
    (model(batch.images).square().sum() + loss).backward()
    assert not model.pos_embed.grad[0][mask[0]].any()
    assert model.pos_embed.grad[0][~mask[0]].any(dim=1).all()


def test_at_224_pixels_the_grid_is_56_by_56(rng):
    mjp = MaskedJigsawPuzzle(0.27, dal="linear")
    model = mjp.wrap_model(ModelSpec(NAME, 5, kwargs={"depths": [1], "num_heads": [3]}).build(0))
    images, mask = mjp.jigsaw(torch.randn(1, 3, 224, 224, generator=rng), rng)
    assert mask.shape == (1, 56 * 56)
    assert 0.25 < float(mask.double().mean()) <= 0.27
    with mjp.masking(mask):
        assert model(images).shape == (1, 5)
    assert bool(mjp.extra_loss(model, Batch(images, torch.tensor([0]))).isfinite())


def test_a_class_token_cannot_take_the_unknown_embedding():
    with pytest.raises(ConfigError, match="this model adds nothing to its class tokens"):
        MaskedJigsawPuzzle(class_token="unknown").wrap_model(SMALL.build(0))


def test_timms_swin_has_shuffled_patches_only(rng):
    spec = ModelSpec("swin_tiny_patch4_window7_224", 5, 16, 2, dtype="float64", kwargs=KWARGS)
    own = MaskedJigsawPuzzle(0.3, embedding="own")
    own.wrap_model(spec.build(0))
    batch = own.transform_batch(batch_of(), rng)
    assert own._mask.shape == (3, 64)
    assert not torch.equal(batch.images, batch_of().images)
    with pytest.raises(ConfigError, match="learnable absolute position embedding, SwinTransformer has none"):
        MaskedJigsawPuzzle().wrap_model(spec.build(0))


def test_a_configured_client_trains_it():
    model = ("data=digits", "model=swin_ape", "model.img_size=8", "model.patch_size=1")
    small = [f"+model.kwargs.{key}={value}" for key, value in KWARGS.items()]
    config = settings("audit", *model, *small, "defense=[mjp]", "client.share=delta", "audit.batch_size=2")
    client = ClientRuntime(config, build_data(config))
    start = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    client.load(start)
    result = client.train(client.data.train.subset(range(4)), 0, 1)
    shared = client.share(result, start, 4, 0, 1).update.tensors
    assert all(shared[name].any() for name in ("pos_embed", UNKNOWN, "dal.layers.0.weight", "head.fc.weight"))
    assert client.defenses.measurements()["mjp_mask_ratio"] == pytest.approx(0.09, abs=0.02)
