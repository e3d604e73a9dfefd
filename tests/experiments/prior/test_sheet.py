import numpy as np
import pytest
import torch
from PIL import Image

from experiments.prior.sheet import GAP, write_sheet


def test_each_row_stands_where_it_belongs(tmp_path):
    first, empty = torch.zeros(3, 3, 32, 32), torch.empty(0, 3, 32, 32)
    second = torch.full((2, 1, 32, 32), 0.5)
    write_sheet([first, empty, second], tmp_path / "sheet.png", columns=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    assert pixels.shape == (2 * 66 + GAP, 2 * 66 + GAP, 3)
    assert not pixels[GAP : GAP + 64, GAP : GAP + 64].any()
    assert (pixels[66 + GAP : 66 + GAP + 64, 66 + GAP : 66 + GAP + 64] == 128).all()
    assert (pixels[:GAP] == 255).all()
    with pytest.raises(ValueError, match="without pictures"):
        write_sheet([empty], tmp_path / "none.png")
