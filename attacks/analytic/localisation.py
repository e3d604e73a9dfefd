"""What MJP's localisation regression adds to the position embedding's gradient: all of it is known to the server."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.observation import Observation

LOCALISER = "dal"
"""The submodule that the defense adds; its output is the regression's loss, before its weight."""


def without_localisation(
    observation: Observation, token_grads: Float[Tensor, "tokens width"]
) -> Float[Tensor, "tokens width"]:
    """∂L/∂e_n of the classification loss alone.

    The regression reads the global weights and the mask, which shows as rows of zeros. Its weight is the ratio of the
    head's shared gradient to its gradient here. Exact for one picture, and for batches of which no picture was masked.
    """
    names = [name for name in observation.gradient if name.startswith(f"{LOCALISER}.")]
    read = token_grads.any(dim=1)
    if not names or not bool(read.any()):
        return token_grads
    model = observation.build_model()
    localiser = model.get_submodule(LOCALISER)
    assert observation.roles.pos_embed is not None
    embedding = model.get_parameter(observation.roles.pos_embed)[0, -len(token_grads) :].detach().requires_grad_()
    weights = {name: localiser.get_parameter(name.removeprefix(f"{LOCALISER}.")) for name in names}
    share = read.to(embedding) / read.sum()
    own, *head = torch.autograd.grad(localiser(embedding, share), [embedding, *weights.values()])
    found = torch.cat([gradient.double().flatten() for gradient in head])
    known = torch.cat([observation.gradient[name].double().flatten() for name in names])
    cleaned: Tensor = token_grads - (found @ known) / (found @ found) * own.to(token_grads)
    return cleaned
