"""What stands beside the attacks of an audit: each chosen bound once, on the same updates."""

import json
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any, get_args

from clients.bounds import Bound, Party, ReconstructionRobustness
from experiments.audit.worker import where
from experiments.cli.call import console
from experiments.engine.setup import Setup
from fedsim.bounds.statement import Kind, Statement, Strip
from fedsim.errors import NotApplicable, one_of
from fedsim.report.draw.pictures import save_png
from fedsim.settings.commands import AuditConfig
from fedsim.settings.components import build_component
from fedsim.storage.run_folder import RunFolder

logger = getLogger(__name__)

ROWS = "bounds"
"""Of the run folder: a line for each bound, and a folder of the images in them."""


def build_bounds(chosen: Mapping[str, Any]) -> dict[str, Bound]:
    """Raises ConfigError for settings that a bound does not have or refuses, and for a bound of no kind."""
    built = {name: build_component(f"bound.{name}", settings, Bound) for name, settings in chosen.items()}
    for name, bound in built.items():
        one_of(f"bound.{name}.kind", getattr(bound, "kind", None), get_args(Kind))
    return built


def write_bounds(
    bounds: Mapping[str, Bound], setup: Setup, updates: Sequence[tuple[int, tuple[int, ...]]], folder: RunFolder
) -> None:
    """Each that an earlier call has not finished: its statement, its refusal in one line, or how it failed.

    Args:
        updates: the first client of each, and its pictures.
    """
    folder.mend(ROWS)
    done = {row["bound"] for row in folder.rows(ROWS) if row["status"] != "failed"}
    parties: list[Party] = []
    for name, bound in bounds.items():
        if name in done:
            continue
        parties = parties or _parties(setup, updates)
        start = time.perf_counter()
        row: dict[str, Any] = {"bound": name, "kind": bound.kind, "status": "done", "reason": ""}
        try:
            statement = bound(parties)
            if type(bound) is not ReconstructionRobustness:  # nothing else makes a run proven
                statement = replace(statement, proof=None)
            row |= statement.to_json() | {"kind": bound.kind, "strips": _save(name, statement, folder)}
            json.dumps(row)
        except NotApplicable as refusal:
            row |= {"status": "refused", "reason": str(refusal)}
        except Exception as error:  # noqa: BLE001 - bounds are plug-ins: their faults are results too
            logger.error("bound %s failed:\n%s", name, traceback.format_exc())
            row = {"bound": name, "kind": bound.kind, "status": "failed", "reason": where(error)}
        sentence = row["sentence"] if row["status"] == "done" else f"{row['status']}: {row['reason']}"
        console.print(f"{name} ({bound.kind}): {sentence}", markup=False)
        folder.append(ROWS, row | {"seconds": time.perf_counter() - start})


def _parties(setup: Setup, updates: Sequence[tuple[int, tuple[int, ...]]]) -> list[Party]:
    """Each audited client's by itself, also where the server sees them summed."""
    config = setup.config
    assert isinstance(config, AuditConfig)
    if config.client.device == "cuda":  # perhaps of a cluster's nodes alone, and not of this machine
        setup = replace(setup, config=replace(config, client=replace(config.client, device="auto")))
    runtime = setup.runtime()
    state = {name: tensor.detach().clone() for name, tensor in setup.model.state_dict().items()}
    size, parties, summed = config.audit.batch_size, [], setup.sums is not None
    for first, positions in updates:
        for client, start in enumerate(range(0, len(positions), size), first):
            pictures = setup.data.train.subset(positions[start : start + size])
            parties.append(Party(runtime, state, pictures, client, summed=summed, public=setup.held))
    return parties


def _save(bound: str, statement: Statement, folder: RunFolder) -> list[dict[str, Any]]:
    """The images of the strips as files, and the lines that name them."""
    return [_strip(bound, number, strip, folder) for number, strip in enumerate(statement.strips)]


def _strip(bound: str, number: int, strip: Strip, folder: RunFolder) -> dict[str, Any]:
    panels = []
    for place, panel in enumerate(strip.panels):
        name = f"{ROWS}/{re.sub(r'[^A-Za-z0-9_-]', '_', bound)}/{number:03d}-{place:02d}.png"
        save_png(panel.image, folder.root / name)
        panels.append({"image": name, "caption": panel.caption})
    return {"name": strip.name, "panels": panels}
