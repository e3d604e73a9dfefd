from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.running import build_attack
from experiments.benchmarks import priors
from experiments.benchmarks.priors import markdown
from experiments.prior.settings import chosen_network
from experiments.studies.priors_defended.cases import FULL, ROWS, SMALL, Benchmark, DefendedCase, chosen
from fedsim.errors import ConfigError
from fedsim.models.generator import ConvGenerator, save_generator
from fedsim.settings.commands import PriorConfig
from fedsim.settings.schema import parse


@pytest.fixture
def benchmark_of(tmp_path):
    def make(budgets, data=Path("nowhere"), **settings):
        plain = Benchmark(data, tmp_path, ("cat", "ship"), (), "lenet_dlg", 4, budgets, 0, 1)
        return replace(plain, **settings)

    return make


@pytest.mark.parametrize("budgets", [SMALL, FULL])
def test_every_case_composes(benchmark_of, tmp_path, budgets):
    plan = benchmark_of(budgets)
    (tmp_path / "generator").mkdir()
    save_generator(ConvGenerator(8, 32, [16, 8]), tmp_path / "generator" / "generator.safetensors")
    chosen_network(parse(PriorConfig, plan.generator()))
    for case in (DefendedCase(1, "none"), DefendedCase(4, "noise"), DefendedCase(4, "topk")):
        network, audit = plan.lti(case), plan.audit(case, ["a", "b"])
        chosen_network(parse(PriorConfig, network))
        # LTI is trained for exactly what is attacked.
        for key in ("client", "defense", "model", "data", "seed"):
            assert network[key] == audit[key]
        assert sorted(audit["attack"]) == sorted(ROWS)
        for name, settings in audit["attack"].items():
            if not name.startswith("lti"):
                build_attack(name, settings)
        masked = {name: audit["attack"][name]["objective"].get("mask_zeros", False) for name in ("gias", "gifd", "ggl")}
        assert masked == {"gias": case.defense == "topk", "gifd": case.defense == "topk", "ggl": True}


def test_images_that_leave_an_update_smaller_are_refused_before_a_prior_is_trained():
    asked = Namespace(batches=[1, 4], defenses=["none"], small=True, set=[], pictures=6)
    with pytest.raises(ConfigError, match=r"^--pictures=6: must be a multiple of 4, of --batches"):
        priors.plan(asked)


def test_only_pictures_of_the_classes_held_out_are_attacked(benchmark_of, cifar10_sample):
    plan = benchmark_of(SMALL, cifar10_sample, pictures=6)
    ids = chosen(plan, plan.generator())
    assert len(set(ids)) == 6
    assert {name.split("/")[1] for name in ids} <= {"cat", "ship"}
    with pytest.raises(ConfigError, match="--held=boat"):
        chosen(replace(plan, held=("boat",)), plan.generator())


def test_the_table_has_a_row_for_each_attack_and_says_where_there_is_no_result(benchmark_of):
    plan = benchmark_of(SMALL, cases=(DefendedCase(1, "none"), DefendedCase(4, "topk")), pictures=2)
    scores = ((20.0, 0.5, 0.1), (24.0, 0.7, 0.3))
    rows = [
        {"case": "none-batch-1", "attack": "gias", "picture": str(n), "psnr": p, "ssim": s, "feature": f}
        for n, (p, s, f) in enumerate(scores)
    ]
    lines = markdown(rows, plan).splitlines()
    assert "| GIAS | 22.00 ± 2.83 / 0.600 / 0.200 | refused or failed |" in lines
    assert len([line for line in lines if line.startswith("|")]) == len(ROWS) + 2
    partly = markdown(rows, replace(plan, pictures=3)).splitlines()
    assert "| GIAS | 22.00 ± 2.83 / 0.600 / 0.200 (2 of 3) | refused or failed |" in partly
