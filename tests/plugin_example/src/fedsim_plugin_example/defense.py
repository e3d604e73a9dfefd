"""Random sparsification of what a client shares."""

from dataclasses import replace

import torch

from defenses.base import Defense
from fedsim.errors import ConfigError
from fedsim.update import Update


class RandomMask(Defense):
    """Keeps each coordinate with probability `keep`, divided by it; zeros elsewhere: unbiased (Wangni et al. 2018).

    The draw comes from `rng` alone, so a run replays. `keep=1` changes no bit.
    """

    def __init__(self, keep: float = 0.2) -> None:
        if isinstance(keep, bool) or not 0 < keep <= 1:
            raise ConfigError("defense.random_mask.keep", keep, "more than 0 and at most 1")
        self.keep = keep

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        if update.kind == "weights":
            raise ConfigError("defense", "random_mask", "a gradient or a delta; whole weights are formed after it")
        if self.keep == 1:
            return update
        tensors = dict(update.tensors)
        for name in sorted(tensors):  # the same draws however the tensors are listed
            tensor = tensors[name]
            if tensor.is_floating_point():
                kept = torch.rand(tensor.shape, generator=rng).to(tensor.device) < self.keep
                tensors[name] = torch.where(kept, tensor / self.keep, 0.0)
        return replace(update, tensors=tensors)
