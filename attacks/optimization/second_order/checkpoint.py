"""The state of a second-order search as tensors and JSON, so that a killed one goes on where it was."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attacks.base import Frame
from attacks.optimization.second_order.ends import End
from attacks.optimization.second_order.steps.levenberg_marquardt import LMState
from attacks.optimization.second_order.steps.products import MatrixFree

if TYPE_CHECKING:
    from attacks.optimization.second_order.victim import VictimSearch

AS_IT_IS = ("near", "number", "stage", "taken", "stale", "before", "rows")
OF_A_STATE = ("damping", "growth", "cost", "ended")


def saved(search: "VictimSearch") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that `restore` needs. Where a start comes near there is no state yet: its way so far is in the trail."""
    tensors = search.trail.tensors() | {f"end/{index}": end.x for index, end in enumerate(search.ends.found)}
    tensors |= {f"frame/{index}": frame.images for index, frame in enumerate(search.frames)}
    record: dict[str, Any] = {name: getattr(search, name) for name in AS_IT_IS}
    labels = None if search.problem.labels is None else search.problem.labels.tolist()
    record |= {"starts": search.near_steps, "trail": search.trail.record(), "labels": labels}
    record |= {"ends": [end.cost for end in search.ends.found], "directions": search.plan.directions}
    record |= {"frames": [[frame.step, frame.values] for frame in search.frames]}
    if search.state is not None:
        tensors |= {"x": search.state.x}
        record |= {name: getattr(search.state, name) for name in OF_A_STATE}
    sketches = _sketches(search)
    tensors |= {f"anchor/{i}": one.anchor for i, one in enumerate(sketches) if one.anchor is not None}
    return tensors, record | {"sketches": [[one.rough, one.spent] for one in sketches]}


def restore(search: "VictimSearch", tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Put a search where it was saved; where what was saved is another search's, leave it as it is.

    Less memory since then means other unknowns, or another sketch. Earlier versions had other starts, and no trail.
    """
    known = {"trail", "labels"} <= record.keys() and record.get("starts") == search.near_steps
    if record["directions"] != search.plan.directions or not known:
        return
    labels, device = search.problem.labels, search.task.device
    if labels is not None and record["labels"] != labels.tolist():
        search.solve(replace(search.problem, labels=labels.new_tensor(record["labels"])))
    for name in AS_IT_IS:
        setattr(search, name, record[name])
    search.trail.restore(tensors, record["trail"], device)
    if "x" in tensors:
        search.state = LMState(tensors["x"].to(device), *(record[name] for name in OF_A_STATE))
    for index, (one, (rough, spent)) in enumerate(zip(_sketches(search), record["sketches"], strict=True)):
        anchor = tensors.get(f"anchor/{index}")
        one.anchor, one.rough, one.spent = None if anchor is None else anchor.to(device), rough, spent
    search.ends.found = [End(cost, tensors[f"end/{i}"].to(device)) for i, cost in enumerate(record["ends"])]
    search.frames = [Frame(step, tensors[f"frame/{i}"], values) for i, (step, values) in enumerate(record["frames"])]


def _sketches(search: "VictimSearch") -> list[MatrixFree]:
    """Of each stage, with which the next start begins; none where J is whole."""
    return [stage.linearised for stage in search.plan.stages if isinstance(stage.linearised, MatrixFree)]
