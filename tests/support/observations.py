"""Observations made in plain torch, without a federation."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from clients.replay import replay
from defenses import Defense, DefenseChain
from fedsim.models import Architecture, ModelSpec, find_roles, input_size, normalisation
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, Update

SAMPLES = Path(find_spec("sklearn").origin).parent / "datasets" / "images"
"""Found, not loaded by `sklearn.datasets`: that takes a second."""


def tiny(**settings: object) -> ModelSpec:
    """ViT-Ti/4 at 32 px: 64 patch tokens, width 192; four blocks, for what closed forms read is in the first."""
    spec = ModelSpec("vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=4, kwargs={"depth": 4})
    return replace(spec, **settings)


def observe(
    spec: ModelSpec,
    images: Tensor,
    labels: Sequence[int],
    lr: float | None = None,
    defenses: dict[str, Defense] | None = None,
    kind: str = "delta",
    label_smoothing: float = 0.0,
    seed: int = 0,
    steps: int = 1,
    model: nn.Module | None = None,
) -> Observation:
    """One client's update on [B,C,H,W] pictures in [0, 1]: a gradient, or what SGD at `lr` makes of it."""
    chain = DefenseChain(defenses)
    architecture = Architecture(spec, (chain,), seed)
    model = (architecture.build(keep=True) if model is None else copy.deepcopy(model)).train()
    mean, std = normalisation(model)
    start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    side = input_size(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    dtype = next(iter(trained.values())).dtype
    seen = ((images - torch.tensor(mean).view(1, -1, 1, 1)) / torch.tensor(std).view(1, -1, 1, 1)).to(dtype)
    for _ in range(steps):
        loss = F.cross_entropy(model(seen), torch.tensor(labels), label_smoothing=label_smoothing)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        shared = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
        if lr is not None:
            with torch.no_grad():
                for name, gradient in shared.items():
                    trained[name].sub_(lr * gradient)
    protocol = LocalProtocol(batch_size=len(labels), label_smoothing=label_smoothing)
    if lr is not None:
        protocol = replace(protocol, optimizer="sgd", lrs=(lr,) * steps, steps=steps)
        ends = {name: trained[name].detach() for name in shared}
        shared = ends if kind == "weights" else {name: end - start[name] for name, end in ends.items()}
    update = Update(shared, "gradient" if lr is None else kind, num_examples=len(labels))
    if update.kind != "weights":
        update = chain.transform_update(update, torch.Generator().manual_seed(1))
    return Observation(
        server_round=1,
        client=0,
        global_state=start,
        update=update,
        protocol=protocol,
        architecture=architecture,
        roles=find_roles(model),
        image_shape=(3, side, side),
        mean=mean,
        std=std,
        num_classes=spec.num_classes,
        replayer=replay,
    )


def psnr(found: Tensor, truth: Tensor) -> float:
    """In float64, capped at 300 dB."""
    error = (found.double().cpu() - truth.double()).square().mean().item()
    return -10.0 * math.log10(max(error, 1e-30))


def random_gradient(observation: Observation, seed: int = 0) -> Observation:
    """The same observation with a gradient of the same norms that knows nothing."""
    rng = torch.Generator().manual_seed(seed)
    noise = {}
    for name, tensor in observation.update.tensors.items():
        drawn = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        noise[name] = drawn * tensor.norm() / drawn.norm()
    return replace(observation, update=replace(observation.update, tensors=noise))


def detailed(count: int = 1, side: int = 32) -> Tensor:
    """Pictures without two alike patches: the best conditioned."""
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def photographs(side: int) -> Tensor:
    """scikit-learn's two photographs, [2,3,side,side] in [0, 1], float64."""
    return _photographs(side).clone()


@cache
def _photographs(side: int) -> Tensor:
    """Decoded once a process for each size: two hundred tests ask."""
    return torch.cat(
        [to_tensor(Image.open(SAMPLES / name).resize((side, side))) for name in ("china.jpg", "flower.jpg")]
    )


def to_tensor(picture: Image.Image) -> Tensor:
    array = np.asarray(picture.convert("RGB"), dtype=np.float64) / 255.0
    return torch.from_numpy(array).permute(2, 0, 1)[None]


def pictures_in(folder: Path, count: int, side: int) -> Tensor:
    """`count` pictures spread evenly over a tree of class folders."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    chosen = files[:: max(1, len(files) // count)][:count]
    return torch.cat([to_tensor(Image.open(path).resize((side, side))) for path in chosen])
