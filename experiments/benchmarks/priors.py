"""What learned priors are worth: generators and LTI against their baselines and free pixels, on classes held out.

python -m experiments.benchmarks.priors --data DIR --out DIR --small       fewer pictures and steps, for two cores
python -m experiments.benchmarks.priors --data DIR --out DIR   the full budgets

DIR is a folder of class folders. Priors are trained on public pictures of all other classes, pictures of the classes
held out are attacked. The same --out goes on where an earlier call stopped.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from experiments.audit import run_audit
from experiments.benchmarks.judge import Judge, train_judge
from experiments.prior import NAMES, run_prior
from experiments.setup import prepare
from fedsim.composition import Config, build_data
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError, RunError, nearest
from fedsim.simulation.ray_cluster import quiet_environment

DEFENSES = {
    "none": ["defense=[]"],
    "noise": ["defense=[gradient_noise]", "defense.gradient_noise.relative_norm=0.1"],
    "topk": ["defense=[topk]", "defense.topk.ratio=0.1", "defense.topk.error_feedback=false"],
}
"""Noise of a tenth of the update's norm; the tenth of largest magnitude."""
GENERATIVE = ("gias", "gifd", "ggl", "generator_samples")
ROWS = {
    "generator_samples": "generator's mean sample (baseline)",
    "generator_best": "best of 64 samples, by the truth",
    "lti_mean": "mean public picture (baseline)",
    "inverting_gradients": "free pixels (IG)",
    "gias": "GIAS",
    "gifd": "GIFD",
    "ggl": "GGL",
    "lti": "LTI",
}
MEASURES = ("psnr", "ssim", "feature")
SMALL = {
    "generator": ["prior.generator.steps=1500", "prior.generator.channels=[64,48,32]", "prior.generator.latent=96"],
    "lti": ["prior.lti.updates=3072", "prior.lti.steps=1500", "prior.lti.bins=2048", "prior.lti.hidden=512"],
    "attack": [
        "attack.inverting_gradients.steps=400",
        "attack.inverting_gradients.priors.total_variation.weight=1e-3",
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
    "attack": ["attack.inverting_gradients.priors.total_variation.weight=1e-3"],
}
SMALL_PICTURES, FULL_PICTURES = 8, 32


@dataclass(frozen=True)
class Case:
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
    cases: tuple[Case, ...]
    model: str
    pictures: int
    budgets: dict[str, list[str]]
    seed: int
    threads: int

    def common(self, case: Case | None = None) -> list[str]:
        found = [
            "data=imagefolder",
            f"data.path={self.data.resolve()}",
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

    def lti(self, case: Case) -> Config:
        return self._prior("lti", self.common(case), self.out / f"lti-{case.name}")

    def _prior(self, kind: str, settings: list[str], folder: Path) -> Config:
        names = ",".join(self.held)
        chosen = [f"kind={kind}", f"prior.exclude_classes=[{names}]", f"threads={self.threads}"]
        return composed("prior", [*settings, *chosen, *self.budgets[kind], f"run_dir={folder}"])

    def audit(self, case: Case, ids: list[str]) -> Config:
        attacks = [name for name in ROWS if name != "generator_best"]
        checkpoint = (self.out / "generator" / NAMES["generator"]).resolve()
        network = (self.out / f"lti-{case.name}" / NAMES["lti"]).resolve()
        settings = [
            *self.common(case),
            f"audit.batch_size={case.batch}",
            f"audit.num_images={len(ids)}",
            f"audit.victims={len(ids)}",
            f"attack=[{','.join(attacks)}]",
            *(f"attack.{name}.generator.checkpoint={checkpoint}" for name in GENERATIVE),
            *(f"attack.{name}.checkpoint={network}" for name in ("lti", "lti_mean")),
            *self.budgets["attack"],
            f"run_dir={self.out / f'audit-{case.name}'}",
        ]
        config = composed("audit", settings)
        config["audit"]["select"] = ids
        config["attack"]["generator_best"] = {**config["attack"]["generator_samples"], "pick": "best"}
        if case.defense == "topk":  # the server knows what was pruned: every search compares what was sent alone
            for name in ("inverting_gradients", "gias", "gifd"):
                config["attack"][name]["objective"]["mask_zeros"] = True
        return config


def main() -> None:
    """Train, attack, print a table."""
    quiet_environment()
    arguments = _arguments()
    try:
        benchmark = plan(arguments)
        rows = run(benchmark)
    except (ConfigError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    table = markdown(rows, benchmark)
    (benchmark.out / "table.md").write_text(table, encoding="utf-8")
    with (benchmark.out / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["case", "attack", "picture", *MEASURES])
        writer.writeheader()
        writer.writerows(rows)
    print(table)


def plan(arguments: argparse.Namespace) -> Benchmark:
    """Raises ConfigError: a class or a defense that there is not."""
    cases = tuple(Case(batch, defense) for defense in arguments.defenses for batch in arguments.batches)
    for case in cases:
        if case.defense not in DEFENSES:
            raise ConfigError("--defenses", case.defense, f"one of {', '.join(DEFENSES)}")
        if case.batch < 1:
            raise ConfigError("--batches", case.batch, "numbers of at least 1")
    budgets = SMALL if arguments.small else FULL
    if arguments.set:
        budgets = {kind: [*lines, *(s for s in arguments.set if _belongs(s, kind))] for kind, lines in budgets.items()}
    pictures = arguments.pictures or (SMALL_PICTURES if arguments.small else FULL_PICTURES)
    held = tuple(arguments.held.split(","))
    return Benchmark(
        arguments.data,
        arguments.out,
        held,
        cases,
        arguments.model,
        pictures,
        budgets,
        arguments.seed,
        arguments.threads,
    )


def run(benchmark: Benchmark) -> list[dict[str, Any]]:
    """One row for each attack on each picture of each case, in their order."""
    config = benchmark.generator()
    ids = chosen(benchmark, config)
    run_prior(config, Path(config["run_dir"]))
    judge = train_judge(prepare({**config, "attack": {}}), benchmark.held, benchmark.out)
    rows: list[dict[str, Any]] = []
    for case in benchmark.cases:
        trained = benchmark.lti(case)
        run_prior(trained, Path(trained["run_dir"]))
        audit = benchmark.audit(case, ids)
        folder = Path(audit["run_dir"])
        run_audit(audit, folder)
        rows += read(folder, case, judge)
    return rows


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


def read(folder: Path, case: Case, judge: Judge) -> Iterator[dict[str, Any]]:
    """The scores of one audit; what was refused or failed is missing and counted as such in the table."""
    for line in (folder / "attacks.jsonl").read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        for image in result.get("images") or []:
            if image.get("psnr") is None:
                continue
            distance = judge.distance(folder / image["reconstruction"], folder / image["original"])
            values = {"psnr": image["psnr"], "ssim": image["ssim"], "feature": distance}
            yield {"case": case.name, "attack": result["attack"], "picture": image["image"], **values}


def markdown(rows: list[dict[str, Any]], benchmark: Benchmark) -> str:
    """Means and standard deviations over the pictures."""
    lines = [
        f"{benchmark.pictures} pictures of {', '.join(benchmark.held)} (held out), {benchmark.model}, "
        f"seed {benchmark.seed}: PSNR in dB, SSIM, feature distance (less is better)",
        "",
        "| attack | " + " | ".join(case.name.replace("-", " ") for case in benchmark.cases) + " |",
        "| --- |" + " --- |" * len(benchmark.cases),
    ]
    for attack, title in ROWS.items():
        cells = []
        for case in benchmark.cases:
            own = [row for row in rows if row["case"] == case.name and row["attack"] == attack]
            cells.append(_cell(own, benchmark.pictures) if own else "refused or failed")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(rows: list[dict[str, Any]], pictures: int) -> str:
    psnrs = [row["psnr"] for row in rows if isfinite(row["psnr"])]
    spread = stdev(psnrs) if len(psnrs) > 1 else 0.0
    others = " / ".join(f"{mean(row[name] for row in rows):.3f}" for name in MEASURES[1:])
    missing = f" ({len(rows)} of {pictures})" if len(rows) < pictures else ""
    return f"{mean(psnrs):.2f} ± {spread:.2f} / {others}{missing}"


def composed(name: str, overrides: list[str]) -> Config:
    with initialize_config_module("conf", version_base=None):
        found: Config = OmegaConf.to_container(compose(name, overrides), resolve=True)  # type: ignore[assignment]
    found.pop("hydra", None)
    return found


def _belongs(setting: str, kind: str) -> bool:
    return setting.startswith(f"prior.{kind}." if kind != "attack" else "attack.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    parser.add_argument("--out", type=Path, required=True, help="everything is kept here")
    parser.add_argument("--small", action="store_true", help="small budgets")
    parser.add_argument("--held", default="cat,ship", help="classes whose pictures are attacked")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    parser.add_argument("--model", default="lenet_dlg", help="of conf/model: lenet_dlg, mlp, vit_tiny_4_32 …")
    parser.add_argument("--pictures", type=int, default=None, help="to attack; 8 with --small, else 32")
    parser.add_argument(
        "--set", nargs="*", default=[], help="further settings: prior.lti.steps=100 attack.gias.steps=50"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
