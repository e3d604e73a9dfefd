"""The verdict says what the numbers say, in plain words."""

from typing import Any

import pytest

from fedsim.report.read import read_run
from fedsim.report.verdict import AS_SEEN, REFUSED, TAGS, verdict
from fedsim.report.wording import count, decibels, duration, likeness, listed, percent


def test_everything_leaked(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, k, records.image(90.0 + k)) for k in range(3)])))
    assert found.level == "leaked"
    assert found.sentence == (
        "The server rebuilt all 3 observed pictures recognisably (PSNR ≥ 20 dB): "
        "patch_gradient reached 91.0 dB on average."
    )
    assert found.details == (
        "All of the 3 rebuilt pictures are certified: the server can tell that they are right without the originals.",
        "100 % of the labels were recovered, by patch_gradient.",
        "The model classified 75.0 % of the 1,400 test pictures correctly after round 2.",
    )


def test_some_leaked_and_several_attacks(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0 if k == 0 else 8.0)) for k in range(4)]
    rows += [records.attack(1, k, records.image(5.0), attack="dlg", certificate={}) for k in range(4)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "partial"
    assert found.sentence.startswith("The server rebuilt 1 of 4 observed pictures recognisably")
    assert "patch_gradient, the strongest of 2 attacks, reached 12.2 dB on average" in found.sentence
    assert "wrongly so in part: 3 certified results stayed below 20 dB" in found.details[0]


def test_nothing_recognisable(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(12.5), certificate={})])))
    assert found.level == "safe"
    assert found.sentence.startswith("The observed picture was not rebuilt recognisably")
    assert "12.5 dB by patch_gradient, stays below 20 dB" in found.sentence
    assert any("not for every attack that exists" in detail for detail in found.details)


def test_the_best_result_is_the_best_of_all_attacks(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(15.0), attack="steady") for k in range(4)]
    rows += [records.attack(1, k, records.image(psnr), attack="lucky") for k, psnr in enumerate([19.8, 8.0, 8.0, 8.0])]
    assert "the best result, 19.8 dB by lucky, stays below" in verdict(read_run(write_run(rows))).sentence


def test_every_attack_refused(write_run: Any, records: Any) -> None:
    reason = "pos_embed's gradient is withheld by fixed_pe"
    found = verdict(read_run(write_run([records.refusal(1, k, reason) for k in range(4)])))
    assert (found.level, found.tag) == ("unknown", REFUSED)
    assert found.sentence == (
        "No picture was rebuilt: patch_gradient refused 4 of 4 observed updates, because pos_embed's gradient is "
        "withheld by fixed_pe."
    )


def test_attacks_on_labels_do_not_stand_in_for_those_on_pictures(write_run: Any, records: Any) -> None:
    config = "attack: {patch_gradient: {}, labels: {_target_: attacks.label.RecoverLabels}}\n"
    labels = records.attack(1, 0, records.image(None), attack="labels", certificate={})
    refused = records.refusal(1, 0, "withheld")
    failed = records.attack(1, 0, attack="dlg", status="failed", scored=False)
    told = []
    for number, rows in enumerate(([refused], [failed], [refused, failed])):
        found = verdict(read_run(write_run([labels, *rows], config=config, name=f"run-{number}")))
        told.append((found.level, found.tag, found.sentence))
    ended = "No attack that rebuilds pictures came to an end"
    assert told == [
        (
            "unknown",
            REFUSED,
            "No picture was rebuilt: patch_gradient refused 1 of 1 observed update, because withheld.",
        ),
        ("unknown", TAGS["unknown"], f"{ended}, so this run says nothing about what the server could learn."),
        (
            "unknown",
            TAGS["unknown"],
            f"{ended}: patch_gradient refused 1 of 1 observed update, because withheld; the rest failed.",
        ),
    ]


def test_what_the_model_saw_was_rebuilt(write_run: Any, records: Any) -> None:
    """Of the clients' own pictures, which a defense turned, nothing is recognisable by PSNR."""
    images = [records.image(159.0, f"digits/{k}", private_psnr=8.5, private_ssim=0.1) for k in range(6)]
    config = "attack: {patch_gradient: {}}\ndefense: {ats: {}}\n"
    rows = [records.attack(1, k, image) for k, image in enumerate(images)]
    found = verdict(read_run(write_run(rows, config=config)))
    assert (found.level, found.tag) == ("unknown", AS_SEEN)
    assert found.sentence.startswith(
        "The server rebuilt all 6 pictures as the model saw them (159.0 dB), transformed by ats; against the originals "
        "8.5 dB. Look at them. None of the 6 observed pictures was rebuilt recognisably"
    )
    assert found.details[1].startswith("All of the 6 rebuilt pictures are certified: the server can tell that they are")
    assert "what the model saw without the originals" in found.details[1]
    own = [records.attack(2, 0, records.image(90.0, "digits/7", private_psnr=25.0, private_ssim=0.9))]
    found = verdict(read_run(write_run([*rows, *own], config=config, name="more")))
    assert (found.level, found.tag) == ("partial", TAGS["partial"])
    assert found.sentence.startswith("The server rebuilt 6 of 7 pictures as the model saw them (159.0 dB)")
    assert "Look at them. The server rebuilt 1 of 7 observed pictures recognisably" in found.sentence


@pytest.mark.parametrize(("seen", "status", "told"), [(59.0, "none", False), (59.0, "certified", True)])
def test_a_certificate_says_what_the_model_saw(
    write_run: Any, records: Any, seen: float, status: str, told: bool
) -> None:
    image = records.image(seen, private_psnr=8.5, private_ssim=0.1)
    run = read_run(write_run([records.attack(1, 0, image, certificate={"status": status})]))
    assert ("as the model saw it" in verdict(run).sentence) is told


def test_refusals_for_several_reasons_are_listed(write_run: Any, records: Any) -> None:
    rows = [records.refusal(1, k, f"{reason} reason") for k, reason in enumerate(("a", "b", "c", "d", "e"))]
    found = verdict(read_run(write_run(rows)))
    assert "because" not in found.sentence
    assert found.details[0] == "patch_gradient refused: a reason."
    assert "2 further reasons below." in found.details


def test_reasons_that_differ_in_numbers_alone_are_one(write_run: Any, records: Any) -> None:
    rows = [records.refusal(1, k, f"condition number {1e6 + 1e3 * k:.3e} is too large") for k in range(1000)]
    found = verdict(read_run(write_run(rows)))
    told = "condition number 1.000e+06 is too large (one of 1,000 wordings)."
    assert found.sentence.endswith(f"patch_gradient refused 1,000 of 1,000 observed updates, because {told}")
    assert not [detail for detail in found.details if "condition number" in detail]
    found = verdict(read_run(write_run([*rows, records.attack(2, 0, records.image(12.0))], name="another")))
    assert f"patch_gradient refused: {told}" in found.details


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "No attack has run"),
        ([{"status": "failed", "images": []}], "No attack came to an end"),
        ([{"scored": False, "psnr": None, "reconstruction": "r.png"}], "without audit their likeness"),
        ([{"scored": False, "psnr": None}], "Only labels were attacked"),
        (
            [{"attack": "a", "label_share": None, "label_exact": None}, {"attack": "b", "trace": [{"step": 1}]}],
            "a and b came to an end without a picture that could be used",
        ),
        ([{"attack": "a", "label_share": None, "label_exact": None}, {"attack": "llg"}], "a came to an end without"),
    ],
)
def test_what_was_not_measured_is_not_called_safe(
    write_run: Any, records: Any, rows: list[dict[str, Any]], words: str
) -> None:
    attacks = []
    for row in rows:
        picture = records.image(row.pop("psnr", None), reconstruction=row.pop("reconstruction", None))
        attacks.append(records.attack(1, 0, **{"images": [picture]} | row))
    found = verdict(read_run(write_run(attacks)))
    assert found.level == "unknown"
    assert words in found.sentence


def test_a_run_that_stopped_says_so(write_run: Any) -> None:
    found = verdict(read_run(write_run(summary={})))
    assert "The run did not finish" in found.details[-1]


def test_numbers_as_people_read_them() -> None:
    assert [percent(x) for x in (None, 0.0, 0.00001, 0.5, 0.99999, 1.0)] == [
        "–",
        "0 %",
        "0.1 %",
        "50.0 %",
        "99.9 %",
        "100 %",
    ]
    assert [decibels(x) for x in (None, 23.44, 300.0)] == ["–", "23.4 dB", "exact"]
    assert [duration(x) for x in (None, 0.0001, 0.25, 3.21, 125.0, 7260.0)] == [
        "–",
        "< 1 ms",
        "250 ms",
        "3.2 s",
        "2 min 05 s",
        "2 h 01 min",
    ]
    assert [likeness(x) for x in (None, 40.0, 39.9, 20.0, 15.0, 14.9)] == [
        "not measured",
        "indistinguishable",
        "nearly identical",
        "recognisable",
        "traces",
        "not recognisable",
    ]
    assert count(1, "picture") == "1 picture"
    assert count(1200, "picture") == "1,200 pictures"
    assert listed([]) == ""
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_a_failure_leaves_the_verdict_open(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(12.0), certificate={}) for k in range(2)]
    rows += [records.attack(1, k, attack="strong", status="failed", scored=False) for k in range(2)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "unknown"
    assert "Failed: strong on 2 of 2 observed updates." in found.details


def test_an_attack_that_never_ran_leaves_the_verdict_open(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(12.0), attack="other")])))
    assert found.level == "unknown"
    assert "Never ran: patch_gradient." in found.details


def test_a_picture_observed_twice_is_said_to_be_one(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(90.0, f"digits/{k}")) for k in range(9)]
    rows += [{**row, "attack": "other"} for row in rows]
    again = records.attack(2, 3, records.image(90.0, "digits/3"))
    found = verdict(read_run(write_run([*rows, again])))
    assert found.sentence.startswith("The server rebuilt all 10 observed pictures (9 different) recognisably")
    elsewhere = records.attack(2, 9, records.image(90.0, "digits/3"))  # another client's picture of that name
    unnamed = records.attack(2, 3, records.image(90.0, "digits/3"), batch_size=2)
    for number, row in enumerate((elsewhere, unnamed, records.refusal(2, 3, "withheld"))):
        assert "different" not in verdict(read_run(write_run([*rows, row], name=f"run-{number}"))).sentence


def test_the_reason_of_a_refusal_is_told_where_labels_alone_were_attacked(write_run: Any, records: Any) -> None:
    config = "attack: {labels: {_target_: attacks.label.RecoverLabels}}\n"
    rows = [records.refusal(1, k, "the head is withheld", attack="labels") for k in range(3)]
    found = verdict(read_run(write_run(rows, config=config)))
    assert found.sentence.startswith("Only labels were attacked")
    assert "labels refused: the head is withheld." in found.details


@pytest.mark.parametrize(("best", "told"), [(19.97, "19.9 dB"), (19.94, "19.9 dB"), (12.34, "12.3 dB")])
def test_what_stays_below_is_not_rounded_up(write_run: Any, records: Any, best: float, told: str) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(best))])))
    assert found.sentence.endswith(f"the best result, {told} by patch_gradient, stays below 20 dB.")


def test_an_attack_of_ones_own_is_known_by_what_it_left(write_run: Any, records: Any) -> None:
    config = "attack: {mine: {_target_: attacks.mine.Labels}}\n"
    row = records.attack(1, 0, records.image(None), attack="mine", certificate={}, labels=[3])
    assert verdict(read_run(write_run([row], config=config))).sentence.startswith("Only labels were attacked")
