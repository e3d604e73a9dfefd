"""Figures of the label rules' pages: how many of a batch's labels each names, on scikit-learn's digits.

Features are computed once, in evaluation mode; a batch's gradient of the head follows from them in closed form.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import PIL.Image

from experiments.benchmarks.heads import train
from experiments.benchmarks.label_rules import RULES, SETS, measure
from experiments.engine.setup import prepare
from experiments.studies.gradinversion.labels import known_features
from fedsim.determinism import torch_generator
from fedsim.report.draw.png import COLOURS, GRID, drawing, plain_numbers

SETTINGS = ("data=digits", "model=vit_nano", "simulation=inline")
SIZES = (1, 2, 4, 8, 16, 32)
BATCHES = 40
COLOURS_KEPT = 48
"""Of a figure: a third of the bytes, and nobody sees it."""

STEPS = 300
"""Of training, in batches of 32: 95 % of the test pictures are then right."""

KINDS = {"distinct": "every label once", "repeated": "labels repeat"}
STATES = ("untrained", "trained")

Shares = dict[tuple[str, str, str], dict[int, float]]
"""By rule, kind and state: batch size → mean share of the labels."""


def shares(config: Mapping[str, Any]) -> Shares:
    """Every rule on the same batches of one model, before and after its training."""
    setup = prepare(dict(config))
    found: Shares = {}
    for state in STATES:
        if state == "trained":
            setup.model.train()
            pictures = setup.data.train
            train(setup.model, pictures.images(range(len(pictures))), pictures.labels, STEPS, lr=0.05)
        known = known_features(setup, len(setup.data.train), 0, "cpu")
        for kind in KINDS:
            rng = torch_generator(0, "label figures", kind)
            for entry in measure(known, kind, SIZES, BATCHES, rng, RULES):
                found.setdefault((entry["rule"], kind, state), {})[entry["batch_size"]] = 100 * entry["overlap"]
    return found


def draw_rule(name: str, found: Shares, target: Path) -> list[str]:
    """One rule in colour before all others in grey; says what it came to at the largest batch."""
    said = []
    with drawing(target, 5.0, 2.2) as figure:
        for axes, kind in zip(figure.subplots(1, 2, sharey=True), KINDS, strict=True):
            for (rule, of_kind, state), by_size in found.items():
                if of_kind == kind and rule != name and state == "untrained":
                    axes.plot(list(by_size), list(by_size.values()), color=GRID, linewidth=1.0)
            for colour, state in zip(COLOURS, STATES, strict=False):
                if by_size := found.get((name, kind, state), {}):
                    axes.plot(
                        list(by_size), list(by_size.values()), color=colour, marker="o", markersize=3.5, label=state
                    )
                    said.append(f"{kind}, {state}: {by_size[max(by_size)]:.0f} % at B = {max(by_size)}")
            axes.set_xscale("log", base=2)
            plain_numbers(axes.xaxis, SIZES)
            axes.set_ylim(-4, 104)
            axes.set_title(KINDS[kind])
            axes.set_xlabel("pictures in the update")
        marks, texts = max((axes.get_legend_handles_labels() for axes in figure.axes), key=lambda found: len(found[0]))
        figure.legend(marks, texts, loc="outside lower center", ncols=len(STATES))
        figure.axes[0].set_ylabel("of the set, %" if name in SETS else "of the labels, %")
    PIL.Image.open(target).convert("RGB").quantize(COLOURS_KEPT).save(target, optimize=True)
    return said
