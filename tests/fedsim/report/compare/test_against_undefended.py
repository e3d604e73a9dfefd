"""Like is held against like: the same attacks, images counted once, and no sentence without a test of chance."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.compare.verdict import judge_defenses

LESS, NO_LESS = "Leaks less than undefended: ", "Leaks no less than undefended: "
CHANCE = "Chance may explain the difference from undefended: "
FEW = "Too few different images to tell whether it leaks less than undefended: "
NOTHING = "These attacks give it nothing to stop: "
UNMATCHED = "Not comparable with undefended, where other attacks came to an end: "


def of_so_many(folder: Any, number: int) -> Any:
    """The same run, its updates made of so many different images, each known by its guess."""
    records = [
        replace(one, images=(replace(one.images[0], guess_psnr=10.0 + 1e-6 * (place % number)),))
        for place, one in enumerate(folder.attacks)
    ]
    return replace(folder, attacks=tuple(records))


@pytest.mark.parametrize(
    ("plain", "defended", "told"),
    [
        ([70.0] * 8, [12.0] * 8, f"{LESS}0 of 8 images recognisable, undefended 8 of 8 images."),
        ([70.0] * 8, [25.0] + [12.0] * 7, f"{LESS}1 of 8 images recognisable, undefended 8 of 8 images."),
        ([70.0] * 8, [25.0] * 5 + [12.0] * 3, f"{CHANCE}5 of 8 images recognisable, undefended 8 of 8 images."),
        ([70.0] * 8, [33.0] * 8, f"{NO_LESS}8 of 8 images recognisable, undefended 8 of 8 images."),
        ([300.0] * 8, [20.5] * 8, f"{NO_LESS}8 of 8 images recognisable, undefended 8 of 8 images."),
        ([25.0] * 5 + [12.0] * 3, [70.0] * 8, f"{NO_LESS}8 of 8 images recognisable, undefended 5 of 8 images."),
        ([300.0] * 2, [33.0] * 2, f"{FEW}2 of 2 images recognisable, undefended 2 of 2 images."),
        ([25.0], [12.0] * 20, f"{FEW}0 of 20 images recognisable, undefended 1 of 1 image."),
        ([25.0] + [12.0] * 19, [12.0], f"{FEW}0 of 1 image recognisable, undefended 1 of 20 images."),
        (
            [12.0] * 8,
            [19.0] * 8,
            f"{NOTHING}0 of 8 images recognisable, undefended 0 of 8 images; stronger ones may tell.",
        ),
    ],
)
def test_less_is_said_of_numbers_that_chance_does_not_explain(
    run: Any, plain: list[float], defended: list[float], told: str
) -> None:
    (verdict,) = judge_defenses([run("{}", {"a": plain}), run("{d: {}}", {"a": defended})])
    assert verdict.comparison == told


@pytest.mark.parametrize(("seen", "told"), [(40.0, NO_LESS), (19.0, LESS)])
def test_what_the_model_saw_is_no_less(run: Any, seen: float, told: str) -> None:
    plain, found = run("{}", {"a": [80.0] * 8}), run("{ats: {}}", {"a": [seen] * 8})
    attacks = [replace(one, images=(replace(one.images[0], private_psnr=8.5),)) for one in found.attacks]
    (verdict,) = judge_defenses([plain, replace(found, attacks=tuple(attacks))])
    assert verdict.comparison.startswith(told)


def test_what_only_ran_with_the_defense_says_nothing_of_what_it_helps(run: Any) -> None:
    plain = run("{}", {"weak": [10.0] * 8})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"weak": [10.0] * 8, "strong": [30.0] * 4 + [12.0] * 4})])
    assert verdict.comparison == f"{UNMATCHED}4 of 8 images recognisable, undefended 0 of 8 images."
    assert "Not tried without the defense: strong." in verdict.details
    leaky = {"weak": [30.0] * 8, "strong": [90.0] * 8}
    (verdict,) = judge_defenses([run("{}", {"weak": [30.0] * 8}), run("{d: {}}", leaky)])
    assert verdict.comparison.startswith(NO_LESS)  # by the attack that ran on both


def test_the_same_attack_that_leaks_with_the_defense_alone_is_compared(run: Any) -> None:
    """Nothing without the defense and something with it is no less; no other attack is made up."""
    plain = run("{}", {"a": [12.0] * 8})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [30.0] * 8})])
    assert verdict.comparison == f"{NO_LESS}8 of 8 images recognisable, undefended 0 of 8 images."
    (verdict,) = judge_defenses([plain, run("{d: {}}", {"a": [30.0] + [12.0] * 7})])
    assert verdict.comparison == f"{FEW}1 of 8 images recognisable, undefended 0 of 8 images."


def test_one_image_observed_often_is_no_evidence(run: Any) -> None:
    """4 of 20 against 20 of 20 are clearly fewer, unless all are of one image."""
    plain, found = run("{}", {"a": [20.5] * 20}), run("{d: {}}", {"a": [20.5] * 4 + [19.5] * 16})
    assert judge_defenses([plain, found])[0].comparison.startswith(LESS)
    (verdict,) = judge_defenses([of_so_many(plain, 1), of_so_many(found, 1)])
    assert verdict.comparison.startswith(FEW)
    assert "1 of 1 different image recognisable" in verdict.comparison


def test_a_larger_share_of_the_observations_is_never_less(run: Any) -> None:
    """All of 8 images once in 10 rounds, against 2 of them in every round."""
    plain, found = run("{}", {"a": [30.0] * 8 + [12.0] * 72}), run("{d: {}}", {"a": ([30.0] * 2 + [12.0] * 6) * 10})
    (verdict,) = judge_defenses([of_so_many(plain, 8), of_so_many(found, 8)])
    assert verdict.comparison == f"{NO_LESS}2 of 8 different images recognisable, undefended 8 of 8 different images."


def test_what_only_ran_without_the_defense_says_nothing_of_what_it_helps(run: Any) -> None:
    same = {"a": [25.0] * 4 + [5.0] * 4}
    plain = run("{}", {**same, "z": [25.0] * 8})
    for tried in (same, {**same, "z": [None] * 8}):
        (verdict,) = judge_defenses([plain, run("{d: {}}", tried)])
        assert verdict.comparison.startswith(CHANCE)
    clear = {"a": [25.0] + [5.0] * 7}
    (verdict,) = judge_defenses([plain, run("{d: {}}", {**clear, "z": [None] * 8})])
    assert verdict.comparison.startswith(UNMATCHED)


@pytest.mark.parametrize("strong", [{"strong": [None] * 8}, {}])
def test_an_attack_that_failed_or_was_not_tried_makes_nothing_less(run: Any, strong: Any) -> None:
    plain = run("{}", {"strong": [90.0] * 8, "weak": [25.0] * 8})
    (verdict,) = judge_defenses([plain, run("{d: {}}", {**strong, "weak": [12.0] * 8})])
    assert (verdict.level, verdict.comparison) == (
        "open",
        "Not comparable with undefended: 0 of 8 images recognisable, undefended 8 of 8 images, but an attack that may "
        "rebuild more failed on it or was not tried.",
    )
    harmless = run("{}", {"strong": [9.0] * 8, "weak": [33.0] * 8})
    (verdict,) = judge_defenses([harmless, run("{d: {}}", {**strong, "weak": [12.0] * 8})])
    assert verdict.comparison.startswith(LESS)


def test_the_order_of_undefended_runs_changes_nothing(run: Any) -> None:
    plains = [run("{}", {"weak": [12.0] * 8}, seed=0), run("{}", {"strong": [90.0] * 8}, seed=1)]
    found = run("{d: {}}", {"weak": [12.0] * 8, "strong": [90.0] * 8})
    verdicts = {judge_defenses([*order, found])[0] for order in (plains, plains[::-1])}
    assert [verdict.comparison[: len(NO_LESS)] for verdict in verdicts] == [NO_LESS]


@pytest.mark.parametrize("found", ["withheld", [None] * 2])
def test_what_was_not_measured_is_not_compared(run: Any, found: Any) -> None:
    plain, defended = run("{}", {"a": [70.0, 70.0]}), run("{d: {}}", {"a": found})
    (verdict,) = judge_defenses([plain, defended])
    assert verdict.comparison == "Not compared with undefended: no image was measured on it."
    (verdict,) = judge_defenses([run("{}", {"a": found}), run("{d: {}}", {"a": [12.0, 12.0]})])
    assert verdict.comparison == "Not compared with undefended: no image was measured without the defense."


@pytest.mark.parametrize(
    ("updates", "told"),
    [
        (1, "Too few updates to tell whether it leaks less than undefended: 0 of 8 images"),
        (2, "Too few updates to tell whether it leaks less than undefended: 0 of 8 images"),
        (4, f"{LESS}0 of 8 images"),
        (8, f"{LESS}0 of 8 images"),
    ],
)
def test_images_of_one_update_are_no_evidence_of_their_own(run: Any, updates: int, told: str) -> None:
    """They share its noise and its search: of two updates on each side, both rebuilt or neither, chance is 1 of 6."""

    def in_batches(found: Any) -> Any:
        size = len(found.attacks) // updates
        batches = [found.attacks[place : place + size] for place in range(0, len(found.attacks), size)]
        whole = [
            replace(ones[0], images=tuple(image for one in ones for image in one.images), batch_size=size)
            for ones in batches
        ]
        return replace(found, attacks=tuple(whole))

    runs = [in_batches(one) for one in (run("{}", {"a": [70.0] * 8}), run("{d: {}}", {"a": [12.0] * 8}))]
    (verdict,) = judge_defenses(runs)
    assert verdict.comparison.startswith(told)
