"""Certificates are bounded by different updates, however many attacks judge one."""

from typing import Any

from fedsim.report.run.certificates import certificate_sentences, certificates
from fedsim.report.run.read import read_run


def test_two_attacks_on_one_update_are_one_draw(write_run: Any, records: Any) -> None:
    attacks = ("patch_gradient", "row_space")
    rows = [records.attack(1, k, records.image(90.0, f"i/{k}"), attack=name) for k in range(2) for name in attacks]
    run = read_run(write_run(rows))
    images, _ = certificates(run.attacks)
    assert (images.granted, images.checked, images.updates) == (4, 4, 2)
    assert certificate_sentences(run.attacks, asked=True) == [
        "4 certificates of images were granted, none of 4 checked, of 2 different updates, is wrong: too few to bound "
        "the share of wrong ones."
    ]


def test_many_updates_bound_the_share_of_those_with_a_wrong_one(write_run: Any, records: Any) -> None:
    attacks = ("patch_gradient", "row_space")
    rows = [records.attack(k, 0, records.image(90.0, f"i/{k}"), attack=name) for k in range(60) for name in attacks]
    told = certificate_sentences(read_run(write_run(rows)).attacks, asked=True)
    assert told == [
        "120 certificates of images were granted, none of 120 checked, of 60 different updates, is wrong: at most "
        "3/60 = 5.0 % of such updates have a wrong one (95 % confidence)."
    ]


def test_updates_of_the_same_images_are_one_draw(write_run: Any, records: Any) -> None:
    """32 clients share updates of two images, equal to the last bit: as two tests of the certificate."""
    rows = [records.attack(1, k, records.image(90.0, f"i/{k}", content="ab"[k % 2])) for k in range(32)]
    told = certificate_sentences(read_run(write_run(rows)).attacks, asked=True)
    assert told == [
        "32 certificates of images were granted, none of 32 checked, of 2 different updates, is wrong: too few to "
        "bound the share of wrong ones."
    ]
    batches = [["a", "b"], ["b", "a"], ["a", "a"], ["a", "b", "b"]]
    rows = [
        records.attack(1, k, *(records.image(90.0, one, content=one) for one in held)) for k, held in enumerate(batches)
    ]
    rows.append(records.attack(1, 9, *(records.image(90.0, one, content=one, label=7) for one in batches[0])))
    rows.append(records.attack(1, 10, records.image(90.0, "a", content="a"), records.image(90.0, "old")))
    rows.append(records.attack(1, 11, records.image(90.0, "a", content="a"), records.image(90.0, "old")))
    images, _ = certificates(read_run(write_run(rows, name="batches")).attacks)
    assert images.updates == 4 + 2, "without all digests an update is known by its name"


def test_a_rule_that_calls_another_is_no_second_test(write_run: Any, records: Any) -> None:
    rows = []
    for k in range(100):
        for name in ("labels", "labels_certified"):
            row = records.attack(k, 0, records.image(None), attack=name, label_exact=True)
            rows.append({**row, "images": [records.image(None)]})
    _, labels = certificates(read_run(write_run(rows)).attacks)
    assert (labels.granted, labels.checked, labels.updates) == (200, 200, 100)
    assert "at most 3/100 = 3.0 % of such updates" in labels.sentences[0]
