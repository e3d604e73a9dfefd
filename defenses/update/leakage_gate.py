"""A client that attacks itself, and keeps an update to itself where that shows too much of its pictures."""

import math
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from defenses.base import ClientRound, Defense, Plan
from defenses.privacy.dp_sgd import DPSGD
from defenses.privacy.local_dp import LocalDP
from defenses.settings import choice, number, whole
from fedsim.data import ImageSet
from fedsim.data.tensors import TensorImages
from fedsim.determinism import seeded_globals
from fedsim.errors import ConfigError, NotApplicable, NotFiniteError
from fedsim.float32 import full_float32
from fedsim.metrics import pairwise_mse, psnr, ssim
from fedsim.observation import Observation
from fedsim.update import Update

MEASURES = {"ssim": ssim, "psnr": psnr}
PRIORS = ("grey", "mean")
DEVICES = ("auto", "cpu", "cuda")
CHUNK = 64
LEAST = 1e-6
"""A prior less like a picture than this counts as this like it."""


@runtime_checkable
class SelfAttack(Protocol):
    """An attack, as a client uses it on itself; its result has `images`: [M,C,H,W] in [0, 1], or None."""

    def check(self, observation: Observation) -> None: ...

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Any: ...


@runtime_checkable
class Finishing(Protocol):
    """An attack whose images another goes on from (`then`)."""

    def finish(self, observation: Observation, result: Any, rng: torch.Generator, device: torch.device) -> Any: ...


class LeakageGate(Defense):
    """Withholds the whole update where an attack on it comes closer to the client's pictures than a guess does.

    The relative data leakage value of Hatamizadeh et al. (IEEE TMI 2023; NVFlare's filter of that name) of a rebuilt
    picture x̂ is (s(x, x̂) - s(x, p)) / s(x, p), with x the picture that x̂ is nearest to, s a likeness and p a
    prior that needs no update at all; here p is one flat colour. The largest over all rebuilt pictures is judged. The
    paper takes SSIM and NVFlare a threshold of 1, which lets exact copies of smooth photographs through: they are like
    a flat colour already, and no copy is more like them than 1. PSNR in dB has no such bound.

    It vouches for the attack that it runs, against the client's own pictures and what its model saw of them (flipped,
    cropped, shuffled), the larger leakage of both, and for no other: a stronger attack may rebuild what it lets
    through, and where its attack does not apply, or finds nothing finite, everything is let through. A client has no
    public images: a server that has some may reach more by the same attack. That a client is silent tells the server
    that its update was revealing, and the leakage that it reports tells how much: both are read off the pictures
    themselves, so no (ε, δ) of a defense beside it would hold. A client pays the time of the attack each time.

    A round in which a client is not due follows the verdict of its last check.

    Args:
        attack: rebuilds pictures from an observation.
        measure: `psnr`, or the paper's `ssim`.
        prior: `grey`, or `mean`: the colour that the model's normalisation subtracts.
        threshold: the largest relative leakage that is shared; `inf`: measure only.
        every: rounds from one check of a client to its next.
        device: of the attack; `auto` takes the one that the client trains on.
    """

    judges_updates = True

    def __init__(
        self,
        attack: Any,
        measure: str = "psnr",
        prior: str = "grey",
        threshold: float = 0.5,
        every: int = 1,
        device: str = "auto",
    ) -> None:
        self.attack = attack
        self.measure = choice("defense.leakage_gate.measure", measure, tuple(MEASURES))
        self.prior = choice("defense.leakage_gate.prior", prior, PRIORS)
        self.threshold = number(
            "defense.leakage_gate.threshold", threshold, "a number; inf: no bound", lambda v: not math.isnan(v)
        )
        self.every = whole("defense.leakage_gate.every", every, "1 or more", lambda v: v >= 1)
        self.device = choice("defense.leakage_gate.device", device, DEVICES)
        self._turn: ClientRound | None = None
        self._attacked = False

    def check(self, plan: Plan) -> None:
        """Refuses settings without an attack, defenses that change what was judged already, and (ε, δ) beside it."""
        self._as_attack()
        names = list(plan.defenses)
        for name, other in plan.defenses.items():
            if isinstance(other, DPSGD | LocalDP):
                expected = (
                    f"{name} or the gate: what the gate does with an update is read off the pictures without noise"
                )
                raise ConfigError("defense", f"[{', '.join(names)}]", expected)
        own = next((name for name in names if plan.defenses[name] is self), "leakage_gate")
        for name, other in plan.defenses.items():
            if getattr(other, "error_feedback", False):
                expected = f"false beside {own}: of what it withholds the error would count as sent"
                raise ConfigError(f"defense.{name}.error_feedback", True, expected)
        for name in names[names.index(own) + 1 :] if own in names else ():
            if type(plan.defenses[name]).transform_update is not Defense.transform_update:
                expected = f"{own} behind {name}: it judges what is really shared"
                raise ConfigError("defense", f"[{', '.join(names)}]", expected)

    def begin(self, turn: ClientRound) -> None:
        self._turn, self._attacked = turn, False
        if turn.pictures is not None and self._due(turn):
            turn.seen = []

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        turn = self._turn
        if turn is None or turn.observe is None or turn.pictures is None:
            raise RuntimeError("leakage_gate holds an update against the client's pictures: call begin with them first")
        memory = turn.memory
        if self._due(turn):
            leakage = self._attack_itself(turn.observe(update), turn, rng, self._device(turn))
            memory["checked"] = torch.tensor(turn.server_round)
            memory["leakage"] = torch.tensor(leakage, dtype=torch.float64)
        return replace(update, tensors={}, buffers={}) if self._withholds() else update

    def measurements(self) -> dict[str, float]:
        """Relative leakage at the last check, and shares of clients: that withheld, and whose attack ran this round.

        Where the attack does not apply, finds nothing finite or rebuilds nothing, the leakage is 0: what a guess knows.
        """
        return {
            "relative_leakage": self._leakage(),
            "withheld": float(self._withholds()),
            "attacked": float(self._attacked),
        }

    def _due(self, turn: ClientRound) -> bool:
        memory = turn.memory
        return "checked" not in memory or turn.server_round - int(memory["checked"]) >= self.every

    def _leakage(self) -> float:
        memory = {} if self._turn is None else self._turn.memory
        return float(memory.get("leakage", torch.tensor(0.0)))

    def _withholds(self) -> bool:
        return self._leakage() > self.threshold

    def _as_attack(self) -> SelfAttack:
        if not isinstance(self.attack, SelfAttack) or isinstance(self.attack, type):
            # A record of a run names its attack, which is never built from there.
            raise ConfigError("defense.leakage_gate.attack", self.attack, "an attack's _target_ and its settings")
        return self.attack

    def _attack_itself(
        self, observation: Observation, turn: ClientRound, rng: torch.Generator, device: torch.device
    ) -> float:
        attack = self._as_attack()
        seed = int(torch.randint(2**62, (), generator=rng))
        try:
            with seeded_globals(seed, "leakage_gate"), full_float32():
                attack.check(observation)
                drawn = torch.Generator().manual_seed(seed)
                result = attack.run(observation, drawn, device)
                if isinstance(attack, Finishing):
                    result = attack.finish(observation, result, drawn, device)
        except (NotApplicable, NotFiniteError):
            return 0.0
        self._attacked = True
        if result.images is None:
            name = type(attack).__name__
            raise ConfigError("defense.leakage_gate.attack", name, "an attack that rebuilds pictures")
        images = result.images.detach().cpu().double()
        images = images[images.isfinite().flatten(1).all(dim=1)].clamp(0.0, 1.0)
        if len(images) == 0:
            return 0.0
        colour = (0.5,) * len(observation.mean) if self.prior == "grey" else observation.mean
        guess = torch.tensor(colour, dtype=torch.float64).view(1, -1, 1, 1).expand_as(images)
        assert turn.pictures is not None
        sets = [turn.pictures]
        if turn.seen:
            seen = observation.to_unit_range(torch.cat(turn.seen)).clamp_(0.0, 1.0)
            turn.seen.clear()
            sets.append(TensorImages(seen, torch.zeros(len(seen), dtype=torch.long)))
        each = [relative_leakage(nearest_images(held, images), images, guess, self.measure).max() for held in sets]
        return float(max(each))

    def _device(self, turn: ClientRound) -> torch.device:
        if self.device == "auto" and turn.model is not None:
            return next(turn.model.parameters()).device
        return torch.device("cpu" if self.device == "auto" else self.device)


def nearest_images(pictures: ImageSet, images: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """For each rebuilt picture the client's own with the least mean squared error, a few in memory at a time."""
    distances = torch.cat(
        [
            pairwise_mse(pictures.images(range(start, min(start + CHUNK, len(pictures)))), images)
            for start in range(0, len(pictures), CHUNK)
        ]
    )
    return pictures.images(distances.argmin(dim=0)).double()


def relative_leakage(
    originals: Float[Tensor, "m c h w"],
    images: Float[Tensor, "m c h w"],
    prior: Float[Tensor, "m c h w"],
    measure: str,
) -> Float[Tensor, " m"]:
    """(s(x, x̂) - s(x, p)) / s(x, p): 0 for the prior itself, 1 for twice its likeness."""
    likeness = MEASURES[measure]
    guessed = likeness(prior, originals).clamp(min=LEAST)
    return (likeness(images, originals) - guessed) / guessed
