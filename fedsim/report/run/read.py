"""Read a run folder, whatever state the run left it in.

A run may have crashed, may be an audit without training, or may have been resumed. A missing file is an
empty one, a line cut off in the middle is skipped and counted, a field of another type is None.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedsim.metrics.records import MEASURES, SHOWN
from fedsim.report.run.bounds import BoundRecord, bound_record
from fedsim.report.run.over_rounds import Released, over_rounds, released
from fedsim.report.run.records import AttackRecord, FramesRecord, ImageRecord, sources

Record = TypeVar("Record")

PSNRS = ("psnr", "private_psnr", "guess_psnr", "seen_guess_psnr")
SCORES = tuple(prefix + name for prefix in ("", "private_") for name in (*MEASURES, *SHOWN))


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
    damaged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def kind(self) -> str:
        """`federated` or `audit`; guessed from the files where the summary does not say."""
        stated = self.summary.get("kind")
        if stated in ("federated", "audit"):
            return str(stated)
        return "audit" if self.attacks and not self.rounds else "federated"

    @property
    def round_seconds(self) -> dict[int, float]:
        """Wall time of each round; what comes before the first, numbered 0, is none."""
        return {record.number: record.seconds for record in self.timings if record.number > 0}

    @property
    def seconds(self) -> float | None:
        """Wall time of the whole run."""
        return _number(self.summary.get("seconds"))

    @property
    def test_pictures(self) -> int | None:
        """How many every accuracy is a share of; None where the run did not say."""
        number = _number(self.summary.get("test_pictures"))
        return int(number) if number is not None and number >= 1 else None

    @property
    def commonest_class(self) -> float | None:
        """The accuracy of who always names the commonest class of the test images; None where the run did not say."""
        return _share(self.summary.get("commonest_class"))

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

    def names(self, group: str) -> tuple[str, ...]:
        """The names of the defenses or attacks that were configured."""
        value = self.setting(group)
        return tuple(str(key) for key in value) if isinstance(value, Mapping) else ()


def read_run(folder: Path) -> RecordedRun:
    """Read `config.yaml`, `summary.json`, `classes.json`, and the lines of metrics, timings, attacks and bounds.

    Where a resumed run wrote a round or an attack twice, the later line counts.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}")
    damaged: list[str] = []
    config, text = _read_config(folder / "config.yaml", damaged)
    rounds = _read_lines(folder / "metrics.jsonl", _round, damaged)
    timings = _read_lines(folder / "timings.jsonl", _timing, damaged)
    attacks = _read_lines(folder / "attacks.jsonl", _attack, damaged)
    bounds = _read_lines(folder / "bounds.jsonl", bound_record, damaged)
    by_round = {record.number: record for record in rounds}
    measured = {record.number: record for record in timings}
    return RecordedRun(
        path=folder,
        config=config,
        config_text=text,
        rounds=tuple(by_round[number] for number in sorted(by_round)),
        timings=tuple(measured[number] for number in sorted(measured)),
        attacks=tuple({(record.observation, record.attack): record for record in attacks}.values()),
        bounds=tuple({record.bound: record for record in [*_over_rounds(by_round), *bounds]}.values()),
        summary=_read_summary(folder / "summary.json", damaged),
        classes=_read_classes(folder / "classes.json", damaged),
        damaged=tuple(damaged),
    )


def _over_rounds(by_round: Mapping[int, RecordedRound]) -> list[BoundRecord]:
    return over_rounds([(number, by_round[number].released) for number in sorted(by_round)])


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_config(path: Path, damaged: list[str]) -> tuple[dict[str, Any], str]:
    text = _read_text(path)
    if not text.strip():
        return {}, text
    try:
        return deepcopy(_parsed_config(text)), text
    except (YAMLError, OmegaConfBaseException):
        damaged.append(path.name)
        return {}, text


@lru_cache(maxsize=256)  # a matrix reads the settings of its runs again whenever one of them ends
def _parsed_config(text: str) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}


def _read_summary(path: Path, damaged: list[str]) -> dict[str, Any]:
    text = _read_text(path)
    if not text.strip():
        return {}
    summary = _parsed(text)
    if not isinstance(summary, dict):
        damaged.append(path.name)
        return {}
    return summary


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
    number = _whole(values.get("round"))
    if number is None:
        return None
    failures = values.get("failures")
    return RecordedRound(
        number=number,
        accuracy=_share(values.get("accuracy")),
        loss=_number(values.get("loss")),
        train_loss=_number(values.get("train_loss")),
        clients=_whole(values.get("clients")),
        released=released(values),
        failures=tuple(
            Failure(client=_text(failure.get("client")) or "?", error=_text(failure.get("error")) or "unknown")
            for failure in (failures if isinstance(failures, list) else [])
            if isinstance(failure, dict)
        ),
    )


def _timing(values: Mapping[str, Any]) -> TimingRecord | None:
    number, seconds = _whole(values.get("round")), _number(values.get("seconds"))
    if number is None or seconds is None:
        return None
    numbers = {name: _number(value) for name, value in values.items()}
    return TimingRecord(number, seconds, {name: value for name, value in numbers.items() if value is not None})


def _attack(values: Mapping[str, Any]) -> AttackRecord | None:
    attack, observation = _text(values.get("attack")), _text(values.get("observation"))
    if attack is None or observation is None:
        return None
    certificate = values.get("certificate")
    certificate = certificate if isinstance(certificate, dict) else {}
    vouched = certificate.get("values")
    rows = values.get("images")
    images = tuple(_image(row) for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict))
    exact = values.get("label_exact")
    return AttackRecord(
        observation=observation,
        number=_whole(values.get("round")),
        client=_text(values.get("client")),
        attack=attack,
        status=_text(values.get("status")) or "failed",
        reason=_text(values.get("reason")) or "",
        certificate=_text(certificate.get("status")) or "none",
        certificate_reason=_text(certificate.get("reason")) or "",
        seconds=_number(values.get("seconds")),
        batch_size=_pictures(_whole(values.get("batch_size")) or 0, images),
        attempts=_whole(values.get("attempts")) or 1,
        label_exact=exact if isinstance(exact, bool) else None,
        label_share=_number(values.get("label_share")),
        scored=values.get("scored") is True,
        images=images,
        trace=_trace(values.get("trace")),
        target=_text(values.get("target")),
        baseline=values.get("baseline") is True,
        promised=_number(vouched.get("promised_psnr", vouched.get("expected_psnr")))
        if isinstance(vouched, dict)
        else None,
        labelled=bool(_list(values.get("labels"))) or _number(values.get("label_share")) is not None,
    )


def _pictures(stated: int, images: Sequence[ImageRecord]) -> int:
    """How many private ones there are: those that are listed, or as many as stated where that is more than all."""
    return stated if stated > len(images) else len(set(sources(images)))


def _trace(rows: object) -> tuple[dict[str, float], ...]:
    """Finite numbers alone."""
    trace = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            numbers = {str(name): _number(value) for name, value in row.items()}
            trace.append({name: value for name, value in numbers.items() if value is not None})
    return tuple(trace)


def _frames(values: object) -> FramesRecord | None:
    if not isinstance(values, dict) or not isinstance(values.get("strip"), str):
        return None
    in_strip, steps, scores = (_list(values.get(name)) for name in ("strip_steps", "steps", "psnr"))
    kept = [_whole(step) for step in in_strip]
    points = [(_whole(step), _number(psnr)) for step, psnr in zip(steps, scores, strict=False)]
    whole = tuple(step for step in kept if step is not None)
    if not whole or len(whole) < len(kept):
        return None
    curve = tuple((step, psnr) for step, psnr in points if step is not None and psnr is not None)
    return FramesRecord(values["strip"], whole, curve)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _image(values: Mapping[str, Any]) -> ImageRecord:
    return ImageRecord(
        image=_text(values.get("image")) or "?",
        label=_text(values.get("label")),
        label_recovered=_text(values.get("label_recovered")),
        original=_text(values.get("original")),
        reconstruction=_text(values.get("reconstruction")),
        frames=_frames(values.get("frames")),
        **{name: _number(values.get(name)) for name in PSNRS},
        scores={name: score for name in SCORES if (score := _number(values.get(name))) is not None},
    )


def _number(value: object) -> float | None:
    """A finite number; JSON as Python writes it may hold NaN, Infinity and integers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _share(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0.0 <= number <= 1.0 else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
