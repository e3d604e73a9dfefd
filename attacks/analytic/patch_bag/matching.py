"""Errors of an order: in what the first attention reads out, and in the whole gradient."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.analytic.patch_bag.block import UnplacedBlock
from attacks.analytic.patch_bag.order import Cost
from attacks.label.one_example.label import single_label
from fedsim.observation import Observation

CHUNK = 256
Picture = Callable[[Float[Tensor, "images places pixels"]], Float[Tensor, "images c h w"]]


def by_outputs(
    block: UnplacedBlock,
    patches: Float[Tensor, "tokens pixels"],
    outputs: Float[Tensor, "tokens inner"],
    picture: Picture,
) -> Cost:
    """Of what W_o reads at each place and was found to read, relative to the spread over tokens."""
    spread = (outputs - outputs.mean(dim=0)).square().sum(dim=1).mean().clamp(min=torch.finfo(outputs.dtype).tiny)

    def cost(orders: Int[Tensor, "orders places"]) -> Float[Tensor, " orders"]:
        off = [(block.forward(picture(patches[some]))[0] - outputs[some]).square() for some in orders.split(CHUNK)]
        return torch.cat([one.sum(dim=2).mean(dim=1) for one in off]) / spread

    return cost


def by_gradient(observation: Observation, patches: Float[Tensor, "tokens pixels"], picture: Picture) -> Cost | None:
    """Of the gradient of the whole model, the mean over tensors of each one's relative error; None without a label."""
    label = single_label(observation)
    if label is None or not observation.keeps("equations"):
        return None
    device, smoothing = patches.device, observation.protocol.label_smoothing
    model = observation.build_model().double().eval().to(device)
    whole = sum(float(one.square().sum()) for one in observation.gradient.values()) ** 0.5
    target = {
        name: one.to(device)
        for name, one in observation.gradient.items()
        if float(one.norm()) > 1e-3 * observation.eps * whole
    }
    parameters = dict(model.named_parameters())
    chosen = [parameters[name] for name in target]

    def one(order: Int[Tensor, " places"]) -> Tensor:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            scores = model(picture(patches[order][None]))
            loss = F.cross_entropy(scores, label.to(device), label_smoothing=smoothing)
            found = torch.autograd.grad(loss, chosen)
        off = [
            (one - known).square().sum() / known.square().sum()
            for one, known in zip(found, target.values(), strict=True)
        ]
        return torch.stack(off).mean()

    def cost(orders: Int[Tensor, "orders places"]) -> Float[Tensor, " orders"]:
        return torch.stack([one(order) for order in orders])

    return cost
