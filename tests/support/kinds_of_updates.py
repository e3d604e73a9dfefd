"""Clients' updates of every kind, for tests of what attacks take them for: defenses, and ways to take local steps."""

import itertools

DEFENSES = {
    "withhold": {"patterns": ["3.weight", "3.bias"]},
    "gradient_clip": {"max_norm": 0.02},
    "topk": {"ratio": 0.3, "error_feedback": False},
    "half": {},
    "qsgd": {"error_feedback": False},
    "gradient_noise": {"relative_norm": 1e-3},
    "dp_sgd": {"max_grad_norm": 0.05, "noise_multiplier": 1e-4},
}
ONE, THREE = {"share": "delta", "local_steps": 1}, {"share": "delta", "local_steps": 3}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
DECAYED, MOVING = {**SGD, "weight_decay": 1e-2}, {**SGD, "momentum": 0.9}
ADAMW = {"_target_": "torch.optim.AdamW", "lr": 1e-3, "eps": 1e-3, "weight_decay": 0.05}
STEPS = [
    {},
    *({**steps, "optimizer": optimizer} for steps in (ONE, THREE) for optimizer in (SGD, DECAYED, MOVING, ADAMW)),
    {"share": "weights", "local_steps": 1, "optimizer": DECAYED},
    {**THREE, "optimizer": SGD, "max_grad_norm": 0.05},
    {"max_grad_norm": 0.05},
    {"label_smoothing": 0.1},
]
NOT_SIMULATED = (
    ("topk", "gradient_noise"),  # zeros that noise was added to look like numbers that were sent
    ("qsgd", "gradient_noise"),  # so do steps
    ("gradient_clip", "dp_sgd"),  # noise between two clips
    ("dp_sgd", "gradient_clip"),
)
PAIRS = [pair for pair in itertools.permutations(DEFENSES, 2) if pair not in NOT_SIMULATED]


def is_left_out(defenses: tuple[str, ...], how: dict[str, object]) -> bool:
    """Steps of Adam along DP-SGD's noise, whose size is not known, and a clip of steps, which it refuses."""
    adaptive = how.get("optimizer") is ADAMW and how.get("local_steps") == 3
    return "dp_sgd" in defenses and (adaptive or "max_grad_norm" in how)
