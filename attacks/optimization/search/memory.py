"""How many candidates fit into memory at once."""

import torch
from torch import Tensor

from attacks.optimization.matching.derivative import MixedDerivative
from attacks.optimization.matching.local_steps import Variables

GIB = 1024**3
COPIES = {"finite_difference": 5, "central_difference": 5, "double_backward": 4}
"""Tensors of the size of the model that one candidate needs at its worst moment."""
GRAPHS = {"finite_difference": 1.5, "central_difference": 1.5, "double_backward": 4.0}
"""Its activations in units of those that one forward pass keeps; double backward keeps those of the backward too."""


def candidate_bytes(derivative: MixedDerivative, method: str, variables: Variables, steps: int, singly: int = 1) -> int:
    """Memory that one candidate needs, from what a forward pass keeps for its backward pass.

    Args:
        variables: of one candidate, without a leading dimension.
        steps: local steps that are simulated one after the other.
        singly: images of a step whose gradients are clipped one by one; 1 where none are.
    """
    victim = derivative.update.victim
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = variables["images"].detach().clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        victim.loss(victim.params, images, variables["labels"].detach())
    weights = {tensor.untyped_storage().data_ptr() for tensor in victim.params.values()}
    activations = sum(size for address, size in kept.items() if address not in weights)
    model = sum(tensor.numel() * tensor.element_size() for tensor in victim.params.values())
    return int(COPIES[method] * model * singly * steps + GRAPHS[method] * activations * steps)


def default_budget(device: torch.device) -> float:
    """GiB: half of the GPU's, used or not, so that what else runs there changes no bits; 4 on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GIB / 2
    return 4.0


def chunk_size(candidates: int, each: int, budget: float) -> int:
    """Candidates at once within `budget` GiB, one at least."""
    return max(1, min(candidates, int(budget * GIB) // max(1, each)))
