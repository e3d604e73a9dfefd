"""Whole runs of the two apps in this process: the bits of a simulation, and pictures only from who gives them."""

import queue
import threading

import pytest
import tomli_w
from flwr.app import Context, RecordDict
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType
from PIL import Image

from experiments.flower.app import client_app, server_app
from fedsim.errors import RunError
from tests.experiments.flower.scrambled_grid import ScrambledGrid
from tests.experiments.run_files import rows, same_state

SMALL = [
    "num_clients=4",
    "num_rounds=2",
    "evaluate_every=1",
    "observe.every=2",
    "attack=[patch_gradient]",
    "tracker=[]",
    "data.auxiliary_fraction=0.7",
    "data.test_fraction=0.05",
]

RESNET = ["model=resnet18_32", "model.img_size=8", "+model.kwargs.channels=[4,4,4,4]", "attack=[labels]"]


@pytest.fixture
def deployed(tmp_path):
    """A run over nodes with random ids; gives its folder.

    Args: overrides; `nodes`: a node-config for each client.
    """
    runs = iter(range(100))

    def call(*overrides, nodes=tuple({"partition-id": number} for number in (2, 0, 3, 1))):
        folder = tmp_path / f"deployed-{next(runs)}"
        run_config = {"overrides": " ".join([*SMALL, f"run_dir={folder}", *overrides])}
        grid = ScrambledGrid(client_app, run_config, nodes)
        server_app(grid, Context(1, 1, {}, RecordDict(), run_config))
        return folder

    return call


@pytest.mark.parametrize(
    "settings",
    [
        ["strategy=fedsgd", "defense=[gradient_noise]"],
        [
            "strategy=fedavg",
            "client.batch_size=64",
            "strategy.fraction_train=0.5",
            "strategy.fraction_evaluate=0.5",
            "attack=[labels]",
        ],
    ],
    ids=["fedsgd", "fedavg of half of the clients"],
)
def test_random_node_ids_change_no_bit(deployed, fedsim, settings):
    real = deployed(*settings, "simulation.worker_sums=0")
    simulated = fedsim("simulation=inline", *SMALL, *settings, "simulation.worker_sums=0", "audit=false")
    assert (real / "metrics.jsonl").read_bytes() == (simulated / "metrics.jsonl").read_bytes()
    assert same_state(real, simulated)
    attacked = [{name: row[name] for name in ("observation", "status", "labels")} for row in rows(real, "attacks")]
    assert attacked == [{name: row[name] for name in attacked[0]} for row in rows(simulated, "attacks")]


def test_pictures_come_only_from_the_supernodes_that_say_so(deployed):
    nodes = [{"partition-id": number} for number in range(4)]
    nodes[1]["overrides"] = "audit=true"
    folder = deployed(nodes=nodes)
    attacks = {row["observation"]: row for row in rows(folder, "attacks") if row["round"] == 1}
    assert all(row["certificate"]["status"] == "certified" for row in attacks.values())
    silent, open_ = attacks["round-00001-client-00000"], attacks["round-00001-client-00001"]
    assert open_["images"][0]["psnr"] > 80
    assert silent["label_exact"] is None
    assert all(image["psnr"] is None and image["original"] is None for image in silent["images"])
    assert list((folder / "reconstructions").glob("*-client-00000-*original*")) == []


def test_a_client_may_hold_pictures_of_its_own(deployed, tmp_path):
    for number in range(2):
        for name in map(str, range(10)):
            (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 25 * int(name), 0)).save(tmp_path / "pictures" / name / f"{number}.png")
    own = f"data=imagefolder data.path={tmp_path}/pictures data.test_fraction=0 data.auxiliary_fraction=0 ~partition"
    nodes = [{"partition-id": number} for number in range(4)]
    nodes[3]["overrides"] = f"{own} audit=true"
    folder = deployed("observe.clients=[3]", nodes=nodes)
    assert [row["failures"] for row in rows(folder, "metrics")] == [[]] * 3
    original = next((folder / "reconstructions").glob("round-00001-client-00003-*original.png"))
    red, green, blue = Image.open(original).convert("RGB").getpixel((0, 0))
    assert (red, green % 25, blue) in {(0, 0, 0), (1, 0, 0)}


def test_a_bad_override_ends_the_run_with_one_line(deployed, tmp_path):
    with pytest.raises(RunError, match=r"^num_rouns=2: there is no such key\. Did you mean 'num_rounds'\?$"):
        deployed("num_rouns=2")
    with pytest.raises(RunError, match=r"^strategy\.optimizer=.*'lr': 'fast'"):
        deployed("strategy.optimizer.lr=fast")
    with pytest.raises(RunError, match=r"^audit=true: must be false"):
        deployed("audit=true")
    assert list(tmp_path.iterdir()) == []


def test_a_faulty_supernode_is_named_with_its_reason(deployed):
    nodes = [{"partition-id": number} for number in range(3)] + [{"partition-id": 3, "overrides": "clint.device=cpu"}]
    with pytest.raises(
        RunError, match=r"3 of num_clients=4 clients .*clint.device=cpu: .*Did you mean 'client.device'"
    ):
        deployed("round_timeout=0.3", nodes=nodes)


def test_supernodes_are_not_judged_by_the_servers_images(deployed):
    few = [{"partition-id": number} for number in range(3)]
    with pytest.raises(RunError, match="3 of num_clients=4 clients"):  # and not the batch size
        deployed("observe.history=true", "client.batch_size=1", "round_timeout=0.3", nodes=few)


class InThisProcess:
    """In the place of Flower's Ray backend: one client after the other."""

    num_workers = 2

    def __init__(self, config):
        self._one = threading.Lock()

    def build(self, app_fn):
        self._app_fn = app_fn

    def process_message(self, message, context):
        with self._one:
            return self._app_fn()(message, context), context

    def terminate(self):
        """There is nothing to end."""


class Impatient(queue.Queue):
    """Flower looks into its queues for seconds before it asks whether the run has ended."""

    def get(self, block=True, timeout=None):
        return super().get(block, timeout if timeout is None else min(timeout, 0.05))


@pytest.fixture
def simulated_by_flower(tmp_path, monkeypatch):
    """A run on Flower's simulation runtime, as `flwr run` starts it, its Ray replaced; gives its folder."""
    monkeypatch.setattr("flwr.server.superlink.fleet.vce.backend.raybackend.RayBackend", InThisProcess)
    monkeypatch.setattr("flwr.server.superlink.fleet.vce.vce_api.Queue", Impatient)
    monkeypatch.setitem(_run_simulation.__globals__, "Queue", Impatient)
    monkeypatch.setitem(_run_simulation.__globals__, "event", lambda *_, **__: None)  # telemetry
    for identity in ("_run_id", "_node_id", "_task_id"):  # as Flower's process of a task has them
        monkeypatch.setattr(TaskIdentity, identity, 1)
    app = {
        "publisher": "fedsim",
        "components": {
            "serverapp": "experiments.flower.app:server_app",
            "clientapp": "experiments.flower.app:client_app",
        },
    }

    def call(*overrides, num_supernodes=4):
        folder = tmp_path / "simulated-by-flower"
        run_config = {"overrides": " ".join([*SMALL, f"run_dir={folder}", *overrides])}
        project = {
            "project": {"name": "fedsim", "version": "0"},
            "tool": {"flwr": {"app": {**app, "config": run_config}}},
        }
        (tmp_path / "app").mkdir(exist_ok=True)
        (tmp_path / "app" / "pyproject.toml").write_text(tomli_w.dumps(project))
        run = Run.create_empty(run_id=1)
        run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
        _run_simulation(
            num_supernodes,
            EventType.FLWR_SIMULATION_RUN_LEAVE,
            server_app_attr=app["components"]["serverapp"],
            client_app_attr=app["components"]["clientapp"],
            server_app_context=Context(1, 1, {}, RecordDict(), run_config),
            app_dir=str(tmp_path / "app"),
            is_app=True,
            run=run,
        )
        return folder

    return call


def test_flowers_simulation_runtime_gives_the_bits_of_ours(simulated_by_flower, fedsim):
    theirs = simulated_by_flower("simulation.worker_sums=0")
    ours = fedsim("simulation=inline", *SMALL, "simulation.worker_sums=0")
    assert (theirs / "metrics.jsonl").read_bytes() == (ours / "metrics.jsonl").read_bytes()
    assert same_state(theirs, ours)


@pytest.mark.parametrize(
    ("overrides", "num_supernodes", "line"),
    [
        (["simulation=ray"], 4, "simulation.engine=ray: must be inline on Flower's simulation runtime"),
        (["resume=runs/earlier"], 4, "resume=runs/earlier: must be null"),
        ([], 2, "num_clients=4: must be 2, the num-partitions of the SuperNodes"),
        (["observe.history=true", "client.batch_size=1"], 4, "client.batch_size=1: must be at least"),
        ([*RESNET, "client.batch_size=1"], 4, "client.batch_size=1: must be .* BatchNorm"),
    ],
)
def test_what_flowers_simulation_runtime_cannot_do_is_said_at_once(
    simulated_by_flower, overrides, num_supernodes, line
):
    with pytest.raises(RunError, match=line):
        simulated_by_flower(*overrides, num_supernodes=num_supernodes)
