"""A line for each attack, beside what is had without the update."""

import json
from typing import Any

from fedsim.report.render import build_report
from fedsim.report.run.attack_lines import attack_lines
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict


def test_each_attack_and_its_guess(write_run: Any, records: Any) -> None:
    shown = {"label": 1, "guess_psnr": 10.0}
    rows = [records.attack(1, k, records.image(30.0 + k, f"i/{k}", **shown), label_share=None) for k in range(3)]
    rows += [records.attack(1, 0, records.image(8.0, "i/0", **shown), attack="dlg", label_share=None)]
    rows += [records.refusal(1, 1, "no", attack="dlg"), records.refusal(1, 2, "raised", attack="dlg", status="failed")]
    rows += [records.refusal(1, k, "no", attack="april") for k in range(3)]
    assert attack_lines(read_run(write_run(rows))) == [
        "patch_gradient: 3 done of 3 updates; 31.0 dB on average (the mean of public images: 10.0 dB)",
        "dlg: 1 done, 1 refused, 1 failed of 3 updates; 8.0 dB on average (the mean of public images: 10.0 dB)",
        "april: 3 refused of 3 updates",
    ]


def test_mid_grey_is_the_guess_without_public_pictures_and_where_it_reaches_more(write_run: Any, records: Any) -> None:
    """As `server.attack_queue.results` writes it: the guess is mid-grey, and so reaches what mid-grey does."""

    def line(*greys: float | None) -> str:
        images = [records.image(31.0, f"{k}", guess_psnr=7.6, grey_psnr=grey) for k, grey in enumerate(greys)]
        for image in images:
            image["guess_psnr"] = 7.6
        rows = [records.attack(k, 0, image) for k, image in enumerate(images)]
        (told,) = attack_lines(read_run(write_run(rows, name=f"grey-{greys}")))
        return str(told)

    assert line(7.6, 7.6).endswith("31.0 dB on average (mid-grey: 7.6 dB); 100 % of the labels right")
    assert "(mid-grey: 7.7 dB)" in line(7.7, 7.7)
    for greys in ((7.4, 7.5), (None, None), (7.6, None)):
        assert "(the mean of public images: 7.6 dB)" in line(*greys)


def test_labels_beside_every_class_equally_often(write_run: Any, records: Any) -> None:
    images = [records.image(None, f"i/{k}", label=label) for k, label in enumerate((0, 0, 0, 1))]
    for share, percent, none in ((1.0, "100 %", ""), (0.75, "75.0 %", "no better than a guess, ")):
        rows = [records.attack(1, 0, *images, attack="labels", target="labels", label_share=share)]
        folder = write_run(rows, name=percent)
        assert attack_lines(read_run(folder)) == [f"labels: 1 done of 1 update; {percent} of the labels right"]
        (folder / "classes.json").write_text(json.dumps(["cat", "dog"]))
        beside = f" ({none}each class equally often: 75.0 %)"
        told = f"labels: 1 done of 1 update; {percent} of the labels right{beside}"
        assert attack_lines(read_run(folder)) == [told]
        assert f"{percent} of the labels were recovered, by labels{beside}." in verdict(read_run(folder)).details
        assert f'<div class="note">by labels{beside}</div>' in build_report(folder).read_text(encoding="utf-8")


def test_a_baseline_is_said_to_be_one_and_what_was_not_compared_too(write_run: Any, records: Any) -> None:
    unknown = {"label_share": None, "label_exact": None}
    rows = [records.attack(1, 0, records.image(9.0, "i/0"), attack="blind", baseline=True, **unknown)]
    rows += [records.attack(1, 0, attack="own", scored=False, **unknown)]
    assert attack_lines(read_run(write_run(rows))) == [
        "blind (a baseline): 1 done of 1 update; 9.0 dB on average",
        "own: 1 done of 1 update; not scored",
    ]


def test_what_stays_below_the_bar_is_not_rounded_up_to_it(write_run: Any, records: Any) -> None:
    image = records.image(19.98, "i/0", guess_psnr=19.97)
    (line,) = attack_lines(read_run(write_run([records.attack(1, 0, image, label_share=None)])))
    assert line.endswith("; 19.9 dB on average (the mean of public images: 19.9 dB)")
    image = records.image(39.98, "i/0", private_psnr=14.98, guess_psnr=29.98)
    (line,) = attack_lines(read_run(write_run([records.attack(1, 0, image, label_share=None)], name="changed")))
    assert line.endswith(
        "; 14.9 dB on average (the mean of public images: 29.9 dB); 39.9 dB against what the model saw"
    )


def test_a_set_of_classes_is_held_against_a_guess_of_as_many(write_run: Any, records: Any) -> None:
    """Both classes of a client that holds two of ten are named, once each: 2 of 16 labels, and all that a set can say.

    Sixteen labels, each class equally often, would have 20 % right; who names every class learns nothing.
    """
    images = [records.image(None, f"i/{k}", label=k % 2) for k in range(16)]
    for named, told in (
        ([0, 1], "12.5 % of the labels right (each class equally often: 2.5 %)"),
        ([*range(10)], "12.5 % of the labels right (no better than a guess, each class equally often: 12.5 %)"),
    ):
        row = records.attack(1, 0, *images, attack="labels", target="labels", label_share=0.125) | {"labels": named}
        folder = write_run([row], name=f"set-{len(named)}")
        (folder / "classes.json").write_text(json.dumps([f"class {number}" for number in range(10)]))
        (line,) = attack_lines(read_run(folder))
        assert line.endswith(told), line


def test_where_a_defense_changed_images_both_means_are_told(write_run: Any, records: Any) -> None:
    image = records.image(35.0, "i/0", private_psnr=12.0, guess_psnr=10.0)
    (line,) = attack_lines(read_run(write_run([records.attack(1, 0, image, label_share=None)])))
    told = "12.0 dB on average (the mean of public images: 10.0 dB); 35.0 dB against what the model saw"
    assert line.endswith(f"; {told}")


def test_a_baseline_on_some_pictures_is_compared_there(write_run: Any, records: Any) -> None:
    reached = enumerate((10.0, 10.0, 30.0))
    rows = [records.attack(1, k, records.image(psnr, f"i/{k}"), label_share=None) for k, psnr in reached]
    rows += [records.attack(1, 2, records.image(35.0, "i/2"), attack="blind", baseline=True, label_share=None)]
    told = "16.7 dB on average (blind: 35.0 dB on 1 of 3 images, 5.0 dB more than the attack there)"
    lines = attack_lines(read_run(write_run(rows)))
    assert any(told in line for line in lines), lines


def test_a_picture_that_each_step_changed_counts_once(write_run: Any, records: Any) -> None:
    images = [records.image(None, name, label=label) for name, label in (("a", 0), ("a", 0), ("a", 0), ("b", 1))]
    folder = write_run([records.attack(1, 0, *images, attack="labels", target="labels", label_share=1.0)])
    (folder / "classes.json").write_text(json.dumps(["cat", "dog"]))
    (line,) = attack_lines(read_run(folder))
    assert line.endswith("100 % of the labels right (no better than a guess, each class equally often: 100 %)")
