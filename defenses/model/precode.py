"""PRECODE (Scheliga et al., WACV 2022): a variational bottleneck in front of the classifier."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.base import Batch, Defense, Plan
from defenses.settings import choice, number, whole
from fedsim.determinism import seeded_globals
from fedsim.effects import Effect, SamplesFeatures
from fedsim.errors import ConfigError
from fedsim.models.roles import find_roles

SAMPLE = ("always", "training", "never")


class Precode(Defense):
    """The classifier reads a decoded sample of q(z|r) = N(μ(r), σ(r)²) in place of the features r.

    The loss gains beta·KL(q(z|r) ‖ N(0, 1)) (section 3), in nats, summed over z and averaged over the batch; the
    authors' code divides it by ln 2. As there, σ is a softplus and both encoder and decoder are one linear layer. The
    noise is that of the model (dropout's kind): it comes from torch's global generator, but without gradients from a
    fixed seed, so that an evaluation can be repeated. Only gradients of the bottleneck, and of what lies behind it, are
    random on their own account; a later paper of the authors (Scheliga et al. 2022, arXiv:2208.04767) and Balunović et
    al. (ICLR 2022) attack the layers before it. No setting gives the undefended model.

    Args:
        k: width of z (256 in the authors' code).
        beta: weight of the KL term (1e-3 there).
        sample: `always`, in evaluation too, as the authors' code; `training`: evaluation takes the mean; `never`.
    """

    def __init__(self, k: int = 256, beta: float = 1e-3, sample: str = "always") -> None:
        self.k = whole("defense.precode.k", k, "a whole number, 1 or more", lambda v: v >= 1)
        self.beta = number("defense.precode.beta", beta, "0 or more", lambda v: 0.0 <= v < math.inf)
        self.sample = choice("defense.precode.sample", sample, SAMPLE)

    @property
    def repeatable(self) -> bool:
        return self.sample == "never"

    def effects(self) -> tuple[Effect, ...]:
        return () if self.sample == "never" and self.beta == 0.0 else (SamplesFeatures(),)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """The bottleneck becomes a part of the classifier, whose own weight and bias keep their names.

        Raises:
            ConfigError: the model does not end in a linear layer.
        """
        heads = find_roles(model).head_weights
        if not heads:
            raise ConfigError(
                "defense", "precode", f"a model with a linear classifier; {type(model).__name__} has none"
            )
        for name in heads:
            head = model.get_submodule(name.rpartition(".")[0])
            assert isinstance(head, nn.Linear)
            with seeded_globals(0, "precode", name):  # a fixed draw: every party builds the same model
                bottleneck = VariationalBottleneck(head.in_features, self.k, self.sample)
            head.add_module("bottleneck", bottleneck.to(head.weight).train(head.training))
            head.register_forward_pre_hook(_through_bottleneck)
        return model

    def check(self, plan: Plan) -> None:
        if self.sample == "training" and plan.client.get("training_mode") is False:
            raise ConfigError("defense.precode.sample", self.sample, "always, since client.training_mode=false")

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor | None:
        if self.beta == 0.0:
            return None
        bottlenecks = [module for module in model.modules() if isinstance(module, VariationalBottleneck)]
        return self.beta * torch.stack([bottleneck.divergence() for bottleneck in bottlenecks]).sum()


class VariationalBottleneck(nn.Module):
    """[…, width] to [width, k] statistics, a sample of z, and back.

    Args:
        sample: when z is drawn, in place of its mean.
    """

    def __init__(self, width: int, k: int, sample: str = "always") -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 2 * k)
        self.decoder = nn.Linear(k, width)
        self.sample = sample
        self._statistics: tuple[Tensor, Tensor] | None = None

    def forward(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        mean, raw = self.encoder(features).chunk(2, dim=-1)
        std = F.softplus(raw)
        self._statistics = (mean, std)
        if self.sample == "always" or (self.sample == "training" and self.training):
            mean = mean + std * _noise(std)
        decoded: Tensor = self.decoder(mean)
        return decoded

    def without_noise(self) -> None:
        """Let the mean stand for z from now on: an attacker's best guess."""
        self.sample = "never"

    def divergence(self) -> Float[Tensor, ""]:
        """The KL term of the last forward pass."""
        if self._statistics is None:
            raise RuntimeError("the KL term is that of a forward pass: run the model first")
        return kl_to_standard_normal(*self._statistics)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no last forward pass; tensors with a graph could not be copied."""
        return {**self.__dict__, "_statistics": None}


def kl_to_standard_normal(mean: Float[Tensor, "*batch k"], std: Float[Tensor, "*batch k"]) -> Float[Tensor, ""]:
    """KL(N(mean, std²) ‖ N(0, 1)) in nats, summed over k, averaged over the batch."""
    log_std = std.clamp_min(torch.finfo(std.dtype).tiny).log()
    return (0.5 * (mean.square() + std.square() - 1.0) - log_std).sum(dim=-1).mean()


def _noise(like: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return torch.randn_like(like)
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype).to(like.device)


def _through_bottleneck(head: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    decoded: Tensor = head.get_submodule("bottleneck")(inputs[0])
    return decoded
