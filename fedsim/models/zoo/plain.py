"""What untrained networks without attention share: their registration, activations, and a linear classifier."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from timm.models import generate_default_cfgs
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
}


def untrained(name: str, side: int = 32, **own: Any) -> Any:
    """timm's record of a model without weights for pictures of ten classes in [-1, 1], unless it says otherwise."""
    usual = {"input_size": (3, side, side), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "num_classes": 10}
    return generate_default_cfgs({f"{name}.untrained": {**usual, "classifier": "fc", **own}})


def activation_of(name: str) -> Callable[[], nn.Module]:
    """Makes the activation of that name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name}: one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class PlainNetwork(nn.Module):
    """Layers that end in one vector for each picture, and a linear classifier."""

    def __init__(self, body: nn.Sequential, classifier: nn.Linear) -> None:
        super().__init__()
        self.num_classes = classifier.out_features
        self.body = body
        self.fc = classifier

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.fc(self.body(x))
        return logits
