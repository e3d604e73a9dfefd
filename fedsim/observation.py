"""All that the server knows about one client's update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.bounds.public_prior import MOST_IMAGES, PublicPrior
from fedsim.effects import Effect, Part, Sparsifies, Unpublished, effects_in
from fedsim.errors import ConfigError, NotApplicable, nearest, require
from fedsim.models import (
    Architecture,
    OwnArchitecture,
    ViTRoles,
    check_mode,
    find_roles,
    own_architecture,
    training_mode_of,
)
from fedsim.models.finetune import Finetune
from fedsim.models.roles import OF_PARAMETERS, STATED
from fedsim.public_images import PublicImages, check_public
from fedsim.update import LocalProtocol, State, Update

Kind = TypeVar("Kind", bound=Effect)

Given = Tensor | np.ndarray
"""What somebody else's gradients come as."""

Replayer = Callable[["Observation", Tensor, Tensor], Update | None]
"""A client's computation once more: see `Observation.replay`."""


@dataclass(frozen=True, repr=False)
class Observation:
    """One client's update with everything needed to attack it, now or a year later.

    Attributes:
        client: partition id of the client (of the first in a sum), or number of the batch in an audit.
        global_state: parameters and buffers before the round, by name.
        image_shape: (channels, height, width) that the model reads.
        mean, std: normalisation, per channel, of pictures in [0, 1].
        defenses: the defenses that run on the client, as configured: public, less their randomness.
        auxiliary_probs: [classes] mean softmax of the global model over pictures that no client holds.
        image_prior: the moments of images that no client holds.
        public_images: such images themselves, with their labels if they have any.
        recorded_effects: of the defenses, from a file; None where only the defenses themselves can say.
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
    recorded_effects: tuple[Effect, ...] | None = None
    auxiliary_probs: Tensor | None = None
    image_prior: PublicPrior | None = None
    public_images: PublicImages | None = None
    summed: int = 1
    replayer: Replayer | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        gradients: Mapping[str, Given] | Sequence[Given | None] | None = None,
        *,
        delta: Mapping[str, Given] | None = None,
        weights: Mapping[str, Given] | None = None,
        batch_size: int | None = None,
        protocol: LocalProtocol | None = None,
        num_examples: int | None = None,
        image_shape: Sequence[int] | None = None,
        num_classes: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        roles: Mapping[str, str] | None = None,
        auxiliary_probs: Tensor | None = None,
        public_images: Tensor | None = None,
        public_labels: Tensor | Sequence[int] | None = None,
        replayer: Replayer | None = None,
        server_round: int = 0,
        client: int = 0,
    ) -> "Observation":
        """An observation of what came from elsewhere: a gradient, or what local training made of the weights.

        Args:
            model: as the client got it: in the state before its training, and in the mode of it, `train()` or
                `eval()`. It stays as it is.
            gradients: of the mean loss, by parameter name, or in the order of `model.named_parameters()` with None
                where a parameter has none. What is missing counts as withheld. Of floating point; NumPy's will do.
            delta, weights: in place of it the change of the weights, or the weights afterwards, by name, buffers too.
            batch_size: images in the gradient; None: 1, or as `protocol` says.
            protocol: how the client trained, with the learning rate of each step; needed for `delta` and `weights`.
            num_examples: images that the client holds; None: `batch_size`.
            image_shape: (channels, height, width) that the model reads; None asks a model of timm's.
            num_classes: of the model; None asks it. Another number than it has is refused.
            mean, std: normalisation per channel of images in [0, 1]; None: `timm.create_model`'s, else none.
            roles: of a ViT whose parts have other names than timm's: parameter names of `patch_weight` (a Conv2d's),
                `pos_embed`, `class_token`.
            auxiliary_probs: [classes] mean softmax of the model over images that no client holds, for label attacks.
            public_images, public_labels: [N,C,H,W] and [N]: see `with_public_images`.
            replayer: `fedsim.replay` where clients do nothing but what `protocol` says; without it nothing is
                certified.
            server_round, client: what the observation is called by, and what an attack's random draws follow, beside
                the seed; rounds of one client in a `History` differ by `server_round`.

        Raises:
            ConfigError: nothing was shared, or not of this model; it names the argument and what would be right.

        >>> import fedsim, torch
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
        >>> loss = torch.nn.functional.cross_entropy(model(torch.rand(1, 3, 4, 4)), torch.tensor([3]))
        >>> shared = torch.autograd.grad(loss, list(model.parameters()))
        >>> seen = fedsim.Observation.of(model, shared, image_shape=(3, 4, 4))
        >>> fedsim.attack("labels", seen).labels.tolist()
        [3]
        """
        from fedsim.observation_factory import observation_of

        given = {"gradients": gradients, "delta": delta, "weights": weights}
        if protocol is not None and batch_size not in (None, protocol.batch_size):
            raise ConfigError("batch_size", batch_size, f"{protocol.batch_size} as in protocol, or left out beside it")
        count = 1 if batch_size is None else batch_size
        stated = protocol or LocalProtocol(count, training_mode=training_mode_of(model))
        about: dict[str, Any] = {"image_shape": image_shape, "num_classes": num_classes, "mean": mean, "std": std}
        about["roles"] = roles
        seen = observation_of(model, given, stated, protocol is not None, num_examples, about)
        check_mode(model, stated.training_mode)
        if auxiliary_probs is not None:
            shape = tuple(auxiliary_probs.shape)
            expected = f"the mean softmax, of shape ({seen.num_classes},): probs.mean(0)"
            require("auxiliary_probs", shape, shape == (seen.num_classes,), expected)
            auxiliary_probs = auxiliary_probs.detach().cpu().clone()
        if public_images is None and public_labels is not None:
            raise ConfigError("public_labels", len(public_labels), "left out where there are no public_images")
        seen = replace(
            seen, auxiliary_probs=auxiliary_probs, server_round=server_round, client=client, replayer=replayer
        )
        return seen if public_images is None else seen.with_public_images(public_images, public_labels)

    def with_public_images(self, images: Tensor, labels: Tensor | Sequence[int] | None = None) -> "Observation":
        """The same, of a server that has images [n,c,h,w] in [0, 1] that no client holds, and perhaps their classes.

        Attacks take their mean and spectrum and start from them; label rules read what the model makes of them.

        Raises:
            ConfigError: no image, one of another shape or of values beyond [0, 1], or labels that are not a class of
                the model for each.
        """
        classes = check_public(images, labels, self.num_classes)
        require("public_images", len(images), len(images) > 0, "1 image or more")
        shape = tuple(images.shape[1:])
        require("public_images", shape, shape == self.image_shape, f"images of the model's shape, {self.image_shape}")
        prior = PublicPrior.of(images[:MOST_IMAGES])
        return replace(self, image_prior=prior, public_images=PublicImages.of(images, classes))

    @property
    def name(self) -> str:
        """What it is called: its folder, its results, its images."""
        return observation_name(self.server_round, self.client)

    def __repr__(self) -> str:
        """What was shared, by which model, and behind what: one line."""
        shared = f"{self.update.kind} of {self.num_images} image{'s' * (self.num_images != 1)}"
        clients = f" (sum of {self.summed} clients)" if self.summed > 1 else ""
        size = "x".join(map(str, self.image_shape))
        model = f"{self.architecture.spec.name} ({size}, {self.num_classes} classes, finetune={self.finetune.NAME})"
        defenses = ", ".join(str(one.get("name", "?")) for one in self.defenses)
        behind = f", defense=[{defenses}]" if defenses else ""
        return f"<Observation {self.name}: {shared}{clients}, {model}{behind}>"

    def save(self, folder: Path | str) -> None:
        """Write it into a folder of its own: tensors as safetensors, the rest as JSON.

        The global state of a round lies beside the folder, once for all its clients.
        """
        from fedsim.storage.observation_files import save_observation

        save_observation(self, Path(folder))

    @classmethod
    def load(
        cls, folder: Path | str, model: nn.Module | None = None, replayer: Replayer | None = None
    ) -> "Observation":
        """What `save` wrote.

        Args:
            model: the module, where it was given as one: to `fedsim.observe`, `of` or `HonestButCurious`.
            replayer: how such a client computes, which no file holds.

        Raises:
            ConfigError: the folder holds no complete observation, or one of another model.
        """
        from fedsim.storage.observation_files import load_observation

        loaded = load_observation(Path(folder), None, replayer)
        if model is None:
            return loaded
        usual, parameters = find_roles(model), dict(model.named_parameters())
        recorded = {role: getattr(loaded.roles, role) for role in STATED}
        stated = {role: name for role, name in recorded.items() if name in parameters and name != getattr(usual, role)}
        about = loaded.image_shape, loaded.num_classes, loaded.mean, loaded.std
        own, made = own_architecture(model, *about, stated or None), loaded.architecture
        architecture = replace(own, seed=made.seed, finetune=made.finetune)
        state = architecture.build().state_dict()
        strange = [] if loaded.defenses else sorted(loaded.global_state.keys() ^ state.keys())  # they change the model
        shared = loaded.global_state.keys() & state.keys()
        strange += sorted(name for name in shared if loaded.global_state[name].shape != state[name].shape)
        if strange or not shared:
            expected = f"the observation's: {strange[0] if strange else 'every name'} differs"
            raise ConfigError("model", type(model).__name__, expected)
        return replace(loaded, architecture=replace(architecture, wrappers=loaded.architecture.wrappers))

    @property
    def num_images(self) -> int:
        """How many images the update was computed from.

        Those of all local steps, and no more than the client says that it holds.
        """
        return max(1, min(self.protocol.batch_size * max(1, self.protocol.steps), self.update.num_examples))

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What the client's training and then its defenses do to its update in this round."""
        return (*self.protocol.effects, *self.defense_effects)

    @property
    def defense_effects(self) -> tuple[Effect, ...]:
        """What its defenses do, as they publish it.

        `Unpublished` for one that does not say.
        """
        wrappers = self.architecture.wrappers
        if not self._defenses_at_hand:
            if self.recorded_effects is not None:
                return self.recorded_effects
            return tuple(Unpublished(str(defense.get("name", ""))) for defense in self.defenses)
        each = (getattr(wrapper, "effects", None) for wrapper in wrappers)
        unknown = (Unpublished(""),)
        published = (effect for publish in each for effect in (unknown if publish is None else publish()))
        return effects_in(self.server_round, published)

    def effect(self, kind: type[Kind]) -> Kind | None:
        """The first of this kind among what its training and then its defenses do; None where none says so.

        Local training that clips its gradients has a `Clips` too, before that of any defense.
        """
        return next((effect for effect in self.effects if isinstance(effect, kind)), None)

    def keeps(self, part: Part) -> bool:
        """Whether the client's training and every defense of it, as it says, leave that as it was."""
        return all(effect.keeps(part) for effect in self.effects)

    @property
    def repeatable(self) -> bool:
        """Whether who knows what the model saw can compute this update once more: nothing was drawn, summed or kept.

        Behind a defense that may change images, each of several local steps may have seen others.
        """
        if self.replayer is None or self.summed != 1 or not self._defenses_at_hand:
            return False
        if self.protocol.steps > 1 and not self.keeps("images"):
            return False
        return not self.finetune.keeps and all(getattr(one, "repeatable", False) for one in self.architecture.wrappers)

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
        return self.update.as_gradient(self.protocol, self.global_state, self.effect(Sparsifies) is not None)

    def gradient_of(self, role: str) -> Tensor:
        """The gradient of the parameter in a role of `ViTRoles`, float64.

        Raises:
            NotApplicable: the model has no such part, or its gradient was withheld or is not finite.
            ValueError: the role has several, or there is no role of this name.
        """
        gradients = self.gradients_of(role)
        if len(gradients) > 1:
            raise ValueError(f"{role} names {len(gradients)} parameters: gradients_of gives them all")
        return gradients[0]

    def gradients_of(self, role: str) -> tuple[Tensor, ...]:
        """Gradients of all parameters in a role, such as `head_biases`, float64.

        Raises:
            NotApplicable: the model has no such part, or one of the gradients was withheld or is not finite.
            ValueError: there is no role of this name.
        """
        if role not in OF_PARAMETERS:
            roles = f"Roles are {', '.join(OF_PARAMETERS)}; gradient_named takes a parameter's name."
            raise ValueError(f"there is no role {role!r}.{nearest(str(role), OF_PARAMETERS)} {roles}")
        named = getattr(self.roles, role)
        names: tuple[str, ...] = (named,) if isinstance(named, str) else named or ()
        if not names:
            removed_by = self.update.withheld.get(role)
            why = f": removed by {removed_by}" if removed_by else ""
            if role == "pos_embed" and not why and self.roles.rotary:
                why = ": its positions are rotary"
            elif role == "pos_embed" and not why and self.roles.relative:
                why = ": its positions are relative"
            elif role in STATED and not why and isinstance(self.architecture, OwnArchitecture):
                why = f": state it, roles={{'{role}': NAME}}, where it has another name"
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
            raise NotApplicable(self.why_absent(name))
        if not bool(gradient.isfinite().all()):
            raise NotApplicable(f"{name}'s gradient is not finite")
        return gradient

    def why_absent(self, name: str) -> str:
        """Why the gradient of this parameter was not shared."""
        if name not in self.update.withheld and not self.finetune.whole:
            return f"{name} is not trained (finetune={self.finetune.NAME}), so it has no gradient"
        return f"{name}'s gradient is withheld by {self.update.withheld.get(name, 'the client')}"

    @property
    def finetune(self) -> Finetune:
        """What of the model clients train and share."""
        return self.architecture.finetune

    def build_model(self) -> nn.Module:
        """The client's model in the state that the server had sent it, which needs no file or hub of weights."""
        model = replace(self.architecture, spec=self.architecture.spec.without_weights()).build(keep=True)
        model.load_state_dict(self.global_state)
        return model.train(self.protocol.training_mode)

    @property
    def eps(self) -> float:
        """The relative rounding of what was shared, and of how the client computed it."""
        stored = max(float(torch.finfo(tensor.dtype).eps) for tensor in self.update.tensors.values())
        return max(stored, self.protocol.rounding)

    def normalised(self, images: Tensor) -> Tensor:
        """[B,C,H,W] images in [0, 1] as the model reads them, float64 and without a graph."""
        return self.from_unit_range(images.detach().double())

    def from_unit_range(self, images: Tensor) -> Tensor:
        """[B,C,H,W] images in [0, 1] as the model reads them, in their own precision, on their device and graph."""
        mean, std = self._statistics(images)
        return (images - mean) / std

    def to_unit_range(self, images: Tensor) -> Tensor:
        """Undo the normalisation of [B,C,H,W] pictures, as `from_unit_range` does it."""
        mean, std = self._statistics(images)
        return images * std + mean

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        def column(values: tuple[float, ...]) -> Tensor:
            return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)

        return column(self.mean), column(self.std)


def observation_name(server_round: int, client: int) -> str:
    """What an observation is called: its folder, its results, its pictures."""
    return f"round-{server_round:05d}-client-{client:05d}"
