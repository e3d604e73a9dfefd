import re

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from fedsim.data import Digits, FederatedData, Photos, Source
from fedsim.errors import ConfigError


def ids(splits):
    return [splits.train["id"][:], splits.test["id"][:], splits.auxiliary["id"][:]]


def test_digits_are_scikit_learns():
    data = FederatedData(Digits(), None, image_size=8)
    reference = load_digits()
    pictures = data.train.images(range(20))
    for picture, name, label in zip(pictures, data.train.ids, data.train.labels.tolist(), strict=False):
        row = int(name.split("-")[1])
        assert reference.target[row] == label
        np.testing.assert_allclose(picture[1].numpy() * 16, reference.images[row], atol=0.04)
    assert data.class_names == tuple("0123456789")
    assert len(data.train) + len(data.test) + len(data.auxiliary) == 1797


def test_digits_splits_are_disjoint_complete_and_replayed():
    first, second, other = Digits(seed=1).load(), Digits(seed=1).load(), Digits(seed=2).load()
    assert ids(first) == ids(second)
    assert ids(first) != ids(other)
    assert len({name for part in ids(first) for name in part}) == 1797


def test_photos_are_crops_of_the_photographs():
    splits = Photos(size=64, count=12).load()
    photographs = load_sample_images().images
    for part in (splits.train, splits.test, splits.auxiliary):
        for row in part:
            x, y, side = (int(number) for number in re.search(r"-x(\d+)-y(\d+)-s(\d+)", row["id"]).groups())
            crop = photographs[row["label"]][y : y + side, x : x + side]
            picture = np.asarray(row["image"])
            assert picture.shape == (64, 64, 3)
            np.testing.assert_allclose(picture.mean((0, 1)), crop.mean((0, 1)), atol=2)


def test_photos_for_clients_are_not_plain_sky():
    train = FederatedData(Photos(), None, image_size=224).train
    assert len(train) == 44
    assert train.images(range(len(train))).std((2, 3)).mean(1).min() > 0.08


def test_photos_splits_share_no_pixel():
    spans = []
    for part in ids(Photos(size=8, count=200).load()):
        columns = [tuple(map(int, re.search(r"-x(\d+)-y\d+-s(\d+)", name).groups())) for name in part]
        spans.append((min(left for left, _ in columns), max(left + side for left, side in columns)))
    train, test, auxiliary = spans
    assert train[1] <= test[0] < test[1] <= auxiliary[0]


def test_photos_are_replayed_and_differ():
    first, second = Photos(size=32, count=20, seed=3), Photos(size=32, count=20, seed=3)
    one, two = (FederatedData(source, None, image_size=32).train for source in (first, second))
    assert one.ids == two.ids
    pictures = one.images(range(len(one)))
    assert pictures.equal(two.images(range(len(two))))
    assert len({picture.numpy().tobytes() for picture in pictures}) == len(one)
    assert set(one.labels.tolist()) == {0, 1}
    assert FederatedData(Photos(size=32, count=20, seed=4), None, image_size=32).train.ids != one.ids


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Photos(size=0), r"data\.size=0: must be a positive number of pixels"),
        (Photos(count=0), r"data\.count=0: must be a positive number"),
        (Photos(count=2), r"data\.test_fraction=0\.15: must be .* training pictures are left"),
        (Digits(test_fraction=1.5), r"data\.test_fraction=1\.5"),
    ],
)
def test_settings_that_cannot_work(source, message):
    assert isinstance(source, Source)
    with pytest.raises(ConfigError, match=message):
        source.load()
