"""How what is known of one image adds up over rounds; a client can compute it before it shares.

It holds where each round's weights depend on earlier releases alone, however they were chosen. A client that stops
sharing says something by its silence: count that as a release, or decide by public quantities.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.bounds.references import gaussian_reference


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
