import pytest
import torch

import fedsim
from clients.training import LossGradient
from defenses import Batch, CutMix, DefenseChain, InstaHide, MixUp, Plan
from defenses.image.mixing import beta_shares, bounded_shares, class_shares, cut_box, distinct_partners, mixture
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from tests.defenses.as_configured import configured

SPEC = ModelSpec("vit_tiny_patch16_224", 5, 8, 4, kwargs={"depth": 1, "embed_dim": 24, "num_heads": 3})
MIXING = {
    "mixup": MixUp(),
    "mixup_image": MixUp(0.4, "image"),
    "cutmix": CutMix(),
    "instahide": InstaHide(),
    "unflipped": InstaHide(3, flip=False),
}
IDENTITIES = [MixUp(0.0), MixUp(0.0, "image"), CutMix(0.0), InstaHide(k=1, flip=False)]


def batch_of(count=6):
    images = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return Batch(images, torch.arange(count) % 5)


def mixed(defense, batch=None, seed=0):
    defense.wrap_model(SPEC.build(0))
    return defense.transform_batch(batch or batch_of(), torch.Generator().manual_seed(seed))


def solve_weights(picture, originals):
    """The shares by which a picture is a sum of the originals."""
    found = torch.linalg.lstsq(originals.flatten(1).double().T, picture.flatten().double()[:, None])
    return found.solution[:, 0]


@pytest.mark.parametrize("defense", IDENTITIES)
def test_identity_settings_are_bit_equal(defense):
    batch = batch_of()
    assert mixed(defense, batch) is batch


@pytest.mark.parametrize("name", MIXING)
def test_changes_what_is_shared(name):
    model, chain = SPEC.build(0), DefenseChain({name: MIXING[name]})
    stock = {n: g.clone() for n, g in LossGradient(model, DefenseChain(), 0.1)(batch_of()).items()}
    shared = LossGradient(model, chain, 0.1)(mixed(MIXING[name]))
    assert shared.keys() == stock.keys()
    assert not any(torch.allclose(shared[n], g, rtol=1e-3) for n, g in stock.items() if n != "pos_embed")


@pytest.mark.parametrize("name", MIXING)
def test_labels_are_shares_of_the_pictures_in_the_mixture(name):
    batch, after = batch_of(), mixed(MIXING[name])
    assert after.images.shape == batch.images.shape
    assert after.images.dtype == after.labels.dtype == torch.float32
    assert after.labels.shape == (6, 5)
    torch.testing.assert_close(after.labels.sum(dim=1), torch.ones(6))
    if name in ("cutmix", "instahide"):
        return
    for picture, label in zip(after.images, after.labels, strict=True):
        weights = solve_weights(picture, batch.images)
        expected = torch.zeros(5, dtype=torch.float64).index_add(0, batch.labels, weights)
        torch.testing.assert_close(label.double(), expected, atol=1e-5, rtol=0)


def test_mixup_takes_one_share_or_one_for_each_and_one_shuffle():
    batch = batch_of()
    for defense, shares in ((MixUp(1.0), 1), (MixUp(1.0, "image"), 6)):
        weights = torch.stack([solve_weights(p, batch.images) for p in mixed(defense, seed=3).images])
        own = weights.diagonal().clone()
        others = (weights - torch.diag(own)).clamp_min(1e-9)
        moved = others.amax(dim=1) > 1e-4
        assert moved.sum() >= 3
        assert len({round(float(s), 4) for s in own[moved]}) == min(shares, int(moved.sum()))
        torch.testing.assert_close((own + others.amax(dim=1))[moved], torch.ones(int(moved.sum())).double())
        assert len(set(others[moved].argmax(dim=1).tolist())) == int(moved.sum())


def test_cutmix_pastes_one_box_and_labels_by_area():
    batch = batch_of()
    for seed in range(8):
        after = mixed(CutMix(), seed=seed)
        changed = (after.images != batch.images).any(dim=1).any(dim=0)
        rows, columns = changed.any(dim=1), changed.any(dim=0)
        assert torch.equal(changed, rows[:, None] & columns[None])
        area = float(changed.float().mean())
        for i, picture in enumerate(after.images):
            sources = [j for j in range(6) if torch.equal(picture[:, changed], batch.images[j][:, changed])]
            expected = torch.zeros(5)
            expected[batch.labels[i]] += 1.0 - area
            expected[batch.labels[sources[0]]] += area
            if area > 0:
                torch.testing.assert_close(after.labels[i], expected)


def test_cut_box_stays_inside_and_has_the_area_away_from_the_border():
    rng = torch.Generator().manual_seed(0)
    for kept in (0.0, 0.3, 0.75, 1.0):
        for _ in range(50):
            rows, columns = cut_box(kept, 20, 32, rng)
            assert 0 <= rows.start <= rows.stop <= 20
            assert 0 <= columns.start <= columns.stop <= 32
            height, width = 2 * (int((1 - kept) ** 0.5 * 20) // 2), 2 * (int((1 - kept) ** 0.5 * 32) // 2)
            assert rows.stop - rows.start <= height
            assert columns.stop - columns.start <= width
            if rows.start > 0 and rows.stop < 20 and columns.start > 0 and columns.stop < 32:
                assert (rows.stop - rows.start, columns.stop - columns.start) == (height, width)


def test_instahide_is_a_bounded_mixture_under_a_random_sign():
    batch = batch_of()
    unflipped, after = mixed(InstaHide(3, flip=False)), mixed(InstaHide(3))
    torch.testing.assert_close(after.images.abs(), unflipped.images.abs())
    flipped = (after.images.sign() != unflipped.images.sign()).float().mean()
    assert float(flipped) == pytest.approx(0.5, abs=0.06)
    assert torch.equal(after.labels, unflipped.labels)
    for i, picture in enumerate(unflipped.images):
        weights = solve_weights(picture, batch.images)
        assert int((weights.abs() > 1e-5).sum()) == 3
        assert float(weights[i]) > 1e-5
        assert float(weights.max()) <= 0.65 + 1e-5


def test_signs_alone():
    batch, after = batch_of(), mixed(InstaHide(k=1))
    assert torch.equal(after.images.abs(), batch.images.abs())
    assert not torch.equal(after.images, batch.images)
    assert torch.equal(after.labels, torch.nn.functional.one_hot(batch.labels, 5).float())


def test_a_small_last_batch_mixes_what_it_has():
    one, two = mixed(InstaHide(4, flip=False), batch_of(1)), mixed(InstaHide(4, flip=False), batch_of(2))
    assert torch.equal(one.images, batch_of(1).images)
    assert bool((two.labels > 0).sum() == 4)


def test_mixture_against_a_loop():
    rng = torch.Generator().manual_seed(0)
    entries, weights = torch.randn(4, 2, 3, generator=rng), torch.rand(4, 2, generator=rng)
    picked = torch.randint(4, (4, 2), generator=rng)
    expected = torch.zeros(4, 2, 3)
    for b in range(4):
        for j in range(2):
            expected[b] += weights[b, j] * entries[picked[b, j]]
    torch.testing.assert_close(mixture(entries, picked, weights), expected)


def test_draws_have_their_distribution():
    rng = torch.Generator().manual_seed(0)
    for alpha in (0.2, 1.0, 5.0):
        drawn = beta_shares(alpha, 20_000, rng)
        assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(drawn.var()) == pytest.approx(1.0 / (4.0 * (2.0 * alpha + 1.0)), rel=0.03)
    shares = bounded_shares(2_000, 4, 0.65, rng)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(2_000).double())
    assert float(shares.max()) <= 0.65
    assert float(shares.min()) > 0.0
    assert float(shares.mean(dim=0).std()) < 0.01
    assert bounded_shares(2, 1, 0.65, rng).tolist() == [[1.0], [1.0]]
    partners = distinct_partners(50, 4, rng)
    assert torch.equal(partners[:, 0], torch.arange(50))
    assert all(len(set(row)) == 4 for row in partners.tolist())


@pytest.mark.parametrize("name", MIXING)
def test_replay(name):
    first, again, other = (mixed(MIXING[name], seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_one_after_the_other():
    after = mixed(InstaHide(2), mixed(CutMix()))
    torch.testing.assert_close(after.labels.sum(dim=1), torch.ones(6))
    assert torch.equal(class_shares(after.labels, 5, torch.float32), after.labels)


@pytest.mark.parametrize(("defense", "least"), [(MixUp(), 2), (CutMix(), 2), (InstaHide(), 4), (MixUp(0.0), 1)])
def test_batches_without_a_partner_are_refused(defense, least):
    defense.check(Plan(SPEC.build(0), {"batch_size": least}, {}, {}))
    if least > 1:
        with pytest.raises(ConfigError, match=rf"client\.batch_size={least - 1}: must be {least} or more"):
            defense.check(Plan(SPEC.build(0), {"batch_size": least - 1}, {}, {}))


@pytest.mark.parametrize("name", MIXING)
def test_classes_are_the_outputs_of_a_model_whose_head_was_replaced(name):
    model = ModelSpec("vit_nano_patch2_8", 10).build(0)
    model.head = torch.nn.Linear(model.head.in_features, 12)
    seen = fedsim.observe(model, torch.rand(4, 3, 8, 8), [0, 2, 11, 3], defense=[MIXING[name]])
    assert seen.update.tensors["head.bias"].shape == (12,)


def test_refuses_a_model_without_classes_and_use_before_wrap_model():
    with pytest.raises(ConfigError, match="mixup: must be a model with num_classes"):
        MixUp().wrap_model(torch.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="wrap_model"):
        CutMix().transform_batch(batch_of(), torch.Generator())


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (MixUp, {"alpha": -1.0}),
        (MixUp, {"alpha": "one"}),
        (MixUp, {"per": "pixel"}),
        (CutMix, {"alpha": float("inf")}),
        (InstaHide, {"k": 0}),
        (InstaHide, {"k": "four"}),
        (InstaHide, {"max_share": 0.25}),
        (InstaHide, {"max_share": 1.5}),
        (InstaHide, {"flip": "yes"}),
    ],
)
def test_refuses_settings(cls, settings):
    with pytest.raises(ConfigError, match=rf"defense\.{cls.name}\.{next(iter(settings))}="):
        configured(cls, **settings)
