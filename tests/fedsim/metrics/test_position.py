import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from fedsim.metrics.position import cosine_similarities, explained_variance, position_errors, svd_energy


def embedding(tokens, width, seed=0):
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def slow_error(points, target, folds, seed):
    """Least squares with an intercept, fold by fold, by the normal equations or their least-norm solution."""
    order = np.arange(len(points))
    np.random.RandomState(seed).shuffle(order)
    errors = []
    for held in np.array_split(order, folds):
        rest = np.setdiff1d(order, held)
        mean, middle = points[rest].mean(0), target[rest].mean(0)
        weights = np.linalg.pinv(points[rest] - mean) @ (target[rest] - middle)
        errors += [np.abs((points[n] - mean) @ weights + middle - target[n]).mean() for n in held]
    return np.mean(errors)


@pytest.mark.parametrize("width", [6, 40])  # more positions than dimensions, and fewer
def test_against_least_squares_fold_by_fold(width):
    points, grid = embedding(30, width), (5, 6)
    found = position_errors(points, grid, folds=5, repeats=3, seed=7)
    cells = np.array([(row, column) for row in range(5) for column in range(6)], dtype=float)
    array = points.double().numpy()
    for repeat in range(3):
        assert found.index[repeat] == pytest.approx(slow_error(array, np.arange(30.0), 5, 7 + repeat), rel=1e-8)
        assert found.grid[repeat] == pytest.approx(slow_error(array, cells, 5, 7 + repeat), rel=1e-8)


def test_embeddings_that_hold_the_position_tell_it(rng):
    cells = torch.cartesian_prod(torch.arange(6.0), torch.arange(7.0))
    found = position_errors(cells @ torch.randn(2, 5, generator=rng) + 3.0, (6, 7))
    assert max(found.index) < 1e-4
    assert max(found.grid) < 1e-4


def test_embeddings_without_position_do_no_better_than_guessing():
    found = position_errors(embedding(64, 1), (8, 8))
    guess = np.abs(np.arange(8) - 3.5).mean()
    assert np.mean(found.grid) == pytest.approx(guess, rel=0.15)


def test_folds_are_drawn_from_the_seed():
    points = embedding(20, 4)
    assert position_errors(points, (4, 5), seed=1) == position_errors(points, (4, 5), seed=1)
    assert position_errors(points, (4, 5), seed=1) != position_errors(points, (4, 5), seed=50)


@pytest.mark.parametrize(("grid", "folds", "word"), [((3, 5), 5, "grid"), ((4, 4), 17, "folds"), ((4, 4), 1, "folds")])
def test_refuses(grid, folds, word):
    with pytest.raises(ValueError, match=word):
        position_errors(embedding(16, 3), grid, folds)


def test_energy_in_closed_form():
    points = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    np.testing.assert_allclose(svd_energy(points), [16 / 25, 1.0])
    assert svd_energy(torch.zeros(4, 3)).tolist() == [1.0, 1.0, 1.0]


def test_energy_against_eigenvalues():
    points = embedding(12, 5)
    eigenvalues = np.linalg.eigvalsh((points.mT @ points).double().numpy())[::-1]
    np.testing.assert_allclose(svd_energy(points), np.cumsum(eigenvalues) / eigenvalues.sum(), rtol=1e-5)


def test_variance_against_sklearn():
    points = embedding(40, 9) + 5.0
    expected = np.cumsum(PCA(7).fit(points.double().numpy()).explained_variance_ratio_)
    found = explained_variance(points)
    assert list(found) == [3, 4, 5, 6, 7]
    np.testing.assert_allclose(list(found.values()), expected[2:], rtol=1e-6)
    assert explained_variance(points, [50])[50] == pytest.approx(1.0)


def test_similarity_against_sklearn():
    points = embedding(12, 4)
    maps = cosine_similarities(points, (3, 4))
    assert maps.shape == (3, 4, 3, 4)
    np.testing.assert_allclose(maps.reshape(12, 12), cosine_similarity(points.double().numpy()), atol=1e-12)
    assert not np.isnan(cosine_similarities(torch.zeros(4, 3), (2, 2))).any()
