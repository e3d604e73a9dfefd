"""What results are of besides settings: files of weights, a model's code and images. A folder holds results of one."""

import copy
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.session import checkpoint_digests
from experiments.engine.setup import Setup
from fedsim.data import ImageSet
from fedsim.errors import ConfigError
from fedsim.models import Normaliser, OwnArchitecture
from fedsim.storage.digests import file_sha256
from fedsim.storage.json_objects import read_object
from fedsim.storage.run_folder import RunFolder

Content = Mapping[str, str | list[float]]
"""Digests, and numbers that are equal up to rounding, by what they are of."""

FILE = "content.json"

RESULTS = ("attacks", "bounds", "metrics")
"""Rows without which a folder holds none."""

SAMPLED = 64
"""Files that are read of a set which is not read as a whole."""

CLIENTS = 8
"""Whose images are sampled; at most."""

ROUNDING = 1e-4
"""Of the length of a model's answer: what another machine may change."""


def content_of(setup: Setup, images: Sequence[ImageSet], sampled: int | None = None) -> Content:
    """Of the files of weights that are given, the attacks' own too, of these images and of a sample of the public ones.

    Weights that are drawn follow from the settings, and differ in a last bit from one type of processor to the next.

    Args:
        sampled: read so many files of each set; None: all.
    """
    checkpoint = setup.architecture.spec.checkpoint
    content: dict[str, str | list[float]] = {} if checkpoint is None else {"weights": file_sha256(Path(checkpoint))}
    if isinstance(setup.architecture, OwnArchitecture):
        content |= {"model code": _answer(setup.architecture), "model settings": _settings(setup.architecture)}
    content |= attack_files(setup.config.attack)
    held = [one.digest(sampled) for one in images]
    return content | {"images": " ".join(held), "public images": setup.data.auxiliary.digest(SAMPLED)}


def attack_files(attacks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of the files that attacks bring along: generators and networks."""
    digests = {name: checkpoint_digests(settings) for name, settings in attacks.items()}
    return {f"checkpoints of {name}": " ".join(found) for name, found in digests.items() if found}


def federated_content(setup: Setup) -> Content:
    """Of a sample of a few clients' images, and of those that the server tests on: of many nobody reads all at once."""
    number = setup.run_config.num_clients
    clients = range(0, number, -(-number // CLIENTS))
    return content_of(setup, [*map(setup.data.client, clients), setup.data.test], SAMPLED)


def _answer(architecture: OwnArchitecture) -> list[float]:
    """The first logits of one image: no weight tells what a module computes with it."""
    module = copy.deepcopy(architecture.module)
    assert module is not None
    shape = architecture.image_shape
    image = torch.linspace(0, 1, math.prod(shape)).view(1, *shape)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits: list[float] = module.eval()(Normaliser(module)(image)).flatten()[:10].tolist()
    return logits


def _settings(architecture: OwnArchitecture) -> str:
    """Of what an answer without training tells nothing of: which parameters train, and rates of dropout."""
    assert architecture.module is not None
    modules = [f"{name}: {one.extra_repr()} {_numbers(one)}" for name, one in architecture.module.named_modules()]
    trained = [name for name, parameter in architecture.module.named_parameters() if parameter.requires_grad]
    told = re.sub(r" at 0x[0-9a-f]+", "", "\n".join([*modules, *trained]))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def _numbers(module: nn.Module) -> list[tuple[str, float]]:
    """What it holds in floats: a rate of dropout among them, which not every module tells."""
    return sorted((name, value) for name, value in vars(module).items() if isinstance(value, float))


def keep_content(folder: RunFolder, content: Content, key: str = "run_dir", trained: bool = False) -> None:
    """Note what the folder's results are of; what an earlier version did not note is not compared.

    Args:
        trained: the folder holds weights, which are results too.

    Raises:
        ConfigError: it holds results of something else.
        DamagedFileError: what was noted cannot be read.
    """
    path = folder.root / FILE
    before: Content = read_object(path) if path.is_file() else {}
    other = first_other(before, content)
    if other is not None and (trained or any(any(folder.rows(name)) for name in RESULTS)):
        raise of_other(other, folder.root, key)
    folder.write_json(FILE, {**before, **content})


def first_other(before: Content, now: Content) -> str | None:
    """What both are of and has changed."""
    return next((of for of, found in now.items() if of in before and not _same(before[of], found)), None)


def of_other(of: str, root: Path, key: str = "run_dir") -> ConfigError:
    """The refusal of a folder whose results are of something else."""
    fault = f"choose a new folder, or bring back what there was: this one holds results of other {of}"
    return ConfigError(key, root, fault=fault)


def _same(before: str | list[float], now: str | list[float]) -> bool:
    if isinstance(before, str) or isinstance(now, str):
        return before == now
    return len(before) == len(now) and math.dist(before, now) <= ROUNDING * math.hypot(*now)
