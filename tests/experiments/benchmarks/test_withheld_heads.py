"""What the benchmark's models read; its page holds what was measured."""

import pytest
from PIL import Image

from experiments.benchmarks import withheld_heads
from fedsim.data import ImageFolder


@pytest.fixture
def folder(tmp_path):
    for index in range(40):
        own = tmp_path / str(index % 10)
        own.mkdir(exist_ok=True)
        Image.new("RGB", (32, 32), (6 * index, 90, 10)).save(own / f"{index}.png")
    return ImageFolder(tmp_path, auxiliary_fraction=0.5)


def test_a_folders_pictures_are_read_at_32_pixels_in_patches_of_4(folder, monkeypatch):
    models = []
    monkeypatch.setattr(withheld_heads, "_row", lambda model, *_: models.append(model) or [])
    assert [steps for steps, _ in withheld_heads.measure(folder, (0,), 1)] == [0]
    assert {model.patch_embed.proj.kernel_size for model in models} == {(4, 4)}
    assert {model.patch_embed.num_patches for model in models} == {64}
