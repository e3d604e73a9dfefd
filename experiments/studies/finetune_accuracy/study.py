"""What a federation learns by each recipe of fine-tuning, and what it costs. Its options are in `options`."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.studies.finetune_accuracy.halves import halves, linked
from experiments.studies.finetune_accuracy.options import arguments
from experiments.studies.finetune_accuracy.scales import RECIPES, SCALES, Scale
from experiments.studies.finetune_accuracy.tables import FULL, page
from experiments.studies.finetune_accuracy.unit import run_unit
from experiments.studies.harness.ledger import Entry, kept
from experiments.studies.harness.options import matching_names
from experiments.studies.harness.study import Unit, carry_out, publish, seeds
from fedsim.data import ImageFolder
from fedsim.errors import ConfigError
from fedsim.settings.composition import Config

SEARCH_SEED = 1000
"""Beyond the first of the seeds: that of the trainings by which learning rates are chosen."""
ATTACK_STEPS = 30


def run(options: argparse.Namespace) -> None:
    """From settings to the page.

    Raises:
        ConfigError: an option cannot work.
        RunError: a unit failed.
    """
    if options.attacked < 0:
        raise ConfigError("--attacked", options.attacked, "0 or more")
    scale, drawn = SCALES[options.scale], seeds(options, SCALES[options.scale].seeds)
    recipes = list(dict.fromkeys([FULL, *matching_names("--recipes", RECIPES, options.recipes)]))
    classes, out = halves(options.pictures.resolve()), options.out.resolve()
    settings = {"pictures": str(options.pictures.resolve()), "seed": options.seed, "classes": classes, **asdict(scale)}
    with kept(out, settings):  # before anything of theirs is linked there
        places = linked(options.pictures.resolve(), out)
    if options.attacked:
        count = len(ImageFolder(places["private"], auxiliary_fraction=0.0, verify=False).load().train)
        if options.attacked > count:
            raise ConfigError("--attacked", options.attacked, f"at most {count}, the clients' pictures")
    plan = _Plan(scale, places, len(classes["private"]), out, options)
    do = partial(carry_out, work=run_unit, options=options, settings=settings)
    public = do([plan.pretraining()])
    tried = do([plan.search(recipe, rate) for recipe in recipes for rate in RECIPES[recipe].rates])
    rates = {recipe: best_rate(recipe, tried) for recipe in recipes}
    done = do([plan.comparison(recipe, rates[recipe], seed) for seed in drawn for recipe in recipes])
    leaks = do([plan.attack(recipe, image) for image in range(options.attacked) for recipe in recipes])
    shown = page(scale, recipes, drawn, rates, public[0], tried, done, leaks)
    publish(shown, options, drawn, arguments(), [*public, *tried, *done, *leaks])


def best_rate(recipe: str, tried: Iterable[Mapping[str, Any]]) -> float:
    """The learning rate of the greatest accuracy on held-out pictures, the smallest of several."""
    own = [entry for entry in tried if entry["recipe"] == recipe]
    return float(max(own, key=lambda entry: (entry["accuracy"], -entry["rate"]))["rate"])


@dataclass(frozen=True)
class _Plan:
    """The units of a call."""

    scale: Scale
    places: Mapping[str, Path]
    classes: int
    out: Path
    options: argparse.Namespace

    @property
    def pretrained(self) -> Path:
        return self.out / "pretrained.safetensors"

    def pretraining(self) -> Unit:
        options = self.options
        config = self.scale.pretraining(self.places["public"], options.device, options.threads, options.seed)
        return self._unit("pretrained", "pretraining", config, pretrained=str(self.pretrained))

    def search(self, recipe: str, rate: float) -> Unit:
        config = self._federation(recipe, rate, self.scale.search_rounds, "held", self.options.seed + SEARCH_SEED)
        return self._unit(f"{recipe} search {rate:g}", "federation", config, recipe=recipe, rate=rate)

    def comparison(self, recipe: str, rate: float, seed: int) -> Unit:
        config = self._federation(recipe, rate, self.scale.rounds, "private", seed)
        return self._unit(f"{recipe} {rate:g} seed {seed}", "federation", config, recipe=recipe, seed=seed)

    def attack(self, recipe: str, image: int) -> Unit:
        config = self._federation(recipe, 1.0, 1, "private", self.options.seed)
        more: Entry = {"image": image, "steps": ATTACK_STEPS, "public": str(self.places["public"])}
        return self._unit(f"{recipe} attack {image}", "attack", config, recipe=recipe, **more)

    def _federation(self, recipe: str, rate: float, rounds: int, place: str, seed: int) -> Config:
        about = (self.places[place], self.options.device, self.options.threads, seed)
        return self.scale.federation(recipe, rate, rounds, self.pretrained, *about)

    def _unit(self, key: str, kind: str, config: Config, **settings: Any) -> Unit:
        return Unit.of(self.options, key, {"kind": kind, "run": config, "classes": self.classes, **settings})
