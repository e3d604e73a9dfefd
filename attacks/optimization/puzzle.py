"""What a masked jigsaw (Ren et al. 2023) shows of itself in an update: its mask, and a regression without pictures."""

from jaxtyping import Bool
from torch import Tensor

from attacks.analytic.mjp.attack import UNKNOWN
from attacks.analytic.mjp.localisation import LOCALISER, localisation_term
from fedsim.observation import Observation
from fedsim.update import State

DENSE = 0.5
"""Share of an update's entries that are not zero, from which a row of zeros is a masked one and not a pruned one."""


def masked_rows(observation: Observation) -> Bool[Tensor, " rows"] | None:
    """Rows of `pos_embed` in whose place every picture took the unknown embedding; None where none shows.

    Their gradient is zero exactly. With a mask for each picture that is so where a position is masked in all.
    """
    name = observation.roles.pos_embed
    if name not in observation.update.tensors or UNKNOWN not in observation.global_state:
        return None
    rows = _moved(observation, name).flatten(0, -2).any(dim=1)
    if bool(rows.all()):
        return None
    every = [_moved(observation, name) for name in observation.update.tensors]
    share = sum(int(moved.sum()) for moved in every) / sum(moved.numel() for moved in every)
    return None if share < DENSE else ~rows


def _moved(observation: Observation, name: str) -> Bool[Tensor, "..."]:
    """Where the client's update of a tensor is not zero."""
    shared = observation.update.tensors[name]
    moved: Tensor = shared != (observation.global_state[name] if observation.update.kind == "weights" else 0)
    return moved


def of_pictures(observation: Observation, target: State) -> State:
    """The target less what no picture has a part in: the localisation's head, and its term in `pos_embed`.

    The term is exact as `localisation_term` says. After several steps of SGD it is that of the weights sent; after
    Adam's, whose steps are no multiple of a gradient, it stays.

    Args:
        target: the shared update in units of a gradient, by name.
    """
    found = {name: tensor for name, tensor in target.items() if not name.startswith(f"{LOCALISER}.")}
    roles, linear = observation.roles, observation.update.kind == "gradient" or observation.protocol.optimizer == "sgd"
    if roles.pos_embed not in found or not linear:
        return found
    rows = found[roles.pos_embed].reshape(-1, found[roles.pos_embed].shape[-1]).clone()
    patches = rows[roles.embedded_prefix_tokens :]
    term = localisation_term(observation, patches.any(dim=1).cpu())
    if term is None:
        return found
    # What was pruned stays zero, for objectives that compare only what was sent.
    patches.copy_((patches.double() - term.to(patches.device)) * (patches != 0))
    return {**found, roles.pos_embed: rows.view_as(found[roles.pos_embed])}
