"""What learned priors are worth: generators and LTI against their baselines and free pixels, on classes held out.

python -m experiments.benchmarks.priors --data DIR --out DIR --small       fewer pictures and steps, for two cores
python -m experiments.benchmarks.priors --data DIR --out DIR   the full budgets

DIR is a folder of class folders. Priors are trained on public pictures of all other classes, pictures of the classes
held out are attacked. The same --out goes on where an earlier call stopped.
"""

import argparse
import sys
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from experiments.studies.harness import tables
from experiments.studies.priors_defended.options import COMPARED, DEFENSES
from fedsim.errors import ConfigError, RunError
from fedsim.storage import json_lines

if TYPE_CHECKING:
    from experiments.studies.priors_defended.cases import Benchmark, DefendedCase
    from experiments.studies.priors_defended.judge import Judge

MEASURES = ("psnr", "ssim", "feature")
SMALL_PICTURES, FULL_PICTURES = 8, 32


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    parser.add_argument("--out", type=Path, required=True, help="everything is kept here")
    parser.add_argument("--small", action="store_true", help="small budgets")
    parser.add_argument("--held", default="cat,ship", help="classes whose pictures are attacked")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--defenses", nargs="+", default=list(COMPARED), help=f"of {', '.join(DEFENSES)}")
    parser.add_argument("--model", default="lenet_dlg", help="of conf/model: lenet_dlg, mlp, vit_tiny_4_32 …")
    parser.add_argument("--pictures", type=int, default=None, help="to attack; 8 with --small, else 32")
    parser.add_argument(
        "--set", nargs="*", default=[], help="further settings: prior.lti.steps=100 attack.gias.steps=50"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Train, attack, print a table."""
    arguments = _arguments()

    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    try:
        benchmark = plan(arguments)
        rows = run(benchmark)
    except (ConfigError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    table = markdown(rows, benchmark)
    (benchmark.out / "table.md").write_text(table, encoding="utf-8")
    columns = ["case", "attack", "picture", *MEASURES]
    tables.write_csv(benchmark.out / "rows.csv", columns, ([row[column] for column in columns] for row in rows))
    print(table)


def plan(arguments: argparse.Namespace) -> "Benchmark":
    """Raises ConfigError: a class or a defense that there is not."""
    from experiments.studies.priors_defended.cases import FULL, SMALL, Benchmark, DefendedCase

    cases = tuple(DefendedCase(batch, defense) for defense in arguments.defenses for batch in arguments.batches)
    for case in cases:
        if case.defense not in DEFENSES:
            raise ConfigError("--defenses", case.defense, f"one of {', '.join(DEFENSES)}")
        if case.batch < 1:
            raise ConfigError("--batches", case.batch, "numbers of at least 1")
    budgets = SMALL if arguments.small else FULL
    if arguments.set:
        budgets = {kind: [*lines, *(s for s in arguments.set if _belongs(s, kind))] for kind, lines in budgets.items()}
    images = arguments.pictures or (SMALL_PICTURES if arguments.small else FULL_PICTURES)
    for batch in arguments.batches:
        if images % batch:
            raise ConfigError("--pictures", images, f"a multiple of {batch}, of --batches: no update holds fewer")
    held = tuple(arguments.held.split(","))
    return Benchmark(
        arguments.data,
        arguments.out,
        held,
        cases,
        arguments.model,
        images,
        budgets,
        arguments.seed,
        arguments.threads,
    )


def run(benchmark: "Benchmark") -> list[dict[str, Any]]:
    """One row for each attack on each picture of each case, in their order."""
    from clients.app import resolve_device
    from experiments.audit.command import run_audit
    from experiments.engine.setup import prepare
    from experiments.prior.command import run_prior
    from experiments.studies.priors_defended.cases import FREE, chosen
    from experiments.studies.priors_defended.free_pixels import best_setting
    from experiments.studies.priors_defended.judge import train_judge

    config = benchmark.generator()
    ids = chosen(benchmark, config)
    run_prior(config, Path(config["run_dir"]))
    judge = train_judge(prepare(config), benchmark.held, benchmark.out)
    rows: list[dict[str, Any]] = []
    for case in benchmark.cases:
        trained = benchmark.lti(case)
        run_prior(trained, Path(trained["run_dir"]))
        audit = benchmark.audit(case, ids)
        folder = Path(audit["run_dir"])
        setting = best_setting(benchmark, case, audit, str(resolve_device(audit["client"]["device"])))
        print(f"{case.name}: free pixels with {setting} (total variation), as public pictures chose", flush=True)
        audit["attack"][FREE] = setting.applied(audit["attack"][FREE])
        run_audit(audit, folder)
        rows += read(folder, case, judge)
    return rows


def read(folder: Path, case: "DefendedCase", judge: "Judge") -> Iterator[dict[str, Any]]:
    """The scores of one audit; what was refused or failed is missing and counted as such in the table."""
    for result in json_lines.rows(folder / "attacks.jsonl"):
        for image in result.get("images") or []:
            if image.get("psnr") is None:
                continue
            distance = judge.distance(folder / image["reconstruction"], folder / image["original"])
            values = {"psnr": image["psnr"], "ssim": image["ssim"], "feature": distance}
            yield {"case": case.name, "attack": result["attack"], "picture": image["image"], **values}


def markdown(rows: list[dict[str, Any]], benchmark: "Benchmark") -> str:
    """Means and standard deviations over the pictures."""
    from experiments.studies.priors_defended.cases import ROWS

    head = (
        f"{benchmark.pictures} pictures of {', '.join(benchmark.held)} (held out), {benchmark.model}, "
        f"seed {benchmark.seed}: PSNR in dB, SSIM, feature distance (less is better)"
    )
    lines = []
    for attack, title in ROWS.items():
        cells = []
        for case in benchmark.cases:
            own = [row for row in rows if row["case"] == case.name and row["attack"] == attack]
            cells.append(_cell(own, benchmark.pictures) if own else "refused or failed")
        lines.append([title, *cells])
    names = (case.name.replace("-", " ") for case in benchmark.cases)
    return f"{head}\n\n{tables.markdown(['attack', *names], lines)}"


def _cell(rows: list[dict[str, Any]], images: int) -> str:
    psnrs = [row["psnr"] for row in rows if isfinite(row["psnr"])]
    spread = stdev(psnrs) if len(psnrs) > 1 else 0.0
    others = " / ".join(f"{mean(row[name] for row in rows):.3f}" for name in MEASURES[1:])
    missing = f" ({len(rows)} of {images})" if len(rows) < images else ""
    return f"{mean(psnrs):.2f} ± {spread:.2f} / {others}{missing}"


def _belongs(setting: str, kind: str) -> bool:
    return setting.startswith(f"prior.{kind}." if kind != "attack" else "attack.")


if __name__ == "__main__":
    main()
