"""LTI and GGL under defenses: priors are trained for what is attacked, and numbers are the attacks' own."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attacks.building import build_attack
from attacks.learned.checkpoint import load_trained
from attacks.running import run_attack
from experiments.prior.settings import chosen_network
from experiments.studies.harness.client import Client
from experiments.studies.priors_defended import free_pixels, judge
from experiments.studies.priors_defended import study as priors_defended
from experiments.studies.priors_defended.cases import FULL, SMALL, DefendedCase, chosen
from experiments.studies.priors_defended.options import ATTACKS, DEFENSES, GENERATORS, PAPERS
from experiments.studies.priors_defended.page import DEFENDED
from experiments.studies.priors_defended.study import SCALES, PriorsScale, configuration, plan
from fedsim.errors import ConfigError, RunError
from fedsim.metrics.results import score_against
from fedsim.models.generator import ConvGenerator, save_generator
from fedsim.result import AttackResult
from fedsim.settings.commands import PriorConfig
from fedsim.settings.schema import parse

TINY = PriorsScale(
    {
        "generator": [
            "prior.validation=4", "prior.generator.steps=2", "prior.generator.channels=[8,8,8]",
            "prior.generator.latent=4", "prior.generator.batch_size=4",
        ],
        "lti": [
            "prior.validation=2", "prior.lti.updates=2", "prior.lti.steps=2", "prior.lti.bins=16",
            "prior.lti.hidden=8", "prior.lti.batch_size=4",
        ],
        "attack": [
            "attack.inverting_gradients.steps=2", "attack.ggl.generations=2", "attack.ggl.population=4",
            "attack.generator_samples.samples=4",
        ],
    },
    (1,),
    2,
    1,
)  # fmt: skip


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SCALES, "small", TINY)
    monkeypatch.setattr(judge, "STEPS", 2)
    monkeypatch.setattr(judge, "BATCH", 4)
    monkeypatch.setattr(free_pixels, "SETTINGS", free_pixels.SETTINGS[::5])  # one of each optimiser


def options(six_classes, tmp_path, *arguments):
    fixed = ["--pictures", str(six_classes), "--out", str(tmp_path / "out"), "--held", "e,f"]
    return priors_defended.arguments().parse_args([*fixed, *arguments])


def test_priors_come_before_the_attacks_that_need_them(six_classes, tmp_path):
    first, rest = plan(options(six_classes, tmp_path), TINY, [0, 1])
    assert len(first) == 2 * (2 + len(PAPERS))
    longest = [f"lti/soteria-batch-1/seed {seed}" for seed in (0, 1)]
    assert [unit.key for unit in first[:5]] == [*longest, "generator/seed 0", "judge/seed 0", "lti/none-batch-1/seed 0"]
    assert len(rest) == 2 * len(PAPERS)
    assert set(PAPERS) < set(DEFENDED) == set(DEFENSES)
    folders = {unit.settings["benchmark"].out for unit in rest}
    assert folders == {tmp_path / "out" / "seed-0", tmp_path / "out" / "seed-1"}


@pytest.mark.parametrize("budgets", [SMALL, FULL])
def test_every_case_composes(budgets, six_classes, tmp_path):
    scale = replace(TINY, budgets=budgets, batches=(1, 4), pictures=4)
    first, _ = plan(options(six_classes, tmp_path, "--generators"), scale, [0])
    benchmark = first[0].settings["benchmark"]
    (benchmark.out / "generator").mkdir(parents=True)
    save_generator(ConvGenerator(8, 32, [16, 8]), benchmark.out / "generator" / "generator.safetensors")
    chosen_network(parse(PriorConfig, benchmark.generator()))
    for case in (DefendedCase(1, "none"), DefendedCase(4, "noise"), DefendedCase(4, "topk")):
        network, audit = benchmark.lti(case), benchmark.audit(case, ["a", "b"])
        chosen_network(parse(PriorConfig, network))
        # LTI is trained for exactly what is attacked.
        for key in ("client", "defense", "model", "data", "seed"):
            assert network[key] == audit[key]
        assert sorted(audit["attack"]) == sorted([*ATTACKS, *GENERATORS])
        for name, settings in audit["attack"].items():
            if not name.startswith("lti"):
                build_attack(name, settings)
        free, gias = audit["attack"]["inverting_gradients"], audit["attack"]["gias"]
        assert free["steps"] * free["restarts"] == gias["steps"] * gias["restarts"] + gias["weight_steps"]
        masked = {name: audit["attack"][name]["objective"].get("mask_zeros", False) for name in ("gias", "gifd", "ggl")}
        assert masked == {"gias": case.defense == "topk", "gifd": case.defense == "topk", "ggl": True}


def test_images_that_leave_an_update_smaller_are_refused_before_a_prior_is_trained(six_classes, tmp_path):
    with pytest.raises(ConfigError, match=r"^--batches=4: must be divisors of 2, the pictures of the scale"):
        plan(options(six_classes, tmp_path, "--batches", "1", "4"), TINY, [0])


def test_only_pictures_of_the_classes_held_out_are_attacked(six_classes, tmp_path):
    benchmark = plan(options(six_classes, tmp_path), TINY, [0])[0][0].settings["benchmark"]
    ids = chosen(benchmark, benchmark.generator())
    assert len(set(ids)) == 2
    assert {name.split("/")[-2] for name in ids} <= {"e", "f"}


def test_the_whole_study(tiny, study, refuse_work, six_classes, tmp_path):
    few = ("prune", "soteria")
    code, printed, err = study(priors_defended, "--held", "e,f", "--defenses", *few)
    assert code == 0, err
    out = tmp_path / "out"
    text = (out / "priors_defended.md").read_text()
    assert text in printed
    assert "What differs, and why:" in text
    assert "| Soteria, 80 % |" in text
    assert (out / "priors_defended.png").stat().st_size > 10_000
    with (out / "psnr-batch-1.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {(line["defense"], line["attack"]) for line in lines} == {(d, a) for d in few for a in ATTACKS}
    assert {line["status"] for line in lines} == {"done"}
    assert {line["image"].split("/")[-2] for line in lines} <= {"e", "f"}
    before = (out / "results.jsonl").read_text()
    _same_as_the_attack_called_directly(lines, options(six_classes, tmp_path))
    refuse_work(priors_defended)
    assert study(priors_defended, "--held", "e,f", "--defenses", *few)[0] == 0
    assert (out / "results.jsonl").read_text() == before


def _same_as_the_attack_called_directly(lines, given):
    """LTI's network is the one that was trained for this defense."""
    benchmark = plan(given, TINY, [0])[1][0].settings["benchmark"]
    config = configuration(benchmark, DefendedCase(1, "prune"), "cpu")
    network = load_trained(Path(config["attack"]["lti"]["checkpoint"]))
    assert [defense["name"] for defense in network.circumstances.defenses] == ["topk"]
    client = Client(config)
    position = client.setup.data.train.ids.index(config["audit"]["select"][0])
    observation, truth, _ = client.shares([position], 0)
    outcome = run_attack(observation, "lti", config["attack"]["lti"], 0, torch.device("cpu"))
    scores = score_against(outcome, truth).scores
    (line,) = [
        line for line in lines if (line["defense"], line["attack"], line["image"]) == ("prune", "lti", truth.ids[0])
    ]
    assert float(line["psnr"]) == scores.images[0].psnr


def test_an_attack_that_fails_is_tried_again(tiny, six_classes, tmp_path, monkeypatch):
    first, rest = plan(options(six_classes, tmp_path), TINY, [0])
    needed = {"generator/seed 0", "judge/seed 0", "lti/none-batch-1/seed 0"}
    for unit in first:
        if unit.key in needed:
            priors_defended.work(unit)
    monkeypatch.setattr(
        priors_defended, "run_attack", lambda *_: AttackResult("o", "a", "failed", "OutOfMemoryError: full")
    )
    with pytest.raises(RunError, match="OutOfMemoryError: full; the same command tries it again"):
        priors_defended.work(rest[0])


def test_paths_may_have_any_characters(six_classes, tmp_path):
    odd = tmp_path / "a, (b) ['c']"
    benchmark = replace(plan(options(six_classes, tmp_path), TINY, [0])[0][0].settings["benchmark"], data=odd, out=odd)
    audit = benchmark.audit(DefendedCase(1, "none"), ["x"])
    assert benchmark.generator()["data"]["path"] == audit["data"]["path"] == str(odd)
    assert audit["attack"]["ggl"]["generator"]["checkpoint"].startswith(f"{odd}/generator/")
    assert benchmark.lti(DefendedCase(1, "none"))["run_dir"] == f"{odd}/lti-none-batch-1"


def test_other_defenses_want_another_folder(tiny, study, unshown, monkeypatch):
    unshown(priors_defended)
    assert study(priors_defended, "--held", "e,f")[0] == 0
    monkeypatch.setitem(DEFENSES, "clip", ["defense=[gradient_clip]", "defense.gradient_clip.max_norm=1.0"])
    code, _, err = study(priors_defended, "--held", "e,f")
    assert code == 2
    assert "other settings: defenses.clip" in err


def test_unknown_classes_are_refused_before_anything_is_trained(tiny, study, tmp_path):
    code, _, err = study(priors_defended, "--held", "boat")
    assert code == 2
    assert "--held" in err
    assert not (tmp_path / "out" / "seed-0").exists()


def test_other_budgets_want_another_folder(tiny, study, unshown, monkeypatch):
    unshown(priors_defended)
    assert study(priors_defended, "--held", "e,f")[0] == 0
    monkeypatch.setitem(SCALES, "small", replace(TINY, pictures=3))
    code, _, err = study(priors_defended, "--held", "e,f")
    assert code == 2
    assert "other settings" in err
