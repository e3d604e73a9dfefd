"""Attacks that certify whatever they like."""

import torch

from attacks.base import Attack, Certificate, Reconstruction
from fedsim.observation import Observation


class Sure(Attack):
    """A grey image, or labels of the last class, certified; with a promise in dB where it is told one."""

    def __init__(self, labels: bool = False, promised: float | None = None) -> None:
        self.labels = labels
        self.values = {} if promised is None else {"promised_psnr": promised}

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        certificate = Certificate("certified", "planted", self.values)
        size = observation.protocol.batch_size
        if self.labels:
            return Reconstruction(labels=torch.full((size,), observation.num_classes - 1), certificate=certificate)
        return Reconstruction(torch.full((size, *observation.image_shape), 0.5), certificate=certificate)

    def confirm(self, observation: Observation, result: Reconstruction) -> Reconstruction:
        """As if confirming were broken: the sweep must see it."""
        return result
