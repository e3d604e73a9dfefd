"""A private picture that the model saw in several forms is one picture, whatever counts it."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.report.compare.verdict import judge_defenses
from fedsim.report.run.baseline import best_baseline
from fedsim.report.run.images.leakage import summarise_leakage
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import leakage_by_round, psnr_values, summarise_attacks
from fedsim.report.run.verdict import verdict

CONFIG = "seed: 0\nattack: {patch_gradient: {}}\ndefense: {defense}\n"


def forms(records: Any, name: str, private: float | None, seen: list[float | None], **values: Any) -> list[Any]:
    """One picture, and what an attack made of each form in which the model saw it."""
    return [records.image(psnr, name, private_psnr=private, private_ssim=0.1, **values) for psnr in seen]


@pytest.fixture
def jigsawed(write_run: Any, records: Any) -> Any:
    """One update of two pictures over four local steps: `a` came out, `b` did not."""
    images = [
        *forms(records, "a", 25.0, [60.0, None, 12.0, None], guess_psnr=11.0),
        *forms(records, "b", 8.0, [None, None, None, 30.0], guess_psnr=12.0),
    ]
    return read_run(write_run([records.attack(1, 0, *images[::2], *images[1::2], batch_size=2)]))


def test_every_count_is_of_private_pictures(jigsawed: Any) -> None:
    leakage = summarise_leakage(jigsawed)
    assert (leakage.pictures, leakage.returned, leakage.scored, leakage.recognisable) == (2, 2, 2, 1)
    (row,) = summarise_attacks(jigsawed)
    assert (row.pictures, row.recognisable, row.success[20.0]) == (2, 1, 0.5)
    assert (row.mean_leaked, row.min_psnr, row.max_psnr) == (16.5, 8.0, 25.0)
    assert (row.mean_psnr, row.min_seen_psnr) == (34.0, 12.0)  # the model saw each form by itself
    assert (row.as_seen, row.recognised, row.seen_success[20.0], row.seen_success[40.0]) == (1, 1.0, 1.0, 0.5)
    assert sorted(psnr_values(jigsawed, "patch_gradient")) == [8.0, 25.0]
    assert leakage_by_round(jigsawed, "patch_gradient") == [(1, 16.5)]
    assert "rebuilt 1 of 2 images recognisably" in verdict(jigsawed).sentence


def test_a_picture_that_came_out_as_its_own_and_as_seen_counts_once(write_run: Any, records: Any) -> None:
    own, turned = records.image(40.0, "a", private_psnr=40.0), records.image(40.0, "a", private_psnr=9.0)
    (row,) = summarise_attacks(read_run(write_run([records.attack(1, 0, own, turned, batch_size=1)])))
    assert (row.pictures, row.recognisable, row.as_seen, row.recognised) == (1, 1, 0, 1.0)


def test_the_guess_counts_each_picture_once(jigsawed: Any) -> None:
    baseline = best_baseline("patch_gradient", jigsawed.attacks, [])
    assert baseline is not None
    assert (baseline.psnr, baseline.gain) == pytest.approx((11.5, 5.0))
    assert (baseline.pictures, baseline.of) == (2, 2)
    (record,) = jigsawed.attacks
    blind = replace(record, attack="blind", images=tuple(replace(one, private_psnr=20.0) for one in record.images))
    baseline = best_baseline("patch_gradient", jigsawed.attacks, [blind])
    assert baseline is not None
    assert (baseline.name, baseline.pictures, baseline.of) == ("blind", 2, 2)


def test_the_best_result_of_a_picture_counts(write_run: Any, records: Any) -> None:
    images = [records.image(psnr, "a") for psnr in (12.0, 26.0, None)]
    run = read_run(write_run([records.attack(1, 0, *images, batch_size=1)]))
    assert summarise_leakage(run).recognisable == summarise_leakage(run).pictures == 1
    assert summarise_attacks(run)[0].mean_leaked == 26.0


@pytest.mark.parametrize("differing", [{"label": 4}, {"guess_psnr": 12.5}])
def test_pictures_of_one_name_that_differ_are_not_one(write_run: Any, records: Any, differing: Any) -> None:
    """Two clients of a sum may each call a picture `1.png`."""
    images = [
        records.image(30.0, "1.png", guess_psnr=11.0),
        records.image(9.0, "1.png", **{"guess_psnr": 11.0} | differing),
    ]
    run = read_run(write_run([records.attack(1, 0, *images), records.attack(1, 0, *images, attack="other")]))
    leakage = summarise_leakage(run)
    assert (leakage.pictures, leakage.scored, leakage.recognisable) == (2, 2, 1)


def test_pictures_that_are_not_listed_count_too(write_run: Any, records: Any) -> None:
    run = read_run(write_run([records.attack(1, 0, records.image(30.0, "a"), batch_size=4)]))
    assert summarise_leakage(run).pictures == 4
    assert summarise_attacks(run)[0].success[20.0] == 0.25


def test_chance_is_judged_by_pictures_and_not_by_their_forms(write_run: Any, records: Any) -> None:
    """5 of 8 pictures instead of all may be chance; 50 of 80 would not be."""
    plain = [[records.image(20.4, f"p{k}")] for k in range(8)]
    defended = [forms(records, f"p{k}", 20.4 if k < 5 else 19.9, [9.0] * 10, guess_psnr=k) for k in range(8)]
    runs = [
        read_run(
            write_run(
                [records.attack(1, k, *images) for k, images in enumerate(updates)],
                config=CONFIG.replace("{defense}", defense),
                name=name,
            )
        )
        for name, defense, updates in (("plain", "{}", plain), ("defended", "{mjp: {}}", defended))
    ]
    (found,) = judge_defenses(runs)
    assert found.comparison.startswith("Chance may explain the difference from undefended: 5 of 8 images recognisable")
