"""An attack and a defense that a user might have written, to make reports lie in real audits."""

from dataclasses import replace

import torch

from attacks.base import Attack, Certificate, Reconstruction
from defenses.base import Defense
from fedsim.observation import Observation
from fedsim.update import Update


class Grey(Attack):
    """Whatever was shared, grey comes out; unlike a baseline it does not say so, and it may certify it.

    Args:
        certify: vouch for it.
    """

    def __init__(self, value: float = 0.5, certify: bool = False) -> None:
        self.value, self.status = value, "certified" if certify else "uncertified"

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        images = torch.full((observation.protocol.batch_size, *observation.image_shape), self.value)
        certified = self.status == "certified"
        return Reconstruction(images, certificate=Certificate("certified" if certified else "uncertified", "grey"))


class Divided(Defense):
    """Shares no number at all."""

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        return replace(update, tensors={name: tensor / 0 for name, tensor in update.tensors.items()})
