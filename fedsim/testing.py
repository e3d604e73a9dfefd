"""Contracts that every defense, attack and data source keeps, as checks for the tests of packages beside this one.

A check raises AssertionError with what is wrong. `transform` is a defense's `transform_update`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fedsim.data import Source
from fedsim.determinism import torch_generator
from fedsim.errors import NotApplicable
from fedsim.models import Architecture, ModelSpec, input_size, normalisation
from fedsim.observation import Observation, Replayer
from fedsim.observation_factory import ObservationFactory
from fedsim.update import LocalProtocol, Shared, Update

Transform = Callable[[Update, torch.Generator], Update]
Rebuild = Callable[[Observation, torch.Generator, torch.device], Any]
"""An attack; its result has `images`: [B,C,H,W] in [0, 1], or None."""


def example_update() -> Update:
    """A gradient of several shapes and types, one of them whole numbers."""
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "weight": torch.randn(40, 25, generator=rng),
        "bias": 0.01 * torch.randn(30, generator=rng, dtype=torch.float64),
        "scalar": torch.randn((), generator=rng),
        "count": torch.arange(3),
    }
    return Update(tensors, "gradient", 4)


def check_identity(transform: Transform) -> None:
    """A defense at the setting that should change nothing changes no bit, adds no name, and leaves kind and count."""
    changed = _changed(example_update(), transform(example_update(), _generator("defense")))
    _demand(not changed, f"{next(iter(changed), '')} was changed")


def check_effect(transform: Transform) -> None:
    """A defense at any other setting changes something; no shape or type, nothing in place, no name not withheld."""
    update, before = example_update(), example_update()
    after = transform(update, _generator("defense"))
    for name, tensor in before.tensors.items():
        _demand(torch.equal(update.tensors[name], tensor), f"{name} was changed in place")
        if name in after.tensors:
            found = after.tensors[name]
            same = (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
            _demand(same, f"{name} is {tuple(found.shape)} {found.dtype}, not {tuple(tensor.shape)} {tensor.dtype}")
        else:
            _demand(name in after.withheld, f"{name} is missing and not in `withheld`")
    unknown = set(after.tensors) - set(before.tensors)
    _demand(not unknown, f"names that the model does not have: {sorted(unknown)}")
    _demand(after.kind == before.kind, f"kind is {after.kind}, not {before.kind}")
    _demand(any(name in before.tensors for name in _changed(before, after)), "nothing was changed in any tensor")


def check_replay(transform: Transform, random: bool) -> None:
    """The same seed gives the same bits, in whatever order tensors are listed.

    Args:
        random: whether another seed must give others, or must not.
    """

    def made(seed: int, reverse: bool = False) -> Update:
        update = example_update()  # a new one each time: what is written in place would stay for the next
        if reverse:
            update = replace(update, tensors=dict(reversed(update.tensors.items())))
        return transform(update, _generator("defense", seed))

    first = made(1)
    _demand(not _changed(first, made(1)), "a second call with the same seed differs")
    _demand(not _changed(first, made(1, reverse=True)), "it depends on the order in which tensors are listed")
    differs = bool(_changed(first, made(2)))
    _demand(differs == random, "another seed changes " + ("nothing" if random else "the result"))


def observe(
    spec: ModelSpec,
    images: Float[Tensor, "batch 3 height width"],
    labels: Sequence[int],
    transform: Transform | None = None,
    seed: int = 0,
    replayer: Replayer | None = None,
) -> Observation:
    """What the server sees of one client's gradient on pictures in [0, 1], at the model's initial weights.

    Args:
        replayer: `clients.replay.replay`, without which nothing is certified.
    """
    architecture = Architecture(spec, (), seed)
    model = architecture.build().train()
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    side = input_size(model)
    _demand(images.shape[1:] == (3, side, side), f"images are {tuple(images.shape)}, the model reads 3×{side}×{side}")
    like = next(iter(parameters.values()))
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in normalisation(model))
    loss = F.cross_entropy(model(((images - mean) / std).to(like.dtype)), torch.tensor(labels))
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    shared = {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}
    update = Update(shared, "gradient", len(labels))
    if transform is not None:
        update = transform(update, _generator("defense", seed))
    factory = ObservationFactory(architecture, model, (3, side, side), replayer=replayer)
    return factory.make(Shared(update, LocalProtocol(batch_size=len(labels))), state)


def check_beats_noise(
    attack: Rebuild, observation: Observation, images: Float[Tensor, "batch 3 height width"], decibels: float | int
) -> None:
    """The attack comes at least so much closer (PSNR) than it does on a gradient of equal norms that knows nothing.

    The first picture it returns is compared with the one of `images` that it is nearest to.
    """
    rng = _generator("noise")
    noise = {}
    for name, tensor in observation.update.tensors.items():
        drawn = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        noise[name] = drawn * (tensor.norm() / drawn.norm())
    blind = replace(observation, update=replace(observation.update, tensors=noise))
    seen, guessed = (_likeness(attack, one, images) for one in (observation, blind))
    _demand(seen >= guessed + decibels, f"{seen:.1f} dB with the gradient, {guessed:.1f} dB with noise in its place")


def check_attack_replay(attack: Rebuild, observation: Observation) -> None:
    """The same seed gives the same pictures and labels, and nothing of the observation was written to."""
    versions, before = _versions(observation), {n: t.clone() for n, t in _contents(observation).items()}
    first, second = (attack(observation, _generator("attack"), torch.device("cpu")) for _ in range(2))
    for part in ("images", "labels"):
        same = _same(getattr(first, part, None), getattr(second, part, None))
        _demand(same, f"a second call with the same seed differs in its {part}")
    after = _contents(observation)
    kept = after.keys() == before.keys() and all(_same(before[name], tensor) for name, tensor in after.items())
    _demand(kept and _versions(observation) == versions, "the attack wrote into the observation")


def check_refusal(attack: Rebuild, observation: Observation, words: str) -> None:
    """The attack cannot serve this observation and says why: `NotApplicable` with these words."""
    try:
        attack(observation, _generator("attack"), torch.device("cpu"))
    except NotApplicable as refusal:
        _demand(words in str(refusal), f"it refuses with other words: {refusal}")
        return
    raise AssertionError("it did not refuse")


def check_source(source: Source) -> None:
    """Two loads give the same rows, ids are unique over all splits, every split has all columns and valid labels."""
    first, second = source.load(), source.load()
    ids: list[str] = []
    for name in ("train", "test", "auxiliary"):
        one, other = getattr(first, name), getattr(second, name)
        _demand({"image", "label", "id"} <= set(one.column_names), f"{name} has the columns {one.column_names}")
        for column in ("id", "label"):
            _demand(one[column][:] == other[column][:], f"a second load gives {name} another {column}")
        alike = all(a.tobytes() == b.tobytes() for a, b in zip(one["image"][:3], other["image"][:3], strict=True))
        _demand(alike, f"a second load gives {name} other pictures")
        _demand(set(one["label"][:]) <= set(range(len(first.class_names))), f"{name} has labels without a class name")
        ids += one["id"][:]
    _demand(len(first.train) > 0, "there is no training picture")
    _demand(len(set(ids)) == len(ids), "an id occurs twice")


def _likeness(attack: Rebuild, observation: Observation, images: Tensor) -> float:
    """PSNR in dB, at most 150."""
    found = attack(observation, _generator("attack"), torch.device("cpu")).images
    if found is None or not len(found):
        raise AssertionError("the attack gave no picture")
    first = found[0].double().clamp(0, 1)
    error = min(float((first - image.double()).square().mean()) for image in images)
    return -10 * math.log10(max(error, 1e-15))


def _changed(before: Update, after: Update) -> list[str]:
    """The names of tensors that differ or that one of them lacks, and of other fields that do."""
    names = dict.fromkeys([*before.tensors, *after.tensors])
    tensors = [name for name in names if not _same(before.tensors.get(name), after.tensors.get(name))]
    fields = ("kind", "num_examples", "withheld")
    return tensors + [name for name in fields if getattr(before, name) != getattr(after, name)]


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and torch.equal(left, right)


def _versions(observation: Observation) -> list[int]:
    """torch counts the writes to each tensor."""
    update = observation.update
    tensors = [*observation.global_state.values(), *update.tensors.values(), *update.buffers.values()]
    return [tensor._version for tensor in tensors]


def _contents(observation: Observation) -> dict[str, Tensor]:
    """Every tensor of it: what is written by `.data` or through NumPy counts as no write for torch."""
    update = observation.update
    groups: dict[str, Any] = {"state": observation.global_state, "tensors": update.tensors, "buffers": update.buffers}
    for public in ("image_prior", "public_images"):
        groups[public] = vars(getattr(observation, public) or object)
    groups["auxiliary"] = {"probs": observation.auxiliary_probs}
    return {f"{g}.{n}": t for g, group in groups.items() for n, t in group.items() if isinstance(t, Tensor)}


def _generator(purpose: str, seed: int = 0) -> torch.Generator:
    """No two purposes have the same draws, and none those of a plain seed, with which tests draw pictures."""
    return torch_generator(seed, "testing", purpose)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
