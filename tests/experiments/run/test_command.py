"""Whole runs: the same bits everywhere, faults named, everything on disk."""

import json
from types import SimpleNamespace

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from defenses.base import DefenseChain
from defenses.compose import load_wrappers
from experiments.engine.setup import prepare
from experiments.run.command import _observable
from fedsim.data.copies import contents
from fedsim.errors import ConfigError
from fedsim.ground_truth import content_of
from fedsim.memory.peak import peak_memory
from fedsim.settings.commands import RunConfig
from fedsim.settings.schema import parse
from fedsim.storage.observation_files import load_observation
from tests.experiments.run_files import rows, same_state
from tests.support.federation import settings


def test_a_run_leaves_everything_behind(fedsim):
    folder = fedsim("simulation=inline")
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "attacks.jsonl",
        "checkpoints",
        "classes.json",
        "config.yaml",
        "fedsim.log",
        "metrics.jsonl",
        "observations",
        "reconstructions",
        "report.html",
        "scores.csv",
        "summary.json",
        "tensorboard",
        "timings.jsonl",
    }
    metrics = rows(folder, "metrics")
    assert [row["round"] for row in metrics] == [0, 1, 2, 3]
    assert all(0 <= row["accuracy"] <= 1 for row in metrics)
    attacks = rows(folder, "attacks")
    # Rounds 1 and 2, two clients each, two attacks.
    assert len(attacks) == 8
    assert {row["round"] for row in attacks} == {1, 2}
    closed_form = [row for row in attacks if row["attack"] == "patch_gradient"]
    assert all(row["certificate"]["status"] == "certified" for row in closed_form)
    assert all(image["psnr"] > 80 for row in closed_form for image in row["images"])
    assert all(row["label_exact"] for row in attacks)
    assert load_observation(folder / "observations" / "round-00001-client-00000").server_round == 1
    assert "patch_gradient" in (folder / "report.html").read_text()


def test_a_defense_has_the_clients_pictures_where_it_evaluates_too(fedsim, monkeypatch):
    begin, held = DefenseChain.begin, []

    def begun(chain, turn):
        held.append(turn.pictures is not None and len(turn.pictures) == turn.num_examples)
        begin(chain, turn)

    monkeypatch.setattr(DefenseChain, "begin", begun)
    fedsim("simulation=inline", "num_rounds=1", "attack=[]", "strategy.fraction_evaluate=1.0")
    assert held
    assert all(held)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("client.local_steps=70000", "client.local_steps=70000: must be few enough for 65,536 local steps a round"),
        ("client.local_epochs=70000", "client.local_epochs=70000: must be few enough for 65,536 local steps a round"),
    ],
)
def test_more_steps_than_a_reply_may_name_are_refused_before_any_training(command, tmp_path, setting, words):
    few = ["simulation=inline", "data=digits", "model=vit_nano", "strategy=fedavg", "client.batch_size=16"]
    code, _, err = command("fedsim", f"run_dir={tmp_path / 'run'}", *few, setting)
    assert code == 2
    assert words in err
    assert not (tmp_path / "run").exists()


def test_attacks_read_all_rounds_of_a_client_so_far(fedsim):
    few = ["data.auxiliary_fraction=0.9", "data.test_fraction=0.05"]  # two dozen a client, all of them in each update
    settings = ["attack=[labels]", "simulation=inline", "client.batch_size=500", "observe.every=1", *few]
    together, apart = fedsim(*settings, "observe.history=true"), fedsim(*settings)
    named = [[(row["observation"], row["status"]) for row in rows(folder, "attacks")] for folder in (together, apart)]
    assert named[0] == named[1]
    assert {status for _, status in named[0]} == {"done"}
    once = {row["observation"]: row["labels"] for row in rows(apart, "attacks")}
    for row in rows(together, "attacks"):
        client = row["observation"].split("client")[1]
        earlier = [labels for name, labels in once.items() if name.endswith(client) and name <= row["observation"]]
        assert row["labels"] in earlier


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("client.batch_size=1", "client.batch_size=1: must be at least"),
        ("observe.save=false", "observe.save=False: must be true with observe.history"),
    ],
)
def test_rounds_that_cannot_be_read_together_are_refused(command, tmp_path, wrong, said):
    settings = ["simulation=inline", f"run_dir={tmp_path}/run", "client.batch_size=2000", "observe.history=true"]
    code, _, err = command("fedsim", *settings, wrong)
    assert code == 2
    assert said in err


def test_the_same_seed_gives_the_same_bytes_inline_and_on_one_or_two_workers(fedsim, ray_on_this_machine):
    runs = [
        fedsim("simulation=inline"),
        fedsim("simulation.workers=1"),
        fedsim("simulation.workers=2", "attack=[]"),
        fedsim("simulation=inline", "attack=[]", "observe.every=0"),
    ]
    first = (runs[0] / "metrics.jsonl").read_bytes()
    assert all((run / "metrics.jsonl").read_bytes() == first for run in runs[1:])
    assert all(same_state(runs[0], run) for run in runs[1:])
    other = fedsim("simulation=inline", "seed=1")
    assert (other / "metrics.jsonl").read_bytes() != first


def test_weights_are_shared_and_trained_alike_inline_and_on_ray_whose_workers_tell_what_they_need(
    fedsim, ray_on_this_machine
):
    settings = [
        "strategy=fedavg",
        "attack=[]",
        "client.batch_size=64",
        "client.local_steps=2",
        "strategy.fraction_train=0.5",
        "strategy.fraction_evaluate=0.5",
    ]
    inline, on_ray = fedsim("simulation=inline", *settings), fedsim("simulation.workers=2", *settings)
    assert (inline / "metrics.jsonl").read_bytes() == (on_ray / "metrics.jsonl").read_bytes()
    assert same_state(inline, on_ray)
    last = rows(inline, "metrics")[-1]
    assert last["clients"] == 2
    assert 0 <= last["client_accuracy"] <= 1
    for row in rows(on_ray, "timings")[1:]:
        assert row["send"] > 0
        assert row["receive"] > 0
        assert row["send"] + row["receive"] < row["train"]
        assert row["client_evaluate"] > 0
        assert row["worker_memory_gib"] > 0.1


@pytest.mark.parametrize("defense", ["fixed_pe", "withhold_pe", "no_pe"])
def test_closed_forms_refuse_with_the_reason_and_training_goes_on(fedsim, defense):
    folder = fedsim("simulation=inline", f"defense=[{defense}]", "attack=[patch_gradient,april,labels]")
    attacks = rows(folder, "attacks")
    refused = [row for row in attacks if row["attack"] == "patch_gradient"]
    assert len(refused) == 4
    assert {row["status"] for row in refused} == {"refused"}
    reason = "no pos_embed" if defense == "no_pe" else "pos_embed's gradient is withheld"
    assert all(reason in row["reason"] and defense in row["reason"] for row in refused)
    assert {row["status"] for row in attacks if row["attack"] == "april"} == {"refused"}
    assert all(row["label_exact"] for row in attacks if row["attack"] == "labels")
    losses = [row["loss"] for row in rows(folder, "metrics")]
    assert len(set(losses)) == 4
    assert defense in (folder / "report.html").read_text()


def test_a_client_that_raises_in_round_2_is_named_and_the_round_completes(fedsim):
    # Four clients a round, one batch each: the sixth batch is client 1's in round 2.
    fault = "+defense.faulty={_target_:tests.experiments.faulty_defense.FailsAtBatch,at:6}"
    folder = fedsim("simulation=inline", fault)
    metrics = rows(folder, "metrics")
    assert [row.get("clients") for row in metrics] == [None, 4, 3, 4]
    assert metrics[2]["failures"] == [{"client": 1, "error": "RuntimeError: <b>out of pictures</b>"}]
    report = (folder / "report.html").read_text()
    assert "out of pictures" in report
    assert "<b>out of pictures</b>" not in report


def test_without_audit_nothing_is_scored(fedsim):
    folder = fedsim("simulation=inline", "audit=false")
    attacks = rows(folder, "attacks")
    assert not any(row["scored"] for row in attacks)
    assert all(image["psnr"] is None for row in attacks for image in row["images"])
    assert not list((folder / "reconstructions").glob("*-original.png"))
    assert list((folder / "reconstructions").glob("*-patch_gradient-*.png"))


def test_a_used_folder_is_refused(fedsim, command):
    folder = fedsim("simulation=inline", "attack=[]")
    before = (folder / "metrics.jsonl").read_bytes()
    code, _, err = command("fedsim", f"run_dir={folder}", "simulation=inline")
    assert code == 2
    assert "holds a run already" in err
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_the_folder_of_an_unfinished_audit_is_refused(command, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "config.yaml").write_text("audit: {}\n")
    code, _, err = command("fedsim", f"run_dir={tmp_path}", "simulation=inline")
    assert code == 2
    assert "holds a run already" in err
    assert (tmp_path / "config.yaml").read_text() == "audit: {}\n"


def test_observations_can_be_attacked_again(fedsim, command, tmp_path):
    folder = fedsim("simulation=inline", "attack=[]", "observe.clients=1")
    again = tmp_path / "again"
    words = [f"observation={folder}/observations", "attack=[patch_gradient,labels]", "simulation=inline"]
    code, out, err = command("fedsim-audit", *words, f"run_dir={again}")
    assert code == 0, err
    assert out.strip().splitlines()[-1] == str(again)
    attacks = rows(again, "attacks")
    assert len(attacks) == 4
    assert {row["certificate"]["status"] for row in attacks} == {"certified"}
    one, other = sorted((folder / "observations").glob("*/update.safetensors"))
    one.write_bytes(other.read_bytes())
    record, theirs = (json.loads((path.parent / "observation.json").read_text()) for path in (one, other))
    (one.parent / "observation.json").write_text(json.dumps(record | {"digest": theirs["digest"]}))
    code, _, err = command("fedsim-audit", *words, f"run_dir={again}")
    assert code == 2
    assert err.endswith(f"this one holds results of other numbers in {one.parent.name}\n")
    code, _, err = command(
        "fedsim-audit", f"observation={tmp_path}/nowhere", "simulation=inline", f"run_dir={tmp_path}/x"
    )
    assert code == 2
    assert "observation=" in err


def test_a_recorded_defense_is_part_of_the_architecture_again(fedsim):
    folder = fedsim("simulation=inline", "defense=[fixed_pe]", "observe.clients=1", "attack=[]")
    observation = load_observation(folder / "observations" / "round-00001-client-00000", load_wrappers)
    model = observation.build_model()
    assert not model.pos_embed.requires_grad
    assert model.pos_embed.equal(observation.global_state["pos_embed"])


def test_recorded_defenses_must_be_defenses():
    with pytest.raises(ConfigError, match="subclass of Defense"):
        load_wrappers([{"name": "x", "_target_": "os.system", "command": "true"}])
    with pytest.raises(ConfigError, match="subclass of Defense"):
        load_wrappers([{"name": "x", "_target_": "pathlib.Path"}])


def test_a_killed_attack_worker_is_replaced_and_the_run_ends_well(fedsim, ray_on_this_machine, tmp_path):
    fault = f"+attack.mortal={{_target_:tests.server.faulty_attacks.Faulty,fault:die,marker:{tmp_path}/died}}"
    folder = fedsim("attack=[patch_gradient]", fault, "simulation.workers=1")
    attacks = rows(folder, "attacks")
    assert len(attacks) == 8
    assert {row["status"] for row in attacks} == {"done"}
    assert sorted(row["attempts"] for row in attacks if row["attack"] == "mortal") == [1, 1, 1, 2]


def test_labels_are_counted_with_pictures_that_no_client_holds(fedsim):
    folder = fedsim("simulation=inline", "client.batch_size=16", "attack=[labels]", "observe.every=1", "num_rounds=4")
    attacks = [row for row in rows(folder, "attacks") if row["round"] == 1]
    assert all(row["label_exact"] for row in attacks)
    assert all(len(row["labels"]) == 16 for row in attacks)


def test_the_servers_images_are_no_copies_of_those_that_may_be_attacked(fedsim, copies):
    folder = fedsim("simulation=inline", "attack=[patch_gradient]", *copies)
    data = prepare(yaml.safe_load((folder / "config.yaml").read_text())).data
    attacked = {digest for client in range(2) for digest in contents(data.client(client))}  # observed
    assert attacked & set(contents(data.auxiliary))
    observation = load_observation(next((folder / "observations").glob("round-*")))
    kept = set(map(content_of, observation.public_images.images()))
    assert kept == set(contents(data.auxiliary)) - attacked


def test_clients_that_a_wrapped_strategy_samples_may_all_be_attacked():
    given = settings("config", "strategy=fedavg", "num_clients=10", "observe.clients=2")
    setup = SimpleNamespace(sums=None)
    assert _observable(parse(RunConfig, given), setup) == [0, 1]
    half = {"_target_": "flwr.serverapp.strategy.FedAvg", "fraction_train": 0.5}
    for inner, clients in ((half, list(range(10))), ({**half, "fraction_train": 1.0}, [0, 1])):
        given["strategy"] = {"_target_": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping"}
        given["strategy"] |= {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 5}
        given["strategy"] |= {"strategy": inner}
        assert _observable(parse(RunConfig, given), setup) == clients


def test_no_attack_can_draw_a_defenses_noise_anew(fedsim):
    thief = "+attack.thief={_target_:tests.server.faulty_attacks.SeedThief}"
    noise = ["defense=[gradient_noise]", "defense.gradient_noise.std=0.01", "defense.gradient_noise.relative_norm=null"]
    folder = fedsim("simulation=inline", "attack=[]", thief, *noise)
    attacks = rows(folder, "attacks")
    assert len(attacks) == 4
    assert all(image["psnr"] < 25 for row in attacks for image in row["images"])
    observation = load_observation(next((folder / "observations").glob("round-*")))
    assert observation.architecture.seed != 0


def test_names_from_disk_import_nothing(tmp_path, monkeypatch):
    (tmp_path / "shared_obs").mkdir()
    (tmp_path / "shared_obs" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="loaded subclass of Defense"):
        load_wrappers([{"name": "x", "_target_": "shared_obs.evil.X"}])
    assert not (tmp_path / "ran").exists()


def test_a_run_that_learns_nothing_is_an_error(command, tmp_path):
    settings = [
        "simulation=inline",
        "num_clients=1",
        "+defense.faulty={_target_:tests.experiments.faulty_defense.FailsAtBatch,at:1}",
        "num_rounds=1",
        "client.local_steps=1",
        "attack=[]",
    ]
    code, _, err = command("fedsim", f"run_dir={tmp_path}/run", *settings)
    assert code == 2
    assert "aggregated nothing" in err
    assert (tmp_path / "run" / "report.html").exists()


def test_round_timings_reach_the_report(fedsim):
    held = b"x" * 2**30
    earlier = peak_memory().resident / 2**30
    del held
    folder = fedsim("simulation=inline")
    timings = rows(folder, "timings")
    parts = ("configure", "train", "aggregate", "attacks", "evaluate")
    for row in timings[1:]:
        assert row["seconds"] == pytest.approx(sum(row[name] for name in parts))
        assert 0 <= row["send"] + row["receive"] <= row["train"]
        assert row["clients_per_second"] == pytest.approx(4 / row["train"])
        assert (row["attacks_waiting"], row["attacks_running"]) == (0, 0)
        assert 0 < row["memory_gib"] < earlier  # of this run alone, whatever the process did before
        assert "worker_memory_gib" not in row
    assert timings[1]["attacks"] > timings[3]["attacks"]  # the third round is not observed
    report = (folder / "report.html").read_text()
    assert "Could not be read" not in report
    assert "Where the time went" in report
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("timings/train")]
    assert shown == [(row["round"], pytest.approx(row["train"])) for row in timings[1:]]
