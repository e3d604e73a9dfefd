import numpy as np
import pytest
import torch
from PIL import Image

from experiments.measure.jigsawed import answer
from experiments.measure.robust import CorruptionPlan, corruption_errors, folder_images, measure_foreign, measure_hard
from experiments.measure.subjects import load_subjects
from fedsim.data.corruptions import corrupt
from fedsim.determinism import derive_seed
from fedsim.errors import ConfigError
from fedsim.metrics.robustness import aupr, aurra
from tests.experiments.measure.recorded import MJP

PLAN = CorruptionPlan(("fog", "pixelate"), (1, 5), 20, "auto", None, 3)


@pytest.fixture
def two(write_run, settings):
    return load_subjects(settings([write_run("a"), write_run("b", MJP, seed=2)]))


@torch.no_grad()
def test_errors_against_one_picture_at_a_time(two):
    done = []
    found = corruption_errors(two, PLAN, 7, lambda: done.append(1))
    assert len(done) == 4
    for subject, errors in zip(two, found, strict=True):
        wrong = 0
        for number in range(20):
            whole = subject.pictures.images.images([number])[0].permute(1, 2, 0).double().numpy()
            rng = np.random.default_rng(derive_seed(3, "corruption", "fog", 5, subject.pictures.images.ids[number]))
            foggy = torch.from_numpy(corrupt(whole, "fog", 5, rng, "cifar")).permute(2, 0, 1)[None]
            wrong += int(subject.model(subject.normalise(foggy)).argmax()) != int(subject.pictures.labels[number])
        assert errors["fog"][1] == wrong / 20
        assert set(errors) == {"fog", "pixelate"}
    assert corruption_errors(two[:1], PLAN, 20, lambda: None)[0] == found[0]


def folder_of(root, names):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng([number, index]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return str(root)


@torch.no_grad()
def logits(subject, held):
    return torch.cat([subject.model(subject.normalise(held.images([n]))) for n in range(len(held))])


def test_hard_pictures_are_told_apart_among_their_classes(two, tmp_path):
    subject = two[0]
    folder = folder_images(folder_of(tmp_path / "hard", ["3", "7"]), subject, "measure.hard", must_match=True)
    found = measure_hard(subject, folder, 2)
    probabilities = logits(subject, folder.data.train)[:, [3, 7]].softmax(1)
    right = (probabilities.argmax(1) == folder.data.train.labels).numpy()
    assert (found.pictures, found.classes) == (6, 2)
    assert found.top1 == pytest.approx(right.mean())
    assert found.aurra == pytest.approx(aurra(probabilities.amax(1).double().numpy(), right), abs=1e-6)


@pytest.mark.parametrize(("names", "classes"), [(["2", "5"], [2, 5]), (["moss", "sand"], range(10))])
def test_foreign_pictures(two, tmp_path, names, classes):
    subject, kept = two[0], list(classes)
    folder = folder_images(folder_of(tmp_path / "foreign", names), subject, "measure.foreign", must_match=False)
    clean = answer(subject, 10)
    found = measure_foreign(subject, clean, folder, 4)
    mine = [n for n in range(40) if int(subject.pictures.labels[n]) in kept]
    foreign = -logits(subject, folder.data.train)[:, kept].softmax(1).amax(1).double().numpy()
    familiar = -clean.logits[mine][:, kept].softmax(1).amax(1).double().numpy()
    assert (found.pictures, found.familiar, found.classes) == (6, len(mine), len(kept))
    assert found.aupr == pytest.approx(aupr(foreign, familiar), abs=1e-5)
    assert found.chance == pytest.approx(6 / (6 + len(mine)))


def test_folders_that_do_not_fit(two, tmp_path):
    subject = two[0]
    path = folder_of(tmp_path / "hard", ["3", "cat"])
    with pytest.raises(ConfigError, match=r"measure.hard=.*1 are not: cat"):
        folder_images(path, subject, "measure.hard", must_match=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"measure.hard=.*no class folders"):
        folder_images(str(tmp_path / "empty"), subject, "measure.hard", must_match=True)
