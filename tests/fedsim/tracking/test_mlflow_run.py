"""Numbers, settings and files reach MLflow; a resumed run goes on with the same one, and nothing is there twice."""

import math

import pytest

from fedsim.errors import ConfigError
from fedsim.tracking import MLflow, Trackers

mlflow = pytest.importorskip("mlflow", exc_type=ImportError)

# MLflow's own use of SQLAlchemy, and databases that it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SETTINGS = {"mlflow": {"_target_": "fedsim.tracking.MLflow"}}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "a #1 run"  # letters that mean something in addresses
    folder.mkdir()
    (folder / "config.yaml").write_text(f"seed: 3\nclient: {{batch_size: 1}}\nnote: {'x' * 7000}\n")
    return folder


def stored(root):
    tracker = MLflow(str(root / "mlflow"))
    return tracker._client, tracker._client.get_run(tracker._id)


def test_numbers_settings_and_files_reach_mlflow(root):
    with Trackers(SETTINGS, root) as trackers:
        trackers.log(1, {"accuracy": 0.5, "timings/train": 1.5})
        trackers.log(2, {"accuracy": 0.75, "leakage/odd (name)/../psnr": math.nan})
        (root / "report.html").write_text("<p>")
    client, run = stored(root)
    assert run.data.params["client.batch_size"] == "1"
    assert run.data.params["note"] == "x" * 6000
    assert run.info.run_name == root.name
    points = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "accuracy")]
    assert points == [(1, 0.5), (2, 0.75)]
    assert math.isnan(run.data.metrics["leakage/odd _name_/_/psnr"])
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"report.html", "config.yaml"}
    assert (root / "mlflow" / "artifacts" / run.info.run_id / "artifacts" / "report.html").read_text() == "<p>"
    assert {path.name for path in root.parent.iterdir()} == {root.name}


def test_a_resumed_run_is_the_same_run_and_repeats_nothing(root):
    killed = Trackers(SETTINGS, root)
    for step in (1, 2):
        killed.log(step, {"accuracy": step / 4})
    for client in (0.0, 1.0):  # two updates of one round
        killed.log(2, {"leakage/psnr": client})
    with Trackers(SETTINGS, root) as resumed:
        resumed.resume(2)
        for client in (1.0, 0.0, 2.0):
            resumed.log(2, {"leakage/psnr": client})
        for step in (2, 3):
            resumed.log(step, {"accuracy": step / 4})
    client, run = stored(root)
    assert len(client.search_runs([run.info.experiment_id])) == 1
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert [(metric.step, metric.value) for metric in history["accuracy"]] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert sorted(metric.value for metric in history["leakage/psnr"]) == [0.0, 1.0, 2.0]


def test_the_status_tells_how_the_run_ended(root):
    with pytest.raises(KeyboardInterrupt), Trackers(SETTINGS, root) as trackers:
        raise KeyboardInterrupt
    tracker = trackers._trackers["mlflow"]
    assert tracker._client.get_run(tracker._id).info.status == "KILLED"
    with Trackers(SETTINGS, root):
        assert tracker._client.get_run(tracker._id).info.status == "RUNNING"
    assert tracker._client.get_run(tracker._id).info.status == "FINISHED"


def test_a_run_that_mlflow_has_lost_is_named(root):
    MLflow(str(root / "mlflow")).close()
    (root / "mlflow" / "run.json").write_text('{"id": "0123"}')
    with pytest.raises(ConfigError, match=r"tracker\.mlflow\.tracking_uri=.*0123"):
        MLflow(str(root / "mlflow"))


def test_an_address_of_nothing_is_refused(root):
    with pytest.raises(ConfigError, match=r"tracker\.mlflow\.tracking_uri=odd://x"):
        MLflow(str(root / "mlflow"), tracking_uri="odd://x")


def test_what_mlflow_refuses_leaves_the_run_alone(root, caplog, monkeypatch):
    trackers = Trackers(SETTINGS, root)

    def refuse(*_, **__):
        raise mlflow.MlflowException("the database is full")

    monkeypatch.setattr(trackers._trackers["mlflow"]._client, "log_batch", refuse)
    for step in (1, 2):
        trackers.log(step, {"loss": 1.0})
    assert caplog.text.count("tracker.mlflow gets nothing from here on: the database is full") == 1
