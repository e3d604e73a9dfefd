"""Whether each audited image is determined by what is shared, near itself: a fact about it, and no protection."""

import math
from collections.abc import Sequence
from statistics import median

import torch

from clients.bounds.base import Bound, Party, refuse_sums
from clients.bounds.jacobian import check_linear, jacobian
from clients.training import LocalResult
from defenses.settings import whole
from fedsim.bounds.references import Determined, determined
from fedsim.bounds.rounding import rounding_of_rows, rounding_std
from fedsim.bounds.statement import Statement
from fedsim.effects import AddsNoise, Clips, Quantises
from fedsim.models import find_roles


class Determinedness(Bound):
    """Rank and condition of J at each image, and what the rounding of shared numbers alone would leave.

    Noise is left out: this asks what would be left without it.

    Args:
        images: how many updates at most.
    """

    kind = "local fact"

    def __init__(self, images: int = 16) -> None:
        self.images = whole("bound.determined.images", images, "a whole number, 1 or more", lambda one: one >= 1)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Raises NotApplicable where J is not computed."""
        refuse_sums(parties)
        found: list[tuple[str, Determined]] = []
        for party in parties[: self.images]:
            check_linear(party, rounds=True)
            result = party.train()
            update = party.share(result)
            J, shared = jacobian(party, update)
            rounding = _rounding(party, update.tensors, shared, result)
            found.append((", ".join(map(str, party.pictures.ids)), determined(J, rounding, least=1.0)))
        whole = [one for _, one in found if one.rank == one.unknowns]
        lost = max(one.unknowns - one.rank for _, one in found)
        told = f"{len(whole):,} of {len(found):,} are determined near themselves by what is shared"
        left = median(one.rounding_psnr for one in whole) if whole else None
        told += "" if left is None else f", and its rounding alone would leave {left:.0f} dB (median)"
        told += f"; up to {lost:,} of {found[0][1].unknowns:,} directions are not in it" if lost else ""
        sentence = (
            f"Of these images, noise left out and labels known, {told}: a fact about them and images close by, which "
            "proves no protection, as another image far away may share the same update and a prior fills in what is "
            "missing."
        )
        header = ("image", "directions shared", "condition", "rounding alone leaves")
        rows = tuple(
            (
                name,
                f"{one.rank:,} of {one.unknowns:,}",
                f"{one.condition:.1e}" if math.isfinite(one.condition) else "–",
                f"{one.rounding_psnr:.0f} dB" if math.isfinite(one.rounding_psnr) else "–",
            )
            for name, one in found
        )
        values = {"images": float(len(found)), "determined": float(len(whole)), "missing_directions": float(lost)}
        return Statement(
            "local fact", sentence, values | ({} if left is None else {"rounding_psnr": left}), header, rows
        )


def _rounding(
    party: Party, tensors: "dict[str, torch.Tensor]", shared: torch.Tensor, result: LocalResult
) -> torch.Tensor:
    """One rounding for each tensor, that of its root mean square; coarser where a defense or autocast rounds."""
    rounds = [one for one in party.effects if isinstance(one, Quantises) and one.per == "coordinate"]
    steps, least = [one.step for one in rounds], max((one.least for one in rounds), default=0.0) / math.sqrt(12.0)
    # What is withheld was rounded as well, where terms of its size cancelled.
    computed = math.hypot(*(float(tensor.norm()) for tensor in result.tensors.values()))
    if any(isinstance(effect, AddsNoise) and effect.on == "sum" for effect in party.effects):
        computed = float(shared.norm())  # the client's own tensors hold the noise, which is left out
    whole = min([computed, *(effect.max_norm for effect in party.effects if isinstance(effect, Clips))])
    found, start = [], 0
    position = find_roles(party.runtime.model).pos_embed
    for name, tensor in tensors.items():
        part = shared[start : start + tensor.numel()]
        eps = max([torch.finfo(tensor.dtype).eps, result.protocol.rounding, *steps])
        each = torch.full(tensor.shape, rounding_std(float(part.norm()), tensor.numel(), whole, eps))
        if name == position:
            rows = part.view(-1, tensor.shape[-1])
            each = rounding_of_rows(rows, whole, eps).expand_as(rows)
        found.append(each.double().flatten().clamp(min=max(least, 1e-300)))
        start += tensor.numel()
    return torch.cat(found)
