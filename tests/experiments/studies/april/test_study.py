"""The reproduction of APRIL on the embedded model: what is planned, measured, kept and said."""

import csv
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from attacks.running import run_attack
from experiments.studies.april import plan as april_plan
from experiments.studies.april import study as april
from experiments.studies.april import work as april_work
from experiments.studies.april.plan import ARMS, AprilScale, Grid, SearchPlan
from experiments.studies.april.tables import first_recognised, verdicts
from experiments.studies.harness.client import Client
from experiments.studies.harness.command import call
from experiments.studies.harness.options import begin
from fedsim.errors import ConfigError
from fedsim.metrics.image import psnr

NANO = ("model=vit_nano", "attack.row_space.later=0")  # later projections take seconds behind sin-cos
TINY = AprilScale(
    seeds=2,
    grids=(Grid("nano", NANO, pictures=2, seeds=1),),
    matching=SearchPlan(NANO, pictures=2, steps=4),
    fixed=SearchPlan(NANO, pictures=1, steps=3),
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(april_plan.SCALES, "small", TINY)


@pytest.fixture
def asked(tmp_path, pictures):
    def options(*words, photos=False):
        data = ["--data", "photos"] if photos else ["--pictures", str(pictures)]
        return april.arguments().parse_args([*data, "--out", str(tmp_path / "out"), "--workers", "1", *words])

    return options


def units(options, seeds=(0,)):
    return {unit.key: unit for unit in april_plan.plan(options, seeds)}


def table(out, name):
    with (out / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_what_is_planned(asked):
    planned = units(asked(), (0, 1))
    closed = [key for key in planned if key.startswith("closed_form/")]
    assert sorted(closed) == [f"closed_form/nano/{v}/float{n}/seed0" for v in ("april", "stock") for n in (32, 64)]
    matched = [key for key in planned if key.startswith("matching/")]
    assert sorted(matched) == sorted(f"matching/{arm}/seed{seed}" for arm in ARMS for seed in (0, 1))
    fixed = [key for key in planned if key.startswith("fixed_pe/")]
    assert len(fixed) == 2 * 2
    assert len(planned) == len(closed) + len(matched) + len(fixed)
    # The twins are compared with searches that the curves need too: planned once, alone where they stand alone.
    assert sorted(units(asked("--parts", "twins"))) == [
        f"matching/{arm}/seed0" for arm in sorted(("plain", "row", "withheld", "withheld_random"))
    ]


def test_units_differ_in_what_they_are_about(asked):
    planned = units(asked("--parts", "curves", "twins"), (0, 1))
    attacks = {arm: planned[f"matching/{arm}/seed0"].settings["attacks"]["matching"] for arm in ARMS}
    assert {arm: one["objective"].get("align") for arm, one in attacks.items()} == {
        arm: chosen.align for arm, chosen in ARMS.items()
    }
    assert {arm for arm, one in attacks.items() if one["target"] == "random"} == {"random", "withheld_random"}
    configs = {key: unit.settings["config"] for key, unit in planned.items()}
    assert list(configs["matching/withheld/seed1"]["defense"]) == ["withhold_pe"]
    assert [configs[f"matching/row/seed{seed}"]["seed"] for seed in (0, 1)] == [0, 1]
    assert [configs[f"matching/row/seed{seed}"]["data"]["seed"] for seed in (0, 1)] == [0, 0]
    assert len({tuple(unit.settings["positions"]) for unit in planned.values()}) == 1


def test_numbers_are_those_of_the_attacks_called_directly(asked):
    unit = units(asked("--parts", "curves"))["matching/plain/seed0"]
    entries = april_work.work(unit)
    (found,) = [entry for entry in entries if entry["arm"] == "plain" and entry["number"] == 1]
    client = Client(unit.settings["config"])
    observation, truth, _ = client.shares([unit.settings["positions"][1]], 1)
    attack = unit.settings["attacks"]["matching"]
    direct = run_attack(observation, "matching", attack, 0, torch.device("cpu"))
    assert found["psnr"] == pytest.approx(float(psnr(direct.images, truth.images)[0]), abs=0.05)
    # The common loss is the one that plain matching minimises.
    assert found["loss"] == pytest.approx(direct.certificate.values["matching"], rel=0.02)
    assert found["steps"] == [frame.step for frame in direct.frames]
    assert found["loss_curve"][-1] == pytest.approx(found["loss"])
    assert 0 < found["prefix_share"] < 1
    guesses = {entry["arm"]: entry for entry in entries if entry["number"] == 1 and entry["arm"] != "plain"}
    grey = torch.full_like(truth.images, 0.5)
    assert guesses["grey"]["psnr"] == pytest.approx(float(psnr(grey, truth.images)[0]))


def test_a_picture_with_the_same_gradient_has_no_loss(asked):
    unit = units(asked("--parts", "twins", photos=True))["matching/withheld/seed0"]
    client = Client(unit.settings["config"])
    observation, truth, _ = client.shares([unit.settings["positions"][0]], 0)
    assert observation.roles.pos_embed not in observation.gradient
    losses = april_work.Losses(april_work.AprilVictim(0, observation, truth))
    assert losses(truth.images) == {"loss": 0.0, "rest": 0.0, "position": 0.0}
    other = losses(torch.full_like(truth.images, 0.5))
    assert other["loss"] > 1e-4
    assert other["position"] > 1e-4


def test_arms_with_and_without_a_gradient_are_compared_over_the_same_tensors(asked):
    planned, found = units(asked("--parts", "twins")), {}
    for arm in ("plain", "withheld"):
        unit = planned[f"matching/{arm}/seed0"]
        observation, truth, _ = Client(unit.settings["config"]).shares([unit.settings["positions"][0]], 0)
        losses = april_work.Losses(april_work.AprilVictim(0, observation, truth))
        found[arm] = losses(torch.full_like(truth.images, 0.5))
    assert found["plain"]["rest"] == pytest.approx(found["withheld"]["rest"])
    assert found["withheld"]["rest"] == pytest.approx(found["withheld"]["loss"])
    assert found["plain"]["loss"] != pytest.approx(found["plain"]["rest"], rel=1e-3)


def test_total_variation_weighs_the_same_beside_the_matching_in_all_arms(asked):
    planned = units(asked("--parts", "curves", "twins"))
    shares = set()
    for arm in ARMS:
        attack = planned[f"matching/{arm}/seed0"].settings["attacks"]["matching"]
        weight = attack["priors"]["total_variation"]["weight"]
        shares.add(round(weight / (1 + attack["objective"].get("alpha", 0.0)), 12))
    assert len(shares) == 1
    assert shares.pop() > 0


def test_the_whole_page(asked, tmp_path, capsys):
    april.run(asked())
    out = tmp_path / "out"
    closed = {(r["first_block"], r["attack"], r["gradients"]): r for r in table(out, "closed_form")}
    assert float(closed["april", "april", "float64"]["psnr"]) > 100
    assert float(closed["april", "april", "float64"]["psnr"]) > float(closed["april", "april", "float32"]["psnr"]) + 30
    assert "april" in closed["stock", "april", "float32"]["refused"]
    assert closed["stock", "patch_gradient", "float32"]["certified"] == "2"
    assert float(closed["stock", "row_space", "float64"]["psnr"]) > 60
    arms = [r["arm"] for r in table(out, "curves")]
    assert arms[:5] == ["plain", "all", "patch", "row", "random"]
    assert arms[-1] == "grey"
    twins = {r["arm"]: r for r in table(out, "twins")}
    assert twins["withheld"]["position_gradient"] == "withheld"
    assert twins["row"]["position_gradient"] == "shared"
    fixed = {(r["kind"], r["attack"]): r for r in table(out, "fixed_pe")}
    for kind in ("frozen", "sincos"):
        for refused in ("april", "april_optimization", "patch_gradient"):
            assert "fixed_pe" in fixed[kind, refused]["refused"], (kind, refused)
        assert fixed[kind, "row_space"]["pictures"] == "2"
    assert float(fixed["frozen", "row_space"]["psnr"]) > float(fixed["frozen", "plain"]["psnr"]) + 20
    text = (out / "april.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "seeds 0, 1" in text
    assert "python -m experiments.studies.april --out DIR --workers 1 --pictures DIR\n" in text
    assert "0.01 beside 1 + α where the search aligns, 0.00091 beside 1 where it does not" in text
    assert "were not available" in text
    for figure in ("curves.png", "twins.png", "fixed_pe.png"):
        assert f"]({figure})" in text
        with Image.open(out / figure) as picture:
            assert min(picture.size) > 300


def test_parts_may_be_asked_for_later(asked, unshown, monkeypatch):
    done: list[str] = []
    unshown(april)
    monkeypatch.setattr(april, "work", lambda unit: done.append(unit.key) or [])
    april.run(asked("--parts", "fixed_pe", "--seeds", "1", photos=True))
    assert len(done) == 2
    done.clear()
    april.run(asked("--parts", "fixed_pe", "closed_form", "--seeds", "1", photos=True))
    assert len(done) == 4
    assert all(key.startswith("closed_form/") for key in done)
    with pytest.raises(ConfigError, match="a new folder"):
        april.run(asked("--parts", "fixed_pe", "--seeds", "1", "--steps", "2", photos=True))


def test_what_it_says_follows_from_the_numbers():
    def entry(arm, psnr, loss, rest, number):
        named = {"part": "matching", "arm": arm, "seed": 0, "number": number, "status": "done"}
        return {**named, "psnr": psnr, "loss": loss, "rest": rest, "prefix_share": 0.97}

    def said(ends, low=0.1, pictures=5):
        # What is over other tensors must not count: losses of `withheld` that are not over all but E_pos mislead.
        group = [entry(arm, value, 0.0, low, n) for arm, value in ends.items() for n in range(pictures)]
        group += [entry("mean", 10.0, 9.0, 1.0, n) for n in range(pictures)]
        return verdicts(group, ["curves", "twins"])

    ends = {"plain": 17.0, "all": 20.0, "patch": 22.0, "row": 25.0, "withheld": 11.0}
    curves, twins = said(ends)
    assert "+3.0 dB from plain matching over 5 pairs of searches: the paper's order." in curves
    assert "97.0 % of the squared norm of ∂L/∂E_pos, so that its cosine" in curves
    assert "twin data, as the paper says" in twins
    assert "does not show" in said({**ends, "all": 17.2})[0]
    assert "withholding makes no difference" in said({**ends, "withheld": 17.0})[1]
    assert "the picture is not another" in said({**ends, "plain": 35.0, "withheld": 25.0})[1]
    assert "the loss is not low" in said(ends, low=0.8)[1]
    few = said(ends, pictures=4)
    assert "too few to tell" in few[0]
    assert "too few pairs" in few[1]


def test_a_changed_scale_or_attack_wants_another_folder(asked, unshown, monkeypatch):
    unshown(april)
    april.run(asked("--parts", "twins"))
    monkeypatch.setitem(april_plan.SCALES, "small", replace(TINY, matching=replace(TINY.matching, pictures=1)))
    with pytest.raises(ConfigError, match=r"other settings: scale\."):
        april.run(asked("--parts", "twins"))
    monkeypatch.setitem(april_plan.SCALES, "small", replace(TINY, seeds=1))
    april.run(asked("--parts", "twins"))
    own = april.presets
    monkeypatch.setattr(april, "presets", lambda *names: {**own(*names), "april": {}})
    with pytest.raises(ConfigError, match=r"other settings: attacks\.april"):
        april.run(asked("--parts", "twins"))


def test_the_first_step_at_which_a_picture_is_recognised():
    assert first_recognised({"steps": [0, 5, 10], "psnr_curve": [8.0, 20.0, 31.0]}) == 5
    assert first_recognised({"steps": [0, 5], "psnr_curve": [8.0, 19.9]}) is None


@pytest.mark.parametrize(
    ("words", "key"),
    [(["--count", "0"], "--count"), (["--steps", "0"], "--steps"), (["--count", "9", "--scale", "paper"], "--count")],
)
def test_options_that_cannot_work(asked, words, key, capsys):
    with pytest.raises(SystemExit):
        call(april.run, asked(*words))
    assert f"error: {key}=" in capsys.readouterr().err


def test_pictures_or_photos(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["april", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        begin("experiments.studies.april")
    assert stop.value.code == 2
    assert "--data photos" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
