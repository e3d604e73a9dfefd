"""How what is known of one image, and of one client, adds up over rounds; a client can compute both before it shares.

Both hold where each round's weights depend on earlier releases alone, however they were chosen. A client that stops
sharing says something by its silence: count that as a release, or decide by public quantities.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.bounds.references import gaussian_reference
from fedsim.bounds.robustness import blow_up, composed


def running_reference(each: Iterable[Float[Tensor, "n n"]], precision: Float[Tensor, "n n"]) -> list[float]:
    """The Gaussian reference of one image in dB after each round: I_T = Σ_t J_tᵀΣ_t⁻¹J_t.

    Args:
        each: the Fisher information of each round about that image.
        precision: of the prior, C⁻¹.
    """
    total, found = torch.zeros_like(precision), []
    for one in each:
        total = total + one
        found.append(gaussian_reference([total], precision))
    return found


def running_gamma(kappa: float, mus: Sequence[float]) -> list[float]:
    """γ of one client after each of its releases, of these μ."""
    return [blow_up(kappa, composed(mus[: end + 1])) for end in range(len(mus))]
