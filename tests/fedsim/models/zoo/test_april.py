import numpy as np
import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from fedsim.models.zoo.april import sincos_position_embedding


def test_first_block_has_neither_norm_nor_residual():
    model = ModelSpec("vit_tiny_patch16_224", 5, 32, 8, variant="april", kwargs={"depth": 2}).build(0)
    block, x = model.blocks[0], torch.randn(2, 17, 192)
    attended = block.attn(x)
    torch.testing.assert_close(block(x), attended + block.mlp(block.norm2(attended)))
    assert not torch.allclose(block(2 * x), block(x), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("resnet18", {}, "a timm VisionTransformer, not ResNet"),
        ("vit_small_patch16_rope_ape_224", {"depth": 1}, "a timm VisionTransformer, not Eva"),
        ("vit_base_patch16_clip_224", {"depth": 1}, "norm_pre"),
        ("vit_base_patch16_rpn_224", {"depth": 1}, "of pre-norm blocks, not ResPostBlock"),
    ],
)
def test_refuses_what_it_cannot_change(name, kwargs, words):
    with pytest.raises(ConfigError, match=words):
        ModelSpec(name, 5, variant="april", kwargs=kwargs).build(0)


def test_sincos_against_maes_loops():
    """MAE: the first half of a row encodes the column, the second the row; sines before cosines."""
    rows, columns, width, prefix = 2, 3, 16, 2
    found = sincos_position_embedding((rows, columns), width, prefix)
    assert found.shape == (prefix + rows * columns, width)
    assert not found[:prefix].any()
    quarter = width // 4
    for row in range(rows):
        for column in range(columns):
            expected = []
            for position in (column, row):
                angles = [position / 10_000 ** (i / quarter) for i in range(quarter)]
                expected += [np.sin(a) for a in angles] + [np.cos(a) for a in angles]
            np.testing.assert_allclose(found[prefix + row * columns + column].numpy(), expected, atol=1e-12)


def test_sincos_needs_a_multiple_of_four():
    with pytest.raises(ConfigError, match="a multiple of 4"):
        sincos_position_embedding((2, 2), 6)
