"""From an update to an Observation: everything an onlooker knows, captured together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError, nearest
from fedsim.models import Architecture, ViTRoles, find_roles, normalisation, own_architecture
from fedsim.models.head_output import heads_give_scores
from fedsim.observation import Given, Observation, Replayer
from fedsim.public_images import PublicImages
from fedsim.update import Kind, LocalProtocol, Shared, State, Update, check_protocol


class ObservationFactory:
    """Adds to an update what is known of every client: the architecture and the public settings."""

    def __init__(
        self,
        architecture: Architecture,
        model: nn.Module,
        image_shape: tuple[int, int, int],
        defenses: Iterable[dict[str, Any]] = (),
        replayer: Replayer | None = None,
        image_prior: PublicPrior | None = None,
        public_images: PublicImages | None = None,
        images_change_from: int = 0,
    ) -> None:
        """What is known of every client.

        Args:
            images_change_from: the first round in which models see changed images, as `image_prior` has them.
        """
        self._architecture = architecture
        # Copies: the model may be trained, or written into while attacks read.
        self._resting = {n: p.cpu().clone() for n, p in architecture.finetune.resting(model).items()}
        self._found = find_roles(model)
        self._roles: dict[tuple[bool, int], ViTRoles] = {}
        self._mean, self._std = normalisation(model)
        self._image_shape = image_shape
        self._defenses = tuple(defenses)
        self._replayer = replayer
        self._image_prior = image_prior
        self._public_images = public_images
        self._images_change_from = images_change_from

    def make(self, shared: Shared, state: State, auxiliary_probs: Tensor | None = None) -> Observation:
        """An observation of that update.

        Args:
            state: the global one as it travels: parameters that are not trained may be missing.
        """
        return Observation(
            server_round=shared.server_round,
            client=shared.client,
            global_state={**self._resting, **state},
            update=shared.update,
            protocol=shared.protocol,
            architecture=self._architecture,
            roles=self._roles_of(shared.protocol),
            image_shape=self._image_shape,
            mean=self._mean,
            std=self._std,
            num_classes=self._architecture.spec.num_classes,
            defenses=self._defenses,
            auxiliary_probs=auxiliary_probs,
            image_prior=self._prior_of(shared.server_round),
            public_images=self._public_images,
            summed=shared.clients,
            replayer=self._replayer,
        )

    def _prior_of(self, server_round: int) -> PublicPrior | None:
        prior = self._image_prior
        return prior if prior is None or server_round >= self._images_change_from else prior.unchanged()

    def _roles_of(self, protocol: LocalProtocol) -> ViTRoles:
        """Those found in the model; without a head where its output is not the scores, in the client's mode."""
        mode = protocol.training_mode, min(protocol.batch_size, 2)
        if mode not in self._roles:
            roles = self._found
            if roles.head_weights:
                model = self._architecture.build(keep=True).train(protocol.training_mode)
                about = self._image_shape, self._mean, self._std, mode[1]
                if not heads_give_scores(model, roles.head_weights, *about):
                    roles = replace(roles, head_weights=(), head_biases=())
            self._roles[mode] = roles
        return self._roles[mode]


def observation_of(
    model: nn.Module,
    given: Mapping[str, Mapping[str, Given] | Sequence[Given | None] | None],
    protocol: LocalProtocol,
    stated: bool,
    num_examples: int | None,
    about: Mapping[str, Any],
) -> Observation:
    """`Observation.of`.

    Args:
        given: what was shared, under `gradients`, `delta` or `weights`: one of them.
        stated: the protocol was given; False: a gradient of one batch.
        about: arguments of `own_architecture`.

    Raises:
        ConfigError: as `Observation.of`.
    """
    shared = {key: value for key, value in given.items() if value is not None}
    if len(shared) != 1:
        raise ConfigError("gradients", " and ".join(shared) or None, "one of gradients, delta and weights")
    ((key, value),) = shared.items()
    kind: Kind = "gradient" if key == "gradients" else "delta" if key == "delta" else "weights"
    if kind != "gradient" and not stated:
        expected = "the local training's, LocalProtocol(batch_size, steps, 'sgd', lrs=(0.1,) * steps)"
        raise ConfigError("protocol", None, f"{expected}, beside {key}")
    check_protocol(protocol, kind)
    architecture = own_architecture(model, **about)
    module = architecture.build()
    state = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    every = [name for name, _ in module.named_parameters()]
    named = _by_name(key, value, list(parameters), every)
    tensors, buffers = _of_this_model(key, named, parameters, every, state)
    withheld = dict.fromkeys((name for name in parameters if name not in tensors), "the client")
    count = num_examples if num_examples is not None else protocol.batch_size
    update = Update(tensors, kind, count, withheld, buffers)
    factory = ObservationFactory(architecture, module, architecture.image_shape)
    return factory.make(Shared(update, protocol), state)


def _by_name(
    key: str, value: Mapping[str, Given] | Sequence[Given | None] | None, trained: Sequence[str], every: Sequence[str]
) -> dict[str, Given]:
    """A list is of the trained parameters, or of every one."""
    if isinstance(value, Mapping):
        return dict(value)
    listed = list(value or ())
    names = every if len(listed) == len(every) else trained
    if len(listed) != len(names):
        expected = f"one for each of the model's {len(every)} parameters ({len(trained)} trained), or by name"
        raise ConfigError(key, f"{len(listed)} tensors", expected)
    return {name: tensor for name, tensor in zip(names, listed, strict=True) if tensor is not None}


def _as_tensor(key: str, name: str, given: Any) -> Any:
    """What NumPy holds as a tensor; the rest as it is."""
    if not isinstance(given, np.ndarray):
        return given
    try:
        return torch.tensor(given)
    except TypeError as error:
        raise ConfigError(key, name, f"an array of numbers, not of {given.dtype}") from error


def _rounding(key: str, shared: Tensor, before: Tensor) -> float:
    """What a mean of equal weights may be off by; a gradient is not a difference of weights."""
    if key == "gradients" or not shared.is_floating_point() or not before.numel():
        return 0.0
    return 8.0 * torch.finfo(shared.dtype).eps * float(before.abs().max())


def _of_this_model(
    key: str, tensors: Mapping[str, Given], parameters: Mapping[str, Tensor], every: Sequence[str], state: State
) -> tuple[State, State]:
    """Parameters and buffers of what was shared, on the CPU."""
    found: State = {name: _as_tensor(key, name, tensor) for name, tensor in tensors.items()}
    for name, tensor in found.items():
        if name not in state:
            hint = nearest(str(name), state) or f" Its names are {', '.join(list(state)[:3])} …"
            raise ConfigError(key, name, fault=f"the model has no parameter or buffer of the name {name!r}.{hint}")
        if not isinstance(tensor, Tensor):
            raise ConfigError(key, name, f"a tensor under the name {name!r}, not of type {type(tensor).__name__}")
        if tensor.shape != state[name].shape:
            expected = (
                f"{tuple(state[name].shape)} as the model has it, not {tuple(tensor.shape)}: is it another model's?"
            )
            raise ConfigError(key, name, expected)
        if name in parameters and not tensor.is_floating_point():
            expected = f"floating point, not {tensor.dtype}: codes of a quantised export become that by their scale"
            raise ConfigError(key, name, f"{expected}, (codes - zero_point) * scale")
    kept = {name: tensor.detach().cpu().to_dense().clone() for name, tensor in found.items()}
    for name in every:
        if name in kept and name not in parameters:
            before = state[name].to(kept[name]) if key == "weights" else torch.zeros_like(kept[name])
            off = (kept[name].double() - before.double()).abs()
            if not bool((off <= _rounding(key, kept[name], state[name])).all()):  # NaN is no rounding
                expected = {"weights": "as the model has it", "delta": "left out or zero"}.get(key, "None or zero")
                raise ConfigError(key, name, f"{expected}: in the model given it is frozen (requires_grad=False)")
    shared = {name: tensor for name, tensor in kept.items() if name in parameters}
    if not shared:
        raise ConfigError(key, "nothing", "at least one parameter's tensor: the update shares none")
    floating = {name: t for name, t in kept.items() if name not in every and t.is_floating_point()}
    return shared, {} if key == "gradients" else floating
