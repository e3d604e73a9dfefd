"""How candidates move: torch's optimisers on tensors whose first dimension counts candidates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.errors import one_of, require

NAMES = ("adam", "signed_adam", "lbfgs")
SCALES = {"alpha": 0.01}
"""Factors on the learning rate: SME's place between two weights lies in [0, 1], pixels span about 4."""


@dataclass(frozen=True)
class OptimiserSettings:
    """One of `NAMES` and its constants.

    Attributes:
        lr: learning rate, in units of the model's input.
        betas: of Adam.
        langevin: standard deviation of the noise added to pixels at each step, in units of the present lr (Yin et
            al. 2021); 0 adds none.
        history, inner: remembered steps and steps in one call of L-BFGS.
        clip: the greatest norm of a candidate's derivative, None for any.
    """

    name: str = "adam"
    lr: float = 0.1
    betas: Sequence[float] = (0.9, 0.999)
    langevin: float = 0.0
    history: int = 100
    inner: int = 20
    clip: float | None = None

    def __post_init__(self) -> None:
        one_of("optimiser.name", self.name, NAMES)
        require("optimiser.lr", self.lr, self.lr > 0, "a positive number")
        require("optimiser.langevin", self.langevin, self.langevin >= 0, "a number that is not negative")
        good = len(self.betas) == 2 and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas)
        require("optimiser.betas", self.betas, good, "two numbers, 0 or more and less than 1")
        calls = f"{self.inner}, optimiser.history={self.history}"
        require("optimiser.inner", calls, min(self.inner, self.history) >= 1, "1 or more")
        require("optimiser.clip", self.clip, self.clip is None or self.clip > 0, "a positive norm, or null")
        signs = self.name == "signed_adam"
        require("optimiser.clip", self.clip, self.clip is None or not signs, "null for signed_adam, which takes signs")
        quiet = self.elementwise or not self.langevin
        require("optimiser.langevin", self.langevin, quiet, "0 for L-BFGS, whose steps noise would mislead")

    @property
    def elementwise(self) -> bool:
        """Whether candidates stacked in one tensor move as each would alone."""
        return self.name != "lbfgs"


class Optimiser:
    """Moves the variables of all candidates by one step.

    Args:
        variables: leaves by name, each with a leading dimension of candidates; one candidate for L-BFGS.
    """

    def __init__(self, settings: OptimiserSettings, variables: Mapping[str, Tensor]) -> None:
        self.settings = settings
        self.named = dict(variables)
        self.variables = list(variables.values())
        self.torch = self._make()

    def step(self, evaluate: Callable[[], Tensor], factor: float) -> None:
        """Move; `evaluate` computes the objective of all candidates and fills the variables' `.grad`."""
        for group in self.torch.param_groups:
            group["lr"] = self.settings.lr * factor * group.get("scale", 1.0)

        def closure() -> Tensor:
            total = evaluate()
            self._shape_gradients()
            return total.sum()

        if self.settings.name == "lbfgs":
            self.torch.step(closure)  # type: ignore[arg-type]
            return
        closure()
        self.torch.step()

    def add_noise(self, pixels: Tensor, factor: float, generators: Sequence[torch.Generator]) -> None:
        """Langevin noise on each candidate, from its own generator."""
        if self.settings.langevin == 0.0:
            return
        size = self.settings.langevin * self.settings.lr * factor
        noise = torch.stack([torch.randn(pixels.shape[1:], generator=generator) for generator in generators])
        with torch.no_grad():
            pixels.add_(noise.to(pixels), alpha=size)

    def forget(self, candidates: Tensor) -> None:
        """Drop the memory of the candidates marked in [candidates], which start anew."""
        if not self.settings.elementwise:
            self.torch = self._make()
            return
        for state in self.torch.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.dim() > 0:
                    value[candidates] = 0.0

    def memory(self) -> dict[str, Tensor]:
        """What a run that goes on later needs, by name. L-BFGS starts its history anew."""
        if not self.settings.elementwise:
            return {}
        result = {}
        for index, variable in enumerate(self.variables):
            for key, value in self.torch.state.get(variable, {}).items():
                if isinstance(value, Tensor):
                    result[f"{index}/{key}"] = value
        return result

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Put back what `memory` gave."""
        for name, value in memory.items():
            index, key = name.split("/", 1)
            self.torch.state[self.variables[int(index)]][key] = value.to(
                self.variables[int(index)].device if value.dim() else "cpu"
            )

    def _make(self) -> torch.optim.Optimizer:
        settings = self.settings
        if settings.name == "lbfgs":
            return torch.optim.LBFGS(
                self.variables, lr=settings.lr, max_iter=settings.inner, history_size=settings.history
            )
        groups = [{"params": [v], "scale": SCALES.get(name, 1.0)} for name, v in self.named.items()]
        return torch.optim.Adam(groups, settings.lr, (float(settings.betas[0]), float(settings.betas[1])))

    def _shape_gradients(self) -> None:
        moved = [variable for variable in self.variables if variable.grad is not None]
        if self.settings.clip is not None:
            parts = [v.grad.reshape(len(v), -1).norm(dim=1) for v in moved if v.grad is not None]
            factors = (self.settings.clip / torch.stack(parts).norm(dim=0).clamp(min=1e-30)).clamp(max=1.0)
            for variable in moved:
                assert variable.grad is not None
                variable.grad.mul_(factors.view(-1, *[1] * (variable.dim() - 1)))
        for variable in moved:
            assert variable.grad is not None
            if self.settings.name == "signed_adam":
                variable.grad.sign_()
