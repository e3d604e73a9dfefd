"""What a defense is said to be worth follows from the runs and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.compare.runs import compare_runs
from fedsim.report.compare.tradeoff import tradeoffs
from fedsim.report.compare.verdict import judge_defenses
from fedsim.report.level_wording import few_test_images
from fedsim.report.render import build_comparison
from fedsim.report.run.attack_lines import attack_lines
from fedsim.report.run.baseline import GUESS, against_guess, best_baseline, guessing, needs_no_gradient, reading
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict as verdict_of


def test_a_defense_has_the_level_of_its_own_runs(run: Any) -> None:
    plain = run("{}", {"a": [80.0, 60.0]}, accuracy=0.8)
    (verdict,) = judge_defenses([plain, run("{mjp: {}}", {"a": [25.0, 15.0], "b": [12.0, 12.0]})])
    assert (verdict.name, verdict.level, verdict.tag) == ("mjp", "open", "Open")
    assert verdict.sentence == (
        "The server rebuilt 1 of 2 images recognisably (without the update: 0 of 2): a, the strongest of 2 attacks, "
        "reached 25.0 dB on it. Too few images for the level broken, and none is certified (Fisher's test of the "
        "counts: p = 0.50)."
    )
    assert verdict.cautions == (
        "2 different images observed: without a certificate it takes at least 4, all recognisable, to say broken.",
        "The accuracy rests on an unknown number of test images: how far chance moves it is not known.",
    )
    assert verdict.details == (
        "Without any gradient the mean of public images reaches 10.0 dB on average; a reaches 10.0 dB more.",
        "Accuracy 75.0 % against 80.0 % without it: -5.0 points (1 seed against 1 seed).",
        "4 certificates of images were granted, and 4 of 4 checked are wrong: a fault of the certificate, which "
        "breaks nothing by itself.",
        "Not tried without the defense: b.",
    )


def test_noise_that_leaves_two_images_nearly_identical_is_not_called_less(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [300.0] * 2}), run("{noise: {}}", {"a": [33.0] * 2})])
    assert verdict.level == "open"
    assert verdict.sentence.startswith("The server rebuilt 2 of 2 images recognisably (without the update: 0 of 2)")
    assert "Leaks less" not in verdict.comparison
    (verdict,) = judge_defenses([run("{}", {"a": [300.0] * 8}), run("{noise: {}}", {"a": [33.0] * 8})])
    assert (verdict.level, verdict.comparison[:8]) == ("broken", "Leaks no")


def test_images_rebuilt_against_a_theorem_and_faults_of_a_mechanism_are_told(run: Any) -> None:
    theorem = {"bound": "robustness", "kind": "theorem", "status": "done", "sentence": "Proven.", "proof": {"mu": 0.1}}
    broken = {"bound": "canaries", "kind": "test", "status": "done", "sentence": "Off.", "values": {"broken": 1.0}}
    runs = [run("{dp: {}}", {"a": found}) for found in ([5.0] * 2, [25.0] * 2, [25.0] * 2)]
    for one, rows in zip(runs, ([theorem], [theorem], [theorem, broken]), strict=True):
        (one.path / "bounds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = [judge_defenses([read_run(one.path)])[0] for one in runs]
    assert [one.level for one in found] == ["proven", "open", "open"]
    first = [one.cautions[0] for one in found]
    assert [words.partition(",")[0] for words in first[1:]] == [
        "A theorem says that this is improbable (robustness)",
        "canaries found a fault: Off.",
    ]
    assert "theorem" not in " ".join(found[0].cautions)


def test_several_seeds_are_proven_by_the_numbers_of_the_weakest_theorem(run: Any) -> None:
    theorem = {"bound": "robustness", "kind": "theorem", "status": "done"}
    known = [{"sentence": "A.", "proof": {"mu": 0.1}}, {"sentence": "B.", "proof": {"mu": 1.2}}]
    for order in (known, known[::-1]):
        runs = [run("{dp: {}}", {"a": [5.0] * 2}, seed=seed) for seed in range(2)]
        for one, said in zip(runs, order, strict=True):
            (one.path / "bounds.jsonl").write_text(f"{json.dumps(theorem | said)}\n")
        (found,) = judge_defenses([read_run(one.path) for one in runs])
        assert (found.level, found.sentence[:3]) == ("proven", "B. ")


@pytest.mark.parametrize(("of", "told"), [(400, "-5.0 ± 5.9"), (40_000, "-5.0 ± 0.6"), (0, "-5.0"), ("many", "-5.0")])
def test_a_difference_of_accuracies_says_what_chance_may_do(run: Any, of: Any, told: str) -> None:
    """Two standard errors of the difference: 302 of 404 and 322 of 404 have 0.0216 and 0.02."""
    plain = run("{}", {"a": [80.0]}, accuracy=0.8, test_pictures=of)
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [25.0]}, test_pictures=of)])
    assert f"Accuracy 75.0 % against 80.0 % without it: {told} points (1 seed against 1 seed)." in verdict.details


@pytest.mark.parametrize(
    ("accuracies", "guess", "said"), [((0.12, 0.1), 0.1, True), ((0.12, 0.3), 0.1, False), ((0.12, 0.1), None, False)]
)
def test_runs_that_only_guess_are_not_told_apart_by_accuracy(run: Any, accuracies: Any, guess: Any, said: bool) -> None:
    known = {"test_pictures": 400, "commonest_class": guess}
    runs = [
        run(defense, {"a": [25.0]}, accuracy=one, **known)
        for defense, one in zip(("{}", "{d: {}}"), accuracies, strict=True)
    ]
    told = (
        "is clearly more accurate than always naming the commonest class, which is right for 10.0 %, so their "
        "difference in accuracy says nothing."
    )
    (found,) = judge_defenses(runs)
    assert (f"Neither {told}" in found.details) is said
    folders, home = [one.path for one in runs], runs[0].path.parent
    assert compare_runs(folders, home, "two").nothing_learned == (f"Neither run {told}" if said else "")
    assert (f"Neither run {told}" in build_comparison(folders, home / "page.html").read_text()) is said
    alone = "That is not clearly more than always naming the commonest class, which is right for 10.0 %."
    assert [alone in verdict_of(one).details for one in runs] == [guess is not None, said]


def test_two_seeds_that_differ_have_learned_more_than_guessing(run: Any) -> None:
    known = {"test_pictures": 2_000, "commonest_class": 0.1}
    seeds = {"{}": (0.43, 0.485), "{d: {}}": (0.4, 0.46)}
    runs = [
        run(defense, {"a": [25.0]}, accuracy=one, seed=seed, **known)
        for defense, both in seeds.items()
        for seed, one in enumerate(both)
    ]
    (found,) = judge_defenses(runs)
    assert "2 seeds against 2 seeds" in " ".join(found.details)
    assert "Neither" not in " ".join(found.details)


def test_what_few_test_images_leave_open_is_no_more_than_they_do() -> None:
    """(2 + 2) of (4 + 4): two standard errors are 35 points, where Student's t of these seeds is 349."""
    assert few_test_images([0.25, 0.75], 4) == few_test_images([0.5], 4) == "4 test images: ± 35 points"
    assert few_test_images([0.25, 0.75], None) == few_test_images([0.25, 0.75], 100) == ""


@pytest.mark.parametrize(
    ("found", "level"),
    [([10.5] * 4, "open"), ([25.0] * 3 + [10.5], "open"), ([25.0] * 4, "broken"), ("withheld", "not tested")],
)
@pytest.mark.parametrize("plain", [[70.0] * 4, [12.0] * 4])
def test_levels_do_not_depend_on_the_undefended_runs(run: Any, plain: list[float], found: Any, level: str) -> None:
    for runs in ([run("{}", {"a": plain})], []):
        (verdict,) = judge_defenses([*runs, run("{d: {}}", {"a": found})])
        assert verdict.level == level


def test_a_refusal_is_no_test(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": "withheld"})])
    assert (verdict.level, verdict.tag) == ("not tested", "Not tested")
    assert verdict.sentence == "No image was rebuilt: every attack refused."
    assert "Refused on every update: a; a stronger attack may not need what they lack." in verdict.details


def test_an_attack_on_labels_is_known_by_what_it_left(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "mine": "withheld"})
    found = run("{d: {}}", {"a": "withheld", "mine": "withheld"})
    done = [replace(one, status="done", labelled=True) if one.attack == "mine" else one for one in plain.attacks]
    (verdict,) = judge_defenses([replace(plain, attacks=tuple(done)), found])
    assert verdict.level == "not tested"
    assert "Refused on every update: a; a stronger attack may not need what they lack." in verdict.details
    done = [replace(one, status="done", labelled=True) for one in found.attacks if one.attack == "mine"]
    config = found.config | {"attack": {"mine": {}}}
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(done), config=config)])
    assert (verdict.level, verdict.sentence) == ("not tested", "Only labels were attacked.")


def test_without_an_undefended_run_nothing_is_claimed(run: Any) -> None:
    other = run("{}", {"a": [70.0, 70.0]}, more="num_clients: 7\n")
    (verdict,) = judge_defenses([other, run("{d: {}}", {"a": [60.0, 60.0]})])
    assert (verdict.level, verdict.comparison) == ("broken", "")
    assert any("no undefended run" in detail for detail in verdict.details)


def test_seeds_are_pooled_and_settings_are_not(run: Any) -> None:
    runs = [run("{}", {"a": [70.0, 70.0]}, seed=seed) for seed in (0, 1)]
    runs += [run("{d: {ratio: 0.1}}", {"a": [30.0, 10.0]}, seed=seed, accuracy=0.7 + seed / 10) for seed in (0, 1)]
    runs.append(run("{d: {ratio: 0.5}}", {"a": [12.0, 10.0]}))
    one, other = judge_defenses(runs)
    assert (one.name, one.seeds, one.level) == ("d (ratio=0.1)", 2, "open")
    assert (other.name, other.seeds, other.level) == ("d (ratio=0.5)", 1, "open")
    assert one.sentence.startswith("The server rebuilt 1 of 2 different images")
    assert "Accuracy 75.0 % against 75.0 % without it: +0.0 ± 69.8 points (2 seeds against 2 seeds)." in one.details


def test_attacks_that_were_not_tried_are_named(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "strong": [90.0, 90.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [12.0, 12.0]}, guess=None)])
    assert verdict.level == "open"
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
    assert ": a reached 29.0 dB on average" in verdict.sentence
    assert "Without any gradient blind reaches 25.0 dB on average; a reaches 4.0 dB more." in verdict.details
    (alone,) = judge_defenses([run("{d: {}}", {"blind": [25.0, 25.0]}, attack="{target: random}")])
    assert (alone.level, alone.sentence) == ("not tested", "No attack has run on it.")


@pytest.mark.parametrize(
    ("settings", "blind"),
    [
        ("{_target_: attacks.generative.samples.GeneratorSamples}", True),
        ("{output: mean}", True),
        ("{_target_: mine.Ensemble, output: mean}", False),
        ("{_target_: mine.Ensemble, target: random}", False),
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
    assert together.sentence.startswith("The server rebuilt 2 of 2 images")
    again = run("{d: {}}", {"a": [60.0, 60.0]})
    assert judge_defenses([plain, *apart, again]) == [together]


def test_seeds_with_other_attacks_are_not_pooled(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0], "b": [70.0, 70.0]})
    runs = [run("{d: {}}", {"a": [30.0, 30.0]}), run("{d: {}}", {"b": [11.0, 11.0]}, seed=1)]
    one, other = judge_defenses([plain, *runs])
    assert (one.name, one.seeds, one.level) == ("d, attacked by a", 1, "open")
    assert one.sentence.startswith("The server rebuilt 2 of 2 images")
    assert (other.name, other.seeds, other.level) == ("d, attacked by b", 1, "open")
    assert "Not tried against the defense: a." in other.details


def test_a_file_of_weights_that_has_changed_is_another_model(run: Any) -> None:
    """The same path, trained once more: no defense is held against another model without it."""
    runs = [run("{}", {"a": [70.0] * 8}), run("{d: {}}", {"a": [12.0] * 8})]
    for one, weights in zip(runs, ("aa", "bb"), strict=True):
        (one.path / "content.json").write_text(json.dumps({"weights": weights}))
    assert judge_defenses(runs)[0].comparison.startswith("Leaks less than undefended")
    (verdict,) = judge_defenses([read_run(one.path) for one in runs])
    assert verdict.comparison == ""
    assert any(words.startswith("There is no undefended run") for words in verdict.details)


def test_one_defense_in_other_settings_is_told_by_these(run: Any) -> None:
    """Three headings of one name said three levels, and none of which model or batch they are."""
    runs = [run("{d: {}}", {"a": [11.0]}, more=more) for more in ("", "\nbatch: 2", "\nbatch: 2\nmodel: b", "\nx: 1")]
    names = [one.name for one in judge_defenses(runs)]
    assert names == ["d", "d, with batch=2", "d, with model=b", "d, with x=1"]


def test_what_an_attack_declares_to_know_makes_no_other_attack(run: Any) -> None:
    plain = run("{}", {"a": [70.0] * 4}, attack="{steps: 9}")
    found = run("{d: {}}", {"a": [60.0] * 4}, attack="{steps: 9, knows: [weights]}")
    (verdict,) = judge_defenses([plain, found])
    assert verdict.comparison.startswith("Leaks no less than undefended")
    assert not any("Not tried" in detail for detail in verdict.details)


def test_an_attack_with_other_settings_is_another(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]}, attack="{steps: 1000}")
    quick = run("{d: {}}", {"a": [11.0, 11.0]}, attack="{steps: 10}")
    (verdict,) = judge_defenses([plain, quick])
    assert verdict.level == "open"
    assert "Not tried against the defense: a (steps=1000)." in verdict.details
    whole = run("{d: {}}", {"a": [60.0, 10.0]}, attack="{steps: 1000}")
    (verdict,) = judge_defenses([plain, quick, whole])
    assert (verdict.seeds, verdict.level) == (1, "broken")
    assert verdict.sentence.startswith(
        "The server rebuilt 1 of 2 images recognisably (without the update: 0 of 2): a (steps=1000), the strongest of "
        "2 attacks"
    )


def test_baselines_are_told_by_the_settings_of_each_run(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]})
    first = run("{d: {}}", {"a": [12.0, 12.0]})
    second = run("{d: {}}", {"blind": [25.0, 25.0]}, attack="{target: random}")
    same_name = run("{d: {}}", {"a": [24.0, 24.0]}, attack="{target: random}")
    for runs in ([first, second], [second, first]):
        (verdict,) = judge_defenses([plain, *runs])
        assert verdict.level == "open"
        assert verdict.sentence.startswith("The server rebuilt 0 of 2 images")
        assert verdict.details[0] == "Without any gradient blind reaches 25.0 dB on average; a reaches 13.0 dB less."
    for runs in ([first, same_name], [same_name, first]):
        (verdict,) = judge_defenses([plain, *runs])
        assert verdict.sentence.startswith("The server rebuilt 0 of 2 images")


def test_an_attack_that_failed_is_told(run: Any) -> None:
    defended = run("{d: {}}", {"strong": [None, 12.0], "weak": [12.0, 12.0]})
    (verdict,) = judge_defenses([defended])
    assert verdict.level == "open"
    failed = "Failed or never ran: strong on 1 of 2 updates; what it would have rebuilt is not known."
    assert failed in verdict.details


def test_an_attack_that_was_configured_and_never_ran_is_told(run: Any) -> None:
    plain = run("{}", {"a": [70.0, 70.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [12.0, 12.0]}, attack={"silent": "{}"})])
    assert verdict.comparison.startswith("Too few")
    assert any(detail.startswith("Failed or never ran: silent on 2 of 2 updates") for detail in verdict.details)


def test_refusals_and_failures_of_some_updates_are_told(run: Any, records: Any) -> None:
    plain = run("{}", {"a": [70.0, None]})
    part = run("{d: {}}", {"a": [25.0, 25.0], "b": "withheld"}, attack="{}")
    some = [*part.attacks[:3], replace(part.attacks[3], status="done")]
    (verdict,) = judge_defenses([plain, replace(part, attacks=tuple(some))])
    assert "Refused on a part of the updates: b on 1 of 2." in verdict.details
    assert any(detail.startswith("Failed or never ran without the defense: a on 1 of 2") for detail in verdict.details)


def test_a_guess_is_held_against_the_pictures_that_the_attack_was_scored_on(run: Any) -> None:
    found = run("{d: {}}", {"a": [30.0, 40.0]}, guess=25.0)
    easy, hard = found.attacks
    refused = replace(hard, status="refused", images=(), scored=False)
    others = [replace(one, attack="b", images=(replace(one.images[0], psnr=1.0),)) for one in (easy, hard)]
    others[1] = replace(others[1], images=(replace(others[1].images[0], guess_psnr=5.0),))
    baseline = best_baseline("a", [easy, refused, *others], [])
    assert baseline is not None
    assert (baseline.name, baseline.psnr, baseline.gain) == (GUESS, pytest.approx(25.0), pytest.approx(5.0))
    blind = replace(hard, attack="blind", images=(replace(hard.images[0], psnr=39.5),))
    baseline = best_baseline("a", [easy, hard], [blind])
    assert baseline is not None
    assert (baseline.name, baseline.psnr, baseline.gain, baseline.pictures, baseline.of) == ("blind", 39.5, 0.5, 1, 2)
    told = against_guess("a", baseline, baseline.of)
    assert "reaches 39.5 dB on average on 1 of its 2 images; a reaches no more than that (within 1 dB) there." in told


def test_one_exact_picture_makes_no_attack_the_strongest(run: Any) -> None:
    """`b` reaches 45 dB with and without the defense; `a` had one picture to the last bit."""
    plain = run("{}", {"a": [300.0, 30.0], "b": [46.0, 46.0]})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [120.0, 25.0], "b": [46.0, 46.0]})])
    assert verdict.level == "broken"
    assert ": b, the strongest of 2 attacks, reached 46.0 dB" in verdict.sentence


def test_accuracies_are_held_by_the_fewest_test_pictures(run: Any) -> None:
    plain = run("{}", {"a": [80.0]}, accuracy=0.8, test_pictures=400)
    seeds = [
        run("{d: {}}", {"a": [25.0]}, seed=seed, test_pictures=number) for seed, number in ((0, 400), (1, 100_000))
    ]
    told = {judge_defenses([plain, *order])[0].details[1] for order in (seeds, seeds[::-1])}
    assert told == {"Accuracy 75.0 % against 80.0 % without it: -5.0 ± 5.9 points (2 seeds against 1 seed)."}


def test_a_mean_just_below_is_not_rounded_up(run: Any) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": [30.0]}), run("{d: {}}", {"a": [19.97]})])
    assert "the best result, 19.9 dB by a, stays below 20 dB" in verdict.sentence


def test_one_exact_image_does_not_outweigh_the_others(run: Any) -> None:
    """Eight images far below the guess and one exact one are not 1 dB better than the guess."""
    found = run("{d: {}}", {"a": [4.0] * 8 + [160.0]}, guess=11.0)
    baseline = best_baseline("a", found.attacks, [])
    assert baseline is not None
    assert baseline.gain == pytest.approx((8 * 4 + 60) / 9 - 11)
    assert "a reaches no more than that (within 1 dB), images above 60 dB counted as 60." in against_guess(
        "a", baseline, 9
    )
    plots = dict(tradeoffs(compare_runs([found.path], found.path.parent, "one")))
    chart = plots["How close they came"]
    assert [row[-2] for row in chart.data.rows] == ["10.2 dB"], "and not 21.3 dB, above the line of recognisable ones"


def test_a_record_under_several_seeds_holds_its_images_once(write_run: Any, records: Any) -> None:
    """And each by its best result."""
    certified, none, runs = {"status": "certified"}, {"status": "none"}, []
    of = "observation: r/observations\ndata: {_target_: recorded}\ndefense: {noise: {}}\nattack: {patch_gradient: {}}\n"
    for seed, certificates in enumerate([(none, certified), (certified, certified)]):
        rows = []
        for number, one in enumerate(certificates):
            image = records.image(None, f"round-0000{number}-client-00000/0", label=None, reconstruction="a.png")
            rows.append(records.attack(number, 0, image, scored=False, certificate=one))
        runs.append(read_run(write_run(rows, config=f"seed: {seed}\n{of}", name=f"run-{seed}")))
    (found,) = judge_defenses(runs)
    assert (found.seeds, found.level) == (2, "broken")
    assert found.sentence.startswith("2 of 2 images are certified.")


def test_a_mean_over_part_of_the_images_says_so(run: Any) -> None:
    """One image of eight at 40 dB read as 40 dB on average, 29 dB above the guess."""
    found = run("{d: {}}", {"a": [40.0]}, guess=11.0)
    found = replace(found, attacks=(replace(found.attacks[0], batch_size=8),))
    (sentence,) = [words for words in verdict_of(found).details if words.startswith("Without any gradient")]
    assert "on the 1 of 8 images that a rebuilt; a reaches 29.0 dB more there" in sentence
    assert "40.0 dB on average over 1 of 8 images" in attack_lines(found)[0]
