"""Inverting Gradients as published implementations run it, in plain PyTorch: what the engine is measured against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.victim import set_fused_attention
from fedsim.observation import Observation


def invert(observation: Observation, label: int, steps: int, device: torch.device, tv_weight: float = 0.2) -> Tensor:
    """Signed Adam on 1 - cos + TV with `autograd.grad(create_graph=True)`; [1,C,H,W] as the model reads it.

    A cosine tensor by tensor, total variation by convolution, attention unfused as its second derivative needs.
    """
    model = observation.build_model().to(device)
    set_fused_attention(model, False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    target = [observation.gradient[name].float().to(device) for name in names]
    shape = (1, -1, 1, 1)
    mean, std = (torch.tensor(v, device=device).view(shape) for v in (observation.mean, observation.std))
    image = torch.randn(1, *observation.image_shape, device=device).requires_grad_()
    labels = torch.tensor([label], device=device)
    optimiser = torch.optim.Adam([image], lr=0.1)
    milestones = [round(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones)
    kernels = torch.zeros(6, 1, 3, 3, device=device)
    kernels[0::2, 0, 1, 1], kernels[0::2, 0, 1, 2] = -1.0, 1.0
    kernels[1::2, 0, 1, 1], kernels[1::2, 0, 2, 1] = -1.0, 1.0

    def closure() -> Tensor:
        optimiser.zero_grad()
        model.zero_grad()
        loss = F.cross_entropy(model(image), labels)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        product, size, target_size = torch.zeros(3, device=device).unbind()
        for found, wanted in zip(gradients, target, strict=True):
            product = product + (found * wanted).sum()
            size = size + found.pow(2).sum()
            target_size = target_size + wanted.pow(2).sum()
        distance = 1 - product / size.sqrt() / target_size.sqrt()
        total = distance + tv_weight * F.conv2d(image, kernels, padding=1, groups=3).abs().mean()
        total.backward()
        assert image.grad is not None
        image.grad.sign_()
        return total

    for _ in range(steps):
        optimiser.step(closure)
        scheduler.step()
        with torch.no_grad():
            image.data = torch.max(torch.min(image, (1 - mean) / std), -mean / std)
    return image.detach()
