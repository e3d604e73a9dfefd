"""What MJP's localisation regression adds to the position embedding's gradient: all of it is known to the server."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedsim.observation import Observation

LOCALISER = "dal"
"""The submodule that the defense adds: its output is the regression's loss, `weight.at(round)` that loss's weight."""


def without_localisation(
    observation: Observation, token_grads: Float[Tensor, "tokens width"]
) -> Float[Tensor, "tokens width"]:
    """∂L/∂e_n of the classification loss alone; see `localisation_term`."""
    term = localisation_term(observation, token_grads.any(dim=1))
    return token_grads if term is None else token_grads - term.to(token_grads)


def localisation_term(observation: Observation, read: Bool[Tensor, " tokens"]) -> Float[Tensor, "tokens width"] | None:
    """The regression's part of ∂L/∂e_n, float64; None where nothing is regressed.

    It reads the global weights and the mask. Its weight is the ratio of the head's shared gradient to its gradient
    here, so that scaling does no harm, or the public one where no head is shared: `dal=pca` has none, a defense
    withholds it, or what came of it is not finite. Exact for one picture, for one mask a batch, and for batches of
    which no picture was masked. A head that is missing otherwise was taken out before, and its term with it.

    Args:
        read: the unmasked positions, which show as rows that are not zero.
    """
    if not _regresses(observation) or not bool(read.any()):
        return None
    model = observation.build_model()
    localiser = model.get_submodule(LOCALISER)
    assert observation.roles.pos_embed is not None
    embedding = model.get_parameter(observation.roles.pos_embed)[0, -len(read) :].detach().requires_grad_()
    weights = {f"{LOCALISER}.{name}": weight for name, weight in localiser.named_parameters()}
    names = [name for name in weights if name in observation.gradient]
    if not observation.update.withheld.keys() >= weights.keys() - set(names):
        return None
    names = [name for name in names if bool(observation.gradient[name].isfinite().all())]
    loss = localiser(embedding, read.to(embedding) / read.sum())
    own, *head = torch.autograd.grad(loss, [embedding, *(weights[name] for name in names)])
    if not names:
        return float(localiser.weight.at(observation.server_round)) * own.double()  # type: ignore[operator, union-attr]
    found = torch.cat([gradient.double().flatten() for gradient in head])
    known = torch.cat([observation.gradient[name].double().flatten() for name in names])
    found = found * (known != 0)  # of a pruned update, what is left
    return (found @ known) / (found @ found).clamp(min=torch.finfo(torch.float64).tiny) * own.double()


def _regresses(observation: Observation) -> bool:
    """A head shows in the state; that of `dal=pca` has no parameters, and only the public settings name it."""
    headed = any(name.startswith(f"{LOCALISER}.") for name in observation.global_state)
    return headed or any(defense.get("dal") == "pca" for defense in observation.defenses)
