"""What the global model makes of images of the server's own: drawn at random, for LLG* and zero-shot, or public."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedsim.errors import NotApplicable
from fedsim.observation import Observation

CHUNK = 64
"""Images run at once: the batch of BatchNorm in training mode."""


@dataclass(frozen=True)
class Reference:
    """Softmax and head input of images, on the CPU, float64."""

    probs: Float[Tensor, "pictures classes"]
    features: Float[Tensor, "pictures features"]


def random_reference(
    observation: Observation, rng: torch.Generator, device: torch.device, pictures: int = 32
) -> Reference:
    """`read_by_head` of uniform noise."""
    return read_by_head(observation, torch.rand((pictures, *observation.image_shape), generator=rng), rng, device)


def read_by_head(
    observation: Observation, images: Float[Tensor, "n c h w"], rng: torch.Generator, device: torch.device
) -> Reference:
    """Run the model in the client's mode on images in [0, 1].

    Raises:
        NotApplicable: the classifier is not one linear layer of one vector an image.
    """
    if len(observation.roles.head_weights) != 1:
        raise NotApplicable("a reference needs one linear head, not several or none")
    model = observation.build_model().to(device)
    head = model.get_submodule(observation.roles.head_weights[0].rpartition(".")[0])
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    seed = int(torch.randint(2**31, (1,), generator=rng))
    dtype = next(model.parameters()).dtype
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        seen_by = observation.from_unit_range(images).to(device, dtype)
        parts = seen_by.tensor_split(-(-len(seen_by) // CHUNK))  # none of one image, which BatchNorm may refuse
        logits = torch.cat([model(part) for part in parts])
    hook.remove()
    if len(seen) != len(parts) or seen[0].dim() != 2:
        raise NotApplicable("the classifier does not read one vector an image")
    return Reference(logits.double().softmax(dim=1).cpu(), torch.cat(seen).double().cpu())
