"""A trained inversion network in one file: weights as safetensors, what it was trained for as JSON in its header."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from attacks.learned.circumstances import Circumstances
from attacks.learned.hashing import UpdateHash
from attacks.learned.network import InversionNetwork
from fedsim.errors import ConfigError
from fedsim.storage.durable import write_whole

FORMAT = "fedsim-inversion-1"


@dataclass(frozen=True)
class Trained:
    """A network with all that is needed to use it.

    Attributes:
        learned_from: digests (`content_of`) of the pictures that it was trained on; none in files of earlier versions.
    """

    network: InversionNetwork
    hash: UpdateHash
    hash_seed: int
    circumstances: Circumstances
    learned_from: frozenset[str] = frozenset()


def save_trained(trained: Trained, path: Path) -> None:
    """Whole or not at all."""
    record = {
        "network": trained.network.settings,
        "bins": trained.hash.bins,
        "hash_seed": trained.hash_seed,
        "circumstances": trained.circumstances.to_dict(),
        "learned_from": sorted(trained.learned_from),
    }
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in trained.network.state_dict().items()}
    write_whole(path, save(tensors, {"format": FORMAT, "record": json.dumps(record)}))


def load_trained(path: Path) -> Trained:
    """What `save_trained` wrote.

    Raises:
        ConfigError: no such file, or not one of these.
    """
    if not path.is_file():
        raise ConfigError(
            "checkpoint", path, fault="there is no such file; fedsim-prior kind=lti writes inversion.safetensors"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ConfigError("checkpoint", path, "an inversion.safetensors of fedsim-prior kind=lti")
            record = json.loads(metadata["record"])
            layers = sum(name.startswith("body.") and name.endswith(".weight") for name in file.keys())  # noqa: SIM118
            if record["network"]["depth"] != layers:
                raise ValueError(f"{layers} layers, where the header names {record['network']['depth']}")
            with torch.device("meta"):  # the header may ask for any size: only what the file holds is allocated
                network = InversionNetwork(**record["network"])
            network.load_state_dict({name: file.get_tensor(name) for name in file.keys()}, assign=True)  # noqa: SIM118
        circumstances = Circumstances(**record["circumstances"])
        sizes = {name: math.prod(shape) for name, shape in circumstances.tensors.items()}
        hashed = UpdateHash(sizes, record["bins"], record["hash_seed"])
        learned_from = frozenset(record.get("learned_from", ()))
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError("checkpoint", path, f"a whole inversion.safetensors: {what}") from error
    network = network.float().eval().requires_grad_(False)
    return Trained(network, hashed, record["hash_seed"], circumstances, learned_from)
