from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.cli.places import find_runs
from experiments.measure.subjects import _names, find_checkpoint, load_subjects
from fedsim.data import Digits, FederatedData
from fedsim.errors import ConfigError
from fedsim.metrics.accuracy import evaluate
from fedsim.models import ModelSpec, Normaliser
from tests.experiments.measure.recorded import DATA, MJP, MODEL


def test_a_run_is_loaded_with_its_weights_and_its_test_pictures(write_run, settings):
    folder = write_run("a")
    state = {name: torch.randn_like(tensor) * 0.1 for name, tensor in load_file(find_checkpoint(folder, None)).items()}
    save_file(state, folder / "checkpoints" / "round-00007.safetensors")
    (subject,) = load_subjects(settings([folder], measure={"num_images": None}))
    assert subject.origin.server_round == 7
    assert all(torch.equal(tensor, state[name]) for name, tensor in subject.model.state_dict().items())
    model = ModelSpec("vit_nano_patch2_8", 10, kwargs={"depth": 1}).build(5)
    model.load_state_dict(state)
    expected = evaluate(model, FederatedData(Digits(0.2, 0.0, 0), None, 8).test, Normaliser(model))
    right = sum(
        int((subject.model(subject.normalise(images)).argmax(1) == subject.pictures.labels[start : start + 100]).sum())
        for start, images in zip(range(0, 1000, 100), subject.pictures.batches(100), strict=False)
    )
    assert right / len(subject.pictures) == expected.accuracy
    assert not subject.model.training


def test_a_checkpoint_of_a_round(write_run, settings):
    folder = write_run("a")
    assert load_subjects(settings([folder], measure={"round": 3}))[0].origin.server_round == 3
    with pytest.raises(ConfigError, match=r"measure.round=5.*: 3"):
        load_subjects(settings([folder], measure={"round": 5}))


def test_what_changes_no_weight_makes_no_other_name():
    runs = [{"seed": 0, "checkpoint_every": 10, "round_timeout": None}, {"seed": 1, "checkpoint_every": 0}]
    assert _names(runs, None) == 2 * ["no defense"]


def test_an_unfinished_run_is_no_repetition_of_finished_ones(write_run, settings):
    done, stopped = write_run("a", num_rounds=3), write_run("b", seed=1, num_rounds=3)
    kept = stopped / "checkpoints" / "round-00003.safetensors"
    kept = kept.rename(kept.with_name("round-00002.safetensors"))
    with pytest.raises(ConfigError, match=r"^runs=.*/b: its last checkpoint is of round 2 of 3: finish it"):
        load_subjects(settings([done, stopped]))
    (done / "checkpoints" / kept.name).write_bytes(kept.read_bytes())
    rounds = [one.origin.server_round for one in load_subjects(settings([done, stopped], measure={"round": 2}))]
    assert rounds == [2, 2]


@pytest.mark.parametrize("written", [b"", b"a: [", b"\xff\xfe\xff", b"- a"])
def test_damaged_settings_are_no_run_s(written, write_run, settings):
    folder = write_run("a")
    (folder / "config.yaml").write_bytes(written)
    with pytest.raises(ConfigError, match=r"its config\.yaml is not a run's"):
        load_subjects(settings([folder]))


def test_the_last_round_is_that_of_the_largest_number(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for number in (99999, 100000):
        (tmp_path / "checkpoints" / f"round-{number}.safetensors").touch()
    assert find_checkpoint(tmp_path, None).name == "round-100000.safetensors"
    (tmp_path / "checkpoints" / "round-last.safetensors").touch()
    with pytest.raises(ConfigError, match="round-last"):
        find_checkpoint(tmp_path, None)


def test_a_model_that_diverged_is_named(write_run, settings):
    folder = write_run("a")
    state = load_file(find_checkpoint(folder, None))
    state["pos_embed"][0, 0, 0] = float("nan")
    save_file(state, find_checkpoint(folder, None))
    with pytest.raises(ConfigError, match="pos_embed, one of 1 tensors, holds NaN"):
        load_subjects(settings([folder]))


def test_runs_with_the_same_data_share_their_pictures_in_one_order(write_run, settings):
    a, b, other = load_subjects(
        settings([write_run("a"), write_run("b", MJP, seed=4), write_run("c", data={**DATA, "seed": 9})])
    )
    assert a.pictures is b.pictures
    assert other.pictures is not a.pictures
    assert len(a.pictures) == len(set(a.pictures.images.ids)) == 40
    assert load_subjects(settings([a.origin.folder]))[0].pictures.images.ids == a.pictures.images.ids
    assert load_subjects(settings([a.origin.folder], seed=1))[0].pictures.images.ids != a.pictures.images.ids


def test_names_tell_what_differs_but_not_seeds(write_run, settings):
    other = {"mjp": {**MJP["mjp"], "ratio": 0.1}}
    folders = [write_run("a"), write_run("b", seed=1), write_run("c", MJP), write_run("d", other)]
    names = [subject.name for subject in load_subjects(settings(folders))]
    assert names == ["no defense", "no defense", "mjp, mjp.ratio=0.3", "mjp, mjp.ratio=0.1"]
    given = load_subjects(settings(folders[:2], names=["x", 2]))
    assert [subject.name for subject in given] == ["x", "2"]
    with pytest.raises(ConfigError, match="each of the 2 runs"):
        load_subjects(settings(folders[:2], names=["x"]))


def test_runs_of_two_classes_are_no_repetitions():
    flower = "flwr.serverapp.strategy."
    runs = [{"seed": 0, "strategy": {"_target_": f"{flower}{name}"}} for name in ("FedAvg", "FedMedian")]
    assert _names(runs, None) == ["no defense, strategy=FedAvg", "no defense, strategy=FedMedian"]
    runs = [{"seed": 0, "defense": {name: {"_target_": f"defenses.{name}"}}} for name in ("mjp", "mixup")]
    assert _names(runs, None) == ["mjp", "mixup"]
    gates = [{"_target_": "defenses.Gate", "attack": {"_target_": f"attacks.{name}"}} for name in ("Dlg", "April")]
    runs = [{"seed": 0, "defense": {"gate": gate}} for gate in gates]
    assert _names(runs, None) == ["gate, gate.attack=Dlg", "gate, gate.attack=April"]
    runs = [{"seed": 0, "strategy": {"_target_": f"{package}.FedAvg"}} for package in ("mine", "yours")]
    assert _names(runs, None) == ["no defense, strategy=mine.FedAvg", "no defense, strategy=yours.FedAvg"]


def test_a_run_is_no_repetition_of_itself(write_run, settings, tmp_path):
    run = write_run("sweep/0")
    for runs in ([run, run], [tmp_path / "sweep", run], [run, tmp_path / "sweep" / "." / "0"]):
        with pytest.raises(ConfigError, match=r"runs=.*/sweep/0: must be given once"):
            load_subjects(settings(runs))
    with pytest.raises(ConfigError, match="runs=no defense: two runs of this name have seed=0"):
        load_subjects(settings([run, write_run("copy")]))
    with pytest.raises(ConfigError, match="names=x: two runs of this name have seed=0"):
        load_subjects(settings([run, write_run("c", MJP)], names=["x", "x"]))


def test_a_sweep_is_all_of_its_runs(write_run, tmp_path):
    for name in ("sweep/10", "sweep/2", "sweep/0"):
        write_run(name)
    (tmp_path / "sweep" / "unfinished").mkdir()
    assert [path.name for path in find_runs(tmp_path / "sweep")] == ["0", "2", "10"]


def test_a_model_with_weights_that_a_defense_added_to(write_run, settings):
    weights = find_checkpoint(write_run("a", MJP), None)
    given = settings(model={**MODEL, "checkpoint": str(weights)}, data=DATA, defense=MJP)
    (subject,) = load_subjects(given)
    assert torch.equal(subject.model.get_parameter("unknown_embed"), load_file(weights)["unknown_embed"])
    assert subject.origin.folder is None


def test_what_cannot_be_loaded(write_run, settings, tmp_path):
    run = write_run("a")
    empty = write_run("empty")
    next((empty / "checkpoints").iterdir()).unlink()
    wrong = write_run("wrong")
    save_file({"x": torch.zeros(1)}, wrong / "checkpoints" / "round-00003.safetensors")
    cut = tmp_path / "cut.pt"
    cut.write_bytes(b"")
    broken = write_run("broken")
    (broken / "config.yaml").write_text("[]")
    few = write_run("few", model={"num_classes": 10})
    for given, words in (
        (settings(), "runs="),
        (settings([tmp_path / "nowhere"]), "nowhere"),
        (settings([tmp_path / "a" / "checkpoints"]), "config.yaml"),
        (settings([empty]), "not finished"),
        (settings([wrong]), "must be a state dict that fits"),
        (settings([broken]), "not a run's"),
        (settings([run], model=MODEL, data=DATA), "no model beside runs"),
        (settings([run], defense=MJP), r"defense=\[mjp\]: must be \[\] beside runs"),
        (settings(model=MODEL, data=DATA, measure={"round": 3}), "measure.round=3: must be null without runs"),
        (settings(model=MODEL), "data=imagefolder"),
        (settings(model={**MODEL, "checkpoint": str(tmp_path / "no.pt")}, data=DATA), "no such file"),
        (settings(model={**MODEL, "checkpoint": str(cut)}, data=DATA), "must be a state dict that fits"),
        (settings([run], data={**DATA, "test_fraction": 0.0}), "above 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_subjects(given)
    assert load_subjects(settings([few]))


def test_pictures_that_a_run_trained_on_test_nothing(write_run, settings):
    run = write_run("a", data={**DATA, "seed": 1})
    with pytest.raises(
        ConfigError,
        match=r"^data\.seed=0: \d+ of the 40 test pictures were in the training split of no defense: leave data",
    ):
        load_subjects(settings([run], data=DATA))
    alone, again = (load_subjects(settings([run], data=data)) for data in ({}, {**DATA, "seed": 1}))
    assert alone[0].pictures.images.ids == again[0].pictures.images.ids


class Called:
    """The digits, under other names."""

    def __init__(self, names: list[str], **_: object) -> None:
        self.names = names

    def load(self):
        return replace(Digits(0.2, 0.0, 0).load(), class_names=tuple(self.names))


def test_labels_of_other_data_are_the_run_s(write_run, settings):
    run = write_run("a")
    called = {"_target_": f"{__name__}.Called"}
    own = list(Digits(0.2, 0.0, 0).load().class_names)
    assert load_subjects(settings([run], data={**called, "names": own}))
    for names, words in (([*own[:8], own[9], own[8]], "class 8 is 9, there 8"), (["x", *own[1:]], "class 0 is x")):
        with pytest.raises(ConfigError, match=rf"^data=10 classes: .*{words}"):
            load_subjects(settings([run], data={**called, "names": names}))
