"""What clients share, and after which local steps."""

from typing import Any


def _sgd(lr: float, **more: Any) -> dict[str, Any]:
    return {"_target_": "torch.optim.SGD", "lr": lr, **more}


PROTOCOLS: dict[str, dict[str, Any]] = {
    "gradient": {"share": "gradient"},
    "gradient_smoothed": {"share": "gradient", "label_smoothing": 0.1},
    "gradient_evaluation": {"share": "gradient", "training_mode": False},
    "delta_0.1": {"share": "delta", "optimizer": _sgd(0.1)},
    "delta_0.01": {"share": "delta", "optimizer": _sgd(0.01)},
    "delta_0.001": {"share": "delta", "optimizer": _sgd(0.001)},
    "delta_momentum": {"share": "delta", "optimizer": _sgd(0.1, momentum=0.9)},
    "delta_nesterov": {"share": "delta", "optimizer": _sgd(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)},
    "delta_decay": {"share": "delta", "optimizer": _sgd(0.1, weight_decay=0.1)},
    "delta_maximize": {"share": "delta", "optimizer": _sgd(0.1, maximize=True)},
    "delta_adam": {"share": "delta", "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.001}},
    "weights": {"share": "weights", "optimizer": _sgd(0.1)},
    "two_steps": {"share": "delta", "local_steps": 2, "optimizer": _sgd(0.1)},
    "two_small_steps": {"share": "delta", "local_steps": 2, "optimizer": _sgd(0.001)},
    "two_smoothed": {"share": "delta", "local_steps": 2, "optimizer": _sgd(0.01), "label_smoothing": 0.1},
    "three_steps": {"share": "delta", "local_steps": 3, "optimizer": _sgd(0.01)},
    "three_weights": {"share": "weights", "local_steps": 3, "optimizer": _sgd(0.01, momentum=0.9)},
}
"""By name, what of `cfg.client` is not its default. All local steps are on the whole batch."""


def client_config(name: str, batch_size: int) -> dict[str, Any]:
    """`cfg.client`."""
    defaults = {
        "local_epochs": 1,
        "local_steps": None,
        "optimizer": _sgd(0.1),
        "scheduler": None,
        "label_smoothing": 0.0,
        "training_mode": True,
        "device": "cpu",
    }
    return {"batch_size": batch_size, **defaults, **PROTOCOLS[name]}
