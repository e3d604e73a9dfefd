"""A run folder is read in whatever state the run left it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedsim.report.render import build_report
from fedsim.report.run.baseline import baselines
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import run_times


def test_an_empty_folder_is_an_empty_run(tmp_path: Path) -> None:
    run = read_run(tmp_path)
    assert run.rounds == ()
    assert run.attacks == ()
    assert run.config == {}
    assert run.damaged == ()
    assert not run.finished
    assert run.kind == "federated"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_run(tmp_path / "nowhere")


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"round": 1, "accuracy": 0.5}\n[1]\n"x"\n{"accuracy": 1}\n{"round": 2, "acc'
    )
    (tmp_path / "attacks.jsonl").write_text('{"attack": "a"}\n')
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "config.yaml").write_text("a: [1, 2")
    run = read_run(tmp_path)
    assert [record.number for record in run.rounds] == [1]
    assert run.damaged == ("config.yaml", "metrics.jsonl: 4 lines", "attacks.jsonl: 1 line", "summary.json")
    assert run.config_text == "a: [1, 2"


@pytest.mark.parametrize(
    "text",
    [
        "a: " + 400 * "[" + 400 * "]",
        "a: &a [x,x,x]\nb: &b [*a,*a,*a]\n",  # a few more of these in one another are billions of values
    ],
    ids=["deep", "aliases"],
)
def test_settings_that_nest_too_deep_or_repeat_themselves_are_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert read_run(tmp_path).damaged == ("config.yaml",)


def test_values_of_another_type_are_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"round": 1, "accuracy": NaN, "loss": Infinity, "train_loss": "low", "clients": true, "failures": 3}\n'
    )
    (tmp_path / "attacks.jsonl").write_text(
        '{"observation": "o", "attack": "a", "certificate": "yes", "images": [7, {"psnr": NaN}], "label_exact": 1}\n'
    )
    run = read_run(tmp_path)
    record = run.rounds[0]
    assert (record.accuracy, record.loss, record.train_loss, record.clients) == (None, None, None, None)
    assert record.failures == ()
    attack = run.attacks[0]
    assert attack.status == "failed"
    assert attack.certificate == "none"
    assert attack.label_exact is None
    assert len(attack.images) == 1
    assert attack.images[0].psnr is None


def test_numbers_that_no_float_holds_are_none(tmp_path: Path) -> None:
    lines = [f'{{"round": {number}, "seconds": 1{"0" * digits}}}' for number, digits in ((1, 400), (2, 5000), (3, 0))]
    (tmp_path / "timings.jsonl").write_text("\n".join(lines))
    (tmp_path / "summary.json").write_text(f'{{"seconds": 1{"0" * 5000}}}')
    run = read_run(tmp_path)
    assert run.round_seconds == {3: 1.0}
    assert run.damaged == ("timings.jsonl: 2 lines", "summary.json")


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "true", "1" + "0" * 400, '"9"'])
def test_seconds_that_are_none(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "summary.json").write_text(f'{{"kind": "audit", "finished": true, "seconds": {seconds}}}')
    assert run_times(read_run(tmp_path)).run is None
    build_report(tmp_path)


def test_a_resumed_run_counts_the_later_line(write_run: Any, records: Any) -> None:
    rounds = [{"round": 2, "accuracy": 0.2}, {"round": 1, "accuracy": 0.1}, {"round": 2, "accuracy": 0.3}]
    attacks = [records.attack(1, 0, status="failed"), records.attack(1, 0, records.image(40.0))]
    run = read_run(write_run(attacks, rounds))
    assert [(record.number, record.accuracy) for record in run.rounds] == [(1, 0.1), (2, 0.3)]
    assert [record.status for record in run.attacks] == ["done"]


def test_settings_are_found_by_their_dotted_key(write_run: Any) -> None:
    run = read_run(write_run())
    assert run.setting("model.img_size") == 8
    assert run.setting("model.depth") is None
    assert run.setting("seed.nothing") is None
    assert run.names("attack") == ("patch_gradient",)
    assert run.names("defense") == ()


def test_interpolations_in_the_configuration_are_not_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE", "s3cret")
    (tmp_path / "config.yaml").write_text("name: ${oc.env:PRIVATE}\n")
    assert read_run(tmp_path).setting("name") == "${oc.env:PRIVATE}"


def test_an_audit_is_recognised_without_a_summary(tmp_path: Path, records: Any) -> None:
    (tmp_path / "attacks.jsonl").write_text(json.dumps(records.attack(0, 0, records.image(30.0))))
    assert read_run(tmp_path).kind == "audit"


@pytest.mark.parametrize(("config", "kind"), [("audit: {num_images: 4}", "audit"), ("audit: true", "federated")])
def test_what_was_killed_before_its_first_round_or_result_is_known_by_its_settings(
    tmp_path: Path, config: str, kind: str
) -> None:
    (tmp_path / "config.yaml").write_text(f"seed: 0\n{config}\n")
    assert read_run(tmp_path).kind == kind


def test_rounding_is_no_change_of_a_picture_but_a_shuffle_is(write_run: Any, records: Any) -> None:
    """Files hold pictures in other steps than tensors: the scores of one picture differ in the last digits."""
    images = [
        records.image(8.275270514829815, "rounded", private_psnr=8.275270534592428, private_ssim=0.5),
        records.image(110.0, "exact", private_psnr=110.2, private_ssim=0.5),
        records.image(8.2, "shuffled", private_psnr=8.2, private_ssim=0.1),  # against a grey guess: the same error
        records.image(30.0, "noisy", private_psnr=29.0, private_ssim=0.5),
    ]
    (record,) = read_run(write_run(attacks=[records.attack(1, 0, *images)])).attacks
    assert [image.changed for image in record.images] == [False, False, True, True]


def test_whether_the_model_saw_a_picture_changed_is_as_recorded(write_run: Any, records: Any) -> None:
    """A mirrored picture that is un-mirrored rightly has equal scores; one taken for mirrored wrongly has not."""
    images = [
        records.image(157.7, "mirrored", private_psnr=157.7, private_ssim=0.5, changed=True),
        records.image(157.7, "taken for mirrored", private_psnr=9.0, private_ssim=0.1, changed=False),
        records.image(157.7, "as it is", private_psnr=157.7, private_ssim=0.5, changed=False),
    ]
    (record,) = read_run(write_run(attacks=[records.attack(1, 0, *images)])).attacks
    assert [(image.changed, image.twofold, image.as_seen) for image in record.images] == [
        (True, True, False),
        (False, True, True),
        (False, False, False),
    ]


def test_attacks_say_themselves_that_they_are_baselines(write_run: Any, records: Any) -> None:
    lines = [records.attack(1, 0, attack="grey", baseline=True), records.attack(1, 0, attack="patch_gradient")]
    run = read_run(write_run(attacks=lines))
    assert baselines(run) == {"grey"}


def test_what_comes_before_the_first_round_is_no_round(write_run: Any) -> None:
    folder = write_run(rounds=[{"round": 0, "accuracy": 0.1}, {"round": 1, "accuracy": 0.5}])
    with (folder / "timings.jsonl").open("a") as file:
        file.write(json.dumps({"round": 0, "seconds": 99.0}) + "\n")
    assert 0 not in read_run(folder).round_seconds


@pytest.mark.parametrize(("told", "read"), [(0.5, 0.5), (1, 1.0), (1.5, None), (-0.1, None), (75, None)])
def test_an_accuracy_is_a_share(write_run: Any, told: float, read: float | None) -> None:
    run = read_run(write_run(rounds=[{"round": 1, "accuracy": told}]))
    assert run.rounds[0].accuracy == read
