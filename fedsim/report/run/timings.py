"""Where the time of a federated run went: each round's seconds in parts that add up. No pictures."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.report.run.read import RecordedRun, TimingRecord
from fedsim.report.wording import count, duration, percent

PARTS = {
    "send": "preparing and sending",
    "clients": "clients at work",
    "receive": "taking replies",
    "aggregate": "aggregation",
    "attacks": "attacks in the server",
    "client_evaluate": "clients' evaluation",
    "evaluate": "server's evaluation",
    "rest": "everything else",
}
LONGEST = 1e9
"""Seconds; more is no round."""

BARS = 30
"""At most; of more rounds a bar is the mean of several."""

MEMORY = {"memory_gib": "server", "worker_memory_gib": "largest client worker", "gpu_memory_gib": "on a GPU"}


@dataclass(frozen=True)
class Part:
    """What some of the time went to, in seconds; `share` of all parts is in [0, 1]."""

    name: str
    total: float
    share: float
    median: float


@dataclass(frozen=True)
class Bar:
    """The mean of consecutive rounds.

    Attributes:
        heights: seconds a round of each part, in the order of `TimeSpent.parts`.
    """

    first: int
    last: int
    heights: tuple[float, ...]


@dataclass(frozen=True)
class TimeSpent:
    """What the section says.

    Attributes:
        parts: those that took any time at all; round 0, before training, is none of theirs.
        facts: name and value of what is no time.
    """

    sentence: str
    parts: tuple[Part, ...]
    bars: tuple[Bar, ...]
    facts: tuple[tuple[str, str], ...]


def time_spent(run: RecordedRun) -> TimeSpent | None:
    """Where the time of rounds went; None where no round of training told what it spent its time on."""
    if not any("train" in record.values for record in run.timings):
        return None
    trained = {number: spent for number, spent in _divided(run.timings).items() if number > 0}
    totals = {key: sum(spent[key] for spent in trained.values()) for key in PARTS}
    keys = [key for key in PARTS if totals[key] > 0]
    whole = sum(totals.values())
    if not keys:
        return None
    parts = tuple(
        Part(PARTS[key], totals[key], totals[key] / whole, statistics.median(one[key] for one in trained.values()))
        for key in keys
    )
    largest = max(parts, key=lambda part: part.total)
    number = count(len(trained), "round")
    sentence = (
        f"The largest part of the {duration(whole)} of {number}, {percent(largest.share)}, went to {largest.name}."
    )
    return TimeSpent(sentence, parts, _bars(trained, keys), tuple(_facts(run.timings)))


def _divided(records: Sequence[TimingRecord]) -> dict[int, dict[str, float]]:
    """Seconds by part for each round; what lies between the measured parts is the rest."""
    rounds = {}
    before: TimingRecord | None = None
    for record in records:
        values = record.values
        send, receive = values.get("send", 0.0), values.get("receive", 0.0)
        spent = {key: values.get(key, 0.0) for key in PARTS} | {
            "send": send + values.get("configure", 0.0),
            "clients": values.get("train", 0.0) - send - receive,
        }
        known = sum(value for key, value in spent.items() if key != "rest")
        spent["rest"] = _since(before, record, known) - known
        rounds[record.number] = {key: min(max(0.0, value), LONGEST) for key, value in spent.items()}
        before = record
    return rounds


def _since(before: TimingRecord | None, record: TimingRecord, known: float) -> float:
    """Seconds from the end of the round before to the end of this one, where both are known."""
    end = record.values.get("since_start")
    start = 0.0 if record.number == 0 else None
    if before is not None and before.number == record.number - 1:
        start = before.values.get("since_start")
    return known if start is None or end is None else end - start


def _bars(rounds: dict[int, dict[str, float]], keys: Sequence[str]) -> tuple[Bar, ...]:
    numbers = sorted(rounds)
    size = -(-len(numbers) // BARS)
    groups = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return tuple(
        Bar(group[0], group[-1], tuple(statistics.fmean(rounds[number][key] for number in group) for key in keys))
        for group in groups
    )


def _facts(records: Sequence[TimingRecord]) -> list[tuple[str, str]]:
    def known(name: str) -> list[float]:
        return [record.values[name] for record in records if name in record.values]

    facts = []
    if rates := known("clients_per_second"):
        facts.append(("Clients per second", f"{statistics.median(rates):.3g} in the median round"))
    waiting, running = known("attacks_waiting"), known("attacks_running")
    if waiting and running:
        facts.append(("Attacks at a round's end", f"at most {max(waiting):.0f} waiting, {max(running):.0f} running"))
    held = [(words, max(values)) for name, words in MEMORY.items() if (values := known(name))]
    if held:
        facts.append(("Most memory", ", ".join(f"{words} {gib:.2f} GiB" for words, gib in held)))
    return facts
