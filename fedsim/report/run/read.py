"""Read a run folder, whatever state the run left it in.

A run may have crashed, may be an audit without training, or may have been resumed. A missing file is an
empty one, a line cut off in the middle is skipped and counted, a field of another type is None.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import AliasEvent, YAMLError
from yaml import parse as yaml_events

from fedsim.report.run.bounds.over_rounds import Released, over_rounds, released
from fedsim.report.run.bounds.records import BoundRecord, bound_record
from fedsim.report.run.records import AttackRecord, attack_record
from fedsim.storage.values import number, numbers, share, text, whole

Record = TypeVar("Record")


@dataclass(frozen=True)
class Failure:
    """A client that raised in a round."""

    client: str
    error: str


@dataclass(frozen=True)
class RecordedRound:
    """One evaluated round; round 0 is before training.

    Attributes:
        released: what differential privacy counts of the client that released most so far.
    """

    number: int
    accuracy: float | None
    loss: float | None
    train_loss: float | None
    clients: int | None
    failures: tuple[Failure, ...]
    released: Released | None = None


@dataclass(frozen=True)
class TimingRecord:
    """One round's line of `timings.jsonl`.

    Attributes:
        seconds: wall time.
        values: every finite number in the line, by name.
    """

    number: int
    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class RecordedRun:
    """Everything that the page shows, as it was found.

    Attributes:
        config: the resolved configuration, empty where it is missing or unreadable.
        config_text: the same as text.
        bounds: what stands beside the attacks.
        classes: names of the data's classes, in the order of their labels; empty where they are not known.
        weights: digest of the file of weights that the model began with; empty where it had none, or nothing says.
        damaged: what could not be read, as `metrics.jsonl: 1 line`.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    rounds: tuple[RecordedRound, ...] = ()
    timings: tuple[TimingRecord, ...] = ()
    attacks: tuple[AttackRecord, ...] = ()
    bounds: tuple[BoundRecord, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    weights: str = ""
    damaged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def kind(self) -> str:
        """`federated` or `audit`; by its settings where the summary does not say, else guessed from the files."""
        stated = self.summary.get("kind")
        if stated in ("federated", "audit"):
            return str(stated)
        asked = self.setting("audit")  # an audit's settings; of a run, whether it is scored
        told = isinstance(asked, Mapping) or (not isinstance(asked, bool) and bool(self.attacks) and not self.rounds)
        return "audit" if told else "federated"

    @property
    def round_seconds(self) -> dict[int, float]:
        """Wall time of each round; what comes before the first, numbered 0, is none."""
        return {record.number: record.seconds for record in self.timings if record.number > 0}

    @property
    def seconds(self) -> float | None:
        """Wall time of the whole run."""
        return number(self.summary.get("seconds"))

    @property
    def test_pictures(self) -> int | None:
        """How many every accuracy is a share of; None where the run did not say."""
        found = number(self.summary.get("test_pictures"))
        return int(found) if found is not None and found >= 1 else None

    @property
    def commonest_class(self) -> float | None:
        """The accuracy of who always names the commonest class of the test images; None where the run did not say."""
        return share(self.summary.get("commonest_class"))

    @property
    def finished(self) -> bool:
        return self.summary.get("finished") is True

    def class_of(self, label: str) -> str:
        """The name of a label's class; the label itself where it has none."""
        known = label.isascii() and label.isdecimal() and len(label) < 10 and int(label) < len(self.classes)
        return self.classes[int(label)] if known else label

    def setting(self, dotted: str) -> Any:
        """The value of a key such as `model.name`, or None."""
        value: Any = self.config
        for key in dotted.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def settings_of(self, attack: str) -> Mapping[str, Any]:
        """What was set of an attack; nothing where that is not on record."""
        every = self.setting("attack")
        own = every.get(attack) if isinstance(every, Mapping) else None
        return own if isinstance(own, Mapping) else {}

    def names(self, group: str) -> tuple[str, ...]:
        """The names of the defenses or attacks that were configured."""
        value = self.setting(group)
        return tuple(str(key) for key in value) if isinstance(value, Mapping) else ()

    @property
    def recorded(self) -> bool:
        """Whether what it attacked is a record of an earlier run, without the truth."""
        return bool(self.setting("data._target_") == "recorded")

    @property
    def changes(self) -> tuple[str, ...]:
        """What may have changed images or updates on a client: its augmentation and its defenses."""
        return (*(("augmentation",) if self.setting("client.augment") else ()), *self.names("defense"))


def read_run(folder: Path) -> RecordedRun:
    """Read the settings, the summary, the classes, the weights, and the lines of metrics, timings, attacks and bounds.

    Where a resumed run wrote a round or an attack twice, the later line counts.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}")
    damaged: list[str] = []
    config, config_text = _read_config(folder / "config.yaml", damaged)
    rounds = _read_lines(folder / "metrics.jsonl", _round, damaged)
    timings = _read_lines(folder / "timings.jsonl", _timing, damaged)
    attacks = _read_lines(folder / "attacks.jsonl", attack_record, damaged)
    bounds = _read_lines(folder / "bounds.jsonl", bound_record, damaged)
    by_round = {record.number: record for record in rounds}
    measured = {record.number: record for record in timings}
    return RecordedRun(
        path=folder,
        config=config,
        config_text=config_text,
        rounds=tuple(by_round[number] for number in sorted(by_round)),
        timings=tuple(measured[number] for number in sorted(measured)),
        attacks=tuple({(record.observation, record.attack): record for record in attacks}.values()),
        bounds=tuple({record.bound: record for record in [*_over_rounds(by_round), *bounds]}.values()),
        summary=_read_object(folder / "summary.json", damaged),
        classes=_read_classes(folder / "classes.json", damaged),
        weights=text(_read_object(folder / "content.json", damaged).get("weights")) or "",
        damaged=tuple(damaged),
    )


def _over_rounds(by_round: Mapping[int, RecordedRound]) -> list[BoundRecord]:
    return over_rounds([(record.number, record.released) for _, record in sorted(by_round.items())])


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_config(path: Path, damaged: list[str]) -> tuple[dict[str, Any], str]:
    text = _read_text(path)
    if not text.strip():
        return {}, text
    try:
        return deepcopy(_parsed_config(text)), text
    except (YAMLError, OmegaConfBaseException, RecursionError):
        damaged.append(path.name)
        return {}, text


@lru_cache(maxsize=256)  # a matrix reads the settings of its runs again whenever one of them ends
def _parsed_config(text: str) -> dict[str, Any]:
    if "*" in text and any(isinstance(event, AliasEvent) for event in yaml_events(text)):
        raise YAMLError("an alias, which no run writes: a few of them in one another are billions of values")
    config = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}


def _read_object(path: Path, damaged: list[str]) -> dict[str, Any]:
    content = _read_text(path)
    if not content.strip():
        return {}
    found = _parsed(content)
    if not isinstance(found, dict):
        damaged.append(path.name)
        return {}
    return found


def _read_classes(path: Path, damaged: list[str]) -> tuple[str, ...]:
    text = _read_text(path)
    names = _parsed(text)
    if not isinstance(names, list):
        damaged += [path.name] if text.strip() else []
        return ()
    return tuple(map(str, names))


def _parsed(text: str) -> object:
    """None for what is no JSON, nests too deep or holds a number of more digits than Python reads."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_lines(path: Path, parse: Callable[[Mapping[str, Any]], Record | None], damaged: list[str]) -> list[Record]:
    records, lost = [], 0
    for line in _read_text(path).splitlines():
        if not line.strip():
            continue
        values = _parsed(line)
        record = parse(values) if isinstance(values, dict) else None
        if record is None:
            lost += 1
        else:
            records.append(record)
    if lost:
        damaged.append(f"{path.name}: {lost} line{'s' if lost > 1 else ''}")
    return records


def _round(values: Mapping[str, Any]) -> RecordedRound | None:
    server_round = whole(values.get("round"))
    if server_round is None:
        return None
    failures = values.get("failures")
    return RecordedRound(
        number=server_round,
        accuracy=share(values.get("accuracy")),
        loss=number(values.get("loss")),
        train_loss=number(values.get("train_loss")),
        clients=whole(values.get("clients")),
        released=released(values),
        failures=tuple(
            Failure(client=text(failure.get("client")) or "?", error=text(failure.get("error")) or "unknown")
            for failure in (failures if isinstance(failures, list) else [])
            if isinstance(failure, dict)
        ),
    )


def _timing(values: Mapping[str, Any]) -> TimingRecord | None:
    server_round, seconds = whole(values.get("round")), number(values.get("seconds"))
    if server_round is None or seconds is None:
        return None
    return TimingRecord(server_round, seconds, numbers(values))
