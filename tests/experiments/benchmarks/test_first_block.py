"""The benchmark of the first block's equations: its updates can be computed once more, as a certificate asks."""

import numpy as np
import torch
from PIL import Image

from experiments.benchmarks.first_block import observe
from fedsim.models import ModelSpec


def test_its_updates_can_be_computed_once_more(tmp_path):
    draws = np.random.default_rng(0)
    for number in range(2):
        pixels = draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg")
    spec = ModelSpec("vit_tiny_patch16_224", 10, kwargs={"img_size": 16, "patch_size": 8, "depth": 2})
    observation, pictures = observe(spec, tmp_path, 2, 0)
    again = observation.replay(pictures, torch.arange(2))
    assert again is not None
    for name, tensor in observation.update.tensors.items():
        assert torch.allclose(again.tensors[name], tensor, rtol=1e-4, atol=1e-6), name
