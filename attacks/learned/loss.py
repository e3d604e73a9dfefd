"""The error of a batch whose order nobody knows."""

import torch
from jaxtyping import Float
from torch import Tensor


def matched_mse(
    found: Float[Tensor, "updates batch c h w"], truth: Float[Tensor, "updates batch c h w"]
) -> Float[Tensor, " updates"]:
    """min over orders π of mean_b ‖x̂_b - x_π(b)‖²/pixels (Wu et al. 2023, section 3.3), by the Hungarian algorithm.

    The order is chosen without a gradient; at ties it is any of the best.
    """
    if found.shape[1] == 1:
        return (found - truth).square().flatten(1).mean(dim=1)
    order = best_orders(found.detach(), truth)
    rows = torch.arange(len(found), device=found.device)[:, None]
    return (found - truth[rows, order]).square().flatten(1).mean(dim=1)


def best_orders(found: Float[Tensor, "updates batch c h w"], truth: Float[Tensor, "updates batch c h w"]) -> Tensor:
    """[updates, batch] the place in `truth` of each picture found."""
    from scipy.optimize import linear_sum_assignment

    a, b = found.flatten(2), truth.flatten(2)
    costs = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None] - 2.0 * a @ b.transpose(1, 2)
    orders = [torch.as_tensor(linear_sum_assignment(cost)[1]) for cost in costs.double().cpu().numpy()]
    return torch.stack(orders).to(found.device)
