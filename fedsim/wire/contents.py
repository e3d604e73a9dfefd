"""The records in a message by their kind.

Flower's own `array_records`, `metric_records` and `config_records` make a view that refers to itself: whatever it was
asked of, a whole update, stays in memory until Python next looks for cycles. These are plain dictionaries.
"""

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    return _records(content, ArrayRecord)


def config_records(content: RecordDict) -> dict[str, ConfigRecord]:
    return _records(content, ConfigRecord)


def metric_records(content: RecordDict) -> dict[str, MetricRecord]:
    return _records(content, MetricRecord)


def _records(content: RecordDict, kind: type[R]) -> dict[str, R]:
    return {name: record for name, record in content.items() if isinstance(record, kind)}
