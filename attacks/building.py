"""Attacks from their settings, built or refused in a line before anything starts, and what they are handed to read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attacks.base import Attack, is_ours
from fedsim.errors import ConfigError
from fedsim.observation import Observation
from fedsim.settings.components import TARGET, build_component
from fedsim.settings.knowledge import read_knowledge, without_knowledge
from fedsim.settings.options import option

CERTIFY, THEN = "certify", "then"
"""Settings of every attack, which no constructor takes."""

WROTE = "the attack wrote into the observation, which is only to be read"


def build_attack(name: str, settings: dict[str, Any]) -> Attack:
    """Instantiate `cfg.attack.NAME`, less what is no argument of its class.

    `knows` is for readers; `certify: false` among any attack's settings leaves certificates out, `then: NAME`, or
    `then: {NAME: {…}}` with settings, has another go on from its images; of one's own with its `_target_`.

    Raises:
        ConfigError: its `_target_` is no Attack, or refuses its settings.
    """
    key = f"attack.{name}"
    own, certify = settings, True
    if isinstance(settings, dict):  # what else it may be is refused below
        read_knowledge(key, settings)
        certify = settings.get(CERTIFY, True)
        own = {name: value for name, value in without_knowledge(settings).items() if name not in (CERTIFY, THEN)}
    if not isinstance(certify, bool):
        raise ConfigError(f"{key}.{CERTIFY}", certify, "true, or false to leave certificates out")
    attack = build_component(key, own, Attack)  # type: ignore[type-abstract]
    attack.certify = certify
    if isinstance(settings, dict) and settings.get(THEN) is not None:
        attack.then = _polisher(f"{key}.{THEN}", settings[THEN])
        if attack.baseline and not attack.then.baseline:
            wanted = "a baseline too, such as {gauss_newton: {target: random}}: it goes on from what reads no update"
            raise ConfigError(f"{key}.{THEN}", settings[THEN], wanted)
    return attack


def _polisher(key: str, chosen: object) -> Attack:
    """Raises ConfigError: it is no attack's name, or one that cannot go on from another's images."""
    named = {chosen: {}} if isinstance(chosen, str) else chosen
    if not isinstance(named, Mapping) or len(named) != 1:
        raise ConfigError(key, chosen, "a name of conf/attack, or one name with its settings")
    ((name, given),) = named.items()
    changes = dict(given or {})
    for own, unset in ((CERTIFY, True), (THEN, None)):
        if (value := changes.get(own, unset)) is not unset:
            raise ConfigError(f"{key}.{name}.{own}", value, f"left out: it is set beside `{THEN}`, for both")
    try:
        # workers and later calls find no option of a --config-dir: one's own stands there whole
        attack = build_attack(str(name), changes if TARGET in changes else option("attack", str(name), changes))
    except ConfigError as error:
        if error.key == "attack":
            own = f" One of your own: {{{name}: {{_target_: MODULE.CLASS}}}}."
            raise ConfigError(key, name, fault=error.fault + own) from error
        raise error.under(f"{key}{error.key.removeprefix('attack')}") from error
    if type(attack).polish is Attack.polish:
        raise ConfigError(key, name, "an attack that goes on from another's images, such as gauss_newton")
    return attack


def stages(name: str, attack: Attack) -> dict[str, Attack]:
    """The attack and, where it has one, what goes on from its images, by their keys among settings."""
    key = f"attack.{name}"
    return {key: attack} if attack.then is None else {key: attack, f"{key}.{THEN}": attack.then}


def check_fit(name: str, attack: Attack, image_shape: tuple[int, ...]) -> None:
    """Refuse an attack that cannot serve images of this shape, before anything runs.

    Raises:
        ConfigError: naming the setting in full.
    """
    for key, stage in stages(name, attack).items():
        try:
            stage.check_image_shape(image_shape)
        except ConfigError as error:
            raise error.under(f"{key}.{error.key}") from error


def check_classes(name: str, attack: Attack, class_names: Sequence[str]) -> None:
    """Refuse an attack that would ask its generator for other classes than those of the data.

    Args:
        class_names: of the data; a class named by its own number, there or by the generator, tells nothing.

    Raises:
        ConfigError: naming the first class that differs.
    """
    for number, (theirs, ours) in enumerate(zip(attack.class_names, class_names, strict=False)):
        if theirs != ours and str(number) not in (theirs, ours):
            fault = f"its generator's class {number} is {theirs}, that of the data {ours}: give the data settings of"
            raise ConfigError("attack", name, fault=f"{fault} its fedsim-prior, or attack.{name}.conditional=false")


def handed_to(attack: object, observations: Sequence[Observation]) -> list[Observation]:
    """The observations as this attack may have them: tensors of its own, unless it is one of this package's."""
    if _ours(attack):
        return list(observations)
    copies: dict[int, Tensor] = {}  # a model that several rounds or victims share is copied once

    def own(tensors: Mapping[str, Any]) -> dict[str, Any]:
        copies.update({id(t): t.detach().clone() for t in _tensors(tensors) if id(t) not in copies})
        return {name: copies.get(id(one), one) for name, one in tensors.items()}

    def public(one: Any) -> Any:
        return None if one is None else replace(one, **own(vars(one)))

    return [
        replace(
            one,
            global_state=own(one.global_state),
            update=replace(one.update, tensors=own(one.update.tensors), buffers=own(one.update.buffers)),
            image_prior=public(one.image_prior),
            public_images=public(one.public_images),
            **own({"auxiliary_probs": one.auxiliary_probs}),
        )
        for one in observations
    ]


def _ours(attack: object) -> bool:
    """Whether it is one of this package's, and so is what goes on from it."""
    stages = [one for one in (attack, getattr(attack, "then", None)) if one is not None]
    return all(map(is_ours, stages))


def _tensors(named: Mapping[str, Any]) -> list[Tensor]:
    return [one for one in named.values() if isinstance(one, Tensor)]


def versions(observation: Observation) -> int:
    """torch counts the writes to each tensor: equal before and after means untouched."""
    update, public = observation.update, observation.public_images
    tensors = [*observation.global_state.values(), *update.tensors.values(), *update.buffers.values()]
    tensors += _tensors({"probs": observation.auxiliary_probs} | ({} if public is None else public.tensors()))
    tensors += [] if observation.image_prior is None else _tensors(vars(observation.image_prior))
    return sum(tensor._version for tensor in tensors)


def written(attack: object, observations: Sequence[Observation], before: Sequence[int]) -> bool:
    """Whether it wrote into what `handed_to` gave it since `versions` counted, or into the gradient that this keeps."""
    if [versions(one) for one in observations] != list(before):
        return True
    return not _ours(attack) and any(map(_gradient_written, observations))


def _gradient_written(observation: Observation) -> bool:
    if "gradient" not in vars(observation):
        return False
    again = replace(observation).gradient
    kept = observation.gradient.items()
    return any(not torch.equal(one.nan_to_num(), again[name].nan_to_num()) for name, one in kept)
