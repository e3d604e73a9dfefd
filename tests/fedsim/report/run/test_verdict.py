"""The verdict says what the numbers say, in plain words."""

import json
from typing import Any

import pytest

from fedsim.report.compare.pooling import pool_runs
from fedsim.report.matrix.read import read_counts
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import summarise_attacks
from fedsim.report.run.verdict import verdict
from fedsim.report.wording import count, decibels, duration, graded, likeness, listed, percent


def test_every_image_recognisable_and_certified(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, k, records.image(90.0 + k)) for k in range(3)])))
    assert (found.level, found.tag) == ("broken", "Broken")
    assert found.sentence == (
        "The server rebuilt 3 of 3 images recognisably (no guess was recorded): patch_gradient reached 91.0 dB on "
        "average on those that it made recognisable. 3 of 3 images are certified."
    )
    assert found.cautions == ()  # so few leave nothing open where certificates decide
    assert found.details == (
        "3 certificates of images were granted, none of 3 checked is wrong: too few to bound the share of wrong ones.",
        "100 % of the labels were recovered, by patch_gradient.",
        "The model classified 75.0 % of the 1,400 test images correctly after round 2.",
    )


def test_one_recognisable_image_may_be_chance(write_run: Any, records: Any) -> None:
    images = [records.image(25.0 if k == 0 else 8.0, f"digits/{k}", guess_psnr=10.0) for k in range(4)]
    rows = [records.attack(1, k, image, certificate={}) for k, image in enumerate(images)]
    rows += [records.attack(1, k, records.image(5.0, f"digits/{k}"), attack="dlg", certificate={}) for k in range(4)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "open"
    assert found.sentence == (
        "The server rebuilt 1 of 4 images recognisably (without the update: 0 of 4): patch_gradient, the strongest of "
        "2 attacks, reached 25.0 dB on it. Too few of them for the level broken, and none is certified (Fisher's test "
        "of the counts: p = 0.50)."
    )
    assert found.cautions == (
        "4 different images observed: without a certificate it takes 4 recognisable ones to say broken.",
    )


def test_the_terminal_says_why_nothing_is_certified(write_run: Any, records: Any) -> None:
    rows = [
        records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate=certificate)
        for k, certificate in enumerate(
            [{"status": "none"}, *({"status": "uncertified", "reason": f"off by {n} dB"} for n in (3, 3, 7))]
        )
    ]
    found = verdict(read_run(write_run(rows)))
    told = "patch_gradient is not certified: off by 3 dB (one of 2 sets of numbers)."
    assert found.line == " ".join([f"{found.tag.lower()}: {found.sentence}", told, *found.cautions])
    proven = verdict(read_run(write_run([*rows, records.attack(1, 9, records.image(90.0, "i/9"))], name="proven")))
    assert "is not certified" not in proven.line


@pytest.mark.parametrize(("hits", "level"), [(4, "open"), (5, "broken")])
def test_more_than_the_guess_gives_by_chance(write_run: Any, records: Any, hits: int, level: str) -> None:
    rows = [
        records.attack(1, k, records.image(25.0 if k < hits else 9.0, f"i/{k}", guess_psnr=10.0), certificate={})
        for k in range(20)
    ]
    found = verdict(read_run(write_run(rows)))
    assert (found.level, found.cautions) == (level, ())
    assert found.sentence.startswith(
        f"The server rebuilt {hits} of 20 images recognisably (without the update: 0 of 20)"
    )
    told = "Too few of them for the level broken, and none is certified: it takes 5 of 20 (Fisher's test of the counts"
    assert (f"{told}: p = 0.05)." in found.sentence) is (level == "open")


@pytest.mark.parametrize(("batch", "level"), [(1, "broken"), (2, "broken"), (4, "open"), (8, "open")])
def test_images_of_one_update_count_as_one(write_run: Any, records: Any, batch: int, level: str) -> None:
    """They share its noise, its mask and its search: what makes one of them recognisable makes all."""
    images = [records.image(25.0, f"i/{k}", guess_psnr=10.0) for k in range(8)]
    rows = [records.attack(1, k, *images[k : k + batch], certificate={}) for k in range(0, 8, batch)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == found.counts.level == level
    assert found.to_dict()["updates"] == 8 // batch
    updates = {4: "2 different updates", 8: "1 different update"}
    if level == "open":
        assert found.cautions == (
            f"8 different images of {updates[batch]} observed: without a certificate it takes at least 4 updates, each "
            "with recognisable images, to say broken.",
        )
        assert "Too few updates for the level broken, and none is certified (Fisher's test" in found.sentence


@pytest.mark.parametrize(("updates", "level"), [(3, "open"), (4, "broken")])
def test_one_recognisable_image_of_each_of_enough_updates_is_enough(
    write_run: Any, records: Any, updates: int, level: str
) -> None:
    """However many others the updates have: each of these was broken by itself."""
    batches = [
        [records.image(25.0 if k == 0 else 9.0, f"{n}/{k}", guess_psnr=10.0) for k in range(8)] for n in range(8)
    ]
    for batch in batches[updates:]:
        batch[0] = batch[0] | {"psnr": 9.0}
    rows = [records.attack(1, k, *batch, certificate={}) for k, batch in enumerate(batches)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == level
    if level == "open":
        told = (
            "Images of too few updates for the level broken, and none is certified (Fisher's test of 3 against 0 of 8 "
        )
        assert f"{told}updates: p = 0.10)." in found.sentence
        assert found.cautions[0].endswith("takes 4 updates with recognisable ones to say broken.")


def test_updates_count_where_more_is_recognisable_than_without_them(write_run: Any, records: Any) -> None:
    """A guess that makes one of eight recognisable is no match for all of them, and one that makes as many is."""
    for blind, level in ((1, "broken"), (8, "open")):
        rows = []
        for n in range(4):
            images = [records.image(25.0, f"{n}/{k}", guess_psnr=10.0) for k in range(8)]
            guesses = [records.image(25.0 if k < blind else 9.0, f"{n}/{k}", guess_psnr=10.0) for k in range(8)]
            rows.append(records.attack(1, n, *images, certificate={}))
            rows.append(records.attack(1, n, *guesses, attack="blind", baseline=True, certificate={}))
        found = verdict(read_run(write_run(rows, name=f"of-{blind}")))
        assert (found.counts.guessed, found.level) == (4 * blind, level)
    assert "without the update as many come out of all of them, so that only a certificate tells" in found.cautions[0]


@pytest.mark.parametrize(("updates", "level"), [(6, "open"), (9, "broken")])
def test_updates_with_more_and_with_less_than_a_guess_are_pairs(
    write_run: Any, records: Any, updates: int, level: str
) -> None:
    """All but one lead by one image: the sign test's p is 7/64, or 10/512."""
    rows = []
    for n in range(updates):
        for hits, more in (((4, 3)[n == 0], {}), ((3, 4)[n == 0], {"attack": "blind", "baseline": True})):
            images = [records.image(25.0 if k < hits else 9.0, f"{n}/{k}", guess_psnr=10.0) for k in range(8)]
            rows.append(records.attack(1, n, *images, certificate={}, **more))
    found = verdict(read_run(write_run(rows)))
    assert (found.counts.tested, found.counts.pairs) == ((updates - 1, 1), (updates - 1, updates))
    assert found.level == level
    if level == "open":
        assert "(sign test of 5 ahead of 6 updates that differ: p = 0.11)" in found.sentence
        assert "without the update as many come out of 1 of them, so that only a certificate tells" in found.cautions[0]
    else:
        assert found.cautions[0].endswith("takes 7 updates with more recognisable ones than without it to say broken.")


def test_updates_with_as_many_as_a_guess_leak_as_well(write_run: Any, records: Any) -> None:
    """Beside 4 of 16 updates with as many it takes 6 that lead: 10 against 4."""
    rows = []
    for n in range(16):
        alike = n < 4
        for hits, more in ((3, {}), (3 if alike else 0, {"attack": "blind", "baseline": True})):
            images = [records.image(25.0 if k < hits else 9.0, f"{n}/{k}", guess_psnr=10.0) for k in range(4)]
            rows.append(records.attack(1, n, *images, certificate={}, **more))
    found = verdict(read_run(write_run(rows)))
    assert (found.counts.tested, found.counts.pairs) == ((16, 4), (12, 12))
    assert found.cautions[0].endswith("takes 6 updates with more recognisable ones than without it to say broken.")


def test_an_image_behind_many_updates_counts_once(write_run: Any, records: Any) -> None:
    image = records.image(25.0, "same", content="same", guess_psnr=10.0)
    rest = [[records.image(9.0, f"{n}/{k}", content=f"{n}/{k}", guess_psnr=10.0) for k in range(4)] for n in range(6)]
    rows = [records.attack(1, n, image, *batch, certificate={}) for n, batch in enumerate(rest)]
    found = verdict(read_run(write_run(rows)))
    assert (found.counts.images, found.counts.tested, found.level) == (25, (1, 0), "open")


@pytest.mark.parametrize("updates", [3, 4, 6])
def test_an_update_in_which_nothing_leaks_is_no_evidence_that_another_does(
    write_run: Any, records: Any, updates: int
) -> None:
    """The same four images in each of several updates, and one search that came to its end."""
    rows = [
        records.attack(
            n, 0, *(records.image(9.0 if n else 25.0, f"i/{k}", content=f"{k}", guess_psnr=10.0) for k in range(4)),
            certificate={},
        )
        for n in range(updates)
    ]  # fmt: skip
    found = verdict(read_run(write_run(rows)))
    assert (found.counts.recognisable, found.counts.images, found.level) == (4, 4, "open")
    assert (found.counts.updates, "of 1 different update observed" in found.cautions[0]) == (1, True)


def test_the_same_images_observed_again_are_one_update(write_run: Any, records: Any) -> None:
    """However often they were shared: the first time is one draw, and so are all."""
    images = [records.image(25.0, f"i/{k}", content=f"{k}", guess_psnr=10.0) for k in range(4)]
    for rounds in (1, 4):
        rows = [records.attack(n, 0, *images, certificate={}) for n in range(rounds)]
        found = verdict(read_run(write_run(rows, name=f"{rounds} rounds")))
        assert (found.counts.updates, found.counts.leaking, found.level) == (1, 1, "open")
    part = [records.attack(n, 0, *images[:n], *images[n + 1 :], batch_size=4, certificate={}) for n in range(4)]
    assert verdict(read_run(write_run(part, name="not-all-listed"))).counts.updates == 4


def test_two_exact_images_are_too_few_however_many_decibels_they_have(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(100.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(2)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "open"
    told = "Too few images for the level broken, and none is certified (Fisher's test of the counts: p = 0.17)."
    assert found.sentence.endswith(told)
    assert found.cautions == (
        "2 different images observed: without a certificate it takes at least 4, all recognisable, to say broken.",
    )
    assert "chance" not in found.line.lower()


def test_a_theorem_holds_for_attacks_that_did_not_run_too(write_run: Any, records: Any) -> None:
    folder = write_run([records.attack(1, k, records.image(9.0, f"i/{k}")) for k in range(3)])
    statement = {"sentence": "It is proven.", "proof": {"mu": 0.1}}
    row = {"bound": "reconstruction_robustness", "kind": "theorem", "status": "done", "reason": "", **statement}
    open_one = verdict(read_run(folder))
    (folder / "bounds.jsonl").write_text(json.dumps(row) + "\n")
    found = verdict(read_run(folder))
    assert (open_one.level, found.level) == ("open", "proven")
    told = "That holds for the attacks that ran, not for every attack that exists."
    assert told in open_one.details
    assert told not in found.details


def test_an_image_observed_often_counts_once(write_run: Any, records: Any) -> None:
    rows = [records.attack(k, 0, records.image(25.0, "a", guess_psnr=10.0), certificate={}) for k in range(30)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "open"
    assert found.sentence.startswith(
        "The server rebuilt 1 of 1 different image recognisably (without the update: 0 of 1)"
    )


def test_who_returns_the_guess_rebuilt_nothing(write_run: Any, records: Any) -> None:
    """Images of low contrast: their mean has 24.2 dB on each of them."""
    rows = [
        records.attack(1, k, records.image(24.2, f"i/{k}", guess_psnr=24.2), certificate={"status": "none"})
        for k in range(20)
    ]
    run = read_run(write_run(rows))
    found = verdict(run)
    assert found.level == "open"
    assert found.sentence == (
        "The server rebuilt 0 of 20 images recognisably (without the update: 0 of 20): the best result, 24.2 dB by "
        "patch_gradient, is less than 1 dB above its guess."
    )
    (row,) = summarise_attacks(run)
    assert (row.recognisable, row.recognised) == (0, 0.0)
    assert set(row.success.values()) == set(row.seen_success.values()) == {0.0}


def test_without_a_guess_on_record_chance_is_not_told(write_run: Any, records: Any) -> None:
    """A folder of an earlier version: whether the attack only returned the guess is not known."""
    rows = [records.attack(1, k, records.image(24.2, f"i/{k}"), certificate={}) for k in range(20)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "open"
    assert found.sentence.endswith("Without a guess on record chance cannot be told, and none is certified.")


def test_an_attack_that_reads_nothing_is_a_guess_too(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(20)]
    assert verdict(read_run(write_run(rows))).level == "broken"
    blind = [{**row, "attack": "blind", "baseline": True} for row in rows]
    found = verdict(read_run(write_run([*rows, *blind], name="blind")))
    assert (found.level, found.counts.guessed) == ("open", 20)


def test_a_baseline_below_the_threshold_is_not_rounded_up_to_it(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(4)]
    pale = [records.image(19.97, f"i/{k}", guess_psnr=10.0) for k in range(4)]
    rows += [records.attack(1, k, one, attack="blind", baseline=True) for k, one in enumerate(pale)]
    found = verdict(read_run(write_run(rows)))
    told = "Without any gradient blind reaches 19.9 dB on average; patch_gradient reaches 5.0 dB more."
    assert told in found.details


def test_where_a_baseline_did_not_end_it_may_have_done_as_well(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(20)]
    blind = [{**row, "attack": "blind", "baseline": True} for row in rows]
    failed = [{**row, "status": "failed", "scored": False} for row in blind]
    for name, more in (("failed", failed[5:]), ("unrun", [])):
        found = verdict(read_run(write_run([*rows, *blind[:5], *more], name=name)))
        assert (found.level, found.counts.guessed, found.counts.unguessed) == ("open", 5, 15)
        assert "(without the update: 5 of 20, unknown of 15 more)" in found.sentence
        assert any("Did not end: blind on 15 of 20 observed updates; what" in one for one in found.details)
        assert "(Fisher's test of the counts, unknown ones as recognisable without the update: p = 1.00)" in found.line
    other = [{**row, "attack": "other"} for row in blind]
    other = [{**row, "images": [{**row["images"][0], "psnr": 9.0}]} for row in other]
    found = verdict(read_run(write_run([*rows, *blind[:5], *failed[5:], *other], name="another ended")))
    assert (found.level, found.counts.unguessed) == ("broken", 0)
    refused = [{**row, "status": "refused", "scored": False} for row in blind]
    found = verdict(read_run(write_run([*rows, *refused], name="refused")))
    assert (found.level, found.counts.unguessed) == ("broken", 0), "as if it had not been asked"


def test_a_baseline_of_something_other_than_images_says_nothing_about_them(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(20)]
    images = [[{**row["images"][0], "psnr": 9.0}] for row in rows]
    blind = [
        {**row, "attack": "blind", "baseline": True, "label_share": None, "images": one}
        for row, one in zip(rows, images, strict=True)
    ]
    blind[2:] = [{**row, "status": "failed", "scored": False} for row in blind[2:]]
    attributes = [{**row, "target": "attributes"} for row in blind]
    found = verdict(read_run(write_run([*rows, *attributes], name="failed")))
    assert (found.level, found.counts.unguessed) == ("broken", 0)
    ended = [{**row, "attack": "other", "status": "done"} for row in attributes]
    found = verdict(read_run(write_run([*rows, *blind, *ended], name="ended")))
    assert (found.level, found.counts.unguessed) == ("open", 18)


def test_a_baseline_that_ended_on_another_update_of_an_image_tells_of_it(write_run: Any, records: Any) -> None:
    """The attack fails to make it recognisable there."""
    rows, blind = [], []
    for state, psnr, status in ((1, 25.0, "failed"), (2, 9.0, "done")):
        for k in range(20):
            row = records.attack(state, k, records.image(psnr, f"{k}", content=f"{k}", guess_psnr=10.0), certificate={})
            image = {**row["images"][0], "psnr": 9.0}
            rows.append(row)
            blind.append({**row, "attack": "blind", "baseline": True, "status": status, "images": [image]})
    found = verdict(read_run(write_run([*rows, *blind])))
    assert (found.level, found.counts.images, found.counts.unguessed) == ("broken", 20, 0)
    found = verdict(read_run(write_run([*rows, *blind[:22]], name="stopped")))
    assert (found.level, found.counts.unguessed) == ("open", 18)


def test_where_reading_nothing_does_as_well_no_number_of_images_would_tell(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(4)]
    found = verdict(read_run(write_run([*rows, *({**row, "attack": "blind", "baseline": True} for row in rows)])))
    assert found.cautions == (
        "4 different images observed: without the update all of them come out as well, so that only a certificate "
        "tells.",
    )


def test_far_above_the_guess_is_broken_however_much_the_guess_has(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(50.0, f"i/{k}", guess_psnr=22.0), certificate={}) for k in range(20)]
    found = verdict(read_run(write_run(rows)))
    assert (found.level, found.counts.guessed) == ("broken", 0)


def test_an_image_on_which_nothing_ended_is_not_counted_and_is_told(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(12.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(4)]
    rows += [records.refusal(1, k, "withheld", images=[records.image(None, f"i/{k}")]) for k in (4, 5)]
    rows += [records.attack(1, 6, records.image(None, "i/6"), status="failed", scored=False)]
    found = verdict(read_run(write_run(rows)))
    assert "The server rebuilt 0 of 4 images recognisably" in found.line
    assert "On 2 more images every attack refused. On 1 more image every attack failed." in found.line


def test_a_likeness_that_is_no_number_was_measured_by_an_audit(write_run: Any, records: Any) -> None:
    image = records.image(float("nan"), mse=None, ssim=None, reconstruction="r.png")
    found = verdict(read_run(write_run([records.attack(1, 0, image, certificate={})])))
    assert (found.level, "audit" in found.sentence) == ("not tested", False)
    assert "their likeness to the originals could not be measured, as it is no number" in found.sentence


def test_an_unknown_number_of_test_images_is_said_to_be_unknown(write_run: Any) -> None:
    found = verdict(read_run(write_run(summary={"kind": "federated", "finished": True})))
    told = "The accuracy rests on an unknown number of test images: how far chance moves it is not known."
    assert found.cautions == (told,)


def test_nothing_recognisable(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(12.5), certificate={})])))
    assert found.level == "open"
    assert found.sentence == (
        "The server rebuilt 0 of 1 image recognisably (no guess was recorded): the best result, 12.5 dB by "
        "patch_gradient, stays below 20 dB."
    )
    assert any("not for every attack that exists" in detail for detail in found.details)


def test_the_best_result_is_the_best_of_all_attacks(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(15.0), attack="steady") for k in range(4)]
    rows += [records.attack(1, k, records.image(psnr), attack="lucky") for k, psnr in enumerate([19.8, 8.0, 8.0, 8.0])]
    assert "the best result, 19.8 dB by lucky, stays below" in verdict(read_run(write_run(rows))).sentence


def test_every_attack_refused(write_run: Any, records: Any) -> None:
    reason = "pos_embed's gradient is withheld by fixed_pe"
    found = verdict(read_run(write_run([records.refusal(1, k, reason) for k in range(4)])))
    assert (found.level, found.tag, found.cautions) == ("not tested", "Not tested", ())
    assert found.sentence == (
        "No image was rebuilt: patch_gradient refused 4 of 4 observed updates, because pos_embed's gradient is "
        "withheld by fixed_pe."
    )


def test_attacks_on_labels_do_not_stand_in_for_those_on_images(write_run: Any, records: Any) -> None:
    labels = records.attack(1, 0, records.image(None), attack="labels", target="labels")
    refused = records.refusal(1, 0, "withheld")
    failed = records.attack(1, 0, attack="dlg", status="failed", scored=False)
    told = []
    for number, rows in enumerate(([refused], [failed], [refused, failed])):
        found = verdict(read_run(write_run([labels, *rows], name=f"run-{number}")))
        assert found.level == "not tested"
        told.append(found.sentence)
    ended = "No attack that rebuilds images came to an end"
    assert told == [
        "No image was rebuilt: patch_gradient refused 1 of 1 observed update, because withheld.",
        f"{ended}, so this run says nothing about what the server could learn.",
        f"{ended}: patch_gradient refused 1 of 1 observed update, because withheld; the rest failed.",
    ]


@pytest.mark.parametrize("status", ["certified", "uncertified", "none"])
@pytest.mark.parametrize("seen", [21.0, 44.0, 159.0])
def test_what_the_model_saw_is_recognisable_from_where_anything_is(
    write_run: Any, records: Any, seen: float, status: str
) -> None:
    """Mirrored or shuffled, through half precision, noise or a search: no certificate, and 40 to 52 dB."""
    images = [records.image(seen, f"i/{k}", private_psnr=8.5, private_ssim=0.1, guess_psnr=10.0) for k in range(6)]
    config = "attack: {patch_gradient: {}}\ndefense: {ats: {}, half: {}}\n"
    rows = [records.attack(1, k, image, certificate={"status": status}) for k, image in enumerate(images)]
    run = read_run(write_run(rows, config=config))
    found = verdict(run)
    assert found.level == "broken"
    assert found.sentence.startswith(
        "The server rebuilt 6 of 6 images recognisably as the model saw them, changed by ats or half (without the "
        f"update: 0 of 6): {seen:.1f} dB on average against what it saw, 8.5 dB against the client's own."
    )
    assert (found.counts.recognisable, found.counts.own, found.counts.as_seen) == (6, 0, 6)
    (row,) = summarise_attacks(run)
    assert (row.as_seen, row.recognised, row.success[20.0], row.seen_success[20.0]) == (6, 1.0, 0.0, 1.0)


def test_what_the_model_saw_is_not_rounded_up(write_run: Any, records: Any) -> None:
    image = records.image(29.97, private_psnr=19.97, private_ssim=0.1, guess_psnr=10.0)
    found = verdict(read_run(write_run([records.attack(1, 0, image, certificate={})])))
    assert "29.9 dB on average against what it saw, 19.9 dB against the client's own." in found.sentence


def test_what_the_model_saw_is_held_against_its_own_guess(write_run: Any, records: Any) -> None:
    """A defense that leaves nearly grey images: grey is as good, as far as the model's own view goes."""
    values = {"private_psnr": 8.5, "private_ssim": 0.1, "guess_psnr": 10.0, "seen_guess_psnr": 30.0}
    rows = [records.attack(1, k, records.image(30.5, f"i/{k}", **values), certificate={}) for k in range(6)]
    found = verdict(read_run(write_run(rows)))
    assert (found.level, found.counts.as_seen, found.counts.guessed) == ("open", 0, 0)


def test_both_kinds_are_told(write_run: Any, records: Any) -> None:
    seen = [records.image(52.0, f"i/{k}", private_psnr=8.5, private_ssim=0.1, guess_psnr=9.0) for k in range(6)]
    own = records.image(90.0, "i/6", private_psnr=25.0, private_ssim=0.9, guess_psnr=9.0)
    rows = [records.attack(1, k, image, certificate={}) for k, image in enumerate([*seen, own])]
    found = verdict(read_run(write_run(rows, config="attack: {patch_gradient: {}}\ndefense: {ats: {}}\n")))
    assert found.sentence.startswith(
        "The server rebuilt 1 of 7 images recognisably (without the update: 0 of 7): patch"
    )
    assert "The server rebuilt 6 of 7 images recognisably as the model saw them, changed by ats" in found.sentence


@pytest.mark.parametrize(
    ("psnr", "values", "right"),
    [
        (90.0, {}, True),
        (58.1, {}, True),
        (57.9, {}, False),
        (39.0, {}, False),
        (90.0, {"promised_psnr": 90.0}, True),
        (89.0, {"promised_psnr": 90.0}, False),
        (55.9, {"promised_psnr": 61.0}, False),
        (45.0, {"promised_psnr": 41.0}, True),
        (39.0, {"promised_psnr": 30.0}, False),
        (130.0, {"expected_psnr": 209.0}, True),
        (32.7, {"expected_psnr": 85.0}, False),
        (12.0, {"expected_psnr": 209.0}, False),
    ],
)
def test_a_certificate_that_is_known_to_be_wrong_breaks_nothing(
    write_run: Any, records: Any, psnr: float, values: dict[str, float], right: bool
) -> None:
    status = {"status": "certified", "reason": "", "values": values}
    run = read_run(write_run([records.attack(1, 0, records.image(psnr, guess_psnr=9.0), certificate=status)]))
    found = verdict(run)
    assert (found.level, found.counts.certified) == (("broken", 1) if right else ("open", 0))
    fault = "1 certificate of images was granted, and 1 of 1 checked is wrong: a fault of the certificate"
    assert any(fault in detail for detail in found.details) is not right


def test_one_wrong_image_takes_the_whole_certificate_away(write_run: Any, records: Any) -> None:
    images = [records.image(psnr, f"i/{psnr}", guess_psnr=9.0) for psnr in (90.0, 12.0, None)]
    found = verdict(read_run(write_run([records.attack(1, 0, *images)])))
    assert (found.level, found.counts.certified, found.counts.recognisable) == ("open", 0, 1)
    found = verdict(read_run(write_run([records.attack(1, 0, *images[::2])], name="right")))
    assert (found.level, found.counts.certified, found.counts.images) == ("broken", 1, 2)


def test_a_certificate_breaks_without_audit_and_its_rate_is_not_told(write_run: Any, records: Any) -> None:
    unscored = {"psnr": None, "ssim": None, "reconstruction": "r.png"}
    rows = [records.attack(1, 0, records.image(**unscored), scored=False, label_exact=None, label_share=None)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "broken"
    assert found.sentence == ("1 of 1 image is certified. There are no originals to compare with.")
    told = "1 certificate of images was granted; without the originals nothing here says whether they are right."
    assert told in found.details


def test_so_many_certificates_bound_the_rate_of_wrong_ones(write_run: Any, records: Any) -> None:
    rows = [records.attack(k, 0, records.image(90.0, f"i/{k}")) for k in range(200)]
    found = verdict(read_run(write_run(rows)))
    assert found.details[0] == (
        "200 certificates of images were granted, none of 200 checked is wrong: at most 3/200 = 1.5 % of such "
        "certificates are wrong (95 % confidence)."
    )
    wrong = records.attack(0, 0, records.image(90.0), attack="labels", label_exact=False)
    wrong["images"] = [records.image(None)]
    found = verdict(read_run(write_run([*rows, wrong], name="wrong")))
    assert found.details[0].startswith("200 certificates of images were granted, none of 200 checked is wrong")
    assert found.details[1].startswith(
        "1 certificate of labels (which classes an update holds, and how often; of no image) was granted, and 1 of 1 "
        "checked is wrong: a fault"
    )


@pytest.mark.parametrize(("tested", "told"), [(4, "4 test images: ± 34 points"), (99, "99 test images: ± 9 points")])
def test_few_test_images_are_said_to_be_few(write_run: Any, records: Any, tested: int, told: str) -> None:
    summary = {"kind": "federated", "finished": True, "test_pictures": tested}
    found = verdict(read_run(write_run([records.refusal(1, 0, "withheld")], summary=summary)))
    assert found.cautions == (f"The accuracy rests on {told}.",)
    assert found.line.endswith(f" The accuracy rests on {told}.")


@pytest.mark.parametrize(
    ("lost", "told"), [((2,), "round 2"), ((1, 3), "rounds 1 and 3"), ((1, 2, 3, 4), "4 of 5 rounds"), ((), None)]
)
def test_rounds_without_an_aggregate_are_told_at_once(
    write_run: Any, records: Any, lost: tuple[int, ...], told: str | None
) -> None:
    whole = {"client": None, "error": "nothing was aggregated: the model is unchanged"}
    failures = [{"client": 3, "error": "ValueError: one client alone"}]
    rounds = [
        {"round": number, "clients": 4, "failures": [*failures, whole] if number in lost else failures}
        for number in range(6)
    ]
    found = verdict(read_run(write_run([records.refusal(1, 0, "withheld")], rounds)))
    expected = [] if told is None else [f"Nothing was aggregated in {told}: the model did not change."]
    assert [caution for caution in found.cautions if "aggregated" in caution] == expected


def test_the_line_and_the_record_of_a_verdict(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(12.5, guess_psnr=9.0), certificate={})])))
    caution = "1 different image observed: without a certificate it takes at least 4, all recognisable, to say broken."
    assert found.line == f"open: {found.sentence} {caution}"
    assert found.to_dict() == {
        "level": "open",
        "sentence": found.sentence,
        "cautions": [caution],
        "images": 1,
        "updates": 1,
        "certified": 0,
        "recognisable": 0,
        "recognisable_as_seen": 0,
        "guessed": 0,
        "unguessed": 0,
        "refused": 0,
        "failed": 0,
    }


def test_refusals_for_several_reasons_are_listed(write_run: Any, records: Any) -> None:
    rows = [records.refusal(1, k, f"{reason} reason") for k, reason in enumerate(("a", "b", "c", "d", "e"))]
    found = verdict(read_run(write_run(rows)))
    assert "because" not in found.sentence
    assert found.details[0] == "patch_gradient refused: a reason."
    assert "2 further reasons below." in found.details


def test_reasons_that_differ_in_numbers_alone_are_one(write_run: Any, records: Any) -> None:
    rows = [records.refusal(1, k, f"condition number {1e6 + 1e3 * k:.3e} is too large") for k in range(1000)]
    found = verdict(read_run(write_run(rows)))
    told = "condition number 1.000e+06 is too large (one of 1,000 sets of numbers)."
    assert found.sentence.endswith(f"patch_gradient refused 1,000 of 1,000 observed updates, because {told}")
    assert not [detail for detail in found.details if "condition number" in detail]
    found = verdict(read_run(write_run([*rows, records.attack(2, 0, records.image(12.0))], name="another")))
    assert f"patch_gradient refused: {told}" in found.details


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "No attack has run"),
        ([{"status": "failed", "images": []}], "No attack came to an end"),
        (
            [{"scored": False, "psnr": None, "reconstruction": "r.png", "certificate": {"status": "uncertified"}}],
            "there are no originals to compare with",
        ),
        ([{"scored": False, "psnr": None}], "Only labels were attacked"),
        (
            [{"attack": "a", "label_share": None, "label_exact": None}, {"attack": "b", "trace": [{"step": 1}]}],
            "a and b came to an end without an image that could be used",
        ),
        ([{"attack": "a", "label_share": None, "label_exact": None}, {"attack": "llg"}], "a came to an end without"),
    ],
)
def test_what_was_not_measured_is_not_tested(
    write_run: Any, records: Any, rows: list[dict[str, Any]], words: str
) -> None:
    attacks = []
    for row in rows:
        picture = records.image(row.pop("psnr", None), reconstruction=row.pop("reconstruction", None))
        attacks.append(records.attack(1, 0, **{"images": [picture]} | row))
    found = verdict(read_run(write_run(attacks)))
    assert found.level == "not tested"
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
    assert [likeness(24.2, guess) for guess in (None, 23.2, 23.3)] == ["recognisable"] * 2 + ["no better than a guess"]
    assert [likeness(17.0, guess) for guess in (None, 16.0, 18.0)] == ["traces"] * 2 + ["no better than a guess"]
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


def test_a_failure_is_told(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(12.0), certificate={}) for k in range(2)]
    rows += [records.attack(1, k, attack="strong", status="failed", scored=False) for k in range(2)]
    found = verdict(read_run(write_run(rows)))
    assert found.level == "open"
    assert "Failed: strong on 2 of 2 observed updates; what it would have rebuilt is not known." in found.details


def test_an_attack_that_never_ran_is_told(write_run: Any, records: Any) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(12.0), attack="other")])))
    assert found.level == "open"
    assert "Never ran: patch_gradient." in found.details


def test_a_baseline_that_never_ran_may_have_done_as_well(write_run: Any, records: Any) -> None:
    """The run stopped before its first line."""
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(20)]
    config = "attack: {patch_gradient: {}, blind: {target: random}}\n"
    folder = write_run(rows, config=config)
    found = verdict(read_run(folder))
    assert (found.level, found.counts.unguessed) == ("open", 20)
    assert "Never ran: blind." in found.details
    assert "(without the update: 0 of 20, unknown of 20 more)" in found.sentence
    (pool,) = pool_runs([read_run(folder)])
    assert pool.leakage.counts == pool.only(pool.tried).leakage.counts == found.counts
    assert read_counts([folder], {"patch_gradient", "blind"}, {"blind"}) == found.counts


def test_a_run_that_observed_nothing_leaves_what_others_showed(write_run: Any, records: Any) -> None:
    """A baseline that refused every update of theirs counts as not asked, whatever it would have done here."""
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=10.0), certificate={}) for k in range(20)]
    rows += [{**row, "attack": "blind", "status": "refused", "scored": False} for row in rows]
    config = "attack: {patch_gradient: {}, blind: {target: random}}\n"
    folders = [
        write_run(lines, config=f"seed: {seed}\n{config}", name=f"{seed}") for seed, lines in enumerate([rows, []])
    ]
    (pool,) = pool_runs([read_run(folder) for folder in folders])
    assert verdict(read_run(folders[0])).level == "broken"
    assert (pool.leakage.counts.level, pool.leakage.counts.unguessed) == ("broken", 0)


def test_a_picture_observed_twice_is_said_to_be_one(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(90.0, f"digits/{k}")) for k in range(9)]
    rows += [{**row, "attack": "other"} for row in rows]
    again = records.attack(2, 3, records.image(90.0, "digits/3"))
    found = verdict(read_run(write_run([*rows, again])))
    assert found.sentence.startswith("The server rebuilt 9 of 9 different images recognisably")
    elsewhere = records.attack(2, 9, records.image(90.0, "digits/3"))  # another client's picture of that name
    unnamed = records.attack(2, 3, records.image(90.0, "digits/3"), batch_size=2)
    for number, row in enumerate((elsewhere, unnamed, records.refusal(2, 3, "withheld"))):
        assert "different" not in verdict(read_run(write_run([*rows, row], name=f"run-{number}"))).sentence


def test_the_reason_of_a_refusal_is_told_where_labels_alone_were_attacked(write_run: Any, records: Any) -> None:
    rows = [records.refusal(1, k, "the head is withheld", attack="mine", target="labels") for k in range(3)]
    found = verdict(read_run(write_run(rows)))
    assert found.sentence.startswith("Only labels were attacked")
    assert "mine refused: the head is withheld." in found.details


@pytest.mark.parametrize(("best", "told"), [(19.97, "19.9 dB"), (19.94, "19.9 dB"), (12.34, "12.3 dB")])
def test_what_stays_below_is_not_rounded_up(write_run: Any, records: Any, best: float, told: str) -> None:
    found = verdict(read_run(write_run([records.attack(1, 0, records.image(best))])))
    assert found.sentence.endswith(f"the best result, {told} by patch_gradient, stays below 20 dB.")


def test_an_attack_of_ones_own_is_known_by_what_it_left(write_run: Any, records: Any) -> None:
    config = "attack: {mine: {_target_: attacks.mine.Labels}}\n"
    row = records.attack(1, 0, records.image(None), attack="mine", certificate={}, labels=[3])
    assert verdict(read_run(write_run([row], config=config))).sentence.startswith("Only labels were attacked")


@pytest.mark.parametrize("least", [15.0, 20.0, 30.0, 40.0])
def test_decibels_never_look_better_than_their_words(least: float) -> None:
    assert (graded(least - 0.03), graded(least)) == (f"{least - 0.1:.1f} dB", f"{least:.1f} dB")
    assert likeness(least - 0.03) != likeness(least)
    assert (graded(None), graded(least + 5.03), graded(300.0)) == ("–", f"{least + 5:.1f} dB", "exact")
