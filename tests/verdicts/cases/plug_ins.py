"""An attack and a defense that a user might have written, to make reports lie in real audits."""

from dataclasses import replace

import torch

from attacks.base import Attack, Certificate, Reconstruction
from defenses.base import Defense
from fedsim.observation import Observation
from fedsim.update import Update


class Grey(Attack):
    """Whatever was shared, grey comes out; unlike a baseline it does not say so, and it may vouch for it.

    Args:
        claim: say that it is certified.
    """

    def __init__(self, value: float = 0.5, claim: bool = False) -> None:
        self.value, self.claim = value, claim

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        images = torch.full((observation.protocol.batch_size, *observation.image_shape), self.value)
        return Reconstruction(images, certificate=Certificate("certified" if self.claim else "uncertified", "grey"))


class Divided(Defense):
    """Shares no number at all."""

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        return replace(update, tensors={name: tensor / 0 for name, tensor in update.tensors.items()})
