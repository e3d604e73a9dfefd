"""Like is held against like: the same attacks, pictures counted once, and no answer worth less than a guess."""

from dataclasses import replace
from typing import Any

from fedsim.report.defense_verdict import TAGS, UNMATCHED, judge_defenses


def test_what_only_ran_with_the_defense_says_nothing_of_what_it_helps(run: Any) -> None:
    plain = run("{}", {"weak": [10.0] * 8})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"weak": [10.0] * 8, "strong": [30.0] * 4 + [12.0] * 4})])
    assert (verdict.level, verdict.tag) == ("unknown", UNMATCHED)
    assert verdict.sentence.startswith("4 of 8 observed pictures recognisable")
    assert "Not tried without the defense: strong." in verdict.details
    leaky = {"weak": [30.0] * 8, "strong": [90.0] * 8}
    (verdict,) = judge_defenses([run("{}", {"weak": [30.0] * 8}), run("{d: {}}", leaky)])
    assert verdict.level == "leaked"  # by the attack that ran on both


def test_a_picture_that_is_not_rebuilt_counts_as_its_guess(run: Any) -> None:
    """40 dB on each of four without the defense; with it 60 on one, and the others refused: 22.5 at a guess of 10."""
    plain, found = run("{}", {"a": [40.0] * 4}), run("{d: {}}", {"a": [60.0] * 4})
    attacks = [
        one if number == 0 else replace(one, status="refused", images=(replace(one.images[0], psnr=None),))
        for number, one in enumerate(found.attacks)
    ]
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(attacks))])
    assert (verdict.level, verdict.sentence[:6]) == ("partial", "1 of 4")
    unknown = [replace(one, images=(replace(one.images[0], guess_psnr=None),)) for one in attacks]
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(unknown))])
    assert verdict.level == "unknown"


def test_one_picture_observed_often_is_no_evidence_of_more(run: Any) -> None:
    """12 of 20 against 20 of 20 are clearly fewer, unless all are of one picture. Its mean says nothing then."""
    plain, found = run("{}", {"a": [20.5] * 20}), run("{d: {}}", {"a": [20.5] * 12 + [19.5] * 8})
    assert judge_defenses([plain, found])[0].level == "partial"

    def of_one(folder: Any) -> Any:
        records = [
            replace(one, client="0", images=(replace(one.images[0], image="digits/0"),)) for one in folder.attacks
        ]
        return replace(folder, attacks=tuple(records))

    (verdict,) = judge_defenses([of_one(plain), of_one(found)])
    assert verdict.level == "leaked"
    assert verdict.sentence.startswith("12 of 20 observed pictures (1 different)")


def test_what_only_ran_without_the_defense_says_nothing_of_what_it_helps(run: Any) -> None:
    """`a` does the same on both sides; `z`, undefended alone, rebuilds nothing recognisable but raises the mean."""
    same = {"a": [25.0] * 4 + [5.0] * 4}
    plain = run("{}", {**same, "z": [15.0] * 8})
    for tried in (same, {**same, "z": [None] * 8}):
        (verdict,) = judge_defenses([plain, run("{d: {}}", tried)])
        assert (verdict.level, verdict.tag) == ("unknown", UNMATCHED)


def test_an_answer_below_the_guess_protects_no_better_than_a_refusal(run: Any) -> None:
    plain = run("{}", {"a": [21.0] + [11.0] * 7}, guess=11.0)
    found = run("{d: {}}", {"a": [21.0] + [5.0] * 7}, guess=11.0)
    assert judge_defenses([plain, found])[0].level == "leaked"


def test_a_larger_share_is_never_less(run: Any) -> None:
    """All of 8 pictures once in 10 rounds, against 2 of them in every round."""
    plain, found = run("{}", {"a": [30.0] * 8 + [12.0] * 72}), run("{d: {}}", {"a": ([30.0] * 2 + [12.0] * 6) * 10})

    def of_eight(folder: Any) -> Any:
        records = [
            replace(one, client="0", images=(replace(one.images[0], image=f"digits/{number % 8}"),))
            for number, one in enumerate(folder.attacks)
        ]
        return replace(folder, attacks=tuple(records))

    (verdict,) = judge_defenses([of_eight(plain), of_eight(found)])
    assert (verdict.level, verdict.sentence[:28]) == ("leaked", "20 of 80 observed pictures (")


def test_like_is_held_against_like(run: Any) -> None:
    """One update whose pictures nobody names makes no evidence of repeated ones."""
    plain = run("{}", {"a": [20.5] * 80})
    found = run("{d: {}}", {"a": ([20.5] * 6 + [19.5] * 2) * 10})

    def of_eight(folder: Any) -> list[Any]:
        return [
            replace(one, client="0", images=(replace(one.images[0], image=f"digits/{number % 8}"),))
            for number, one in enumerate(folder.attacks)
        ]

    unnamed = replace(plain.attacks[0], observation="more", status="refused", images=(), scored=False)
    for more in ([], [unnamed]):
        sides = [replace(plain, attacks=(*of_eight(plain), *more)), replace(found, attacks=tuple(of_eight(found)))]
        assert judge_defenses(sides)[0].level == ("unknown" if more else "leaked")


def test_the_order_of_undefended_runs_changes_nothing(run: Any) -> None:
    plains = [run("{}", {"weak": [12.0] * 8}, seed=0), run("{}", {"strong": [90.0] * 8}, seed=1)]
    found = run("{d: {}}", {"weak": [12.0] * 8, "strong": [90.0] * 8})
    verdicts = {judge_defenses([*order, found])[0] for order in (plains, plains[::-1])}
    assert {(verdict.level, verdict.tag) for verdict in verdicts} == {("leaked", TAGS["leaked"])}


def test_without_a_guess_for_what_was_refused_it_says_so(run: Any) -> None:
    plain, found = run("{}", {"a": [40.0] * 4}), run("{d: {}}", {"a": [60.0] * 4}, guess=None)
    refused = [
        one if number == 0 else replace(one, status="refused", images=(replace(one.images[0], psnr=None),))
        for number, one in enumerate(found.attacks)
    ]
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(refused))])
    assert verdict.level == "unknown"
    assert "What a guess reaches on pictures that were refused was not recorded." in verdict.details
