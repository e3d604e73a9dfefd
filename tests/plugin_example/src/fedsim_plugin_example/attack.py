"""One picture from the gradient of a fully connected first layer of which most coordinates are missing."""

import torch
from torch import Tensor

from attacks.analytic.fc_bias import image_layer
from attacks.base import Attack, Certificate, Needs, NotApplicable, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import LinearSystem, linear_error, own_equations
from fedsim.errors import ConfigError
from fedsim.observation import Observation

WITNESSES, SHARE = 3, 0.9
"""Copies of a pixel, and share of all its copies, that must agree before it counts as proven.

Among hundreds of copies of a mixture some agree by chance, never nearly all.
"""


class BiasRows(Attack):
    """x = ∂L/∂W[i] / ∂L/∂b[i] for each unit i of the first layer (Phong et al. 2018), the median over the units.

    Every unit holds the whole picture. A mask that hides each coordinate with probability p leaves a pixel in
    (1 - p)² of the units, and a scale that all kept coordinates share cancels. Several pictures in one update are
    mixed differently in every unit: the copies disagree, and the certificate says so.

    Args:
        tolerance: largest difference of two copies of a pixel in [0, 1] that still agree.
    """

    needs = Needs(max_batch_size=1)

    def __init__(self, tolerance: float = 0.002) -> None:
        if not 0 < tolerance < 1:
            raise ConfigError("attack.bias_rows.tolerance", tolerance, "above 0 and below 1")
        self.tolerance = tolerance

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where no layer with a bias reads the picture, or its gradient was withheld."""
        layer = image_layer(observation)
        weight_grad, bias_grad = (_gradient(observation, f"{layer}.{part}").to(device) for part in ("weight", "bias"))
        copies = copies_of_input(weight_grad, bias_grad).reshape(-1, *observation.image_shape)
        copies = observation.to_unit_range(copies)
        picture = copies.nanmedian(dim=0).values.nan_to_num(0.5)  # grey where every unit lost the pixel
        return Reconstruction(images=picture[None].clamp(0.0, 1.0), certificate=self._judge(copies, picture))

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        assert result.images is not None
        layer = image_layer(observation)
        require_image(observation, result.images, layer)
        shared, once_more = (
            LinearSystem(_gradient(one, f"{layer}.bias")[None], _gradient(one, f"{layer}.weight"))
            for one in (observation, again)
        )
        inputs = observation.normalised(result.images).flatten(1)
        return own_equations(linear_error(shared, once_more, inputs, observation.eps), observation.std)

    def _judge(self, copies: Tensor, picture: Tensor) -> Certificate:
        held = copies.isfinite().sum(dim=0)
        agreeing = ((copies - picture).abs() <= self.tolerance).sum(dim=0)
        proven = float(((agreeing >= WITNESSES) & (agreeing >= SHARE * held)).double().mean())
        values = {"proven": proven, "copies": float(held.double().mean())}
        status = "certified" if proven == 1.0 else "uncertified"
        return Certificate(
            status, f"nearly all units that hold a pixel agree on it, for {proven:.1%} of the pixels", values
        )


def copies_of_input(weight_grad: Tensor, bias_grad: Tensor) -> Tensor:
    """[units, features] gradients and [units]: the input as each active unit holds it, NaN where it holds none.

    Raises:
        NotApplicable: no unit has a gradient of its bias.
    """
    active = bias_grad != 0
    if not bool(active.any()):
        raise NotApplicable("no unit of the first layer has a gradient of its bias")
    rows = weight_grad[active]
    return torch.where(rows != 0, rows / bias_grad[active, None], torch.nan)


def _gradient(observation: Observation, name: str) -> Tensor:
    gradient = observation.gradient.get(name)
    if gradient is None:
        by = observation.update.withheld.get(name, "the client")
        raise NotApplicable(f"there is no {name}, or {by} withholds it")
    return gradient
