"""Which images an audit attacks, and in which updates."""

import torch

from experiments.engine.setup import Setup
from fedsim.data import ImageSet
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError, nearest
from fedsim.settings.commands import AuditConfig
from server.sums.summing import FEWEST, Sums, in_groups


def choose_images(setup: Setup) -> list[int]:
    """Positions in the training set of the pictures to audit.

    Raises:
        ConfigError: more are asked for than there are, or one that there is not.
    """
    assert isinstance(setup.config, AuditConfig)
    audit, pictures = setup.config.audit, setup.data.train
    if isinstance(audit.select, list):
        return [_position(str(name), pictures) for name in audit.select]
    count = audit.num_images
    if count > len(pictures):
        raise ConfigError("audit.num_images", count, f"at most {_all_of(pictures, setup)}")
    if audit.select == "first":
        return sorted(range(len(pictures)), key=lambda position: pictures.ids[position])[:count]
    order = torch.randperm(len(pictures), generator=torch_generator(setup.config.seed, "audit")).tolist()
    if audit.select == "random":
        return order[:count]
    turns: dict[int, int] = {}
    ranked = []
    for position in order:
        label = int(pictures.labels[position])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], position))
    return [position for _, position in sorted(ranked, key=lambda entry: entry[0])][:count]


def _all_of(pictures: ImageSet, setup: Setup) -> str:
    """How many there are to audit, and what makes more of them where settings keep some back."""
    held = {key: setup.config.data.get(key) for key in ("test_fraction", "auxiliary_fraction")}
    every = " ".join(f"data.{key}=0" for key, share in held.items() if share)
    return f"{len(pictures):,}, the training images" + (f"; {every} makes every image one of them" if every else "")


def _position(name: str, pictures: ImageSet) -> int:
    if name not in pictures.ids:
        raise ConfigError("audit.select", name, f"the id of a training picture.{nearest(name, pictures.ids)}")
    return pictures.ids.index(name)


def divide(chosen: list[int], batch_size: int, sums: Sums | None) -> list[tuple[int, tuple[int, ...]]]:
    """For each update that the server sees the number of its first client and its pictures.

    Raises:
        ConfigError: fewer clients than one sum takes.
    """
    clients = range(-(-len(chosen) // batch_size))
    if sums is not None and len(clients) < (fewest := sums.clients or FEWEST):
        pictures = fewest * batch_size
        raise ConfigError("audit.num_images", len(chosen), f"at least {pictures}: {sums.by} sums over {fewest} clients")
    groups = in_groups(clients, 1 if sums is None else sums.clients)
    return [(group[0], tuple(chosen[group[0] * batch_size : (group[-1] + 1) * batch_size])) for group in groups]
