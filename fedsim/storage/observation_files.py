"""Observations on disk: tensors as safetensors, the rest as JSON, attackable a year later."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import Clips, Effect, effects_of_records, effects_to_records
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, OwnArchitecture, ViTRoles
from fedsim.models.architecture import ModelWrapper
from fedsim.models.finetune import recorded_finetune
from fedsim.observation import Observation, Replayer
from fedsim.public_images import PublicImages
from fedsim.storage.digests import digest, file_sha256
from fedsim.storage.durable import replacing, write_text
from fedsim.update import LocalProtocol, State, Update, under

FORMAT = 1

WrapperLoader = Callable[[tuple[dict[str, Any], ...]], tuple[ModelWrapper, ...]]


def save_observation(observation: Observation, folder: Path) -> None:
    """Write tensors as safetensors and the rest as JSON; the JSON comes last and seals the folder.

    The global state of a round is shared by its clients, and public images by all rounds: each is written once beside
    them, named by its content, and referred to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder.parent / _state_name(observation.global_state)
    if not state_file.exists():
        _write_tensors(observation.global_state, state_file)
    tensors = {f"update/{name}": tensor for name, tensor in observation.update.tensors.items()}
    tensors |= {f"buffers/{name}": tensor for name, tensor in observation.update.buffers.items()}
    if observation.auxiliary_probs is not None:
        tensors["auxiliary_probs"] = observation.auxiliary_probs
    if observation.image_prior is not None:
        tensors |= {f"image_prior/{name}": tensor for name, tensor in observation.image_prior.tensors().items()}
    _write_tensors(tensors, folder / "update.safetensors")
    public_file = None
    if observation.public_images is not None:
        public_file = folder.parent / _public_name(observation.public_images)
        if not public_file.exists():
            _write_tensors(observation.public_images.tensors(), public_file)
    record = {
        "format": FORMAT,
        "digest": digest(tensors),
        "server_round": observation.server_round,
        "client": observation.client,
        "summed": observation.summed,
        "global_state": state_file.name,
        "public_images": None if public_file is None else public_file.name,
        "kind": observation.update.kind,
        "num_examples": observation.update.num_examples,
        "withheld": observation.update.withheld,
        "protocol": observation.protocol.to_dict(),
        "model": observation.architecture.spec.to_dict(),
        "model_seed": observation.architecture.seed,
        "finetune": observation.architecture.finetune.to_record(),
        "own_module": isinstance(observation.architecture, OwnArchitecture),
        "roles": observation.roles.to_dict(),
        "image_shape": list(observation.image_shape),
        "mean": list(observation.mean),
        "std": list(observation.std),
        "num_classes": observation.num_classes,
        "defenses": list(observation.defenses),
        "effects": effects_to_records(observation.defense_effects),
    }
    write_text(folder / "observation.json", json.dumps(record, indent=1))


def recorded_digest(folder: Path) -> str:
    """Of the files of an observation, which name the state and the public images beside them by their content."""
    return " ".join(file_sha256(folder / name) for name in ("observation.json", "update.safetensors"))


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
        state_file = folder.parent / Path(record["global_state"]).name
        state = load_file(state_file)
        public = _public_images(folder.parent, record.get("public_images"))
        if "digest" in record:  # earlier versions wrote none
            _check_content("update.safetensors", record["digest"], digest(tensors))
            _check_content(state_file.name, state_file.name, _state_name(state))
        defenses = tuple(record["defenses"])
        kind = OwnArchitecture if record.get("own_module") is True else Architecture
        return Observation(
            server_round=record["server_round"],
            client=record["client"],
            global_state=state,
            update=Update(
                tensors=under("update/", tensors),
                kind=record["kind"],
                num_examples=record["num_examples"],
                withheld=dict(record["withheld"]),
                buffers=under("buffers/", tensors),
            ),
            protocol=LocalProtocol.from_dict(record["protocol"]),
            architecture=kind(
                ModelSpec.from_dict(record["model"]),
                load_wrappers(defenses) if load_wrappers else (),
                record["model_seed"],
                recorded_finetune(record.get("finetune")),
            ),
            roles=ViTRoles.from_dict(record["roles"]),
            image_shape=tuple(record["image_shape"]),
            mean=tuple(record["mean"]),
            std=tuple(record["std"]),
            num_classes=record["num_classes"],
            defenses=defenses,
            recorded_effects=_effects(record),
            auxiliary_probs=tensors.get("auxiliary_probs"),
            image_prior=PublicPrior(**prior) if (prior := under("image_prior/", tensors)) else None,
            public_images=public,
            summed=record.get("summed", 1),
            replayer=replayer,
        )
    except FileNotFoundError as error:  # safetensors names the file in its words alone
        missing = error.filename or str(error).rpartition(": ")[2]
        raise ConfigError("observation", folder, fault=f"no complete observation: {missing} is missing") from error
    except (KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise ConfigError("observation", folder, fault=f"the record is damaged: {error}") from error


def _effects(record: dict[str, Any]) -> tuple[Effect, ...] | None:
    """As recorded; files of before they were name the defenses alone, of which a clip's settings say all of it."""
    if "effects" in record:
        return effects_of_records(record["effects"])
    clips = (one for one in record["defenses"] if one.get("_target_") == "defenses.GradientClip")
    known = tuple(Clips(float(one.get("max_norm", math.inf)), "update") for one in clips)
    return known if known and len(known) == len(record["defenses"]) else None


def _public_images(beside: Path, name: str | None) -> PublicImages | None:
    if name is None:
        return None
    found = PublicImages(**load_file(beside / Path(name).name))
    _check_content(Path(name).name, Path(name).name, _public_name(found))
    return found


def _state_name(state: State) -> str:
    return f"global-{digest(state)[:16]}.safetensors"


def _public_name(images: PublicImages) -> str:
    return f"public-{images.digest()}.safetensors"


def _check_content(file: str, written: str, read: str) -> None:
    """Safetensors have no checksum: one flipped bit is another image."""
    if read != written:
        raise ValueError(f"{file} does not hold what was written")


def _write_tensors(tensors: State, path: Path) -> None:
    with replacing(path) as partial:
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, partial)
