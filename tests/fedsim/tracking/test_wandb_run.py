"""Numbers and files reach Weights & Biases without leaving the machine; a resumed run goes on with the same one."""

import json

import pytest

from fedsim.errors import ConfigError
from fedsim.tracking import Trackers, WeightsAndBiases

wandb = pytest.importorskip("wandb", exc_type=ImportError)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SETTINGS = {"wandb": {"_target_": "fedsim.tracking.WeightsAndBiases"}}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\nclient: {batch_size: 1}\n")
    return tmp_path


def kept(root):
    return json.loads((root / "wandb" / "run.json").read_text())


def test_numbers_and_files_are_kept_in_the_run_folder(root, capsys):
    with Trackers(SETTINGS, root) as trackers:
        trackers.log(1, {"accuracy": 0.5, "timings/train": 1.5})
        trackers.log(1, {"leakage/psnr": 30.0})
        (root / "report.html").write_text("<p>")
    (folder,) = (root / "wandb" / "wandb").glob("offline-run-*")
    assert kept(root)["id"] in folder.name
    assert kept(root)["rows"] == 2
    written = next(folder.glob("*.wandb")).read_bytes()
    assert all(name in written for name in (b"timings/train", b"leakage/psnr", b"batch_size"))
    assert (folder / "files" / "report.html").read_text() == "<p>"
    assert (folder / "files" / "config.yaml").exists()
    assert capsys.readouterr().out == ""


def test_a_resumed_run_is_the_same_run_and_its_rows_replace_those_after_the_resume_point(root):
    killed = Trackers(SETTINGS, root)
    killed.log(1, {"accuracy": 0.25})
    killed.flush()
    before = kept(root)
    killed.log(2, {"accuracy": 0.5})
    killed.close()
    (root / "wandb" / "run.json").write_text(json.dumps(before))  # as a SIGKILL leaves it
    with Trackers(SETTINGS, root) as resumed:
        resumed.log(2, {"accuracy": 0.5})
        resumed.log(3, {"accuracy": 0.75})
    assert kept(root) == {"id": before["id"], "rows": 3, "flushed": 3}
    folders = sorted((root / "wandb" / "wandb").glob("offline-run-*"))
    assert [folder.name.rsplit("-", 1)[1] for folder in folders] == [before["id"]] * len(folders)


@pytest.mark.parametrize(("rounds", "rows"), [(True, 1), (False, 2)])
def test_after_ctrl_c_a_run_replaces_the_rows_that_it_makes_again_and_an_audit_goes_on_behind_them(root, rounds, rows):
    stopped = Trackers(SETTINGS, root)
    stopped.log(1, {"accuracy": 0.25})
    stopped.flush()
    stopped.log(2, {"accuracy": 0.5})
    stopped.close()
    again = Trackers(SETTINGS, root)
    if rounds:
        again.resume(2)
    again.flush()
    assert kept(root)["rows"] == rows
    again.close()


def test_other_modes_are_refused(root):
    with pytest.raises(ConfigError, match=r"tracker\.wandb\.mode=shared: must be one of offline, online"):
        WeightsAndBiases(str(root / "wandb"), mode="shared")
