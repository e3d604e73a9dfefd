"""Labels where the head is withheld, from public images' gradients."""

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import fedsim
from attacks.label import RecoverLabels
from attacks.label.public_images.gradients import folded, likest
from attacks.optimization.second_order import starts
from defenses import Withhold
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec

NORMS_ALONE = ["patch_embed.*", "pos_embed", "cls_token", "blocks.*.attn.*", "blocks.*.mlp.*", "head.*"]


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    images = torch.from_numpy(found.images[:600] / 16.0).float()[:, None].expand(-1, 3, 8, 8)
    return images.contiguous(), torch.from_numpy(found.target[:600])


@pytest.fixture(scope="module")
def observe(digits):
    images, labels = digits
    whole = ModelSpec("vit_nano_patch2_8", num_classes=10).build(0)

    def make(chosen, withheld, model=whole):
        seen = fedsim.observe(model, images[chosen], labels[chosen], defense=Withhold(withheld))
        return seen.with_public_images(images[300:], labels[300:])

    return make


@pytest.mark.parametrize("withheld", [["head.*"], NORMS_ALONE])
@pytest.mark.parametrize("count", [1, 4])
def test_a_withheld_head_hides_no_label(withheld, count, digits, observe, rng, cpu):
    for begin in range(0, 3 * count, count):
        chosen = list(range(begin, begin + count))
        result = RecoverLabels().run(observe(chosen, withheld), rng, cpu)
        assert result.labels.tolist() == sorted(digits[1][chosen].tolist())
        assert not result.certificate.certified


def test_an_image_that_is_public_has_the_client_s_own_gradient(observe, rng, cpu):
    result = RecoverLabels("nearest_public").run(observe([300], ["head.*"]), rng, cpu)
    assert result.certificate.values["cosine"] == pytest.approx(1.0, abs=1e-5)


def test_a_search_goes_on_with_that_label(digits, observe, monkeypatch):
    """LayerNorms alone: no rule read a label there before."""
    monkeypatch.setattr(starts, "RACERS", 1)  # the nearest public image comes near
    images, labels = digits
    seen = observe([1], NORMS_ALONE, ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"depth": 1}).build(0))
    result = fedsim.attack("gauss_newton", seen, starts=["public"], restarts=1, steps=10)
    assert result.labels.tolist() == [int(labels[1])]
    assert float((result.images - images[1]).square().mean()) < 1e-6


def test_what_it_needs_is_said(digits, observe, rng, cpu):
    seen = observe([0, 1], ["head.*"])
    with pytest.raises(NotApplicable, match=r"head\.weight's gradient is withheld by Withhold"):
        RecoverLabels().run(replace(seen, public_images=None), rng, cpu)
    for held in (
        None,
        replace(seen.public_images, labels=None),
        replace(
            seen.public_images,
            pixels=torch.zeros(3, 3, 9, 9, dtype=torch.uint8),
            labels=torch.zeros(3, dtype=torch.int64),
        ),
    ):
        with pytest.raises(
            NotApplicable, match="nearest_public needs public images of the model's size, with their lab"
        ):
            RecoverLabels("nearest_public").run(replace(seen, public_images=held), rng, cpu)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10)).train()
    images, labels = digits
    gradients = torch.autograd.grad(F.cross_entropy(model(images[:2]), labels[:2]), list(model.parameters()))
    mixed = fedsim.Observation.of(model, gradients, batch_size=2, image_shape=(3, 8, 8))
    with pytest.raises(NotApplicable, match="BatchNorm in training mixes the images"):
        RecoverLabels("nearest_public").run(mixed.with_public_images(images[300:], labels[300:]), rng, cpu)


def test_the_cosine_is_that_of_the_sum_and_the_choice_the_best_of_all_here():
    """Against all sets of two and three of twelve vectors; a target that is such a sum is found."""
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 200, generator=rng, dtype=torch.float64)
    for count in (1, 2, 3):
        for trial in range(5):
            noise = torch.randn(200, generator=rng, dtype=torch.float64)
            planted = torch.randint(12, (count,), generator=rng)
            target = vectors[planted].sum(0) + noise * (trial / 5)
            found, cosine = likest(vectors @ vectors.T, vectors @ target, float(target.norm()), count)
            every = {
                chosen: float(torch.cosine_similarity(vectors[list(chosen)].sum(0), target, dim=0))
                for chosen in combinations_with_replacement(range(12), count)
            }
            assert cosine == pytest.approx(every[tuple(sorted(found))], abs=1e-9)
            assert sorted(found) == sorted(planted.tolist()) == list(max(every, key=every.__getitem__))


def test_folding_keeps_inner_products():
    rng = torch.Generator().manual_seed(0)
    tensors = {"a": torch.randn(6, 3, 50, generator=rng), "b": torch.randn(6, 70, generator=rng)}
    flat = torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1).double()
    assert torch.allclose(folded(tensors, 256).square().sum(1), flat.square().sum(1))
    assert torch.allclose(folded(tensors, 256) @ folded(tensors, 256).T, flat @ flat.T, atol=1e-5)
    large = {"a": torch.randn(20, 3, 5000, generator=rng), "b": torch.randn(20, 7001, generator=rng)}
    flat = torch.cat([tensor.flatten(1) for tensor in large.values()], dim=1).double()
    small = folded(large, 1024)
    cosines = [(rows @ rows.T) / (rows.norm(dim=1) * rows.norm(dim=1)[:, None]) for rows in (flat, small)]
    off = (cosines[1] - cosines[0])[~torch.eye(20, dtype=torch.bool)]
    assert float(off.square().mean().sqrt()) == pytest.approx(1 / 1024**0.5, rel=0.25)


def test_a_column_that_weighs_much_is_spread_over_all_places(rng):
    """Folded into a multiple of the width, the 512 numbers of one input fell on sixteen places."""
    off = []
    for _ in range(40):
        inputs = torch.randn(2, 1, 512, generator=rng)
        inputs[:, 0, 7] = 200.0
        pair = torch.randn(2, 512, 1, generator=rng) * inputs
        whole = F.cosine_similarity(*pair.flatten(1), dim=0)
        off.append(float(F.cosine_similarity(*folded({"weight": pair}), dim=0) - whole))
    assert torch.tensor(off).square().mean().sqrt() < 0.03
