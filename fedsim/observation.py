"""All that the server knows about one client's update."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedsim.effects import Clips, Effect, Unpublished, Withholds
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture, ModelSpec, Statistics, ViTRoles, recover_statistics
from fedsim.models.architecture import ModelWrapper
from fedsim.update import LocalProtocol, State, Update

FORMAT = 1

Replayer = Callable[["Observation", Tensor, Tensor], Update | None]
"""A client's computation once more: see `Observation.replay`."""


@dataclass(frozen=True)
class Observation:
    """One client's update with everything needed to attack it, now or a year later.

    Attributes:
        client: partition id of the client (of the first in a sum), or number of the batch in an audit.
        global_state: parameters and buffers before the round, by name.
        image_shape: (channels, height, width) that the model reads.
        mean, std: normalisation, per channel, of pictures in [0, 1].
        defenses: the defenses that run on the client, as configured: public, less their randomness.
        auxiliary_probs: [classes] mean softmax of the global model over pictures that no client holds.
        summed: clients whose updates were summed before the server saw anything.
        replayer: how a client computes, attached by whoever made the observation; None where that is not known.
    """

    server_round: int
    client: int
    global_state: State
    update: Update
    protocol: LocalProtocol
    architecture: Architecture
    roles: ViTRoles
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int
    defenses: tuple[dict[str, Any], ...] = ()
    auxiliary_probs: Tensor | None = field(default=None)
    summed: int = 1
    replayer: Replayer | None = field(default=None, repr=False, compare=False)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What the client's defenses do to its update, as they publish it; `Unpublished` for one that does not say."""
        wrappers = self.architecture.wrappers
        if not self._defenses_at_hand:
            return tuple(Unpublished(str(defense.get("name", ""))) for defense in self.defenses)
        each = (getattr(wrapper, "effects", None) for wrapper in wrappers)
        unknown = (Unpublished(""),)
        return tuple(effect for publish in each for effect in (unknown if publish is None else publish()))

    @property
    def repeatable(self) -> bool:
        """Whether who knows what the model saw can compute this update once more: nothing was drawn, summed or kept.

        Behind a defense that may change images, each of several local steps may have seen others.
        """
        if self.replayer is None or self.summed != 1 or not self._defenses_at_hand:
            return False
        if self.protocol.steps > 1 and not all(isinstance(effect, Clips | Withholds) for effect in self.effects):
            return False
        return all(getattr(wrapper, "repeatable", False) for wrapper in self.architecture.wrappers)

    @property
    def _defenses_at_hand(self) -> bool:
        """Whether each defense that is on record is an object here, which can be asked; a chain holds several."""
        return sum(len(getattr(one, "defenses", (one,))) for one in self.architecture.wrappers) >= len(self.defenses)

    def replay(self, images: Tensor, labels: Tensor) -> Update | None:
        """What the client would have shared of [B,C,H,W] images in [0, 1], as its model saw them, and [B] labels.

        The client's protocol and the deterministic part of its defenses, in its precision. None where that cannot be
        told: a defense that draws or remembers, dropout, sums over clients, several batches in an unknown order.
        """
        return None if self.replayer is None or not self.repeatable else self.replayer(self, images, labels)

    @cached_property
    def gradient(self) -> State:
        """The mean-loss gradient that was shared, float64, by parameter name.

        Raises:
            NotApplicable: nothing was shared, or the local optimiser was adaptive.
        """
        if not self.update.tensors:
            by = " and ".join(dict.fromkeys(self.update.withheld.values())) or "the client"
            raise NotApplicable(f"the whole update is withheld by {by}")
        return self.update.as_gradient(self.protocol, self.global_state)

    def gradient_of(self, role: str) -> Tensor:
        """The gradient of the parameter in a role of `ViTRoles`, float64.

        Raises:
            NotApplicable: the model has no such part, or its gradient was withheld or is not finite.
            ValueError: the role has several.
        """
        gradients = self.gradients_of(role)
        if len(gradients) > 1:
            raise ValueError(f"{role} names {len(gradients)} parameters: gradients_of gives them all")
        return gradients[0]

    def gradients_of(self, role: str) -> tuple[Tensor, ...]:
        """Those of all parameters in a role, such as `head_biases`, float64.

        Raises:
            NotApplicable: the model has no such part, or one of the gradients was withheld or is not finite.
        """
        named = getattr(self.roles, role)
        names: tuple[str, ...] = (named,) if isinstance(named, str) else named or ()
        if not names:
            removed_by = self.update.withheld.get(role)
            why = f": removed by {removed_by}" if removed_by else ""
            if role == "pos_embed" and not why and self.roles.rotary:
                why = ": its positions are rotary"
            raise NotApplicable(f"the model has no {role}{why}")
        return tuple(self.gradient_named(name) for name in names)

    def gradient_named(self, name: str) -> Tensor:
        """The gradient of one parameter, float64.

        An attack asks for those that its formula reads and for no others: what stops it counts as protection.

        Raises:
            NotApplicable: it was withheld, or is not finite.
        """
        gradient = self.gradient.get(name)
        if gradient is None:
            raise NotApplicable(f"{name}'s gradient is withheld by {self.update.withheld.get(name, 'the client')}")
        if not bool(gradient.isfinite().all()):
            raise NotApplicable(f"{name}'s gradient is not finite")
        return gradient

    def build_model(self) -> nn.Module:
        """The client's model in the state that the server had sent it."""
        model = self.architecture.build(keep=True)
        model.load_state_dict(self.global_state)
        return model.train(self.protocol.training_mode)

    @property
    def eps(self) -> float:
        """The relative rounding of what was shared."""
        return max(float(torch.finfo(tensor.dtype).eps) for tensor in self.update.tensors.values())

    def normalised(self, images: Tensor) -> Tensor:
        """[B,C,H,W] images in [0, 1] as the model reads them, float64."""
        mean, std = (torch.tensor(v, dtype=torch.float64, device=images.device) for v in (self.mean, self.std))
        return (images.detach().double() - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)

    def to_unit_range(self, images: Tensor) -> Tensor:
        """Undo the normalisation of [B,C,H,W] pictures."""
        shape = (1, -1, 1, 1)
        mean = torch.tensor(self.mean, dtype=images.dtype, device=images.device).view(shape)
        std = torch.tensor(self.std, dtype=images.dtype, device=images.device).view(shape)
        return images * std + mean


def batch_statistics(observation: Observation) -> dict[str, Statistics] | None:
    """What the client's batch looked like to each BatchNorm layer, from the running statistics that it shared.

    Exact up to rounding for one step; for several see `recover_statistics`. None where no buffers were shared, or
    BatchNorm was in evaluation mode and read nothing of the batch.
    """
    update, protocol = observation.update, observation.protocol
    if not update.buffers or not protocol.training_mode:
        return None
    shape = (protocol.batch_size, *observation.image_shape)
    after = update.buffers_after(observation.global_state)
    return recover_statistics(observation.build_model(), after, protocol.steps, shape)


def observation_name(server_round: int, client: int) -> str:
    """What an observation is called: its folder, its results, its pictures."""
    return f"round-{server_round:05d}-client-{client:05d}"


WrapperLoader = Callable[[tuple[dict[str, Any], ...]], tuple[ModelWrapper, ...]]


def save_observation(observation: Observation, folder: Path) -> None:
    """Write tensors as safetensors and the rest as JSON; the JSON comes last and seals the folder.

    The global state of a round is shared by its clients: it is written once beside them, named by
    its content, and referred to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder.parent / f"global-{_digest(observation.global_state)}.safetensors"
    if not state_file.exists():
        _write_tensors(observation.global_state, state_file)
    tensors = {f"update/{name}": tensor for name, tensor in observation.update.tensors.items()}
    tensors |= {f"buffers/{name}": tensor for name, tensor in observation.update.buffers.items()}
    if observation.auxiliary_probs is not None:
        tensors["auxiliary_probs"] = observation.auxiliary_probs
    _write_tensors(tensors, folder / "update.safetensors")
    record = {
        "format": FORMAT,
        "server_round": observation.server_round,
        "client": observation.client,
        "summed": observation.summed,
        "global_state": state_file.name,
        "kind": observation.update.kind,
        "num_examples": observation.update.num_examples,
        "withheld": observation.update.withheld,
        "protocol": observation.protocol.to_dict(),
        "model": observation.architecture.spec.to_dict(),
        "model_seed": observation.architecture.seed,
        "roles": observation.roles.to_dict(),
        "image_shape": list(observation.image_shape),
        "mean": list(observation.mean),
        "std": list(observation.std),
        "num_classes": observation.num_classes,
        "defenses": list(observation.defenses),
    }
    partial = folder / "observation.json.partial"
    partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
    partial.replace(folder / "observation.json")


def load_observation(
    folder: Path, load_wrappers: WrapperLoader | None = None, replayer: Replayer | None = None
) -> Observation:
    """Read back what `save_observation` wrote.

    Args:
        load_wrappers: turns the recorded defenses into model wrappers; without it the architecture is
            the undefended one, which is all that attacks on the tensors alone need.
        replayer: how such a client computes, which no file holds.

    Raises:
        ConfigError: the folder holds no complete observation, or one of another format.
    """
    try:
        record = json.loads((folder / "observation.json").read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ConfigError("observation", folder, f"format {FORMAT}, not {record['format']}")
        tensors = load_file(folder / "update.safetensors")
        state = load_file(folder.parent / Path(record["global_state"]).name)
        defenses = tuple(record["defenses"])
        return Observation(
            server_round=record["server_round"],
            client=record["client"],
            global_state=state,
            update=Update(
                tensors=_under("update/", tensors),
                kind=record["kind"],
                num_examples=record["num_examples"],
                withheld=dict(record["withheld"]),
                buffers=_under("buffers/", tensors),
            ),
            protocol=LocalProtocol.from_dict(record["protocol"]),
            architecture=Architecture(
                ModelSpec.from_dict(record["model"]),
                load_wrappers(defenses) if load_wrappers else (),
                record["model_seed"],
            ),
            roles=ViTRoles.from_dict(record["roles"]),
            image_shape=tuple(record["image_shape"]),
            mean=tuple(record["mean"]),
            std=tuple(record["std"]),
            num_classes=record["num_classes"],
            defenses=defenses,
            auxiliary_probs=tensors.get("auxiliary_probs"),
            summed=record.get("summed", 1),
            replayer=replayer,
        )
    except FileNotFoundError as error:
        raise ConfigError("observation", folder, f"no complete observation: {error.filename} is missing") from error
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise ConfigError("observation", folder, f"the record is damaged: {error}") from error


def _write_tensors(tensors: State, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, partial)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _under(prefix: str, tensors: State) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _digest(state: State) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
