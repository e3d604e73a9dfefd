import torch

from fedsim.metrics.features import feature_distance


def test_it_is_the_mean_over_layers_and_places_of_unit_vectors_apart(rng):
    found = [torch.randn(3, 4, 2, 5, generator=rng), torch.randn(3, 2, 1, 1, generator=rng)]
    truth = [torch.randn(3, 4, 2, 5, generator=rng), torch.randn(3, 2, 1, 1, generator=rng)]
    expected = []
    for picture in range(3):
        layers = []
        for one, other in zip(found, truth, strict=True):
            places = []
            for y in range(one.shape[2]):
                for x in range(one.shape[3]):
                    u, v = one[picture, :, y, x].double(), other[picture, :, y, x].double()
                    places.append(2 - 2 * float(torch.cosine_similarity(u, v, dim=0)))
            layers.append(sum(places) / len(places))
        expected.append(sum(layers) / len(layers))
    torch.testing.assert_close(feature_distance(found, truth), torch.tensor(expected, dtype=torch.float64))


def test_equal_features_are_at_zero_and_opposite_ones_at_four(rng):
    maps = [torch.randn(2, 4, 3, 3, generator=rng)]
    assert float(feature_distance(maps, maps).max()) == 0.0
    torch.testing.assert_close(feature_distance(maps, [-m for m in maps]), torch.full((2,), 4.0, dtype=torch.float64))
    assert float(feature_distance([torch.zeros(1, 4, 2, 2)], [torch.zeros(1, 4, 2, 2)])[0]) == 0.0
