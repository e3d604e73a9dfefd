"""Updates of any size as a few numbers: signed feature hashing (Weinberger et al. 2009), as LTI feeds large models."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.determinism import torch_generator


class UpdateHash:
    """Every entry is added, with a random sign, to a random bin; inner products are kept on average.

    Bins and signs follow from (seed, name, size) of each tensor alone: whoever knows the seed hashes alike.

    Args:
        sizes: entries of each tensor, by its name.
        bins: how many numbers come out; None: the entries as they are, in the order of their names.
    """

    def __init__(self, sizes: Mapping[str, int], bins: int | None, seed: int) -> None:
        self.sizes = dict(sorted(sizes.items()))
        self.bins = bins
        self._places: dict[str, tuple[Tensor, Tensor]] = {}
        if bins is not None:
            for name, size in self.sizes.items():
                rng = torch_generator(seed, "update-hash", name, size)
                places = torch.randint(bins, (size,), generator=rng)
                self._places[name] = places, 2.0 * torch.randint(2, (size,), generator=rng) - 1.0

    @property
    def length(self) -> int:
        return sum(self.sizes.values()) if self.bins is None else self.bins

    def __call__(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, " length"]:
        """Raises KeyError where a tensor is missing."""
        flat = {name: tensors[name].detach().cpu().float().flatten() for name in self.sizes}
        if self.bins is None:
            return torch.cat(list(flat.values()))
        found = torch.zeros(self.bins)
        for name, values in flat.items():
            places, signs = self._places[name]
            found.index_add_(0, places, values * signs)
        return found
