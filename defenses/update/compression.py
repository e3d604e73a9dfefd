"""Defenses that compress what is shared: the server reads what the code can say.

All act on a gradient or a delta. The record that travels holds the decoded tensors in their own type, not the bits
of the code, so traffic is not measured here.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from defenses.base import ClientRound, Defense, Plan
from defenses.settings import choice, flag, number, whole
from defenses.update.perturbation import require_change, warn_of_statistics
from fedsim.effects import AddsErrors, Effect, Norm, Quantises, SharesSigns, Sparsifies
from fedsim.errors import ConfigError
from fedsim.update import State, Update

PER = ("update", "tensor")
SCALES = ("none", "mean_abs")
NORMS = ("l2", "max")
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Compression(Defense):
    """Applies `compress` to an update's floating-point tensors, not to buffers, with error feedback where asked for.

    Error feedback (Karimireddy et al. 2019, algorithm 2): p = g + e is compressed instead of g, and e = p - C(p) stays
    on the client for its next round. Their e is in units of the step; for a shared gradient that is the same as long
    as the server keeps its learning rate. The error is as large as the update, and travels with the client's context.
    Where p is not finite nothing is kept: an error that is no number would be one in every later round.
    """

    name = "compression"

    def __init__(self, error_feedback: bool = False) -> None:
        self.error_feedback = flag(f"defense.{self.name}.error_feedback", error_feedback)
        self._error: State = {}

    @property
    def repeatable(self) -> bool:
        """Errors that are fed back are of earlier rounds."""
        return not self.error_feedback

    def compress(self, tensors: State, rng: torch.Generator) -> State:
        """The decoded tensors, by the same names."""
        raise NotImplementedError

    def own_effect(self) -> Effect | None:
        """What `compress` does; None where it leaves everything as it is."""
        raise NotImplementedError

    def effects(self) -> tuple[Effect, ...]:
        own = self.own_effect()
        if own is None:
            return ()
        return (AddsErrors(), own) if self.error_feedback else (own,)

    def check(self, plan: Plan) -> None:
        warn_of_statistics(plan, self.name)

    def begin(self, turn: ClientRound) -> None:
        self._error = turn.memory

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        require_change(update, self.name)
        wanted = {name: update.tensors[name] for name in sorted(update.tensors)}  # replays however they are listed
        wanted = {name: tensor for name, tensor in wanted.items() if tensor.is_floating_point()}
        if self.error_feedback:
            wanted = {name: t + self._error[name].to(t) if name in self._error else t for name, t in wanted.items()}
        sent = self.compress(wanted, rng)
        if self.error_feedback:
            errors = {name: tensor - sent[name] for name, tensor in wanted.items()}
            self._error.update({name: e.where(e.isfinite(), 0.0).cpu() for name, e in errors.items()})
        return replace(update, tensors={**update.tensors, **sent})


class TopK(Compression):
    """The coordinates of largest magnitude, zeros elsewhere (Aji and Heafield 2017; Stich et al. 2018).

    Args:
        ratio: share of the coordinates that is kept, at least one; 1 keeps all.
        per: the largest of the whole `update`, or of each `tensor`.
    """

    name = "topk"

    def __init__(self, ratio: float = 0.1, per: str = "update", error_feedback: bool = True) -> None:
        super().__init__(error_feedback)
        self.ratio = number("defense.topk.ratio", ratio, "more than 0 and at most 1", lambda v: 0.0 < v <= 1.0)
        self.per = choice("defense.topk.per", per, PER)

    def own_effect(self) -> Effect | None:
        return None if self.ratio == 1.0 else Sparsifies(self.ratio, self.per)

    def compress(self, tensors: State, rng: torch.Generator) -> State:
        if self.ratio == 1.0:
            return tensors
        if self.per == "update":
            return keep_largest(tensors, self.ratio)
        return {name: keep_largest({name: tensor}, self.ratio)[name] for name, tensor in tensors.items()}


class Sign(Compression):
    """The sign of each coordinate; a zero stays zero.

    Args:
        scale: `none` shares -1, 0 and 1 (signSGD, Bernstein et al. 2018); `mean_abs` times the mean magnitude
            (EF-signSGD, Karimireddy et al. 2019, algorithm 1).
        per: one mean magnitude for the whole `update`, or one for each `tensor`.
        error_feedback: with `mean_abs` only: the error of bare signs grows without bound.
    """

    name = "sign"

    def __init__(self, scale: str = "mean_abs", per: str = "tensor", error_feedback: bool = True) -> None:
        super().__init__(error_feedback)
        self.scale = choice("defense.sign.scale", scale, SCALES)
        self.per = choice("defense.sign.per", per, PER)
        if self.error_feedback and self.scale == "none":
            raise ConfigError("defense.sign.error_feedback", True, "false with scale=none, or scale=mean_abs")

    def own_effect(self) -> Effect | None:
        return SharesSigns(None if self.scale == "none" else self.per)

    def compress(self, tensors: State, rng: torch.Generator) -> State:
        signs = {name: tensor.sign() for name, tensor in tensors.items()}
        if self.scale == "none":
            return signs
        if self.per == "tensor":
            return {name: sign * mean_magnitude([tensors[name]]) for name, sign in signs.items()}
        mean = mean_magnitude(list(tensors.values()))
        return {name: sign * mean for name, sign in signs.items()}


class QSGD(Compression):
    """Stochastic quantisation, unbiased (Alistarh et al. 2017).

    Args:
        levels: s, the number of magnitudes above zero; b bits a coordinate hold 2^(b-1) - 1; None quantises nothing.
        bucket_size: consecutive coordinates of a tensor that share a norm; None: the whole tensor.
        norm: `l2` (the analysed form), or `max` (the form of the paper's experiments).
        error_feedback: not in the paper.
    """

    name = "qsgd"

    def __init__(
        self,
        levels: int | None = 7,
        bucket_size: int | None = 512,
        norm: str = "l2",
        error_feedback: bool = False,
    ) -> None:
        super().__init__(error_feedback)
        self.levels, self.bucket_size = levels, bucket_size
        if levels is not None:
            whole("defense.qsgd.levels", levels, "a whole number of at least 1, or null", lambda v: v >= 1)
        if bucket_size is not None:
            whole("defense.qsgd.bucket_size", bucket_size, "a whole number of at least 1, or null", lambda v: v >= 1)
        self.norm: Norm = "max" if choice("defense.qsgd.norm", norm, NORMS) == "max" else "l2"

    @property
    def repeatable(self) -> bool:
        return self.levels is None and super().repeatable

    def own_effect(self) -> Effect | None:
        return None if self.levels is None else Quantises(1.0 / self.levels, "tensor", self.bucket_size, norm=self.norm)

    def compress(self, tensors: State, rng: torch.Generator) -> State:
        if self.levels is None:
            return tensors
        return {
            name: quantise(tensor, self.levels, self.bucket_size, self.norm, rng) for name, tensor in tensors.items()
        }


class Half(Compression):
    """Half precision on the wire, read back in the tensors' own type.

    What is finite stays so: beyond the type's largest finite number, 65,504 in float16, that number is sent.

    Args:
        dtype: `float16`, `bfloat16`, or None: as it is.
    """

    name = "half"

    def __init__(self, dtype: str | None = "float16", error_feedback: bool = False) -> None:
        super().__init__(error_feedback)
        # YAML users write none for null.
        self.dtype = None if dtype in (None, "none") else choice("defense.half.dtype", dtype, ("none", *HALVES))

    def own_effect(self) -> Effect | None:
        if self.dtype is None:
            return None
        about = torch.finfo(HALVES[self.dtype])
        return Quantises(about.eps, "coordinate", least=about.eps * about.smallest_normal)

    def compress(self, tensors: State, rng: torch.Generator) -> State:
        if self.dtype is None:
            return tensors
        return {name: rounded(tensor, HALVES[self.dtype]) for name, tensor in tensors.items()}


def rounded(tensor: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """To the type and back; a finite number saturates at the largest that the type has."""
    largest = min(torch.finfo(dtype).max, torch.finfo(tensor.dtype).max)
    return torch.where(tensor.isfinite(), tensor.to(dtype).to(tensor.dtype).clamp(-largest, largest), tensor)


def keep_largest(tensors: State, ratio: float) -> State:
    """Zeros but for the round(ratio · n), at least one, of largest magnitude among the n coordinates of all tensors."""
    if not tensors:
        return {}
    magnitudes = torch.cat([tensor.abs().flatten() for tensor in tensors.values()])
    count = max(1, round(ratio * len(magnitudes)))
    kept = torch.zeros(len(magnitudes), dtype=torch.bool, device=magnitudes.device)
    kept[magnitudes.topk(count, sorted=False).indices] = True
    masks = kept.split([tensor.numel() for tensor in tensors.values()])
    return {
        name: torch.where(mask.view(tensor.shape), tensor, 0.0)
        for (name, tensor), mask in zip(tensors.items(), masks, strict=True)
    }


def mean_magnitude(tensors: list[Tensor]) -> float:
    """‖p‖₁ / n of all coordinates together, summed in float64."""
    count = sum(tensor.numel() for tensor in tensors)
    return math.fsum(float(tensor.double().abs().sum()) for tensor in tensors) / max(1, count)


def quantise(
    tensor: Float[Tensor, "..."], levels: int, bucket_size: int | None, norm: str, rng: torch.Generator
) -> Float[Tensor, "..."]:
    """‖v‖ · sign(v_i) · ξ_i(v, s) of Alistarh et al. 2017, eq. 1, on each bucket.

    ξ is the level below or above s|v_i| / ‖v‖, divided by s, drawn so that its mean is that value. For the L2 norm and
    a bucket of n coordinates the variance is at most min(n/s², √n/s) ‖v‖² (lemma 3.1).
    """
    count = tensor.numel()
    size = min(bucket_size or count, count)
    if size == 0:
        return tensor
    flat = tensor.flatten().to(torch.promote_types(tensor.dtype, torch.float32))
    buckets = torch.nn.functional.pad(flat, (0, -count % size)).view(-1, size)
    norms = torch.linalg.vector_norm(buckets, ord=2 if norm == "l2" else math.inf, dim=1, keepdim=True)
    position = torch.where(norms > 0, buckets.abs() / norms, 0.0) * levels
    below = position.floor()
    draw = torch.rand(buckets.shape, generator=rng, dtype=buckets.dtype).to(buckets.device)
    level = below + (draw < position - below)
    quantised: Tensor = norms * buckets.sign() * level / levels
    return quantised.flatten()[:count].view(tensor.shape).to(tensor.dtype)
