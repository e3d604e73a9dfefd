"""What a study's server has beside what clients share: nothing that a client holds."""

import shutil

import pytest
import torch

from experiments.engine import guess
from experiments.prior.settings import held_by_no_client
from experiments.studies.harness.client import Client
from experiments.studies.harness.victims import audit
from experiments.studies.second_order.victims import Victims
from fedsim.data import FederatedData, ImageFolder, image_set
from fedsim.settings.composition import build_data


@pytest.fixture
def twice(six_classes, tmp_path):
    """Each picture under two names."""
    folder = tmp_path / "twice"
    for path in six_classes.rglob("*.png"):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        for copy in "ab":
            shutil.copy(path, folder / path.parent.name / f"{path.stem}{copy}.png")
    return folder


def shared(held, private):
    """How many of the first are among the second."""
    return int((torch.cdist(held.flatten(1).double(), private.flatten(1).double()) < 1e-3).any(dim=1).sum())


def of_split(split):
    return split.images(range(len(split)))


def test_a_server_has_no_copy_of_a_clients_picture(twice):
    client = Client(audit(twice, 0, "cpu", "model=vit_nano", "model.img_size=32", "attack=[labels]"))
    data, (seen, _, _) = build_data(client.setup.config), client.shares([0, 1], 0)
    private = of_split(data.train)
    assert shared(of_split(data.auxiliary), private) > 0, "the folder has copies"
    assert 0 < len(seen.public_images) < len(data.auxiliary)
    assert shared(seen.public_images.images(), private) == 0
    assert client.setup.guess().equal(of_split(held_by_no_client(data)).mean(0))
    assert seen.auxiliary_probs is not None, "label rules read it in audits and runs"


def test_pictures_are_looked_through_once_and_all_public_ones_compared(twice, monkeypatch):
    monkeypatch.setattr(guess, "MOST_IMAGES", 4)
    monkeypatch.setattr(guess, "most_of", lambda shape: 4)
    config = audit(twice, 1, "cpu", "model=vit_nano", "model.img_size=32", "attack=[labels]")
    client = Client(config)
    assert len(client.setup.held) == len(held_by_no_client(build_data(config))) > 4
    data = client.setup.data
    assert (len(data._cache), len(data._cache_of_others)) == (0, 4), "what the server reads is kept"
    monkeypatch.setattr(image_set, "decode", None)
    assert Client(config).setup.held.ids == client.setup.held.ids


def test_what_is_nobodys_of_a_folder_is_no_copy_of_a_private_picture(twice):
    source = Victims(twice)
    private = source.images(range(source.available))[0]
    everything = of_split(FederatedData(ImageFolder(twice, auxiliary_fraction=0.5), None, 32).auxiliary)
    assert shared(everything, private) > 0
    for held in (source.public_images().images(), source.of_nobody()[0]):
        assert len(held) > 0
        assert shared(held, private) == 0
