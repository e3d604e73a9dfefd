"""Which networks are chains of invertible layers, and why the others are not."""

import pytest
import torch
from torch import nn

from attacks.analytic.rgap.chain import layer_chain
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec

SHAPE = (3, 8, 8)


def test_the_links_in_order():
    model = ModelSpec("cnn_rgap_32", 5, img_size=8, kwargs={"layers": [[4, 3, 2, 1], [6, 3, 1, 1]]}).build(0)
    links = layer_chain(model, SHAPE)
    assert [link.name for link in links] == ["body.0", "body.2", "fc"]
    assert [link.activation.name for link in links] == ["leaky_relu", "leaky_relu", "identity"]
    assert [link.shape for link in links] == [(3, 8, 8), (4, 4, 4), (96,)]
    assert links[0].output_shape == (4, 4, 4)


@pytest.mark.parametrize("layer", [nn.LeakyReLU(0.1), nn.LeakyReLU(0.1, inplace=True), nn.Tanh(), nn.Sigmoid()])
def test_inverse_and_slope_are_torchs(layer):
    model = nn.Sequential(nn.Conv2d(3, 12, 3), layer, nn.Flatten(), nn.Linear(432, 5)).double()
    activation = layer_chain(model, SHAPE)[0].activation
    z = torch.linspace(-3, 3, 40, dtype=torch.float64, requires_grad=True)
    y = layer(z.clone())
    (slope,) = torch.autograd.grad(y.sum(), z)
    torch.testing.assert_close(activation.inverse(y.detach()), z.detach())
    torch.testing.assert_close(activation.slope(z.detach()), slope)


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Sigmoid()])
def test_values_outside_the_range_stay_finite(layer):
    model = nn.Sequential(nn.Conv2d(3, 2, 3), layer, nn.Flatten(), nn.Linear(72, 5))
    inverse = layer_chain(model, SHAPE)[0].activation.inverse
    assert bool(inverse(torch.tensor([-1.5, 0.0, 1.0, 1.5], dtype=torch.float64)).isfinite().all())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(192, 5)

    def forward(self, x):
        return self.fc((x + self.conv(x)).flatten(1))


class Hidden(Residual):
    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).tanh()


class InForward(Residual):
    def forward(self, x):
        return self.fc(torch.sigmoid(self.conv(x)).flatten(1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)), "ReLU.*no invertible"),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 5)), "MaxPool2d"),
        (
            nn.Sequential(nn.Conv2d(3, 2, 3), nn.Tanh(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 5)),
            "BatchNorm2d",
        ),
        (nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Flatten(), nn.Linear(108, 5)), "in groups"),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), "no linear classifier"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()), "no linear classifier"),
        (Residual(), "not a plain chain of layers: fc .Linear. does not read the output"),
        (
            InForward(),
            "fc .Linear. reads sigmoid of the output before it: an activation must be a module, such as nn.Sig",
        ),
        (Hidden(), "not the output of the last layer"),
    ],
)
def test_refusals(model, words):
    with pytest.raises(NotApplicable, match=words):
        layer_chain(model, SHAPE)
