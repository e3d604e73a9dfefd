"""What each attack of a run came to, a line each, for a terminal."""

from fedsim.report.run.baseline import Baseline, baselines, best_baseline, guessing
from fedsim.report.run.label_attacks import beside_labels
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import AttackSummary, psnr_values, summarise_attacks
from fedsim.report.wording import SEEN, count, graded, percent


def attack_lines(run: RecordedRun) -> list[str]:
    """How many updates each served, how close it came to images and labels, and what is had there without the update.

    `dlg: 2 done, 1 refused of 3 updates; 9.1 dB on average (the mean of public images: 11.2 dB)`.

    The strongest first.
    """
    without, blind = guessing(run).attacks, baselines(run)
    return [_line(row, run, without, blind=row.attack in blind) for row in summarise_attacks(run)]


def _of(found: Baseline) -> str:
    """Where a baseline ended on some of the pictures alone, whose mean is not to be compared with that of all."""
    if found.pictures == found.of:
        return ""
    gain = f"{abs(found.gain):.1f} dB {'less' if found.gain > 0 else 'more'} than the attack"
    return f" on {found.pictures:,} of {count(found.of, 'image')}, {gain} there"


def _line(row: AttackSummary, run: RecordedRun, without: tuple[AttackRecord, ...], blind: bool) -> str:
    ended = ((row.done, "done"), (row.refused, "refused"), (row.failed, "failed"))
    each = ", ".join(f"{number:,} {word}" for number, word in ended if number)
    parts = [f"{each} of {count(row.observations, 'update')}"]
    if row.mean_leaked is not None:
        found = None if blind else best_baseline(row.attack, run.attacks, without)
        guess = "" if found is None else f" ({found.name}: {graded(found.psnr)}{_of(found)})"
        rebuilt = len(psnr_values(run, row.attack))
        of = f" over {rebuilt:,} of {count(row.pictures, 'image')}" if rebuilt < row.pictures else ""
        parts.append(f"{graded(row.mean_leaked)} on average{of}{guess}")
    if row.twofold and row.mean_psnr is not None:
        parts.append(f"{graded(row.mean_psnr)} {SEEN}")
    if row.label_share is not None:
        parts.append(f"{percent(row.label_share)} of the labels right{beside_labels(run, row.attack)}")
    if row.done and row.mean_leaked is None and row.label_share is None:
        parts.append("not scored")
    return f"{row.attack}{' (a baseline)' if blind else ''}: {'; '.join(parts)}"
