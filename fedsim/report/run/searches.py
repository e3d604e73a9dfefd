"""The way of a search as lines: what it measured over its steps, and how close its pictures came."""

from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import mean_psnr

MEASURES = ("objective", "loss", "matching")
"""Which of the values in a trace is drawn; else the first one."""

Lines = dict[str, list[tuple[float, float]]]


def search_lines(run: RecordedRun, attack: str, limit: int) -> tuple[str, Lines, Lines, int]:
    """The name of the measure, its lines, those of the mean PSNR in dB, (step, value) by update, and of how many.

    Only rows with a `step` are drawn, and only updates with two of them; at most `limit`, spread over the run.
    """
    records = [record for record in run.attacks if record.attack == attack and record.status == "done"]
    records = [record for record in records if len(_steps(record)) > 1 or len(_mean_psnr(record)) > 1]
    count = min(limit, len(records))
    chosen = [records[place * len(records) // count] for place in range(count)]
    found = dict.fromkeys(name for record in chosen for row in _steps(record) for name in row if name != "step")
    measure = next((name for name in MEASURES if name in found), next(iter(found), ""))
    values: Lines = {}
    psnr: Lines = {}
    for record in chosen:
        name = _name(run, record)
        values[name] = [(row["step"], row[measure]) for row in _steps(record) if measure in row]
        psnr[name] = _mean_psnr(record)
    return measure, _drawable(values), _drawable(psnr), len(records)


def _steps(record: AttackRecord) -> list[dict[str, float]]:
    return [row for row in record.trace if "step" in row]


def _mean_psnr(record: AttackRecord) -> list[tuple[float, float]]:
    """Over the pictures of the update, at each step at which one was scored, as every mean of the page."""
    by_step: dict[int, list[float]] = {}
    for image in record.images:
        for step, value in image.frames.curve if image.frames is not None else ():
            by_step.setdefault(step, []).append(value)
    return [(float(step), mean_psnr(values) or 0.0) for step, values in sorted(by_step.items())]


def _drawable(lines: Lines) -> Lines:
    return {name: points for name, points in lines.items() if len(points) > 1}


def _name(run: RecordedRun, record: AttackRecord) -> str:
    if run.kind == "audit" and not run.recorded:  # those are of several rounds
        return f"update {record.client}"
    return f"round {record.number}, client {record.client}"
