"""DP-SGD (Abadi et al. 2016): each picture's gradient clipped, Gaussian noise on their sum."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import Batch, BatchGradient, ClientRound, Defense, Plan, own_word
from defenses.privacy.accounting import gaussian_epsilon, rdp_epsilon, sampled_gaussian_rdp
from defenses.privacy.buffers import floating_buffers, refuse_changed
from defenses.privacy.sampled import composed_epsilon
from defenses.settings import choice, flag, number, whole
from defenses.update.perturbation import widened
from fedsim.bounds.privacy import FIRST_ROUND
from fedsim.bounds.robustness import GaussianDP
from fedsim.effects import AddsNoise, Clips, Effect
from fedsim.errors import ConfigError
from fedsim.update import State, Update

AMPLIFICATIONS = ("none", "poisson")
NOT_APART = ("mutate a captured Tensor", "vmap", "were not batched")
"""In torch's words for what it cannot differentiate image by image."""


class DPSGD(Defense):
    """A local step's gradient is (Σ_i clip(g_i, C) + N(0, σ²C²)) / B, with the pictures i of its batch.

    The guarantee is per picture: with it or with nothing in its place, everything that is made of the client's
    gradients is (ε, δ)-indistinguishable; one whose gradient is not finite counts as nothing in its place. The training
    loss, the numbers of `measurements` and how many pictures a client has are reported as they are, outside of it. A
    defense that changes each picture by itself may stand beside it: given its draws, which know no picture, each
    picture still enters its own clipped gradient alone.

    A client's batches are a permutation of its pictures, cut into pieces of fixed size, not Poisson samples:

    - `none` proves its ε for exactly that. A picture is in one batch of each pass over the client's pictures, a new
      round begins a new pass, and passes compose as Gaussian mechanisms.
    - `poisson` computes the ε that papers quote, *as if* each batch were a Poisson sample of rate B/n; it can be
      far below what permuted batches give (Chua et al. 2024).

    Args:
        max_grad_norm: C, the L2 norm of one picture's gradient at most.
        noise_multiplier: σ.
        delta: δ at which ε is reported; below one over the number of a client's pictures to mean anything.
        amplification: `none` or `poisson`, the accountant's assumption; the training is the same.
        per_layer: clip each of the L tensors to C/√L, instead of all together to C.
        chunk: pictures whose gradients are held at once, for memory; None: the whole batch.
    """

    def __init__(
        self,
        max_grad_norm: float = 1.0,
        noise_multiplier: float = 1.0,
        delta: float = 1e-5,
        amplification: str = "none",
        per_layer: bool = False,
        chunk: int | None = 8,
    ) -> None:
        self.max_grad_norm = number("defense.dp_sgd.max_grad_norm", max_grad_norm, "more than 0", lambda v: v > 0)
        self.noise_multiplier = number(
            "defense.dp_sgd.noise_multiplier", noise_multiplier, "0 or more", lambda v: 0 <= v < math.inf
        )
        self.delta = number("defense.dp_sgd.delta", delta, "between 0 and 1", lambda v: 0 < v < 1)
        self.amplification = choice("defense.dp_sgd.amplification", amplification, AMPLIFICATIONS)
        self.per_layer = flag("defense.dp_sgd.per_layer", per_layer)
        self.chunk = chunk
        if chunk is not None:
            whole("defense.dp_sgd.chunk", chunk, "a whole number of at least 1, or null", lambda v: v >= 1)
        if self.max_grad_norm == math.inf and self.noise_multiplier > 0:
            raise ConfigError("defense.dp_sgd.max_grad_norm", max_grad_norm, "finite: the noise is a multiple of it")
        self._turn: ClientRound | None = None
        self._buffers: State = {}  # as the turn began
        self._before = 0
        self._drawn = 0
        self._clipped = 0

    @property
    def repeatable(self) -> bool:
        return self.noise_multiplier == 0.0

    def effects(self) -> tuple[Effect, ...]:
        if self.max_grad_norm == math.inf:
            return ()
        clips = Clips(self.max_grad_norm, "example_and_tensor" if self.per_layer else "example")
        noise = AddsNoise(self.noise_multiplier * self.max_grad_norm, on="sum")
        return (clips,) if self.repeatable else (clips, noise)

    def check(self, plan: Plan) -> None:
        """Refuses whatever lets a picture enter more than its own clipped gradient.

        Raises:
            ConfigError: BatchNorm in training mode, float16, clipping of steps, or a defense that changes batches,
                losses or gradients.
        """
        mixing = [name for name, module in plan.model.named_modules() if isinstance(module, _BatchNorm)]
        if mixing and plan.client["training_mode"]:
            expected = (
                f"a model without BatchNorm ({mixing[0]} mixes a batch's pictures), or client.training_mode=false"
            )
            raise ConfigError("defense", "dp_sgd", expected)
        if plan.client.get("precision") == "float16":
            expected = (
                "float32 or bfloat16 beside dp_sgd: one image that overflows float16 changes the step of all, and shows"
            )
            raise ConfigError("client.precision", "float16", expected)
        if (limit := plan.client.get("max_grad_norm")) not in (None, math.inf):
            expected = "null beside dp_sgd, which clips by itself: noise that is scaled down has no known size"
            raise ConfigError("client.max_grad_norm", limit, expected)
        for name, other in plan.defenses.items():
            if other is self or keeps_images_apart(other):
                continue
            for hook in ("transform_batch", "extra_loss", "gradient"):
                if getattr(type(other), hook) is not getattr(Defense, hook):
                    expected = (
                        f"no defense beside it that has a `{hook}`: each picture's gradient stands alone "
                        "(ats and mjp_jp change each picture by itself, and may)"
                    )
                    raise ConfigError("defense", f"[dp_sgd, {name}]", expected)

    def begin(self, turn: ClientRound) -> None:
        self._turn, self._drawn, self._clipped = turn, 0, 0
        self._before = int(turn.memory.get("passes", torch.tensor(0)))
        self._buffers = floating_buffers(turn.model)

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        if self._turn is None:
            raise RuntimeError("dp_sgd counts a client's steps: call begin first")
        size = len(batch.labels)
        self._count(self._turn, size)
        if self.max_grad_norm == math.inf:
            return compute(batch)
        total: State = {}
        kinds: dict[str, torch.dtype] = {}
        for part in batch.pieces(self.chunk):
            each = _per_example(compute, part)
            kinds = {name: tensor.dtype for name, tensor in each.items()}
            clipped, shortened = clipped_sum(widened(each), self.max_grad_norm, self.per_layer)
            self._clipped += shortened
            for name, tensor in clipped.items():
                total[name] = total[name] + tensor if name in total else tensor
        std = self.noise_multiplier * self.max_grad_norm
        if std > 0.0:
            for name in sorted(total):  # an order of its own: the same noise however the tensors are listed
                noise = torch.randn(total[name].shape, generator=rng, dtype=total[name].dtype)
                total[name] = total[name] + std * noise.to(total[name].device)
        return {name: (tensor / size).to(kinds[name]) for name, tensor in total.items()}

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        """The gradients are private already. Raises ConfigError where training changed a buffer that is shared."""
        if self._turn is not None:
            refuse_changed(update, self._turn.model, self._buffers, "dp_sgd")
        return update

    def measurements(self) -> dict[str, float]:
        """ε at δ of all this client's rounds so far, and the share of this turn's gradients that were clipped."""
        assert self._turn is not None
        clipped, memory = self._clipped / max(1, self._drawn), self._turn.memory
        since = float(memory[FIRST_ROUND])
        spent = self._epsilon(memory)
        if "epsilon" in memory:  # composed on a grid, a bound of more steps may be the smaller one
            spent = max(spent, float(memory["epsilon"]))
        memory["epsilon"] = torch.tensor(spent, dtype=torch.float64)
        return {"epsilon": spent, FIRST_ROUND: since, "delta": self.delta, "clipped_share": clipped}

    def gaussian_dp(self) -> GaussianDP:
        """Of one image, present or absent: Δ is the clipping norm, and each pass over the images is one release."""
        assert self._turn is not None
        passes = int(self._turn.memory["passes"])
        mu = math.inf if self.noise_multiplier == 0.0 else math.sqrt(passes) / self.noise_multiplier
        because = "an image is in one batch of each pass over the client's permuted images"
        return GaussianDP(mu, passes, "image", self.delta, because)

    def _count(self, turn: ClientRound, size: int) -> None:
        """Keeps the passes, the Rényi divergences and the sampling rates of one client's steps."""
        self._drawn += size
        available = max(size, turn.num_examples)
        turn.memory.setdefault(FIRST_ROUND, torch.tensor(turn.server_round))
        turn.memory["passes"] = torch.tensor(self._before + math.ceil(self._drawn / available))
        if self.amplification == "poisson" and self.noise_multiplier > 0:
            rate = size / available
            if "rates" in turn.memory or "rdp" not in turn.memory:  # earlier versions kept divergences alone
                count_rate(turn.memory, rate)
            rdp = sampled_gaussian_rdp(self.noise_multiplier, rate)
            turn.memory["rdp"] = turn.memory["rdp"] + rdp if "rdp" in turn.memory else rdp

    def _epsilon(self, memory: State) -> float:
        if self.noise_multiplier == 0.0:
            return math.inf
        if self.amplification == "poisson":
            bound = rdp_epsilon(memory["rdp"], self.delta)
            if "rates" not in memory:
                return bound
            pairs = sorted(zip(memory["rates"].tolist(), memory["counts"].tolist(), strict=True))
            rates, counts = zip(*pairs, strict=True)
            return min(bound, composed_epsilon(self.noise_multiplier, rates, counts, self.delta))
        return gaussian_epsilon(self.delta, math.sqrt(int(memory["passes"])) / self.noise_multiplier)


def _per_example(compute: BatchGradient, part: Batch) -> State:
    """Raises ConfigError where the model does in its forward pass what torch's vmap cannot do image by image."""
    try:
        return compute.per_example(part)
    except RuntimeError as error:
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, torch.OutOfMemoryError) or not any(words in said for words in NOT_APART):
            raise
        expected = (
            "a model whose forward pass writes to no buffer and turns no tensor into a number: each picture's gradient "
            f"is taken by itself (torch: {said.partition('. ')[0]})"
        )
        raise ConfigError("defense", "dp_sgd", expected) from error


def count_rate(memory: State, rate: float) -> None:
    """One more step on a sample of this rate."""
    rates, counts = (memory[name].tolist() if name in memory else [] for name in ("rates", "counts"))
    if rate not in rates:
        rates, counts = [*rates, rate], [*counts, 0]
    counts[rates.index(rate)] += 1
    memory["rates"], memory["counts"] = torch.tensor(rates, dtype=torch.float64), torch.tensor(counts)


def keeps_images_apart(defense: Defense) -> bool:
    """Whether it says of itself, as `per_picture`, that it does no more than change each picture of a batch by itself.

    Its random draws must be the same whatever the pictures are, and losses and gradients must stay as they are. Who
    inherits the word, and has hooks of its own, has not said it.
    """
    said = hasattr(type(defense), "per_picture") and own_word(defense, "per_picture")
    return said and getattr(defense, "per_picture", False) is True


def clipped_sum(gradients: State, max_norm: float, per_layer: bool) -> tuple[State, int]:
    """Σ_i g_i · min(1, C / ‖g_i‖) of [B,…] gradients by name, and how many of the B were shortened.

    With `per_layer` each of the L tensors is taken by itself, with C/√L. A picture whose gradient has a norm that is
    not finite counts as shortened to zero, in every tensor: no factor would bound it.
    """
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients.values()])
    if per_layer:
        factors = clip_factors(norms, max_norm / math.sqrt(len(norms)))
    else:
        factors = clip_factors(torch.linalg.vector_norm(norms, dim=0), max_norm).expand_as(norms)
    finite = norms.isfinite().all(dim=0)
    if not finite.all():
        factors = factors.where(finite, 0.0)
        gradients = {name: g.where(finite.view(-1, *[1] * (g.dim() - 1)), 0.0) for name, g in gradients.items()}
    each = zip(gradients.items(), factors, strict=True)
    total = {name: torch.tensordot(factor.to(g), g, dims=1) for (name, g), factor in each}
    return total, int((factors < 1.0).any(dim=0).sum())


def clip_factors(norms: Float[Tensor, "..."], max_norm: float) -> Float[Tensor, "..."]:
    """min(1, C / norm); 1 where the norm is zero."""
    return (max_norm / norms).clamp(max=1.0)
