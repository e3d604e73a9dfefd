"""Models, and the states of training that they are attacked in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.benchmarks.certified.images import ImagePool
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.models import ModelSpec, Normaliser, architecture_seed
from fedsim.storage.durable import replacing
from fedsim.update import State

NANO = "vit_nano_patch2_8"
MODELS: dict[str, dict[str, Any]] = {
    "vit_nano": {"name": NANO, "img_size": 8},
    "vit_nano_2": {"name": NANO, "img_size": 8, "num_classes": 2},
    "vit_nano_16": {"name": NANO, "img_size": 16, "patch_size": 4},
    "vit_dropout": {"name": NANO, "img_size": 8, "kwargs": {"proj_drop_rate": 0.1, "drop_path_rate": 0.1}},
    "vit_tiny": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "kwargs": {"depth": 2}},
    "vit_tiny_8": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 8, "kwargs": {"depth": 2}},
    "vit_small_32": {"name": "vit_small_patch32_224", "img_size": 64, "kwargs": {"depth": 2}},
    "april": {"name": NANO, "img_size": 8, "variant": "april"},
    "april_64": {"name": NANO, "img_size": 8, "variant": "april", "dtype": "float64"},
    "mlp_sigmoid": {"name": "mlp_32", "img_size": 16, "kwargs": {"hidden": [256, 64], "activation": "sigmoid"}},
    "mlp_sigmoid_2": {
        "name": "mlp_32",
        "img_size": 16,
        "num_classes": 2,
        "kwargs": {"hidden": [256, 64], "activation": "sigmoid"},
    },
    "mlp_relu": {"name": "mlp_32", "img_size": 16, "kwargs": {"hidden": [256, 64]}},
    "mlp_relu_32": {"name": "mlp_32", "img_size": 32, "kwargs": {"hidden": [256, 64]}},
    "cnn6": {"name": "cnn_rgap_32", "img_size": 16},
    "cnn6_2": {"name": "cnn_rgap_32", "img_size": 16, "num_classes": 2},
}
"""By name, what of `conf/model` is not its default; 10 classes where nothing else is said."""

STATES = ("0", "30", "100", "300", "fitted", "label_noise", "saturated")
"""Steps of Adam on the pool; to train accuracy 1.0; the same with 30 % of the labels random; 300 and the head times
4."""

NOISE, SATURATION = 0.3, 4.0
BATCH, RATE, MOST_STEPS = 16, 1e-3, 1200
"""Training ends there, fitted or not; the page says what was reached. Fully connected models see the pool whole."""


def model_config(name: str) -> dict[str, Any]:
    """`cfg.model`."""
    defaults = {"num_classes": 10, "img_size": None, "patch_size": None, "pretrained": False, "checkpoint": None}
    return {**defaults, "variant": "stock", "dtype": "float32", "kwargs": {}, **MODELS[name]}


def trained(name: str, state: str, pool: ImagePool, folder: Path) -> State:
    """The model's weights in this state, read from the folder where they are there."""
    path = folder / f"{name}-{state}.safetensors"
    if not path.exists():
        train(name, pool, folder)
    return load_file(path)


def train(name: str, pool: ImagePool, folder: Path) -> list[dict[str, Any]]:
    """All states of a model, written into the folder; for each the steps and the train accuracy that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model_config(name)
    rng = torch_generator(0, "label noise", name)
    noisy = torch.randint(config["num_classes"], pool.labels.shape, generator=rng)
    noisy = torch.where(torch.rand(len(noisy), generator=rng) < NOISE, noisy, pool.labels)
    rows = []
    for states, labels in ((("0", "30", "100", "300", "fitted"), pool.labels), (("label_noise",), noisy)):
        model = ModelSpec.from_dict(config).build(architecture_seed(0))
        steps = _steps(model, pool.images, labels, name)
        done = 0
        for state in states:
            until = int(state) if state.isdigit() else None
            while until is None or done < until:
                if until is None and (done >= MOST_STEPS or (done % 20 == 0 and _accuracy(model, pool, labels) == 1.0)):
                    break
                next(steps)
                done += 1
            rows.append({"state": state, "steps": done, "accuracy": _accuracy(model, pool, labels)})
            _write(model.state_dict(), folder / f"{name}-{state}.safetensors")
            if state == "300":
                saturated = _saturated(model)
                _write(saturated, folder / f"{name}-saturated.safetensors")
                rows.append({**rows[-1], "state": "saturated"})
    return rows


def fill(model: nn.Module, weights: State) -> None:
    """Put trained weights into a model that defenses may have changed: where name and shape are the same."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in weights and weights[name].shape == tensor.shape and name not in frozen:
                tensor.copy_(weights[name])


def _steps(model: nn.Module, images: Tensor, labels: Tensor, name: str) -> Iterator[None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    normalise = Normaliser(model)
    rng = torch_generator(0, "training", name)
    step = 0
    while True:
        model.train()
        whole = name.startswith("mlp")
        chosen = torch.arange(len(labels)) if whole else torch.randint(len(labels), (BATCH,), generator=rng)
        with seeded_globals(0, "training", name, step):
            loss = F.cross_entropy(model(normalise(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        yield


@torch.no_grad()
def _accuracy(model: nn.Module, pool: ImagePool, labels: Tensor) -> float:
    model.eval()
    inputs = Normaliser(model)(pool.images)
    return float((model(inputs).argmax(dim=1) == labels).double().mean())


def _saturated(model: nn.Module) -> State:
    head = model.get_classifier()  # type: ignore[operator]
    named = {parameter: name for name, parameter in model.named_parameters()}
    scaled = {named[parameter] for parameter in head.parameters()}
    return {name: SATURATION * t if name in scaled else t for name, t in model.state_dict().items()}


def _write(state: State, path: Path) -> None:
    with replacing(path, durable=False) as partial:
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}, partial)
