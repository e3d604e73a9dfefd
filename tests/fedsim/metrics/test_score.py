"""Scores per original: matched first, None where there is nothing to compare."""

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from fedsim.ground_truth import GroundTruth
from fedsim.metrics import PSNR_CAP, score, score_labels
from fedsim.metrics.records import ImageScore


@pytest.fixture
def truth(rng: torch.Generator) -> GroundTruth:
    return GroundTruth(torch.rand(3, 3, 8, 8, generator=rng), torch.tensor([1, 1, 4]), ("a", "b", "c"))


def test_an_exact_result_in_another_order(truth: GroundTruth) -> None:
    scores = score(truth, truth.images[[2, 0, 1]].double(), truth.labels.flip(0))
    assert [row.image for row in scores] == ["a", "b", "c"]
    assert [row.reconstruction for row in scores] == [1, 2, 0]
    assert [row.label_recovered for row in scores] == [1, 1, 4]
    for row in scores:
        assert row.mse == 0.0
        assert row.psnr == PSNR_CAP
        assert row.ssim == pytest.approx(1.0)
        assert row.fft2d == pytest.approx(0.0, abs=1e-12)
        assert row.fft2d_mjp == pytest.approx(0.0, abs=1e-12)
    labels = score_labels(truth, truth.labels)
    assert labels is not None
    assert labels.exact
    assert labels.share == 1.0


def test_a_client_s_own_images_are_held_against_what_is_taken_for_them(truth: GroundTruth) -> None:
    own = 1.0 - truth.images
    changed = GroundTruth(truth.images, truth.labels, truth.ids, own)
    for taken, close in ((None, False), (own, True)):
        scores = score(changed, truth.images, None, own=taken)
        assert [row.psnr for row in scores] == [PSNR_CAP] * 3
        assert [row.private_psnr == PSNR_CAP for row in scores] == [close] * 3
    assert score(truth, truth.images, None, own=own)[0].private_psnr == PSNR_CAP, "nothing was changed"


def test_who_guessed_did_not_know_that_nothing_was_changed(truth: GroundTruth) -> None:
    """Of a flip that did not happen the ground truth would choose the better of two guesses."""
    unchanged = GroundTruth(truth.images, truth.labels, truth.ids, truth.images)
    scores = score(unchanged, truth.images, None, own=truth.images.flip(-1))
    assert [row.psnr for row in scores] == [PSNR_CAP] * 3
    assert all(row.private_psnr is not None and row.private_psnr < 30 for row in scores)


def test_what_the_model_saw_changed_is_on_record_whatever_the_scores(truth: GroundTruth) -> None:
    """The first image is seen mirrored, and un-mirrored rightly: no score tells."""
    seen = truth.images.clone()
    seen[0] = seen[0].flip(-1)
    mirrored = GroundTruth(seen, truth.labels, truth.ids, truth.images)
    scores = score(mirrored, seen, None, own=truth.images)
    assert [row.private_psnr == row.psnr for row in scores] == [True] * 3
    assert [row.changed for row in scores] == [True, False, False]
    assert [row.changed for row in score(truth, truth.images, None)] == [False] * 3
    assert ImageScore.from_dict(scores[0].to_dict()) == scores[0]


def test_labels_alone(truth: GroundTruth) -> None:
    scores = score(truth, None, torch.tensor([1, 2]))
    assert [row.psnr for row in scores] == [None] * 3
    assert [row.label_recovered for row in scores] == [1, 2, None]
    labels = score_labels(truth, torch.tensor([1, 2]))
    assert labels is not None
    assert not labels.exact
    assert labels.share == pytest.approx(1 / 3)


def test_images_alone(truth: GroundTruth) -> None:
    scores = score(truth, truth.images[:1], None)
    assert [row.reconstruction for row in scores] == [0, None, None]
    assert [row.label for row in scores] == [1, 1, 4]
    assert [row.label_recovered for row in scores] == [None] * 3
    assert score_labels(truth, None) is None


def test_values_that_no_picture_has(truth: GroundTruth) -> None:
    images = truth.images.clone()
    images[0] = torch.nan
    images[1, 0, 0, 0] = torch.inf
    images[2] = torch.where(truth.images[2] > 0.5, 7.0, -7.0)
    scores = score(truth, images, None)
    assert [row.reconstruction for row in scores] == [None, None, 2]
    expected = ((truth.images[2] > 0.5).double() - truth.images[2].double()).square().mean().item()
    assert scores[2].mse == pytest.approx(expected)


def test_eight_bit_forgives_what_a_file_cannot_hold(truth: GroundTruth) -> None:
    stored = GroundTruth((truth.images * 255).round() / 255, truth.labels, truth.ids)
    noisy = stored.images + 0.001
    assert all(row.psnr is not None and row.psnr < 70 for row in score(stored, noisy, None))
    assert [row.psnr for row in score(stored, noisy, None, eight_bit=True)] == [PSNR_CAP] * 3


def test_another_shape_is_refused_with_both_shapes(truth: GroundTruth) -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 4\) for originals of \(3, 8, 8\)"):
        score(truth, torch.rand(3, 3, 4, 4), None)


def test_a_score_becomes_one_json_object(truth: GroundTruth) -> None:
    row = score(truth, truth.images, truth.labels, perceptual=False)[0].to_dict()
    assert list(row) == [
        "image",
        "reconstruction",
        "mse",
        "psnr",
        "ssim",
        "fft2d",
        "fft2d_mjp",
        "lpips",
        *(f"private_{name}" for name in ("mse", "psnr", "ssim", "fft2d", "fft2d_mjp", "lpips")),
        "label",
        "label_recovered",
        "changed",
    ]


def test_what_a_defense_changed_is_held_against_both_pictures() -> None:
    rng = torch.Generator().manual_seed(3)
    private, seen, rebuilt = torch.rand(3, 1, 3, 12, 12, generator=rng)
    (row,) = score(GroundTruth(seen, torch.tensor([0]), ("a",), private), rebuilt, None, perceptual=False)
    assert row.psnr == pytest.approx(peak_signal_noise_ratio(seen.numpy(), rebuilt.numpy(), data_range=1))
    assert row.private_psnr == pytest.approx(peak_signal_noise_ratio(private.numpy(), rebuilt.numpy(), data_range=1))
    assert row.psnr != row.private_psnr


def test_shuffled_private_pictures_are_matched_by_themselves() -> None:
    rng = torch.Generator().manual_seed(4)
    seen, private = torch.rand(2, 3, 3, 12, 12, generator=rng)
    truth = GroundTruth(seen, torch.arange(3), ("a", "b", "c"), private)
    assert all(row.private_psnr == PSNR_CAP for row in score(truth, private.flip(0), None, perceptual=False))
    assert all(row.psnr == PSNR_CAP for row in score(truth, seen.flip(0), None, perceptual=False))


def test_unchanged_pictures_have_one_score_under_both_names(truth: GroundTruth) -> None:
    row = score(truth, truth.images, None, perceptual=False)[1]
    assert row.private_psnr == row.psnr
    assert row.private_ssim == row.ssim


def test_a_picture_that_was_only_rounded_on_its_way_into_the_model_has_one_score(rng: torch.Generator) -> None:
    private = torch.rand(2, 3, 8, 8, generator=rng)
    mean, std = (torch.tensor(value) for value in (0.485, 0.229))
    seen = ((private - mean) / std).double() * std.double() + mean.double()
    assert not torch.equal(seen, private.double())
    seen[1] += 0.01
    rebuilt = private.double() + 1e-8
    whole, changed = score(GroundTruth(seen, torch.arange(2), ("a", "b"), private), rebuilt, None, perceptual=False)
    assert whole.psnr == whole.private_psnr == pytest.approx(160.0, abs=0.5)
    assert whole.ssim == whole.private_ssim
    assert changed.psnr == pytest.approx(40.0, abs=0.1)
    assert changed.private_psnr == pytest.approx(160.0, abs=0.5)


def in_forms(rng: torch.Generator, forms: int = 4) -> GroundTruth:
    """Two pictures, of which the first was seen in several forms and the second in one."""
    private = torch.rand(2, 3, 12, 12, generator=rng)
    seen = torch.rand(forms + 1, 3, 12, 12, generator=rng)
    ids = ("a",) * forms + ("b",)
    return GroundTruth(seen, torch.tensor([7] * forms + [2]), ids, private[[0] * forms + [1]])


@pytest.mark.parametrize("others", [0, 2])
def test_one_private_picture_in_several_forms_is_rebuilt_once(others: int, rng: torch.Generator) -> None:
    truth = in_forms(rng)
    images = torch.cat([torch.rand(others, 3, 12, 12, generator=rng), truth.originals[:1]])
    rows = score(truth, images, None, perceptual=False)
    assert [row.private_psnr for row in rows[:4]] == [PSNR_CAP] * 4
    assert (rows[4].private_psnr is None) == (others == 0)
    assert sum(row.psnr is not None for row in rows) == 1 + others


def test_as_many_reconstructions_as_pictures_stand_for_one_picture_each() -> None:
    """The second is 0.1 dB nearer to another form of the first picture than to its own."""
    at = torch.tensor([0.2, 0.6 + 10 ** (-20.5 / 20), 0.6 - 10 ** (-20.4 / 20), 1.0, 0.0, 0.9])
    first, second, third, fourth, *private = at[:, None, None, None].expand(-1, 3, 12, 12)
    seen, own = torch.stack([first, second, third, fourth]), torch.stack(private)[[0, 0, 1, 1]]
    images = torch.stack([first + 10 ** (-25 / 20), torch.full((3, 12, 12), 0.6)])
    truth = GroundTruth(seen, torch.tensor([7, 7, 2, 2]), ("a", "a", "b", "b"), own)
    rows = score(truth, images, None, perceptual=False)
    assert [(row.image, row.reconstruction) for row in rows if row.psnr is not None] == [("a", 0), ("b", 1)]


def test_forms_of_a_picture_compete_for_the_best_reconstruction(rng: torch.Generator) -> None:
    """Whatever the attack returned for a form, that nearest to the client's picture counts."""
    truth = in_forms(rng)
    near = (truth.originals[0] + 0.05 * torch.rand(3, 12, 12, generator=rng)).clamp(0, 1)
    images = torch.stack([truth.images[1], near, truth.originals[4]])
    rows = score(truth, images, None, perceptual=False)
    expected = peak_signal_noise_ratio(truth.originals[0].numpy(), near.numpy(), data_range=1)
    assert [row.private_psnr for row in rows] == [pytest.approx(expected, abs=1e-4)] * 4 + [PSNR_CAP]


def test_labels_are_of_pictures_and_not_of_forms(rng: torch.Generator) -> None:
    truth = in_forms(rng)
    whole = score_labels(truth, torch.tensor([2, 7]))
    assert whole is not None
    assert (whole.exact, whole.share) == (True, 1.0)
    rows = score(truth, None, torch.tensor([7, 9]))
    assert [row.label_recovered for row in rows] == [7] * 4 + [9]


def test_pictures_of_one_name_that_differ_are_not_one(rng: torch.Generator) -> None:
    pictures = torch.rand(3, 3, 8, 8, generator=rng)
    assert GroundTruth(pictures, torch.zeros(3), ("a", "a", "b")).sources == [0, 1, 2]
    assert GroundTruth(pictures[[0, 1, 0]], torch.zeros(3), ("a", "a", "a")).sources == [0, 1, 0]


def test_one_result_stands_for_one_picture_as_seen_and_as_the_clients_own() -> None:
    ramp, grey = torch.linspace(0, 1, 8).expand(3, 8, 8), torch.full((3, 8, 8), 0.5)
    own = torch.stack([ramp, grey])
    seen = own.flip(-1)  # a ramp that is mirrored is nearer to grey than to itself
    scores = score(GroundTruth(seen, torch.tensor([1, 2]), ("a", "b"), own), seen[:1], None)
    assert (scores[0].psnr, scores[0].reconstruction) == (PSNR_CAP, 0)
    assert scores[0].private_psnr == pytest.approx(
        peak_signal_noise_ratio(own[0].numpy(), seen[0].numpy(), data_range=1), abs=1e-3
    )
    assert (scores[1].psnr, scores[1].private_psnr) == (None, None)
    (unusable,) = (
        score(GroundTruth(seen, torch.tensor([1, 2]), ("a", "b"), own), both, None)
        for both in [torch.stack([seen[0], grey / 0])]
    )
    assert [one.private_psnr is None for one in unusable] == [False, True]


def test_a_mixture_that_shows_another_picture_than_its_own_stands_for_that_one(rng: torch.Generator) -> None:
    own = torch.rand(2, 3, 8, 8, generator=rng)
    seen = torch.stack([0.1 * own[0] + 0.9 * own[1], 0.1 * own[1] + 0.9 * own[0]])
    truth = GroundTruth(seen, torch.tensor([1, 2]), ("a", "b"), own)
    noisy = seen[:1] + 0.02 * torch.randn(1, 3, 8, 8, generator=rng)
    first, second = score(truth, noisy, None)
    assert (first.psnr, first.private_psnr) == (None, None)
    assert second.private_psnr is not None
    assert second.private_psnr > 20 > (second.psnr or 0.0) > 0
    first, second = score(truth, seen[:1], None)  # exact, and so as the model saw the first
    assert first.psnr == PSNR_CAP
    assert (second.psnr, second.private_psnr) == (None, None)
