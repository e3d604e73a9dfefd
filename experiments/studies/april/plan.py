"""What the reproduction of APRIL computes: its parts, their scales, and the units of work."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.audit.images import choose_images
from experiments.engine.setup import prepare
from experiments.python.load_config import load_config
from experiments.studies.april.options import CLOSED_FORM, CURVES, FIXED_PE, TWINS
from experiments.studies.harness.study import Unit
from fedsim.errors import ConfigError
from fedsim.settings.composition import Config

KINDS = ("frozen", "sincos")
"""Of `fixed_pe`: the values that the model was built with, or MAE's."""

FRAMES = 25
"""Points of a curve, besides its end."""

SQUARED = {"_target_": "attacks.optimization.SquaredL2", "relative": True}


@dataclass(frozen=True)
class Grid:
    """A model of the closed forms' table, with its pictures.

    Attributes:
        model: Hydra overrides.
        seeds: at most so many; None: all.
    """

    name: str
    model: tuple[str, ...]
    pictures: int
    seeds: int | None = None


@dataclass(frozen=True)
class SearchPlan:
    """Gradient matching: the model that it attacks, pictures, steps."""

    model: tuple[str, ...]
    pictures: int
    steps: int


@dataclass(frozen=True)
class AprilScale:
    """How much of everything."""

    seeds: int
    grids: tuple[Grid, ...]
    matching: SearchPlan
    fixed: SearchPlan


@dataclass(frozen=True)
class Arm:
    """A search of the curves.

    Attributes:
        align: of the position embedding's gradient, `PositionAlignment`'s; None: plain matching.
        defense: of the client; none, or `withhold_pe`.
        target: `observed`, or `random`: a gradient that knows nothing.
    """

    label: str
    align: str | None = None
    defense: str | None = None
    target: str = "observed"


ARMS = {
    "plain": Arm("plain matching"),
    "all": Arm("aligned as published: whole tensor", "all"),
    "patch": Arm("aligned over the patch rows (ours)", "patch"),
    "row": Arm("aligned row by row (ours)", "row"),
    "random": Arm("no gradient: row by row, to a random one", "row", None, "random"),
    "withheld": Arm("plain matching, E_pos's gradient withheld", None, "withhold_pe"),
    "withheld_random": Arm("no gradient: the same, to a random one", None, "withhold_pe", "random"),
}
PART_ARMS = {CURVES: ("plain", "all", "patch", "row", "random"), TWINS: ("plain", "row", "withheld", "withheld_random")}

TINY = "model=vit_tiny_4_32"


def _grids(pictures: int, large: int, seeds: int | None, *more: Grid) -> tuple[Grid, ...]:
    """ViT-Ti/4 at several sizes, and the paper's kind of model at 224 pixels."""
    tiny = (Grid(f"ViT-Ti/4, {side} px", (TINY, f"model.img_size={side}"), pictures) for side in (16, 32, 48, 56))
    return (*tiny, Grid("ViT-S/16, 224 px", ("model=vit_small",), large, seeds), *more)


SCALES: dict[str, AprilScale] = {
    "small": AprilScale(
        seeds=2,
        grids=_grids(4, 1, 1),
        matching=SearchPlan((TINY, "+model.kwargs.depth=2"), pictures=4, steps=500),
        fixed=SearchPlan(("model=vit_small", "model.name=vit_small_patch32_224", "+model.kwargs.depth=2"), 3, 200),
    ),
    "paper": AprilScale(
        seeds=5,
        grids=_grids(100, 100, None, Grid("ViT-B/16, 224 px", ("model=vit_base",), 100)),
        matching=SearchPlan((TINY,), pictures=20, steps=5000),
        fixed=SearchPlan(("model=vit_base", "model.name=vit_base_patch32_224"), pictures=20, steps=5000),
    ),
}


def plan(options: argparse.Namespace, seeds: Sequence[int]) -> list[Unit]:
    """The units of the parts that are asked for, each once.

    Raises:
        ConfigError: the pictures are too few, or cannot be read.
    """
    scale = SCALES[options.scale]
    counts = {CLOSED_FORM: max(grid.pictures for grid in scale.grids), FIXED_PE: scale.fixed.pictures}
    most = max(counts.get(part, scale.matching.pictures) for part in options.parts)
    units: list[Unit] = []
    images = _choose(options, min(most, options.count or most))
    if CLOSED_FORM in options.parts:
        units += _closed_forms(options, scale, seeds, images)
    arms = dict.fromkeys(arm for part in options.parts for arm in PART_ARMS.get(part, ()))
    units += [_matching(options, scale, arm, seed, images) for seed in seeds for arm in arms]
    if FIXED_PE in options.parts:
        units += _fixed(options, scale, seeds, images)
    return units


def steps_of(options: argparse.Namespace) -> Mapping[str, int]:
    """Steps of the searches, by what they are for."""
    scale = SCALES[options.scale]
    asked = options.steps
    return {"matching": asked or scale.matching.steps, "fixed": asked or scale.fixed.steps}


def _closed_forms(
    options: argparse.Namespace, scale: AprilScale, seeds: Sequence[int], pictures: Sequence[int]
) -> list[Unit]:
    """One unit for each grid, first block, precision of the gradients, and seed."""
    units = []
    for grid in scale.grids:
        for seed in seeds[: grid.seeds]:
            for variant in ("april", "stock"):
                for dtype in ("float32", "float64"):
                    composed = _config(options, seed, *grid.model, f"model.variant={variant}", f"model.dtype={dtype}")
                    names = ("april",) if variant == "april" else ("april", "patch_gradient", "row_space")
                    found = {
                        "part": CLOSED_FORM,
                        "config": composed,
                        "positions": list(pictures[: grid.pictures]),
                        "attacks": {name: composed["attack"][name] for name in names},
                        "tags": {"model": grid.name, "variant": variant, "dtype": dtype, "seed": seed},
                    }
                    key = f"{CLOSED_FORM}/{grid.name}/{variant}/{dtype}/seed{seed}"
                    units.append(Unit.of(options, key, found))
    return units


def _matching(options: argparse.Namespace, scale: AprilScale, arm: str, seed: int, pictures: Sequence[int]) -> Unit:
    """One search of all its pictures together."""
    chosen = ARMS[arm]
    composed = _config(options, seed, *scale.matching.model, f"defense=[{chosen.defense or ''}]")
    attack = search(composed, chosen.align, steps_of(options)["matching"], FRAMES, chosen.target)
    found = {
        "part": "matching",
        "config": composed,
        "positions": list(pictures[: scale.matching.pictures]),
        "attacks": {"matching": attack},
        "tags": {"arm": arm, "seed": seed},
    }
    return Unit.of(options, f"matching/{arm}/seed{seed}", found)


def _fixed(options: argparse.Namespace, scale: AprilScale, seeds: Sequence[int], pictures: Sequence[int]) -> list[Unit]:
    """One unit for each kind of embedding, seed and picture."""
    steps, units = steps_of(options)["fixed"], []
    for seed in seeds:
        for kind in KINDS:
            defense = ("defense=[fixed_pe]", f"defense.fixed_pe.kind={kind}")
            composed = _config(options, seed, *scale.fixed.model, *defense)
            theirs = _config(options, seed, *scale.fixed.model, *defense, "model.variant=april")
            attacks = composed["attack"]
            settings = {
                "april_optimization": search(composed, "all", steps, 0),
                "plain": search(composed, None, steps, 0),
                "inverting_gradients": {**attacks["inverting_gradients"], "steps": steps, "frames": 0, "save_every": 0},
                "patch_gradient": attacks["patch_gradient"],
                "row_space": attacks["row_space"],
            }
            for number, position in enumerate(pictures[: scale.fixed.pictures]):
                found = {
                    "part": FIXED_PE,
                    "config": composed,
                    "april": theirs,
                    "positions": [position],
                    "first": number,
                    "attacks": settings,
                    "tags": {"kind": kind, "seed": seed},
                }
                units.append(Unit.of(options, f"{FIXED_PE}/{kind}/seed{seed}/{number}", found))
    return units


def search(config: Config, align: str | None, steps: int, frames: int, target: str = "observed") -> dict[str, Any]:
    """Settings of a gradient matching that differs from `april_optimization` in what it aligns.

    Distance and alignment have the weights 1 and α. Without the alignment total variation's weight is divided by 1 + α:
    relative to the matching it is the same in all searches.
    """
    own = config["attack"]["april_optimization"]
    chosen = {"steps": steps, "frames": frames, "save_every": 0, "target": target}
    if align is not None:
        return {**own, **chosen, "objective": {**own["objective"], "align": align}}
    prior = own["priors"]["total_variation"]
    lighter = {**prior, "weight": prior["weight"] / (1 + own["objective"]["alpha"])}
    return {**own, **chosen, "objective": SQUARED, "priors": {**own["priors"], "total_variation": lighter}}


def _config(options: argparse.Namespace, seed: int, *overrides: str) -> Config:
    """Of an audit; pictures are the same for all seeds, which draw the model and the starts."""
    fixed = ["simulation=inline", "tracker=[]", f"simulation.threads={options.threads}"]
    fixed += ["attack=[april,april_optimization,inverting_gradients,patch_gradient,row_space]", f"seed={seed}"]
    fixed += [f"client.device={options.device}", f"data.seed={options.seed}"]
    if options.data == "photos":
        return load_config("audit", *fixed, "data=photos", *overrides)
    data = ["data=imagefolder", "data.test_fraction=0", "data.verify=false"]
    return load_config("audit", *fixed, *data, *overrides, data={"path": str(options.pictures)})


def _choose(options: argparse.Namespace, count: int) -> list[int]:
    """Positions of the pictures, spread over the classes."""
    composed = _config(options, options.seed, "model=vit_nano", "audit.select=per_class", f"audit.num_images={count}")
    setup = prepare(composed)
    if len(setup.data.train) < count:
        raise ConfigError("--count", count, f"at most {len(setup.data.train)}, the pictures that clients hold here")
    return choose_images(setup)
