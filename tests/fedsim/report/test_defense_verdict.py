"""What a defense is said to be worth follows from the runs and nothing else."""

from typing import Any

import pytest

from fedsim.report.baseline import best_baseline, needs_no_gradient
from fedsim.report.defense_verdict import judge_defenses
from fedsim.report.read import read_run
from fedsim.report.summary import summarise_attacks

CONFIG = "seed: {seed}\nnum_rounds: 2\ndefense: {defense}\nattack: {attack}\n"


@pytest.fixture
def run(write_run: Any, records: Any) -> Any:
    """`run(defense, {attack: PSNRs, or a reason to refuse}, …)`."""
    count = iter(range(100))

    def make(defense: str, results: dict[str, Any], guess: float | None = 10.0, seed: int = 0, **values: Any) -> Any:
        rows = []
        for attack, found in results.items():
            if isinstance(found, str):
                rows += [records.refusal(1, k, found, attack=attack) for k in range(2)]
            else:
                rows += [
                    records.attack(1, k, records.image(psnr, f"digits/{k}", guess_psnr=guess), attack=attack)
                    for k, psnr in enumerate(found)
                ]
        settings = "{" + ", ".join(f"{name}: {values.get('attack', '{}')}" for name in results) + "}"
        config = CONFIG.format(seed=seed, defense=defense, attack=settings) + values.get("more", "")
        accuracy = values.get("accuracy", 0.75)
        return read_run(
            write_run(rows, config=config, name=f"run-{next(count)}", rounds=[{"round": 2, "accuracy": accuracy}])
        )

    return make


def test_a_defense_that_helps_in_part(run: Any) -> None:
    plain = run("{}", {"a": [80.0, 60.0]}, accuracy=0.8)
    (verdict,) = judge_defenses([plain, run("{mjp: {}}", {"a": [25.0, 15.0], "b": [12.0, 12.0]})])
    assert (verdict.name, verdict.level) == ("mjp", "partial")
    assert verdict.sentence == (
        "1 of 2 observed pictures recognisable (PSNR ≥ 20 dB): a is strongest, at 20.0 dB on average; "
        "without the defense 2 of 2, a at 70.0 dB."
    )
    assert verdict.details == (
        "Without any gradient the mean of public pictures reaches 10.0 dB on average; a reaches 10.0 dB more.",
        "Accuracy 75.0 % against 80.0 % without it: -5.0 points (1 run against 1 run).",
    )


@pytest.mark.parametrize(
    ("found", "level"), [([10.5, 10.5], "safe"), ([70.0, 69.0], "leaked"), ([40.0, 30.0], "partial")]
)
def test_levels(run: Any, found: list[float], level: str) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": found})])
    assert verdict.level == level
    assert ("no more than that" in verdict.details[0]) == (level == "safe")


def test_refusals_are_told_apart_from_safety(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": "withheld"})])
    assert verdict.level == "safe"
    assert verdict.sentence.startswith("0 of 2 observed pictures recognisable (PSNR ≥ 20 dB): every attack refused")
    assert "Refused on every update: a; a stronger attack may not need what they lack." in verdict.details


def test_without_an_undefended_run_nothing_is_claimed(run: Any) -> None:
    other = run("{}", {"a": [70.0, 70.0]}, more="num_clients: 7\n")
    (verdict,) = judge_defenses([other, run("{d: {}}", {"a": [60.0, 60.0]})])
    assert verdict.level == "unknown"
    assert "without the defense" not in verdict.sentence
    assert any("no undefended run" in detail for detail in verdict.details)


def test_seeds_are_pooled_and_settings_are_not(run: Any) -> None:
    runs = [run("{}", {"a": [70.0, 70.0]}, seed=seed) for seed in (0, 1)]
    runs += [run("{d: {ratio: 0.1}}", {"a": [30.0, 10.0]}, seed=seed, accuracy=0.7 + seed / 10) for seed in (0, 1)]
    runs.append(run("{d: {ratio: 0.5}}", {"a": [12.0, 10.0]}))
    one, other = judge_defenses(runs)
    assert (one.name, one.runs, one.level) == ("d (ratio=0.1)", 2, "partial")
    assert (other.name, other.runs, other.level) == ("d (ratio=0.5)", 1, "safe")
    assert one.sentence.startswith("2 of 4 observed pictures")
    assert "Accuracy 75.0 % against 75.0 % without it: +0.0 points (2 runs against 2 runs)." in one.details


def test_attacks_that_were_not_tried_are_named(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "strong": [90.0, 90.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [12.0, 12.0]}, guess=None)])
    assert "Not tried against the defense: strong." in verdict.details
    assert any("Not held against a guess" in detail for detail in verdict.details)


def test_a_search_without_a_gradient_is_a_baseline_and_no_attack(run: Any) -> None:
    found = run("{}", {"blind": [25.0, 25.0]}, attack="{target: random}")
    assert needs_no_gradient(found, "blind")
    baseline = best_baseline(found, summarise_attacks(found))
    assert baseline is not None
    assert (baseline.name, baseline.psnr) == ("blind", 25.0)
    assert judge_defenses([found]) == []


@pytest.mark.parametrize(
    ("settings", "blind"),
    [
        ("{_target_: attacks.generative.samples.GeneratorSamples}", True),
        ("{output: mean}", True),
        ("{target: observed, output: network}", False),
        ("null", False),
    ],
)
def test_what_is_a_baseline(run: Any, settings: str, blind: bool) -> None:
    assert needs_no_gradient(run("{}", {"a": [20.0]}, attack=settings), "a") is blind
