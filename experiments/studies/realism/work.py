"""What is computed of a rung: attacks on one client's update, or the reference beside all of them."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import fedsim
from experiments.studies.harness.ledger import Entry
from experiments.studies.harness.study import Unit
from experiments.studies.harness.victims import finished
from experiments.studies.realism.rungs import Rung
from experiments.studies.realism.victims import accuracy, victims
from experiments.studies.second_order.references import behind_rounding, linear
from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import determined, gaussian_reference, prior_precision
from fedsim.errors import NotApplicable
from fedsim.ground_truth import GroundTruth
from fedsim.metrics import image as measures
from fedsim.metrics.records import ImageScore
from fedsim.metrics.score import score, score_labels
from fedsim.observation import Observation
from fedsim.report.draw.pictures import save_png
from fedsim.result import AttackResult

CLOSED = ("patch_gradient", "row_space", "first_block")
SECOND_ORDER = "gauss_newton"
FIRST_ORDER = ("april_optimization", "gradinversion")
"""The second where the first is refused: with its published prior it needs BatchNorm, and its label rule no repeats."""
LABELS = "labels"
BUDGETS: dict[str, dict[str, Any]] = {
    "small": {"second": {"steps": 20, "restarts": 1, "starts": ["closed_form", "public", "mean"]}, "first": 100},
    "paper": {"second": {"steps": 60, "restarts": 2}, "first": 5000},
}
LARGEST_SYSTEM = 3_072
"""Unknowns of an update's images up to which J is computed whole beside the attacks, in 8 GB for so many."""
LARGEST_SEARCH = 64
"""Passes that derivatives go through, up to which J is computed in a search: those of a batch of eight."""
NO_IMAGE = 0.0
"""dB of a picture that an attack has no image for."""
DRAWN = 0
"""The client whose first picture is drawn."""


def work(unit: Unit) -> list[Entry]:
    """One client's update under every attack, a rung's reference, or the trained model; any process may run it."""
    settings = dict(unit.settings)
    rung, number, beside_of = (settings.pop(name, None) for name in ("rung", "number", "beside"))
    if rung is None:
        return [{"accuracy": accuracy(settings, unit.out)}]
    clients = victims(rung, unit.out, *sorted({**settings, "device": unit.device}.items()))
    if beside_of is not None:
        return [beside(clients.rung, [clients.shares(one) for one in range(beside_of)])]
    seen, truth = clients.shares(number)
    results = attacked(clients.rung, seen, settings, unit.device)
    if number == DRAWN:
        draw(picture_folder(unit.out, rung), truth, clients.public, [result for result, _ in results])
    return [guessed(truth, clients.public), *(scored(result, truth, spent) for result, spent in results)]


def attacked(
    rung: Rung, seen: Observation, settings: Mapping[str, Any], device: str
) -> list[tuple[AttackResult, float]]:
    """Each attack's result with its CPU seconds; the large systems are left to the first-order search."""
    budget = BUDGETS[settings["scale"]]

    def run(name: str, **changes: Any) -> tuple[AttackResult, float]:
        begin = time.process_time()
        result = fedsim.attack(name, seen, seed=settings["seed"], device=device, progress=False, **changes)
        return finished(result), time.process_time() - begin

    found = [run(name) for name in (*CLOSED, LABELS)]
    search: dict[str, Any] = {"frames": 0, "save_every": 0}
    if rung.pictures <= settings["second_order"] and rung.differentiations <= LARGEST_SEARCH:
        found.append(run(SECOND_ORDER, **search, **budget["second"]))
    found.append(run(FIRST_ORDER[0], **search, steps=budget["first"]))
    if found[-1][0].status != "done":
        own = {"priors": {"batch_norm": None}, "labels": "auto", "restarts": 1, "group": None}
        found.append(run(FIRST_ORDER[1], **search, steps=budget["first"], **own))
    return found


def guessed(truth: GroundTruth, public: Tensor) -> Entry:
    """The mean of public pictures, held against what the model saw and the own, and the public one nearest to each."""
    images = truth.images.double()
    mean = public.mean(dim=0, keepdim=True).expand_as(images)
    nearest = torch.stack([((public - image) ** 2).mean(dim=(1, 2, 3)).min() for image in images])
    own = truth.originals.double()
    return {
        "attack": "guess",
        "psnrs": by_source(truth, measures.psnr(mean, images).tolist()),
        "private": by_source(truth, measures.psnr(mean, own).tolist()),
        "nearest": by_source(truth, (-10.0 * nearest.clamp(min=1e-16).log10()).tolist()),
        "moved": by_source(truth, measures.psnr(images, own).tolist()),
    }


def scored(result: AttackResult, truth: GroundTruth, spent: float) -> Entry:
    """What became of one attack: dB of each of the client's pictures, as the model saw it and as the client has it."""
    entry: Entry = {"attack": result.attack, "status": result.status, "reason": result.reason, "cpu_seconds": spent}
    if result.status != "done":
        return entry
    entry["certified"] = result.certified
    if result.images is not None:
        found = score(truth, result.images, result.labels, own=result.own_images, perceptual=False)
        entry["psnrs"] = by_source(truth, [one.psnr for one in found])
        entry["private"] = by_source(truth, [one.private_psnr for one in found])
    if result.attack == LABELS and (labels := score_labels(truth, result.labels)) is not None:
        entry |= {"labels": labels.share, "labels_exact": labels.exact}
    return entry


def by_source(truth: GroundTruth, values: Sequence[float | None]) -> list[float]:
    """The best over all forms in which the model saw a picture, for each picture; -inf has no place in JSON."""
    best: dict[int, float] = {}
    for source, value in zip(truth.sources, values, strict=True):
        best[source] = max(best.get(source, NO_IMAGE), value or NO_IMAGE)
    return list(best.values())


def beside(rung: Rung, clients: Sequence[tuple[Observation, GroundTruth]]) -> Entry:
    """What the precision of the update alone would leave, and the reference that takes its rounding for noise."""
    if rung.draws:
        return {"none": "the model draws"}
    if rung.epoch:
        return {"none": "batches in an unknown order"}
    if len({len(set(truth.sources)) for _, truth in clients}) != 1 or any(
        len(truth.images) != len(set(truth.sources)) for _, truth in clients
    ):
        return {"none": "each step saw another form"}
    prior = clients[0][0].image_prior
    assert prior is not None
    each, held = [], []
    for seen, truth in clients:
        unknowns = truth.images.numel()
        if unknowns > LARGEST_SYSTEM:
            return {"none": f"{unknowns:,} unknowns"}
        try:
            jacobian, _, rounding = linear(seen, truth.images.double(), truth.labels, prior)
        except NotApplicable as refusal:
            return {"none": str(refusal)}
        whitened = jacobian / rounding[:, None]
        each.append(torch.linalg.qr(whitened, mode="r").R if len(whitened) > unknowns else whitened)
        held.append(determined(each[-1], torch.ones(len(each[-1]))))
    assert prior is not None
    left = median(one.rounding_psnr for one in held)
    entry: Entry = {"reference": reference(each, prior), "unknowns": held[0].unknowns}
    return entry | {"rank": min(one.rank for one in held), "rounding": left if math.isfinite(left) else None}


def reference(each: Sequence[Tensor], prior: PublicPrior) -> float:
    """dB that second moments leave, of one update, or of the mean of the information in several.

    Args:
        each: J of each update, in units of the rounding of what was shared.
    """
    if len(each) == 1:
        return behind_rounding(each[0], torch.ones(len(each[0])), prior)
    one = prior_precision(prior, prior.mean.shape)
    precision = torch.block_diag(*[one] * (each[0].shape[1] // len(one)))
    return gaussian_reference([J.T @ J for J in each], precision)


def picture_folder(out: Path, rung: str) -> Path:
    """Of what is drawn of a rung."""
    return out / "pictures" / "".join(letter if letter.isalnum() else "_" for letter in rung)


def draw(folder: Path, truth: GroundTruth, public: Tensor, results: Sequence[AttackResult]) -> None:
    """The first picture, what the model saw of it first, the guess, and what each attack made of it."""
    for name, image in (("private", truth.originals[0]), ("seen", truth.images[0]), ("guess", public.mean(dim=0))):
        save_png(image, folder / f"{name}.png")
    for result in results:
        if result.images is not None:
            found: list[ImageScore] = score(truth, result.images, None, perceptual=False)
            forms = [one for one, source in zip(found, truth.sources, strict=True) if source == 0 and one.psnr]
            chosen = max(forms, key=lambda one: one.psnr or 0.0, default=None)
            if chosen is not None and chosen.reconstruction is not None:
                save_png(result.images[chosen.reconstruction], folder / f"{result.attack}.png")
