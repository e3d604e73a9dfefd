"""Which of the observed pictures are one, and what the attacks took of all of them."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.run.images.counts import count_images
from fedsim.report.run.images.leakage import Leakage, summarise_leakage
from fedsim.report.run.images.same import named, same_images
from fedsim.report.run.read import read_run
from fedsim.report.run.records import AttackRecord


@pytest.fixture
def leakage(write_run: Any, records: Any) -> Any:
    """`leakage((client, seed, PSNR, picture, guess), …)`: an update of one picture each."""
    folders = iter(range(100))

    def make(*updates: tuple[object, int, float, str, float | None]) -> Leakage:
        rows = [
            records.attack(number, 0, records.image(psnr, name, guess_psnr=guess)) | {"client": client}
            for number, (client, _, psnr, name, guess) in enumerate(updates)
        ]
        run = read_run(write_run(rows, name=f"run-{next(folders)}"))
        seeded = [replace(one, seed=seed) for one, (_, seed, *_) in zip(run.attacks, updates, strict=True)]
        return summarise_leakage(replace(run, attacks=tuple(seeded)))

    return make


def test_the_guess_tells_pictures_of_one_name_apart(leakage: Any) -> None:
    found = leakage((0, 0, 30.0, "a", 10.0), (0, 0, 10.0, "a", 10.0), (1, 0, 15.0, "a", 11.0))
    assert (found.pictures, found.different) == (3, 2)
    assert (found.recognisable, found.counts.recognisable) == (1, 1)


def test_one_image_under_several_names_is_one(write_run: Any, records: Any) -> None:
    """The guess, to the last bit, is that of the image; its label beside it."""
    image = records.image(30.0, "0.png", guess_psnr=10.0)
    rows = [records.attack(1, k, {**image, "image": f"{k}.png"}, certificate={}) for k in range(4)]
    other = records.attack(2, 0, {**image, "image": "4.png", "label": 5}, certificate={})
    found = summarise_leakage(read_run(write_run([*rows, other])))
    assert (found.pictures, found.different, found.counts.images, found.counts.recognisable) == (5, 2, 2, 2)


def test_an_image_is_its_numbers_where_they_were_recorded(write_run: Any, records: Any) -> None:
    """Of black and white images a grey guess has the same distance: that tells them no more apart."""
    image = records.image(30.0, "0.png", guess_psnr=6.0)
    rows = [records.attack(1, k, {**image, "image": f"{k}.png", "content": str(k % 3)}) for k in range(6)]
    found = summarise_leakage(read_run(write_run(rows)))
    assert (found.different, found.counts.recognisable) == (3, 3)


def test_images_of_other_numbers_stay_apart_beside_one_without_a_digest(write_run: Any, records: Any) -> None:
    image = records.image(30.0, "0.png", guess_psnr=10.0)
    rows = [records.attack(1, k, {**image, "content": str(k)}, certificate={}) for k in range(4)]
    rows.append(records.attack(2, 0, image, certificate={}))
    found = summarise_leakage(read_run(write_run(rows)))
    assert (found.different, found.counts.images, found.counts.recognisable) == (4, 4, 4)
    several = [*rows[:4], records.attack(2, 0, {**image, "image": "other.png"}, certificate={})]
    assert summarise_leakage(read_run(write_run(several, name="another"))).different == 5


def test_one_image_under_two_names_makes_no_one_of_two_digests(write_run: Any, records: Any) -> None:
    images = [records.image(30.0, name, guess_psnr=6.0) for name in "ab"]
    rows = [records.attack(1, k, {**one, "content": str(k)}) for k, one in enumerate(images)]
    rows += [records.attack(2, k, one) for k, one in enumerate(images)]
    assert summarise_leakage(read_run(write_run(rows))).different == 2


def test_an_image_that_is_nearly_grey_is_not_recognised_by_being_grey(write_run: Any, records: Any) -> None:
    image = records.image(30.0, "0.png", guess_psnr=8.0)
    for grey, count in ((30.2, 0), (28.0, 1)):
        run = read_run(write_run([records.attack(1, 0, {**image, "grey_psnr": grey})], name=f"grey-{grey}"))
        assert summarise_leakage(run).counts.recognisable == count


def test_names_that_one_seed_shows_to_be_one_image_are_one_under_another(write_run: Any, records: Any) -> None:
    rows = [records.attack(k, 0, records.image(30.0, name)) for k, name in enumerate("abab")]
    run = read_run(write_run(rows))

    def marked(*guesses: float) -> list[AttackRecord]:
        marks = zip(run.attacks, (0, 0, 1, 1), guesses, strict=True)
        return [replace(one, seed=k, images=(replace(one.images[0], guess_psnr=mark),)) for one, k, mark in marks]

    for guesses, number in (((9.0, 9.0, 8.0, 8.0), 1), ((9.0, 9.0, 8.0, 7.0), 1), ((9.0, 9.5, 8.0, 7.0), 2)):
        same = same_images(named(marked(*guesses)))
        assert (len(set(same.names.values())), same.distinct) == (number, True)


def test_one_picture_in_two_sums_is_one(leakage: Any) -> None:
    found = leakage(("0 (sum of 2 clients)", 0, 30.0, "a", 10.0), ("3 (sum of 2 clients)", 0, 30.0, "a", 10.0))
    assert (found.pictures, found.different, found.counts.recognisable) == (2, 1, 1)


def test_without_a_guess_another_clients_picture_is_another(leakage: Any) -> None:
    assert leakage((0, 0, 30.0, "a", None), (1, 0, 30.0, "a", None)).different == 2


def test_another_seed_has_another_guess_and_maybe_other_clients(leakage: Any) -> None:
    both = (0, 0, 30.0, "a", 10.0), (1, 0, 30.0, "b", 9.0), (5, 1, 30.0, "a", 10.1), (6, 1, 10.0, "b", 9.1)
    found = leakage(*both)
    assert (found.pictures, found.different, found.counts.recognisable) == (4, 2, 2)
    assert leakage(*both, (7, 1, 30.0, "a", 12.0)).different is None  # two of that name under one seed


def test_images_that_nobody_tells_apart_count_as_few(leakage: Any) -> None:
    """Two of one name under one seed, and no guess that holds under both."""
    found = leakage((0, 0, 30.0, "a", 10.0), (1, 0, 30.0, "a", 9.0), (5, 1, 30.0, "a", 10.1))
    assert found.different is None
    assert (found.counts.images, found.counts.recognisable) == (1, 1)


def test_what_failed_or_was_refused_is_no_test_and_is_told(write_run: Any, records: Any) -> None:
    rows = [
        records.attack(1, 0, records.image(30.0, "a", guess_psnr=10.0), certificate={}),
        records.attack(2, 0, records.image(None, "b", guess_psnr=11.0), status="failed", scored=False),
        records.refusal(3, 0, "withheld", images=[records.image(None, "c", guess_psnr=12.0)]),
        records.refusal(4, 0, "withheld", batch_size=4),
    ]
    counts = summarise_leakage(read_run(write_run(rows))).counts
    assert (counts.images, counts.recognisable, counts.ended) == (1, 1, 1)
    assert (counts.refused, counts.failed) == (1 + 4, 1)


def test_attacks_on_labels_end_on_no_image(write_run: Any, records: Any) -> None:
    rows = [
        records.attack(1, 0, records.image(30.0, "a"), certificate={}),
        records.refusal(2, 0, "withheld", attack="mine", images=[records.image(None, "b")]),
    ]
    run = read_run(write_run(rows))
    assert [summarise_leakage(run, labels=names).counts.refused for names in (set(), {"mine"})] == [1, 0]


def test_without_the_truth_images_of_several_seeds_are_not_one(write_run: Any, records: Any) -> None:
    """Their names are the places in which an attack returned them."""
    shown = [records.image(None, f"round-00001-client-00000/{k}", label=None, reconstruction="a.png") for k in range(8)]
    attacked = read_run(write_run([records.attack(1, 0, *shown, scored=False)])).attacks[0]
    pooled = [replace(attacked, seed=seed, observation=f"{seed}/{attacked.observation}") for seed in range(3)]
    counts = count_images(pooled)
    assert (counts.images, counts.certified) == (24, 24)
