import math

import pytest
import torch

from defenses import Batch, ClientRound, MaskedJigsawPuzzle
from defenses.mjp import LOCALISER
from defenses.mjp.localisation import Localiser, Weight, grid_coordinates, principal_directions, unmasked_share
from fedsim.models import ModelSpec
from tests.defenses.mjp import slow

GRID = (4, 3)
HEADS = ("linear", "nonlinear", "nonlinear3")
SPEC = ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 1})


def embedding():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(12, 10, generator=rng, dtype=torch.float64).requires_grad_()


def masks():
    """Of three pictures; positions 0 and 7 are masked in all, the second picture has nothing else."""
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(2)) < 0.4
    mask[1] = False
    mask[:, [0, 7]] = True
    return mask


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("unit", [False, True])
def test_loss_and_gradients_are_those_of_a_loop(head, unit):
    localiser, rows = Localiser(head, 10, GRID, unit).double(), embedding()
    parameters = [rows, *localiser.parameters()]
    found = localiser(rows, unmasked_share(masks()))
    expected = slow.localisation_loss(localiser.layers, rows, masks().tolist(), GRID, unit)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("head", [*HEADS, "pca"])
def test_its_gradient_reaches_unmasked_embeddings_only(head):
    rows = embedding()
    Localiser(head, 10, GRID).double()(rows, unmasked_share(masks())).backward()
    masked = masks().all(dim=0)
    assert masked.nonzero()[:, 0].tolist() == [0, 7]
    assert not rows.grad[masked].any()
    assert rows.grad[~masked].any(dim=1).all()


def test_weights_of_the_heads():
    shapes = {head: [tuple(p.shape) for p in Localiser(head, 10, GRID).parameters()] for head in (*HEADS, "pca")}
    out, hidden = [(2, 10), (2,)], [(10, 10), (10,)]
    assert shapes == {"linear": out, "nonlinear": hidden + out, "nonlinear3": hidden + hidden + out, "pca": []}
    first, second = (Localiser("nonlinear", 10, GRID).state_dict() for _ in range(2))
    assert list(first) == ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_building_it_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    Localiser("nonlinear", 10, GRID)
    assert torch.equal(torch.get_rng_state(), before)


def test_coordinates():
    rows, columns = grid_coordinates((2, 3)).T.tolist()
    assert rows == [0, 0, 0, 1, 1, 1]
    assert columns == [0, 1, 2, 0, 1, 2]
    assert grid_coordinates((2, 4), unit=True)[-1].tolist() == [0.5, 0.75]


def test_principal_directions_are_those_of_an_exact_decomposition():
    rng = torch.Generator().manual_seed(3)
    scales = torch.tensor([9.0, 5.0, 0.5, 0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    rows = torch.randn(60, 7, generator=rng, dtype=torch.float64) * scales + 1.0
    found = principal_directions(rows)
    exact = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)[2][:2].T
    torch.testing.assert_close((found * exact).sum(dim=0).abs(), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.T @ found, torch.eye(2, dtype=torch.float64))
    assert ((rows @ found).mean(dim=0) > 0).all()
    assert torch.equal(found, principal_directions(rows))


@pytest.mark.parametrize("head", [*HEADS, "pca"])
def test_mixed_precision_leaves_it_as_it_is(head):
    """Of bfloat16 no QR decomposition exists on CUDA."""
    localiser, rows, share = Localiser(head, 10, GRID), embedding().detach().float(), unmasked_share(masks())
    expected = localiser(rows, share)
    with torch.autocast("cpu", torch.bfloat16):
        found = localiser(rows, share)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_the_schedule():
    """The released code's: up to 0.01 in 20, then by cosine to 0.005 in 280."""
    weight = Weight(0.01, 20, 280, 0.005)
    expected = {0: 0.0, 5: 0.0025, 20: 0.01, 160: 0.0075, 300: 0.005, 999: 0.005}
    for server_round, value in expected.items():
        assert weight.at(server_round) == pytest.approx(value)
    assert weight.at(90) == pytest.approx(0.005 + 0.0025 * (1 + math.cos(math.pi / 4)))
    assert {Weight(0.02).at(server_round) for server_round in (0, 1, 500)} == {0.02}
    assert Weight(0.02, 4).at(2) == 0.01


def test_as_an_extra_loss_of_the_batch_at_hand(rng):
    mjp = MaskedJigsawPuzzle(0.4, dal="nonlinear", lambda_dal=0.3, lambda_warmup_rounds=10, per="batch")
    model = mjp.wrap_model(SPEC.build(0))
    mjp.begin(ClientRound(5, 2))
    batch = mjp.transform_batch(Batch(torch.randn(2, 3, 32, 32), torch.arange(2)), rng)
    mask = mjp._pending
    model(batch.images)
    loss = mjp.extra_loss(model, batch)
    layers = model.get_submodule(LOCALISER).layers
    expected = slow.localisation_loss(layers, model.pos_embed[0, 1:], mask.tolist(), (4, 4))
    torch.testing.assert_close(loss, 0.15 * expected)
    assert mjp.measurements()["dal_loss"] == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {"pos_embed", *(f"dal.layers.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias"))}
    gradient = model.pos_embed.grad[0]
    assert not gradient[0].any()
    assert not gradient[1:][mask[0]].any()
    assert gradient[1:][~mask[0]].any(dim=1).all()


def test_without_a_mask_all_positions_are_localised():
    mjp = MaskedJigsawPuzzle(0.4, dal="linear", start_round=3, lambda_dal=1.0)
    model = mjp.wrap_model(SPEC.build(0))
    batch = mjp.transform_batch(Batch(torch.randn(2, 3, 32, 32), torch.arange(2)), torch.Generator())
    expected = slow.localisation_loss(
        model.get_submodule(LOCALISER).layers, model.pos_embed[0, 1:], [[False] * 16], (4, 4)
    )
    torch.testing.assert_close(mjp.extra_loss(model, batch), expected)


def test_where_everything_is_masked_there_is_nothing_to_localise(rng):
    mjp = MaskedJigsawPuzzle(1.0, dal="linear")
    model = mjp.wrap_model(SPEC.build(0))
    batch = mjp.transform_batch(Batch(torch.randn(2, 3, 32, 32), torch.arange(2)), rng)
    assert mjp.extra_loss(model, batch) is None
    assert mjp.measurements()["dal_loss"] == 0.0
