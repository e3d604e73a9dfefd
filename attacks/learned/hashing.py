"""Updates of any size as a few numbers: signed feature hashing (Weinberger et al. 2009), as LTI feeds large models."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.determinism import torch_generator


class UpdateHash:
    """Every entry is added, with a random sign, to a random bin; inner products are kept on average.

    Bins and signs follow from (seed, name, size) of each tensor alone: whoever knows the seed hashes alike. They take
    memory from the first update on, so that sizes which a file only claims take none.

    Args:
        sizes: entries of each tensor, by its name.
        bins: how many numbers come out; None: the entries as they are, in the order of their names.
    """

    def __init__(self, sizes: Mapping[str, int], bins: int | None, seed: int) -> None:
        self.sizes = dict(sorted(sizes.items()))
        self.bins = bins
        self._seed = seed
        self._places: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        return sum(self.sizes.values()) if self.bins is None else self.bins

    def __call__(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, " length"]:
        """Raises KeyError where a tensor is missing."""
        flat = {name: tensors[name].detach().cpu().float().flatten() for name in self.sizes}
        if self.bins is None:
            return torch.cat(list(flat.values()))
        result = torch.zeros(self.bins)
        for name, values in flat.items():
            places, signs = self._placed(name, self.bins)
            result.index_add_(0, places, values * signs)
        return result

    def _placed(self, name: str, bins: int) -> tuple[Tensor, Tensor]:
        if name not in self._places:
            size = self.sizes[name]
            rng = torch_generator(self._seed, "update-hash", name, size)
            places = torch.randint(bins, (size,), generator=rng)
            self._places[name] = places, 2.0 * torch.randint(2, (size,), generator=rng) - 1.0
        return self._places[name]
