"""Observations whose attacks are not finished, on disk with what the scorer compares them with."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation, observation_name
from fedsim.storage.durable import disk_errors, write_whole
from fedsim.storage.observation_files import load_observation
from fedsim.update import State

TRUTH, IDS = "truth.safetensors", "truth.json"
UNREADABLE = (ConfigError, SafetensorError, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Unfinished:
    """An observation that attacks are still at work on.

    Attributes:
        name: as `observation_name` gives it.
        load: the observation itself, from wherever it is kept meanwhile.
    """

    name: str
    server_round: int
    truth: GroundTruth | None
    load: Callable[[], Observation]


def _with_same_tensors(one: Observation, other: Observation) -> Observation:
    """With the other's global state and public images where they are equal: a round holds each once."""
    states, public = (one.global_state, other.global_state), (one.public_images, other.public_images)
    if _equal(*states):
        one = replace(one, global_state=other.global_state)
    if None not in public and _equal(*(images.tensors() for images in public if images is not None)):
        one = replace(one, public_images=other.public_images)
    return one


def _equal(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


class PendingObservations:
    """A folder for each round, in it one for each observation: its truth, and itself where it is not recorded anyway.

    Args:
        recorded: where the run keeps its observations.
        load: reads one of them back, with what its clients' defenses make of the model.
    """

    def __init__(self, root: Path, recorded: Path, load: Callable[[Path], Observation] = load_observation) -> None:
        self._root = root
        self._recorded = recorded
        self._load = load
        self._left_out: set[Path] = set()

    def keep(self, unfinished: Iterable[Unfinished]) -> None:
        """Hold exactly these from now on; `sync_all` makes it last.

        Raises:
            OSError: the disk is full, or the like.
        """
        wanted = set()
        for one in unfinished:
            folder = self._root / f"round-{one.server_round:05d}" / one.name
            if not (folder / IDS).exists():
                self._write(one, folder)
            wanted.add(folder)
        for folder in self._folders():
            if folder not in wanted:
                shutil.rmtree(folder)
        for folder in self._rounds():
            if not any(path.is_dir() for path in folder.iterdir()):
                shutil.rmtree(folder)

    def names(self) -> set[str]:
        return {folder.name for folder in self._folders()}

    def load(self, until: int, say: Callable[[str], None]) -> Iterator[tuple[Observation, GroundTruth | None]]:
        """Observations up to this round, one at a time; later ones come again with their rounds and are removed.

        Args:
            say: told about an observation that cannot be read any more.
        """
        for folder in self._rounds():
            if int(folder.name.removeprefix("round-")) > until:
                shutil.rmtree(folder)
        last: Observation | None = None
        for folder in self._folders():
            try:
                observation, truth = self._read(folder)
            except UNREADABLE as error:
                say(f"{folder.name}: its attacks are lost: {error}")
                continue
            last = observation if last is None else _with_same_tensors(observation, last)
            yield last, truth

    def earlier(self, observation: Observation, say: Callable[[str], None]) -> list[Observation]:
        """What the same client sent in earlier rounds, as far as it was recorded.

        Args:
            say: told once about a record that cannot be read any more.
        """
        names = (observation_name(number, observation.client) for number in range(1, observation.server_round))
        folders = [self._recorded / name for name in names]
        found = []
        for folder in folders:
            if (folder / "observation.json").exists() and folder not in self._left_out:
                try:
                    found.append(self._load(folder))
                except UNREADABLE as error:
                    self._left_out.add(folder)
                    say(f"{folder.name}: no attack reads it with later rounds: {error}")
        return found

    def _rounds(self) -> list[Path]:
        return sorted(path for path in self._root.glob("round-*") if re.fullmatch(r"round-\d{5,}", path.name))

    def _folders(self) -> list[Path]:
        return [path for folder in self._rounds() for path in sorted(folder.iterdir()) if (path / IDS).exists()]

    def _write(self, one: Unfinished, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if not (self._recorded / one.name / "observation.json").exists():
            one.load().save(folder)
        ids = None
        if one.truth is not None:
            tensors = {"images": one.truth.images, "labels": one.truth.labels, "private": one.truth.private}
            whole = {name: t.contiguous().clone() for name, t in tensors.items() if t is not None}
            with disk_errors(folder / TRUTH):
                save_file(whole, folder / TRUTH)
            ids = list(one.truth.ids)
        write_whole(folder / IDS, json.dumps(ids).encode())  # last: it seals the folder

    def _read(self, folder: Path) -> tuple[Observation, GroundTruth | None]:
        recorded = self._recorded / folder.name
        observation = self._load(recorded if (recorded / "observation.json").exists() else folder)
        ids = json.loads((folder / IDS).read_text(encoding="utf-8"))
        if ids is None:
            return observation, None
        tensors = load_file(folder / TRUTH)
        return observation, GroundTruth(tensors["images"], tensors["labels"], tuple(ids), tensors.get("private"))
