"""The nearest point of an L1 ball."""

import torch
from jaxtyping import Float
from torch import Tensor


def project_l1(points: Float[Tensor, "n size"], radius: Float[Tensor, " n"] | float) -> Float[Tensor, "n size"]:
    """argmin ‖y - x‖₂ with ‖y‖₁ ≤ radius, of each row (Duchi et al. 2008, figure 1); points within stay as they are.

    Exact: magnitudes are lowered by the one threshold at which their sum is the radius.
    """
    bound = torch.as_tensor(radius, dtype=points.dtype, device=points.device).expand(len(points))
    sizes = points.abs()
    ordered, _ = sizes.sort(dim=1, descending=True)
    excess = ordered.cumsum(dim=1) - bound[:, None]
    counts = torch.arange(1, points.shape[1] + 1, device=points.device)
    kept = (ordered * counts > excess).sum(dim=1, keepdim=True).clamp(min=1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp(min=0)
    shrunk = points.sign() * (sizes - threshold).clamp(min=0)
    return torch.where((sizes.sum(dim=1) <= bound)[:, None], points, shrunk)
