"""Defenses and an attack that take their time or go wrong on order; Ray workers import them from the checkout."""

import time
from dataclasses import replace

import torch

from attacks.analytic import PatchGradient
from attacks.base import Reconstruction
from defenses.base import Batch, ClientRound, Defense
from fedsim.observation import Observation
from fedsim.update import Update

FAULTS = ("raise", "hang", "not-a-number")


class Pace(Defense):
    """Changes no bit: each batch takes so many seconds longer, which leaves time to kill somebody."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        time.sleep(self.seconds)
        return batch


class Misbehaves(Defense):
    """One client in one round raises, hangs or shares NaN; all others are left alone.

    Args:
        fault: one of `FAULTS`.
        picture: the id of a picture that the client holds: a client does not know its number.
    """

    def __init__(self, fault: str, server_round: int, picture: str) -> None:
        self.fault = fault
        self.server_round = server_round
        self.picture = picture
        self._chosen = False

    def begin(self, turn: ClientRound) -> None:
        held = () if turn.pictures is None else turn.pictures.ids
        self._chosen = turn.server_round == self.server_round and self.picture in held

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        if self._chosen and self.fault == "raise":
            raise RuntimeError("no more pictures")
        if self._chosen and self.fault == "hang":
            time.sleep(3600.0)
        return batch

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        if not (self._chosen and self.fault == "not-a-number"):
            return update
        name, tensor = next(iter(update.tensors.items()))
        return replace(update, tensors={**update.tensors, name: torch.full_like(tensor, torch.nan)})


class SlowPatchGradient(PatchGradient):
    """`patch_gradient` that takes so many seconds longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        time.sleep(self.seconds)
        return super().run(observation, rng, device)
