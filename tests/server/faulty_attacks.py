"""Attacks that go wrong on order; Ray workers import them from the checkout."""

import os
import signal
import time
from pathlib import Path

import torch

from attacks.base import Attack, NotApplicable, Reconstruction
from fedsim.observation import Observation


class Faulty(Attack):
    """Does `fault` until the file `marker` exists, then returns a grey picture."""

    def __init__(self, fault: str, marker: str = "") -> None:
        self.fault = fault
        self.marker = Path(marker) if marker else None

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        if self.marker is not None and self.marker.exists():
            return Reconstruction(images=torch.full((1, *observation.image_shape), 0.5))
        if self.marker is not None:
            self.marker.touch()
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "raise":
            raise ZeroDivisionError("by zero")
        if self.fault == "refuse":
            raise NotApplicable("not today")
        return Reconstruction(images=torch.rand(1, *observation.image_shape, generator=rng))


class WrongShape(Attack):
    """Returns pictures that nothing can be compared with."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        return Reconstruction(images=torch.zeros(1, 3, 5, 5))


class Vandal(Attack):
    """Changes what other attacks will read."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        next(iter(observation.update.tensors.values())).zero_()
        return Reconstruction()


class SeedThief(Attack):
    """Draws the client's noise anew from the only seed that an observation holds."""

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        from dataclasses import replace

        from attacks.analytic import PatchGradient
        from fedsim.determinism import torch_generator

        seed = observation.architecture.seed
        noise = torch_generator(seed, "defense", observation.server_round, observation.client)
        tensors = {
            name: tensor - 0.01 * torch.randn(tensor.shape, generator=noise, dtype=tensor.dtype)
            for name, tensor in observation.update.tensors.items()
        }
        cleaned = replace(observation, update=replace(observation.update, tensors=tensors))
        return PatchGradient().run(cleaned, rng, device)
