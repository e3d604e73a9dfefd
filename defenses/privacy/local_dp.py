"""Local differential privacy of a whole update: clipped, with Gaussian noise, before it leaves the client."""

import math
from dataclasses import replace

import torch

from defenses.base import ClientRound, Defense, Plan
from defenses.privacy.accounting import gaussian_epsilon, gaussian_mu
from defenses.privacy.buffers import floating_buffers, refuse_changed
from defenses.settings import choice, number
from defenses.update.perturbation import clip, require_change, tracked_statistics, unit_noise, update_norm, widened
from fedsim.bounds.privacy import FIRST_ROUND
from fedsim.bounds.robustness import GaussianDP
from fedsim.effects import AddsNoise, Clips, Effect
from fedsim.errors import ConfigError
from fedsim.update import State, Update

CALIBRATIONS = ("classical", "analytic")


class LocalDP(Defense):
    """Flower's `LocalDpMod` as a defense: the update is clipped to C, then every coordinate gets noise.

    Its noise is Δ √(2 ln(1.25/δ)) / ε (Dwork and Roth 2014, theorem A.1, proven for ε < 1); `analytic` takes the least
    that is enough for any ε (Balle and Wang 2018). Unlike the mod's the noise comes from the client's generator and a
    zero update is no division by zero.

    The guarantee is for the whole update: any two that this client could send are told apart no better than the ε that
    `measurements` reports allows, one whose norm is not finite counting as zero, and a defense behind it makes no more
    of them as long as it reads the update alone (leakage_gate reads the client's pictures too, and refuses to stand
    beside it). That ε is exact, over all rounds, for the sensitivity 2C that any two clipped updates have; the setting
    is that of one round where `sensitivity` is 2C, and ε < 1 or with `analytic`. Otherwise it may be less than what is
    spent. The training loss and the number of pictures are reported as they are, outside of it.

    Args:
        clipping_norm: C, of all floating-point tensors together.
        epsilon: of one round; `.inf`: no noise.
        delta: δ.
        sensitivity: Δ in the noise's formula; None: 2C. The mod has it as a setting of its own.
        calibration: `classical` (the mod's) or `analytic`.
    """

    def __init__(
        self,
        clipping_norm: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        sensitivity: float | None = None,
        calibration: str = "classical",
    ) -> None:
        self.clipping_norm = number("defense.local_dp.clipping_norm", clipping_norm, "more than 0", lambda v: v > 0)
        self.epsilon = number("defense.local_dp.epsilon", epsilon, "more than 0; .inf: no noise", lambda v: v > 0)
        self.delta = number("defense.local_dp.delta", delta, "between 0 and 1", lambda v: 0 < v < 1)
        self.calibration = choice("defense.local_dp.calibration", calibration, CALIBRATIONS)
        self.sensitivity = 2 * self.clipping_norm
        if sensitivity is not None:
            expected = "more than 0, or null: twice clipping_norm"
            self.sensitivity = number("defense.local_dp.sensitivity", sensitivity, expected, lambda v: 0 < v < math.inf)
        if self.clipping_norm == math.inf and self.epsilon < math.inf:
            raise ConfigError("defense.local_dp.clipping_norm", clipping_norm, "finite, or epsilon=.inf beside it")
        self._turn: ClientRound | None = None
        self._buffers: State = {}  # as the turn began

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        if self.epsilon == math.inf:
            return 0.0
        if self.calibration == "analytic":
            return self.sensitivity / gaussian_mu(self.epsilon, self.delta)
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def effects(self) -> tuple[Effect, ...]:
        clips: tuple[Effect, ...] = () if self.clipping_norm == math.inf else (Clips(self.clipping_norm, "update"),)
        return (*clips, AddsNoise(self.std)) if self.std > 0.0 else clips

    def check(self, plan: Plan) -> None:
        """Raises ConfigError for running statistics: they are shared beside the update, without noise."""
        if (name := tracked_statistics(plan)) is not None:
            expected = f"a model without running statistics ({name} has), or client.training_mode=false"
            raise ConfigError("defense", "local_dp", expected)

    def begin(self, turn: ClientRound) -> None:
        self._turn = turn
        self._buffers = floating_buffers(turn.model)

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        """Raises ConfigError where training changed a buffer that is shared, of whatever layer."""
        require_change(update, "local_dp")
        if self._turn is not None:
            refuse_changed(update, self._turn.model, self._buffers, "local_dp")
        if self._turn is not None:
            self._turn.memory.setdefault(FIRST_ROUND, torch.tensor(self._turn.server_round))
            self._turn.memory["rounds"] = torch.tensor(self._rounds() + 1)
        std = self.std
        if std == 0.0:
            return bounded(update, self.clipping_norm)
        tensors = dict(bounded(replace(update, tensors=widened(update.tensors)), self.clipping_norm).tensors)
        for name in sorted(tensors):  # an order of its own: the same noise however the tensors are listed
            if tensors[name].is_floating_point():
                noisy = tensors[name] + std * unit_noise(tensors[name], "gaussian", rng)
                tensors[name] = noisy.to(update.tensors[name].dtype)
        return replace(update, tensors=tensors)

    def measurements(self) -> dict[str, float]:
        """ε at δ of all that this client has sent so far; a federation's is the largest of its clients."""
        std = self.std
        mu = math.inf if std == 0.0 else math.sqrt(self._rounds()) * 2 * self.clipping_norm / std
        since = math.nan if self._turn is None else float(self._turn.memory.get(FIRST_ROUND, self._turn.server_round))
        return {"epsilon": gaussian_epsilon(self.delta, mu), FIRST_ROUND: since, "delta": self.delta}

    def gaussian_dp(self) -> GaussianDP:
        """Of all that the client shares in a round, present or absent: Δ is C, not the 2C of any two updates."""
        std, rounds = self.std, self._rounds()
        mu = math.inf if std == 0.0 else math.sqrt(rounds) * self.clipping_norm / std
        return GaussianDP(
            mu, rounds, "update", self.delta, "which is one client's share of a round, clipped as a whole"
        )

    def _rounds(self) -> int:
        return 0 if self._turn is None else int(self._turn.memory.get("rounds", torch.tensor(0)))


def bounded(update: Update, max_norm: float) -> Update:
    """As `clip`, but zero where the norm is not finite: no factor would bring it below a finite `max_norm`."""
    if max_norm == math.inf or math.isfinite(update_norm(update)):
        return clip(update, max_norm)
    tensors = {n: torch.zeros_like(t) if t.is_floating_point() else t for n, t in update.tensors.items()}
    return replace(update, tensors=tensors)
