"""Attacks read an observation and never write into it; what one of them does write, no other reads."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedsim.observation import Observation
from fedsim.update import State

WROTE = "the attack wrote into the observation, which is only to be read"


def handed_to(attack: object, observations: Sequence[Observation]) -> list[Observation]:
    """The observations as this attack may have them: tensors of its own, unless it is one of this package's."""
    if type(attack).__module__.partition(".")[0] == __package__:
        return list(observations)
    copies: dict[int, Tensor] = {}  # a model that several rounds or victims share is copied once

    def own(tensors: State) -> State:
        copies.update({id(t): t.detach().clone() for t in tensors.values() if id(t) not in copies})
        return {name: copies[id(tensor)] for name, tensor in tensors.items()}

    return [
        replace(
            one,
            global_state=own(one.global_state),
            update=replace(one.update, tensors=own(one.update.tensors), buffers=own(one.update.buffers)),
        )
        for one in observations
    ]


def versions(observation: Observation) -> int:
    """torch counts the writes to each tensor: equal before and after means untouched."""
    update = observation.update
    tensors = [*observation.global_state.values(), *update.tensors.values(), *update.buffers.values()]
    return sum(tensor._version for tensor in tensors)
