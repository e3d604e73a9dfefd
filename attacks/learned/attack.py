"""Learned inversion: one pass through a network that was trained on updates of public pictures (Wu et al. 2023)."""

from pathlib import Path

import torch

from attacks.base import Attack, Certificate, Reconstruction
from attacks.learned.checkpoint import load_trained
from attacks.learned.circumstances import Circumstances, change
from fedsim.errors import ConfigError, NotApplicable, one_of
from fedsim.observation import Observation

OUTPUTS = ("network", "mean")


class LearnedInversion(Attack):
    """LTI. `fedsim-prior kind=lti` trains its network, through the defense that the client runs.

    Args:
        checkpoint: its `inversion.safetensors`.
        output: `network`, or `mean`: the mean of its training pictures, whatever was shared: the baseline.
        any_weights: also where the model's weights are others than those in training, which costs much.
    """

    def __init__(self, checkpoint: str | None = None, output: str = "network", any_weights: bool = False) -> None:
        if checkpoint is None:
            raise ConfigError("checkpoint", None, "inversion.safetensors, which fedsim-prior kind=lti writes")
        one_of("output", output, OUTPUTS)
        self.trained = load_trained(Path(checkpoint).expanduser())
        self.output, self.any_weights = output, any_weights
        self.baseline = output == "mean"
        self.learned_from = self.trained.learned_from

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where anything is not as it was in training."""
        trained = self.trained
        other = trained.circumstances.difference(Circumstances.of(observation), self.any_weights)
        if other is not None:
            raise NotApplicable(f"the network was trained for something else: {other}")
        network = trained.network.to(device)
        if self.output == "mean":
            images = network.mean_picture.expand(network.batch, -1, -1, -1).clone()
            return Reconstruction(images, certificate=Certificate("none", "the mean of public pictures"))
        hashed = trained.hash(change(observation))
        if not bool(hashed.isfinite().all()):
            raise NotApplicable("what was shared is not finite")
        with torch.no_grad():
            images = network(hashed[None].to(device))[0].clamp(0, 1)
        guess = Certificate("none", "a network's guess: it has no test of itself")
        return Reconstruction(images, certificate=guess, of_own=True)
