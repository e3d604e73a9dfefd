"""Counts, means and rates on a run small enough to do by hand."""

from typing import Any

import pytest

from fedsim.report.render import build_report
from fedsim.report.run.attack_lines import attack_lines
from fedsim.report.run.certificates import Certificates, certificates
from fedsim.report.run.images.leakage import summarise_leakage
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import (
    attack_failures,
    client_failures,
    final_accuracy,
    leakage_by_round,
    refusals,
    run_times,
    summarise_attacks,
)
from fedsim.report.run.verdict import verdict
from fedsim.storage.run_folder import UNCHANGED


def test_one_attack_by_hand(write_run: Any, records: Any) -> None:
    uncertified = {"status": "uncertified", "reason": "rank"}
    run = read_run(
        write_run(
            [
                records.attack(1, 0, records.image(100.0, "digits/0"), records.image(30.0)),
                records.attack(1, 1, records.image(10.0), certificate=uncertified, label_share=0.0, label_exact=False),
                records.attack(2, 0, records.image(None), seconds=1.5, attempts=2, certificate=uncertified),
                records.refusal(2, 1, "withheld"),
                records.attack(2, 2, status="failed", reason="timed out"),
            ]
        )
    )
    (row,) = summarise_attacks(run)
    assert (row.done, row.refused, row.failed, row.retried) == (3, 1, 1, 1)
    assert (row.certified, row.certified_labels, row.wrongly_certified) == (1, 0, 1)  # an image at 30 dB is not exact
    assert row.mean_psnr == pytest.approx((60 + 30 + 10) / 3)
    assert (row.min_psnr, row.max_psnr) == (10.0, 100.0)
    assert (row.pictures, row.recognisable) == (4, 2)
    assert row.success == {20.0: 0.5, 30.0: 0.5, 40.0: 0.25}
    assert row.label_share == pytest.approx((2 * 1 + 1 * 0 + 1 * 1) / 4)
    assert row.exact_batches == pytest.approx(2 / 3)
    assert row.median_seconds == 0.5
    assert row.total_seconds == pytest.approx(3.5)
    leakage = summarise_leakage(run)
    assert (leakage.observations, leakage.pictures) == (5, 6)
    assert (leakage.returned, leakage.scored, leakage.recognisable) == (3, 3, 2)
    # Of one client one image has that name; the certificate of the update is wrong about another, at 30 dB.
    assert (leakage.counts.images, leakage.counts.certified, leakage.counts.refused) == (3, 0, 1)
    assert [(group.reason, group.count) for group in refusals(run)] == [("withheld", 1)]
    assert [(group.reason, group.count) for group in attack_failures(run)] == [("timed out", 1)]


def test_one_exact_picture_does_not_lift_a_mean(write_run: Any, records: Any) -> None:
    """In the headline as in comparisons and matrices: above 60 dB counts as 60, unless all lie there."""

    def run(name: str, *psnrs: float) -> Any:
        images = (records.image(psnr, f"i/{k}", guess_psnr=10.0) for k, psnr in enumerate(psnrs))
        return read_run(write_run([records.attack(1, k, image) for k, image in enumerate(images)], name=name))

    one, all_exact = run("one", 160.0, 24.0, 24.0, 24.0), run("all", 160.0, 150.0, 140.0, 150.0)
    assert [line.split("; ")[1] for line in attack_lines(one)] == [
        "33.0 dB on average (the mean of public images: 10.0 dB)"
    ]
    assert "patch_gradient reached 33.0 dB on average" in verdict(one).sentence
    assert "patch_gradient reached 150.0 dB on average" in verdict(all_exact).sentence
    assert leakage_by_round(one, "patch_gradient") == [(1, 33.0)]
    page = build_report(one.path).read_text(encoding="utf-8")
    assert '<div class="value">33.0 dB</div>' in page


def test_scores_against_private_pictures(write_run: Any, records: Any) -> None:
    """The mean and the least of a column are of the same thing."""
    run = read_run(
        write_run(
            [
                records.attack(1, 0, records.image(60.0, private_psnr=10.0, private_ssim=0.1), attack="changed"),
                records.attack(1, 1, records.image(40.0, private_psnr=40.0, private_ssim=0.5), attack="changed"),
                records.attack(2, 0, records.image(None, private_psnr=None), attack="changed"),
                records.attack(1, 0, records.image(50.0, private_psnr=50.0, private_ssim=0.5), attack="same"),
                records.attack(1, 0, records.image(20.0, private_psnr="x"), attack="old"),
            ]
        )
    )
    changed, same, old = summarise_attacks(run)  # the strongest is who shows most, in either way
    assert (changed.mean_psnr, changed.min_seen_psnr) == (50.0, 40.0)
    assert (changed.mean_leaked, changed.min_psnr) == (25.0, 10.0)
    assert (changed.recognisable, changed.as_seen, changed.recognised) == (1, 1, pytest.approx(2 / 3))
    assert tuple(one.means["ssim"][1] for one in (changed, same, old)) == (pytest.approx(0.3), 0.5, 0.5)
    assert (changed.twofold, same.twofold, old.twofold) == (True, False, False)


def test_a_picture_counts_once_by_its_best_attack(write_run: Any, records: Any) -> None:
    run = read_run(
        write_run(
            [
                records.attack(1, 0, records.image(50.0), attack="weak"),
                records.attack(1, 0, records.image(10.0), attack="strong"),
                records.attack(1, 1, records.image(60.0), attack="strong"),
                records.attack(1, 2, records.image(70.0), attack="strong"),
            ]
        )
    )
    leakage = summarise_leakage(run)
    assert (leakage.pictures, leakage.recognisable) == (3, 3)
    assert certificates(run.attacks)[0] == Certificates("images", granted=4, checked=4, wrong=2, updates=3)
    assert [row.attack for row in summarise_attacks(run)] == ["strong", "weak"]


def test_an_attack_on_labels_alone_has_no_success_rate(write_run: Any, records: Any) -> None:
    run = read_run(write_run([records.attack(1, 0, records.image(None, ssim=None), attack="llg", label_share=0.5)]))
    (row,) = summarise_attacks(run)
    assert row.mean_psnr is None
    assert row.success[20.0] is None
    assert row.label_share == 0.5
    assert summarise_leakage(run).returned == 0


def test_leakage_round_by_round(write_run: Any, records: Any) -> None:
    run = read_run(
        write_run(
            [
                records.attack(2, 0, records.image(10.0)),
                records.attack(1, 0, records.image(30.0)),
                records.attack(1, 1, records.image(15.0)),
                records.attack(3, 1, records.image(None), scored=False),
            ]
        )
    )
    assert leakage_by_round(run, "patch_gradient") == [(1, 22.5), (2, 10.0)]


def test_accuracy_failures_and_times(write_run: Any) -> None:
    unchanged = {"client": None, "error": UNCHANGED}
    rounds = [
        {"round": 1, "accuracy": 0.5, "failures": [{"client": 4, "error": "RuntimeError: x"}, unchanged]},
        {"round": 2, "loss": 1.0},
    ]
    run = read_run(write_run(rounds=rounds))
    assert final_accuracy(run) == 0.5
    assert [(row.number, row.client, row.error) for row in client_failures(run)] == [(1, "4", "RuntimeError: x")]
    times = run_times(run)
    assert (times.rounds, times.total, times.median) == (2, 6.0, 3.0)
    assert (times.slowest, times.slowest_round, times.run) == (4.0, 2, 9.0)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("residual 3.1e-02 is above 1e-3", "residual 1,234.5 is above 1e-3", True),
        ("off by -0.94.", "off by 12.", True),
        ("4 images: at most 1", "16 images: at most 1", True),
        ("blocks.0.attn is withheld", "blocks.1.attn is withheld", False),
        ("conv1 is withheld", "conv2 is withheld", False),
        ("rank 3 of 4", "rank 3 of four", False),
    ],
)
def test_reasons_are_grouped_without_their_numbers(
    write_run: Any, records: Any, one: str, other: str, alike: bool
) -> None:
    rows = [records.refusal(1, k, reason) for k, reason in enumerate((one, other, other))]
    groups = refusals(read_run(write_run(rows)))
    shown = [(group.reason, group.count, group.wordings) for group in groups]
    assert shown == ([(other, 3, 2)] if alike else [(other, 2, 1), (one, 1, 1)])
