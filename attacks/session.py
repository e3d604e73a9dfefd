"""What a long attack leaves behind while it runs: how far it is, and a state from which another try goes on."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import fedsim
from fedsim.observation import Observation
from fedsim.storage.digests import absorb
from fedsim.storage.durable import replacing, write_text

logger = getLogger(__name__)

PROGRESS = "progress.json"
SECONDS_BETWEEN = 1.0
"""At least so long between two writes of the progress."""


class Session:
    """Keeps nothing and tells nobody: an attack outside any shell runs from its start to its end."""

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What an earlier try that was killed had saved, on the CPU.

        None if there is nothing, if it is damaged, or if other settings or another observation led to it.
        """
        return None

    def save(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Keep this in place of what was saved before; killed in the middle, the earlier one stays.

        Args:
            tensors: on any device; states of generators are tensors too.
            record: anything that JSON can hold; tuples come back as lists, keys as text.
        """

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        """Say how far the attack is; cheap enough for every few steps."""

    def part(self, name: str) -> "Session":
        """A session of its own for one of several searches of the same attack."""
        return self

    def end(self) -> None:
        """Say that the attack runs no more; what it has saved stays until its result is safe."""


class FolderSession(Session):
    """One folder inside `scratch` for each attack on each observation, or on each group of them.

    A folder that cannot be written to is a warning, once, and the attack goes on without it.

    Args:
        scratch: must exist: on a machine of a cluster that does not see the run folder, nothing is kept.
        names: of the observations.
        fingerprint: tells apart what was saved under other settings; computed when first needed.
    """

    def __init__(self, scratch: Path, names: Sequence[str], attack: str, fingerprint: Callable[[], str]) -> None:
        self.folder = scratch / folder_name(names, attack)
        self._title = f"{attack} on {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        self._fingerprint = fingerprint
        self._digest: str | None = None
        self._file = "state.safetensors"
        self._works = True
        self._reported = -SECONDS_BETWEEN
        self._began: tuple[float, int] | None = None

    def begin(self) -> None:
        """Say that the attack runs: one that has no steps to tell of would seem to do nothing."""
        self._tell(0, 0, {})

    def end(self) -> None:
        with suppress(OSError):
            (self.folder / PROGRESS).unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        path = self.folder / self._file
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("fingerprint") != self._own_digest():
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["record"])  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            logger.warning("%s starts anew, what it had saved cannot be read: %s", self._title, error)
            return None

    def save(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        if not self._works:
            return
        metadata = {"fingerprint": self._own_digest(), "record": json.dumps(record)}
        # Cloned: safetensors refuses tensors that share memory, and views would be written with all that they view.
        whole = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        self._write(self._file, lambda partial: save_file(whole, partial, metadata))

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        now = time.monotonic()
        if not self._works or (now - self._reported < SECONDS_BETWEEN and done < total):
            return
        self._reported = now
        if self._began is None:
            self._began = time.time(), done
        self._tell(done, total, values)

    def part(self, name: str) -> "FolderSession":
        part = FolderSession.__new__(FolderSession)
        part.__dict__ |= self.__dict__
        part._file = f"{_short(name)}-{self._file}"
        part._began = None  # how long it takes is told by its own steps
        return part

    def _tell(self, done: int, total: int, values: dict[str, float]) -> None:
        """Whole or not at all, but not forced to disk: who looks looks now."""
        since, first = self._began or (time.time(), done)
        record = {"title": self._title, "done": done, "total": total, "values": values, "since": since, "first": first}
        try:
            self.folder.mkdir(exist_ok=True)
            write_text(self.folder / PROGRESS, json.dumps(record))
        except OSError as error:
            self._give_up(error)

    def _own_digest(self) -> str:
        if self._digest is None:
            self._digest = self._fingerprint()
        return self._digest

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Whole or not at all."""
        try:
            self.folder.mkdir(exist_ok=True)
            with replacing(self.folder / name) as partial:
                write(partial)
        except (OSError, SafetensorError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._works = False
        logger.warning("%s goes on, but could not be resumed from here: %s", self._title, error)


def folder_name(names: Sequence[str], attack: str) -> str:
    """Readable, safe as the name of a folder whatever the attack is called, and different for different names."""
    return f"{_readable(f'{names[0]}-{attack}')}-{_short(json.dumps([list(names), attack]))}"


def file_name(attack: str) -> str:
    """The attack's name where it can be part of the name of a file, else what it can be made into."""
    words = _readable(attack)
    return attack if words == attack else f"{words}-{_short(attack)}"


def discard(scratch: Path, names: Sequence[str], attack: str) -> None:
    """Remove what an attack on these observations has kept."""
    shutil.rmtree(scratch / folder_name(names, attack), ignore_errors=True)


def fingerprint(
    observations: Sequence[Observation], settings: Mapping[str, Any], seed: int, device: torch.device
) -> str:
    """Equal for tries that would do the same: version, settings, seed, device, what was shared, and the content of
    every file that a setting named `checkpoint` names."""
    digest = hashlib.blake2b(digest_size=16)
    described = [
        [
            o.server_round,
            o.client,
            o.update.kind,
            o.update.num_examples,
            repr(o.protocol),
            repr(o.defenses),
            repr(o.architecture.spec),
            o.architecture.seed,
            repr(o.finetune),
        ]
        for o in observations
    ]
    files = checkpoint_digests(settings)
    run = [fedsim.__version__, torch.__version__, dict(settings), files, seed, device.type, described]
    digest.update(json.dumps(run, sort_keys=True, default=repr).encode())
    for observation in observations:
        tensors = dict(observation.update.tensors)
        tensors |= {f"buffers/{name}": tensor for name, tensor in observation.update.buffers.items()}
        tensors |= {f"state/{name}": tensor for name, tensor in observation.global_state.items()}
        if observation.auxiliary_probs is not None:
            tensors["auxiliary_probs"] = observation.auxiliary_probs
        if observation.image_prior is not None:
            tensors |= {f"image_prior/{name}": tensor for name, tensor in observation.image_prior.tensors().items()}
        if observation.public_images is not None:
            tensors |= {f"public/{name}": tensor for name, tensor in observation.public_images.tensors().items()}
        absorb(digest, tensors)
    return digest.hexdigest()


def checkpoint_digests(settings: object) -> list[str]:
    """Of the files that settings named `checkpoint` name, at any depth, in the order of the settings."""
    if isinstance(settings, Mapping):
        result = [content for key in sorted(settings, key=str) for content in checkpoint_digests(settings[key])]
        path = settings.get("checkpoint")
        if isinstance(path, str) and (file := Path(path).expanduser()).is_file():
            with file.open("rb") as opened:
                result.append(hashlib.file_digest(opened, "blake2b").hexdigest())
        return result
    if isinstance(settings, Sequence) and not isinstance(settings, str):
        return [content for setting in settings for content in checkpoint_digests(setting)]
    return []


def _readable(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:80]


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
