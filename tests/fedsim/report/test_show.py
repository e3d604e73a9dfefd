"""`fedsim.show` draws pictures as they are."""

import torch

import fedsim


def test_a_grey_picture_has_its_own_brightness() -> None:
    result = fedsim.AttackResult("mine", "guess", "done", images=torch.full((1, 1, 8, 8), 0.5))
    figure = fedsim.show(result, torch.full((1, 1, 8, 8), 0.25))
    assert [axes.get_images()[0].get_clim() for axes in figure.axes] == [(0, 255), (0, 255)]
