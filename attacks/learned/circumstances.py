"""What an inversion network was trained for: it holds for no other client."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from fedsim.observation import Observation
from fedsim.storage.digests import digest
from fedsim.update import LocalProtocol, State

WEIGHTS = {"checkpoint", "pretrained"}
"""What of a model's settings says where its weights came from: the weights themselves are compared."""


@dataclass(frozen=True)
class Circumstances:
    """Everything besides the pictures that an update depends on, as far as the server knows it.

    Attributes:
        tensors: shape of each shared tensor, by name.
        weights: digest of the global state.
    """

    tensors: dict[str, list[int]]
    kind: str
    num_examples: int
    summed: int
    protocol: dict[str, Any]
    defenses: list[dict[str, Any]]
    model: dict[str, Any]
    image_shape: list[int]
    weights: str

    @classmethod
    def of(cls, observation: Observation) -> "Circumstances":
        finetune = observation.finetune
        part = {} if finetune.whole else {"finetune": finetune.to_record()}  # checkpoints of before have none
        found = {
            "tensors": {name: list(tensor.shape) for name, tensor in sorted(observation.update.tensors.items())},
            "kind": observation.update.kind,
            "num_examples": observation.update.num_examples,
            "summed": observation.summed,
            "protocol": observation.protocol.to_dict(),
            "defenses": list(observation.defenses),
            "model": observation.architecture.spec.to_dict() | part,
            "image_shape": list(observation.image_shape),
            "weights": digest(observation.global_state)[:32],
        }
        return cls(**json.loads(json.dumps(found)))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def difference(self, other: "Circumstances", any_weights: bool = False) -> str | None:
        """In what `other` is not what this was trained for, in words; None: in nothing."""
        missing = [name for name in self.tensors if name not in other.tensors]
        if missing:
            return f"{_few(missing)} was shared in training and is not now"
        if more := [name for name in other.tensors if name not in self.tensors]:
            return f"{_few(more)} was not shared in training and is now"
        for name, shape in self.tensors.items():
            if other.tensors[name] != shape:
                return f"{name} was of shape {tuple(shape)}, now {tuple(other.tensors[name])}"
        if self.defenses != other.defenses:
            return f"defense was {_named(self.defenses)}, now {_named(other.defenses)}{_setting(self, other)}"
        protocols = [LocalProtocol.from_dict(one.protocol).to_dict() for one in (self, other)]
        for key in ("batch_size", *sorted(protocols[0].keys() - {"micro_batch_size"})):  # of which rounding alone tells
            before, now = (protocol[key] for protocol in protocols)
            if before != now:
                return f"{key} was {before}, now {now}"
        for key in ("kind", "num_examples", "summed", "image_shape"):
            before, now = getattr(self, key), getattr(other, key)
            if before != now:
                return f"{key} was {before}, now {now}"
        for key in ("name", *sorted({*self.model, *other.model} - WEIGHTS)):
            before, now = self.model.get(key), other.model.get(key)
            if before != now:
                what = "the model" if key == "name" else f"the model's {key}"
                return f"{what} was {before}, now {now}"
        if self.weights != other.weights and not any_weights:
            return f"the model's weights are not those that it was trained for{_drawn(other)}"
        return None


def change(observation: Observation) -> State:
    """What was shared, as a gradient or a change of the weights: whole weights hide it in their own size."""
    update = observation.update
    if update.kind != "weights":
        return update.tensors
    return {name: tensor - observation.global_state[name] for name, tensor in update.tensors.items()}


def _drawn(now: Circumstances) -> str:
    """Where they may have come from the same seed."""
    if now.model.get("checkpoint") is not None or now.model.get("pretrained"):
        return ""
    return " (drawn ones differ in last bits between types of processor: use one, or give model.checkpoint)"


def _few(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _named(defenses: list[dict[str, Any]]) -> str:
    return "+".join(str(defense.get("name", defense.get("_target_"))) for defense in defenses) or "none"


def _setting(before: Circumstances, now: Circumstances) -> str:
    """The first setting that differs, where the names of the defenses do not."""
    if _named(before.defenses) != _named(now.defenses):
        return ""
    for old, new in zip(before.defenses, now.defenses, strict=True):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return f": {key} was {old.get(key)}, now {new.get(key)}"
    return ""
