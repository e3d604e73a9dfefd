"""What comparisons of learned priors share: defenses, budgets, and the settings of every training and audit."""

from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.prior.command import NAMES
from experiments.python.load_config import load_config
from experiments.studies.priors_defended.options import DEFENSES, FREE
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError, nearest
from fedsim.settings.composition import Config, build_data

PRUNED = ("topk", "prune", "soteria")
"""Zeros of their updates say nothing: the server knows the defense, and its searches leave them out."""

SEARCHES = (FREE, "gias", "gifd", "ggl")
GENERATIVE = ("gias", "gifd", "ggl", "generator_samples")
SMALL = {
    "generator": ["prior.generator.steps=1500", "prior.generator.channels=[64,48,32]", "prior.generator.latent=96"],
    "lti": ["prior.lti.updates=3072", "prior.lti.steps=1500", "prior.lti.bins=2048", "prior.lti.hidden=512"],
    "attack": [
        "attack.inverting_gradients.steps=550",  # as many as GIAS has: each restart's, then the weights'
        "attack.gias.steps=200",
        "attack.gias.weight_steps=150",
        "attack.gias.restarts=2",
        "attack.gifd.steps=200",
        "attack.gifd.layer_steps=[100,100]",
        "attack.gifd.restarts=2",
        "attack.ggl.generations=120",
        "attack.ggl.population=24",
    ],
}
FULL: dict[str, list[str]] = {
    "generator": ["prior.generator.steps=30000"],
    "lti": ["prior.lti.updates=50000", "prior.lti.steps=40000", "prior.lti.hidden=3000"],
    "attack": ["attack.inverting_gradients.steps=2500"],
}


@dataclass(frozen=True)
class DefendedCase:
    """One defense at one batch size."""

    batch: int
    defense: str

    @property
    def name(self) -> str:
        return f"{self.defense}-batch-{self.batch}"


@dataclass(frozen=True)
class Benchmark:
    """What is compared, and where it is kept."""

    data: Path
    out: Path
    held: tuple[str, ...]
    attacks: tuple[str, ...]
    model: str
    pictures: int
    budgets: dict[str, list[str]]
    seed: int
    threads: int

    def common(self, case: DefendedCase | None = None) -> list[str]:
        found = [
            "data=imagefolder",
            "data.verify=false",
            "data.auxiliary_fraction=0.7",
            f"model={self.model}",
            f"seed={self.seed}",
            "simulation=inline",
            f"simulation.threads={self.threads}",
        ]
        return found if case is None else [*found, *DEFENSES[case.defense], f"client.batch_size={case.batch}"]

    def generator(self) -> Config:
        return self._prior("generator", self.common(), self.out / "generator")

    def lti(self, case: DefendedCase) -> Config:
        return self._prior("lti", self.common(case), self.out / f"lti-{case.name}")

    def _prior(self, kind: str, settings: list[str], folder: Path) -> Config:
        names = ",".join(self.held)
        chosen = [f"kind={kind}", f"prior.exclude_classes=[{names}]", f"threads={self.threads}"]
        return self._placed(load_config("prior", *settings, *chosen, *self.budgets[kind]), folder)

    def _placed(self, config: Config, folder: Path) -> Config:
        """With its folders, as they are, whatever characters they have."""
        data = {**config["data"], "path": str(self.data.resolve())}
        return {**config, "data": data, "run_dir": str(folder)}

    def audit(self, case: DefendedCase, ids: list[str]) -> Config:
        checkpoint = (self.out / "generator" / NAMES["generator"]).resolve()
        network = (self.out / f"lti-{case.name}" / NAMES["lti"]).resolve()
        settings = [
            *self.common(case),
            f"audit.batch_size={case.batch}",
            f"audit.num_images={len(ids)}",
            f"audit.victims={len(ids)}",
            f"attack=[{','.join(self.attacks)}]",
            *(line for line in self.budgets["attack"] if line.split(".")[1] in self.attacks),
        ]
        config = self._placed(load_config("audit", *settings), self.out / f"audit-{case.name}")
        config["audit"]["select"] = ids
        for name, own in config["attack"].items():
            if name in GENERATIVE:
                own["generator"]["checkpoint"] = str(checkpoint)
            if name in ("lti", "lti_mean"):
                own["checkpoint"] = str(network)
            if name in SEARCHES and case.defense in PRUNED:
                own["objective"]["mask_zeros"] = True
            if name in SEARCHES and case.defense == "sign":
                own["objective"] = {"_target_": "attacks.optimization.SignCosine"}
        return config


def chosen(benchmark: Benchmark, config: Config) -> list[str]:
    """Ids of clients' pictures of the classes held out, at random.

    Raises:
        ConfigError: an unknown class, or fewer pictures than asked for.
    """
    data = build_data(config)
    for name in benchmark.held:
        if name not in data.class_names:
            raise ConfigError("--held", name, f"classes of the data.{nearest(name, data.class_names)}")
    wanted = {data.class_names.index(name) for name in benchmark.held}
    drawn = torch_generator(benchmark.seed, "held-out")
    order = torch.randperm(len(data.train), generator=drawn).tolist()
    places = [place for place in order if int(data.train.labels[place]) in wanted]
    if len(places) < benchmark.pictures:
        raise ConfigError("--pictures", benchmark.pictures, f"at most {len(places)}, the clients' of these classes")
    return [data.train.ids[place] for place in places[: benchmark.pictures]]
