"""What a defense is said to be worth follows from the runs and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.baseline import GUESS, Baseline, against_guess, best_baseline, guessing, needs_no_gradient, reading
from fedsim.report.defense_verdict import AS_SEEN, REFUSED, TAGS, TOO_WEAK, judge_defenses


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
        "Accuracy 75.0 % against 80.0 % without it: -5.0 points (1 seed against 1 seed).",
        "Not tried without the defense: b.",
    )


@pytest.mark.parametrize(("of", "told"), [(400, "-5.0 ± 5.9"), (40_000, "-5.0 ± 0.6"), (0, "-5.0"), ("many", "-5.0")])
def test_a_difference_of_accuracies_says_what_chance_may_do(run: Any, of: Any, told: str) -> None:
    """Two standard errors of the difference: 302 of 404 and 322 of 404 have 0.0216 and 0.02."""
    plain = run("{}", {"a": [80.0]}, accuracy=0.8, test_pictures=of)
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [25.0]}, test_pictures=of)])
    assert f"Accuracy 75.0 % against 80.0 % without it: {told} points (1 seed against 1 seed)." in verdict.details


@pytest.mark.parametrize(
    ("found", "level"), [([10.5, 10.5], "safe"), ([70.0, 69.0], "leaked"), ([40.0, 30.0], "partial")]
)
def test_levels(run: Any, found: list[float], level: str) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": found})])
    assert verdict.level == level
    assert ("no more than that" in verdict.details[0]) == (level == "safe")


def test_refusals_are_told_apart_from_safety(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": "withheld"})])
    assert (verdict.level, verdict.tag) == ("unknown", REFUSED)
    assert verdict.sentence.startswith("0 of 2 observed pictures recognisable (PSNR ≥ 20 dB): every attack refused")
    assert "Refused on every update: a; a stronger attack may not need what they lack." in verdict.details


@pytest.mark.parametrize("labels", ["done", "refused", "failed"])
@pytest.mark.parametrize("found", ["withheld", [12.0, 12.0], [25.0, 12.0]])
def test_attacks_on_labels_change_no_verdict_on_pictures(run: Any, found: Any, labels: str) -> None:
    plain = run("{}", {"a": [70.0, 70.0]})
    (alone,) = judge_defenses([plain, run("{d: {}}", {"a": found})])
    settings = {"labels": "{_target_: attacks.label.RecoverLabels}"}
    beside = run("{d: {}}", {"a": found, "labels": "withheld"}, attack=settings)
    changed = [
        replace(one, status=labels, labelled=labels == "done") if one.attack == "labels" else one
        for one in beside.attacks
    ]
    (verdict,) = judge_defenses([plain, replace(beside, attacks=tuple(changed))])
    assert verdict == alone
    assert not any("others ran" in detail for detail in verdict.details)


@pytest.mark.parametrize(("own", "level"), [([8.5, 8.5], "unknown"), ([25.0, 8.5], "unknown"), ([80.0] * 2, "leaked")])
def test_what_the_model_saw_makes_no_good_verdict(run: Any, own: list[float], level: str) -> None:
    plain, found = run("{}", {"a": [80.0, 80.0]}), run("{ats: {}}", {"a": [159.0, 159.0]})
    attacks = [
        replace(one, images=(replace(one.images[0], private_psnr=psnr, private_ssim=0.1),))
        for one, psnr in zip(found.attacks, own, strict=True)
    ]
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(attacks))])
    assert (verdict.level, verdict.tag) == (level, AS_SEEN if level == "unknown" else TAGS[level])
    number = sum(psnr < 20 for psnr in own)
    assert verdict.sentence.startswith("The server rebuilt ") is (number > 0)
    assert ("as the model saw" in verdict.sentence and "transformed by ats" in verdict.sentence) is (number > 0)


def test_an_attack_on_labels_is_known_by_what_it_left(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "mine": "withheld"})
    found = run("{d: {}}", {"a": "withheld", "mine": "withheld"})
    done = [replace(one, status="done", labelled=True) if one.attack == "mine" else one for one in plain.attacks]
    (verdict,) = judge_defenses([replace(plain, attacks=tuple(done)), found])
    assert verdict.tag == REFUSED
    assert "Refused on every update: a; a stronger attack may not need what they lack." in verdict.details
    done = [replace(one, status="done", labelled=True) for one in found.attacks if one.attack == "mine"]
    config = found.config | {"attack": {"mine": {}}}
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(done), config=config)])
    assert (verdict.level, verdict.sentence.split(";")[0]) == ("unknown", "Only labels were attacked")


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
    assert (one.name, one.seeds, one.level) == ("d (ratio=0.1)", 2, "partial")
    assert (other.name, other.seeds, other.level) == ("d (ratio=0.5)", 1, "safe")
    assert one.sentence.startswith("2 of 4 observed pictures")
    assert "Accuracy 75.0 % against 75.0 % without it: +0.0 ± 69.8 points (2 seeds against 2 seeds)." in one.details


def test_attacks_that_were_not_tried_are_named(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "strong": [90.0, 90.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [12.0, 12.0]}, guess=None)])
    assert verdict.level == "unknown"
    assert "Not tried against the defense: strong." in verdict.details
    assert any("Not held against a guess" in detail for detail in verdict.details)


def test_a_search_without_a_gradient_is_a_baseline_and_no_attack(run: Any) -> None:
    results = {"a": [30.0, 28.0], "blind": [25.0, 25.0]}
    found = run("{d: {}}", results, attack={"blind": "{target: random}"})
    assert needs_no_gradient(found, "blind")
    baseline = best_baseline("a", reading(found).attacks, guessing(found).attacks)
    assert baseline is not None
    assert (baseline.name, baseline.psnr, baseline.gain) == ("blind", 25.0, 4.0)
    (verdict,) = judge_defenses([run("{}", {"a": [30.0, 28.0]}), found])
    assert "a is strongest" in verdict.sentence
    assert "Without any gradient blind reaches 25.0 dB on average; a reaches 4.0 dB more." in verdict.details
    (alone,) = judge_defenses([run("{d: {}}", {"blind": [25.0, 25.0]}, attack="{target: random}")])
    assert (alone.level, alone.sentence) == ("unknown", "No attack has run on it.")


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


def test_runs_of_one_seed_with_other_attacks_are_one_run(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "b": [12.0, 12.0]})
    (together,) = judge_defenses([plain, run("{d: {}}", {"a": [60.0, 60.0], "b": [11.0, 11.0]})])
    apart = [run("{d: {}}", {"a": [60.0, 60.0]}), run("{d: {}}", {"b": [11.0, 11.0]})]
    assert judge_defenses([plain, *apart]) == [together]
    assert together.sentence.startswith("2 of 2 observed pictures")
    again = run("{d: {}}", {"a": [60.0, 60.0]})
    assert judge_defenses([plain, *apart, again]) == [together]


def test_seeds_with_other_attacks_are_not_pooled(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "b": [70.0, 70.0]})
    runs = [run("{d: {}}", {"a": [30.0, 30.0]}), run("{d: {}}", {"b": [11.0, 11.0]}, seed=1)]
    one, other = judge_defenses([plain, *runs])
    assert (one.name, one.seeds, one.level) == ("d, attacked by a", 1, "unknown")
    assert one.sentence.startswith("2 of 2 observed pictures")
    assert (other.name, other.seeds, other.level) == ("d, attacked by b", 1, "unknown")
    assert "Not tried against the defense: a." in other.details


def test_an_attack_with_other_settings_is_another(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]}, attack="{steps: 1000}")
    quick = run("{d: {}}", {"a": [11.0, 11.0]}, attack="{steps: 10}")
    (verdict,) = judge_defenses([plain, quick])
    assert verdict.level == "unknown"
    assert "Not tried against the defense: a (steps=1000)." in verdict.details
    whole = run("{d: {}}", {"a": [60.0, 10.0]}, attack="{steps: 1000}")
    (verdict,) = judge_defenses([plain, quick, whole])
    assert (verdict.seeds, verdict.level) == (1, "partial")
    assert verdict.sentence.startswith(
        "1 of 2 observed pictures recognisable (PSNR ≥ 20 dB): a (steps=1000) is strongest"
    )


def test_baselines_are_told_by_the_settings_of_each_run(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]})
    first = run("{d: {}}", {"a": [12.0, 12.0]})
    second = run("{d: {}}", {"blind": [25.0, 25.0]}, attack="{target: random}")
    same_name = run("{d: {}}", {"a": [24.0, 24.0]}, attack="{target: random}")
    for runs in ([first, second], [second, first]):
        (verdict,) = judge_defenses([plain, *runs])
        assert verdict.level == "safe"
        assert verdict.sentence.startswith("0 of 2 observed pictures")
        assert verdict.details[0] == "Without any gradient blind reaches 25.0 dB on average; a reaches 13.0 dB less."
    for runs in ([first, same_name], [same_name, first]):
        (verdict,) = judge_defenses([plain, *runs])
        assert verdict.sentence.startswith("0 of 2 observed pictures")


@pytest.mark.parametrize("strong", [[None, None], [None, 12.0]])
def test_an_attack_that_failed_gives_no_good_verdict(run: Any, strong: list[float | None]) -> None:
    defended = run("{d: {}}", {"strong": strong, "weak": [12.0, 12.0]})
    plain = run("{}", {"strong": [90.0, 90.0], "weak": [13.0, 13.0]})
    failed = (
        f"Failed or never ran: strong on {strong.count(None)} of 2 updates; what they would have rebuilt is not known."
    )
    for runs in ([plain, defended], [defended], [run("{}", {"strong": [None, 9.0], "weak": [13.0, 13.0]}), defended]):
        (verdict,) = judge_defenses(runs)
        assert verdict.level == "unknown"
        assert failed in verdict.details
    harmless = run("{}", {"strong": [9.0, 9.0], "weak": [33.0, 13.0]})
    (verdict,) = judge_defenses([harmless, defended])
    assert verdict.level == "safe"
    assert failed in verdict.details


def test_an_attack_that_was_configured_and_never_ran_gives_no_good_verdict(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [12.0, 12.0]}, attack={"silent": "{}"})])
    assert verdict.level == "unknown"
    assert any(detail.startswith("Failed or never ran: silent on 2 of 2 updates") for detail in verdict.details)


def test_refusals_and_failures_of_some_updates_are_told(run: Any, records: Any) -> None:
    plain = run("{}", {"a": [70.0, None]})
    part = run("{d: {}}", {"a": [25.0, 25.0], "b": "withheld"}, attack="{}")
    some = [*part.attacks[:3], replace(part.attacks[3], status="done")]
    (verdict,) = judge_defenses([plain, replace(part, attacks=tuple(some))])
    assert "Refused on a part of the updates: b on 1 of 2." in verdict.details
    assert any(detail.startswith("Failed or never ran without the defense: a on 1 of 2") for detail in verdict.details)


@pytest.mark.parametrize(("kept", "level"), [(99, "leaked"), (60, "partial")])
def test_one_picture_less_may_be_chance(run: Any, kept: int, level: str) -> None:
    plain = run("{}", {"a": [20.2] * 100})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [20.2] * kept + [19.9] * (100 - kept)})])
    assert verdict.level == level


def test_a_guess_is_held_against_the_pictures_that_the_attack_was_scored_on(run: Any) -> None:
    found = run("{d: {}}", {"a": [30.0, 40.0]}, guess=25.0)
    easy, hard = found.attacks
    refused = replace(hard, status="refused", images=(), scored=False)
    others = [replace(one, attack="b", images=(replace(one.images[0], psnr=1.0),)) for one in (easy, hard)]
    others[1] = replace(others[1], images=(replace(others[1].images[0], guess_psnr=5.0),))
    baseline = best_baseline("a", [easy, refused, *others], [])
    assert baseline is not None
    assert (baseline.name, baseline.psnr, baseline.gain) == (GUESS, 25.0, 5.0)
    blind = replace(hard, attack="blind", images=(replace(hard.images[0], psnr=39.5),))
    baseline = best_baseline("a", [easy, hard], [blind])
    assert baseline is not None
    assert (baseline.name, baseline.psnr, baseline.gain, baseline.pictures, baseline.of) == ("blind", 39.5, 0.5, 1, 2)
    told = against_guess("a", baseline)
    assert "reaches 39.5 dB on average on 1 of its 2 pictures; a reaches no more than that (within 1 dB) there." in told


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (1.4, "a reaches 1.4 dB more."),
        (0.9, "a reaches no more than that (within 1 dB)."),
        (-0.9, "a reaches no more than that (within 1 dB)."),
        (-5.3, "a reaches 5.3 dB less."),
    ],
)
def test_how_far_an_attack_is_from_the_guess(gain: float, words: str) -> None:
    assert against_guess("a", Baseline(11.4, GUESS, gain, 8, 8)).endswith(words)


@pytest.mark.parametrize(
    ("plain", "defended", "level"),
    [
        ([119.0] * 8, [103.0] * 8, "leaked"),  # what rounding leaves of exact pictures
        ([300.0] * 8, [160.0] * 8, "leaked"),
        ([300.0] * 8, [61.0] * 8, "leaked"),
        ([300.0] * 8, [41.0] * 8, "leaked"),
        ([300.0] * 8, [38.5] * 8, "partial"),
        ([18.0] * 8, [21.0] * 3 + [5.0] * 5, "leaked"),  # lower on average, and three are recognisable
        ([25.0] + [18.0] * 7, [21.0] * 2 + [5.0] * 6, "leaked"),
        ([25.0] * 2 + [18.0] * 6, [21.0] * 2 + [5.0] * 6, "partial"),
    ],
)
def test_more_that_leaks_is_not_called_less(run: Any, plain: list[float], defended: list[float], level: str) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": plain}), run("{d: {}}", {"a": defended})])
    assert verdict.level == level


def test_one_exact_picture_makes_no_attack_the_strongest(run: Any) -> None:
    """`b` reaches 45 dB with and without the defense; `a` had one picture to the last bit."""
    plain = run("{}", {"a": [300.0, 30.0], "b": [46.0, 46.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [120.0, 25.0], "b": [46.0, 46.0]})])
    assert verdict.level == "leaked"
    assert ": b is strongest, at 46.0 dB" in verdict.sentence


def test_attacks_that_fail_without_the_defense_too_say_nothing_of_it(run: Any) -> None:
    weak = run("{}", {"a": [12.0] * 8})
    defended = run("{d: {}}", {"a": [19.0] * 8})
    (verdict,) = judge_defenses([weak, defended])
    assert (verdict.level, verdict.tag) == ("unknown", TOO_WEAK)
    assert verdict.sentence.endswith("without the defense 0 of 8, a at 12.0 dB.")
    assert verdict.details[0].startswith("Without the defense these attacks rebuild nothing recognisable either")
    (verdict,) = judge_defenses([weak, run("{d: {}}", {"a": "withheld"})])
    assert (verdict.level, verdict.tag) == ("unknown", TOO_WEAK)
    unscored = run("{}", {"a": [None] * 8})
    for runs in ([defended], [unscored, defended], [run("{}", {"a": [25.0] + [12.0] * 7}), defended]):
        (verdict,) = judge_defenses(runs)
        assert (verdict.level, verdict.tag) == ("safe", TAGS["safe"])


def test_accuracies_are_held_by_the_fewest_test_pictures(run: Any) -> None:
    plain = run("{}", {"a": [80.0]}, accuracy=0.8, test_pictures=400)
    seeds = [
        run("{d: {}}", {"a": [25.0]}, seed=seed, test_pictures=number) for seed, number in ((0, 400), (1, 100_000))
    ]
    told = {judge_defenses([plain, *order])[0].details[1] for order in (seeds, seeds[::-1])}
    assert told == {"Accuracy 75.0 % against 80.0 % without it: -5.0 ± 5.9 points (2 seeds against 1 seed)."}


def test_a_mean_just_below_is_not_rounded_up(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [30.0]}), run("{d: {}}", {"a": [19.97]})])
    assert "a is strongest, at 19.9 dB on average" in verdict.sentence
