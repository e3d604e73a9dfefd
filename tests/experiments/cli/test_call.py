"""A faulty setting is one line that names the key, the value and what would be right; nothing has started."""

import errno
import io

import pytest
from PIL import Image
from rich.console import Console

from experiments.cli.call import console, on_stderr, print_what_can_be

FAULTS = [
    (
        [
            "num_rounds=6",
            "strategy.scheduler={_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 1, total_steps: 5}",
        ],
        ["strategy.scheduler=torch.optim.lr_scheduler.OneCycleLR", "lasts the 6 steps of num_rounds"],
    ),
    (["defence=mjp"], ["defence=mjp", "Did you mean 'defense'"]),
    (["client.batchsize=2"], ["client.batchsize=2", "Did you mean 'client.batch_size'"]),
    (["attack=[patch_gradiant]"], ["attack=patch_gradiant", "Did you mean 'patch_gradient'"]),
    (["defense=[half,half]"], ["defense=[half,half]", "each name once: half"]),
    (["defense=[mjpp]"], ["defense=mjpp", "Did you mean 'mjp'", "--help defense lists all"]),
    (["model.name=vit_smal_patch16_224"], ["model.name=vit_smal_patch16_224", "Did you mean 'vit_small_patch16_224'"]),
    (["data=imagefolder", "data.path=nowhere"], ["data.path=nowhere"]),
    (["num_clients=100000"], ["100000"]),
    (["num_clients=0"], ["num_clients=0", "at least 1"]),
    (["partition=pathological", "partition.num_classes_per_partition=50"], ["partition"]),
    (["simulation.num_gpus=1"], ["simulation.num_gpus=1", "no CUDA device"]),
    (["simulation.attack_num_gpus=0.5"], ["simulation.attack_num_gpus=0.5", "no CUDA device"]),
    (["strategy=fedavg", "client.share=gradient"], ["client.share=gradient", "weights or delta"]),
    (["client.share=weigths"], ["client.share=weigths", "Did you mean 'weights'"]),
    (["strategy.min_available_nodes=1000"], ["strategy.min_available_nodes=1000", "num_clients=40"]),
    (["strategy._target_=flwr.serverapp.strategy.FedAgv"], ["strategy._target_=flwr.serverapp.strategy.FedAgv"]),
    (["attack.labels.rule=llgg"], ["attack.labels.rule=llgg", "one of"]),
    (["model.patch_size=3"], ["model", "8"]),
    (["model.checkpoint=missing.safetensors"], ["model.checkpoint=missing.safetensors", "no such file"]),
    (["strategy=fedavg", "client.optimizer._target_=torch.optim.Adan"], ["torch.optim.Adan"]),
    (["strategy.optimizer.lr=fast"], ["fast"]),
    (["observe.clients=some"], ["observe.clients=some", "all"]),
    (["observe.clients=-1"], ["observe.clients=-1", "at least 0"]),
    (["observe.clients=true"], ["observe.clients=True", "a number of at least 0"]),
    (["observe.clients=[0,99]"], ["observe.clients=[0, 99]", "from 0 to 39", "99 is none"]),
    (["observe.clients=[a]"], ["observe.clients=['a']", "partition ids"]),
    (["observe.clients=[1.7]"], ["observe.clients=[1.7]", "partition ids"]),
    (["strategy=fedadam", "strategy.eta=abc"], ["strategy.eta=abc", "a number"]),
    (["strategy=fedprox", "strategy.proximal_mu=abc"], ["strategy.proximal_mu=abc", "a number"]),
    (["strategy=fedavg", "+strategy.arrayrecord_key=foo"], ["strategy.arrayrecord_key=foo", "arrays"]),
    (["strategy=fedavg", "+strategy.minimum=1"], ["strategy.minimum=1", "no such setting"]),
    (["strategy.fraction_train=abc"], ["strategy.fraction_train=abc", "at least 0 and at most 1"]),
    (["client.label_smoothing=abc"], ["client.label_smoothing=abc", "a number"]),
    (["round_timeout=abc"], ["round_timeout=abc", "a number"]),
    (["checkpoint_every=abc"], ["checkpoint_every=abc", "whole number"]),
    (["data.test_fraction=0"], ["data.test_fraction=0"]),
    (["simulation=inline", "client.device=cuda"], ["client.device=cuda", "no CUDA device"]),
    (
        ["strategy.fraction_evaluate=1", "strategy.min_evaluate_nodes=50"],
        ["strategy.min_evaluate_nodes=50", "num_clients=40"],
    ),
    (["seed=abc"], ["seed=abc", "whole number"]),
    (["data=photos", "data.size=big"], ["data.size=big", "a whole number"]),
    (["data=photos", "data.count=2.5"], ["data.count=2.5", "a whole number"]),
    (["data=imagefolder", "data.path=5"], ["data.path=5", "a word or null"]),
    (["data.seed=abc"], ["data.seed=abc", "a whole number"]),
    (["+data.test_fractoin=0.3"], ["data.test_fractoin=0.3", "Did you mean 'test_fraction'"]),
    (["partition=dirichlet", "partition.seed=abc"], ["partition.seed=abc", "a whole number"]),
    (["partition=dirichlet", "+partition.alhpa=1"], ["partition.alhpa=1", "Did you mean 'alpha'"]),
    (["model.num_classes=0"], ["model.num_classes=0", "at least 1"]),
    (["model.num_classes=3"], ["model.num_classes=3", "at least 10"]),
    (
        ["attack=[patch_gradient,", "labels]"],
        ["attack=[patch_gradient,: ", "quote it: 'attack=[patch_gradient, labels]'"],
    ),
    (["observe.clients=[1,", "2,", "3]"], ["quote it: 'observe.clients=[1, 2, 3]'"]),
    (["strategy.fraction_train=0"], ["strategy.fraction_train=0", "above 0: with 0 no client trains"]),
    (["strategy=krum", "strategy.num_malicious_nodes=9", "num_clients=4"], ["num_malicious_nodes=9", "num_clients=4"]),
    (["strategy=krum", "num_clients=4"], ["num_malicious_nodes=1", "2f + 3 at most 4, the clients of a round"]),
    (["strategy=krum", "strategy.num_malicious_nodes=-1"], ["num_malicious_nodes=-1", "at least 0"]),
    (["strategy=multikrum", "strategy.fraction_train=0.1"], ["num_malicious_nodes=1", "2f + 3 at most 4"]),
    (["strategy=multikrum", "strategy.num_nodes_to_select=40"], ["num_nodes_to_select=40", "from 1 to 39"]),
    (["strategy=multikrum", "strategy.num_nodes_to_select=0"], ["num_nodes_to_select=0", "from 1 to 39"]),
    (["strategy=bulyan", "num_clients=6"], ["num_malicious_nodes=1", "4f + 3 at most 6"]),
    (["strategy=fedtrimmedavg", "num_clients=4"], ["strategy.beta=0.2", "0, or enough to trim one of 4 clients"]),
    (["strategy=fedavg", "+strategy.weighted_by_key=loss"], ["weighted_by_key=loss", "num-examples or train_loss"]),
    (
        ["strategy=fedavg", "+strategy.weighted_by_key=train_loss", "strategy.fraction_evaluate=1"],
        ["weighted_by_key=train_loss", "num-examples, which clients report when they evaluate too"],
    ),
    (
        ["strategy.fraction_train=0.01", "strategy.min_train_nodes=0"],
        ["strategy.fraction_train=0.01", "enough for one of 40 clients"],
    ),
    (["strategy=fedavg", "client.local_steps=2", "client.local_epochs=2"], ["client.local_steps=2", "local_epochs=2"]),
    (["strategy=fedavg", "finetune=lora", "finetune.rank=500"], ["finetune.rank=500", "at most 64"]),
    (["seed=-1"], ["seed=-1", "a whole number of at least 0"]),
    (["model.img_size=7"], ["model.img_size=7: must be a multiple of patch_size=2"]),
    (["model.name=vit_smal"], ["model.name=vit_smal", "Did you mean model=vit_small?"]),
    (["run_dir=/dev/null"], ["run_dir=/dev/null: must be a folder that can be written to (this is a file)"]),
    (["ray.grows=perhaps"], ["ray.grows=perhaps", "true or false"]),
]


@pytest.mark.parametrize(("settings", "parts"), FAULTS, ids=lambda value: value[0] if isinstance(value, list) else None)
def test_one_clear_line_before_anything_starts(command, tmp_path, settings, parts, monkeypatch):
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))
    code, out, err = command("fedsim", f"run_dir={tmp_path}/run", *settings)
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert all(part in lines[0] for part in parts), lines[0]
    assert "Traceback" not in out + err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_unreadable_picture_is_named(command, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / "data" / name / f"{index}.png")
    (tmp_path / "data" / "dog" / "broken.png").write_bytes(b"no picture")
    code, _, err = command("fedsim", "data=imagefolder", f"data.path={tmp_path}/data", f"run_dir={tmp_path}/run")
    assert code == 2
    assert "broken.png" in err


def test_a_folder_that_cannot_be_written_is_one_clear_line(command, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = command("fedsim", f"run_dir={tmp_path}/file", "simulation=inline", "num_rounds=1", "num_clients=2")
    assert code != 0
    assert "file" in err


@pytest.mark.parametrize("names_file", [False, True], ids=["a write", "opening the file"])
def test_a_disk_too_full_for_hydras_own_files_names_the_folder(command, tmp_path, monkeypatch, names_file):
    def refuse(config, filename, output):
        raise OSError(errno.ENOSPC, "No space left on device", *([str(output / filename)] if names_file else []))

    monkeypatch.setattr("hydra.core.utils._save_config", refuse)
    code, _, err = command("fedsim", f"run_dir={tmp_path}/run")
    assert code == 2
    assert err == f"error: run_dir={tmp_path}/run: must be a folder that can be written to (No space left on device)\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["fedsim", "fedsim-audit"])
def test_help_teaches(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    for word in ("attack", "defense", "patch_gradient", "fixed_pe", "-m", "run_dir", "--cfg job"):
        assert word in out, word
    code, out, _ = command(name, "--help", "all")
    assert code == 0
    assert "labels_zlg" in out


def test_the_composition_can_be_shown(command):
    code, out, _ = command("fedsim", "--cfg", "job", "defense=[fixed_pe]")
    assert code == 0
    assert "fixed_pe:" in out


def test_a_sweep_writes_one_comparison_page_and_outlives_a_faulty_run(command, tmp_path):
    code, out, err = command(
        "fedsim",
        "-m",
        "defense=[],[fixed_pe]",
        "client.batch_size=1,0",
        "num_clients=2",
        "num_rounds=1",
        "simulation=inline",
        "tracker=[]",
        f"run_dir={tmp_path}/sweep",
    )
    assert code == 2
    assert err.count("client.batch_size=0") == 2
    assert err.count("reading the data, building the model …") == 2, "of the runs that begin"
    assert err.count("training: 2 clients, 1 round, in ") == 2
    titles = [line.split(" num_clients")[0] for line in out.splitlines() if line.startswith("#")]
    assert titles[1:] == [
        "#1 defense=[] client.batch_size=0",
        "#2 defense=[fixed_pe] client.batch_size=1",
        "#3 defense=[fixed_pe] client.batch_size=0",
    ]
    assert sorted(path.name for path in (tmp_path / "sweep").glob("[0-9]")) == ["0", "2"], "faulty runs leave nothing"
    finished = sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json"))
    assert finished == ["0", "2"]
    pages = list((tmp_path / "sweep").glob("*.html"))
    assert len(pages) == 1, out
    page = pages[0].read_text()
    assert "fixed_pe" in page
    assert "patch_gradient" in page


def test_options_of_ones_own_are_suggested_and_pointed_at(command, tmp_path):
    (tmp_path / "attack").mkdir()
    own = "mini_match: {_target_: attacks.label.RecoverLabels, rule: llg}\n"
    (tmp_path / "attack" / "mini_match.yaml").write_text(own)
    settings = ["data=digits", "model=vit_nano", f"run_dir={tmp_path / 'run'}"]
    folder = ["--config-dir", str(tmp_path)]
    _, _, err = command("fedsim-audit", *folder, "attack=[mini_mach]", *settings)
    assert err.strip().endswith("no such option. Did you mean 'mini_match'? --help attack lists all.")
    _, _, err = command("fedsim-audit", *folder, "attack=[mini_match]", "attack.mini_match.rul=4", *settings)
    assert err.strip().endswith("Did you mean 'attack.mini_match.rule'?")
    _, _, err = command("fedsim-audit", "attack=[mini_match]", *settings)
    assert err.strip().endswith("Options of your own: --config-dir DIR.")
    code, _, err = command("fedsim-audit", *folder, "attack=[3]", *settings)
    assert code == 2
    assert err.strip().endswith("attack=[3]: a group takes the name of an option, or a list of them")


def test_a_key_that_a_sweep_has_in_some_runs_alone_says_so(command, tmp_path):
    swept = ["defense=[],[gradient_clip]", "defense.gradient_clip.max_norm=0.1,0.5"]
    small = ["data=digits", "model=vit_nano", "simulation=inline", "audit.num_images=1", f"hydra.sweep.dir={tmp_path}"]
    _, _, err = command("fedsim-audit", "-m", *small, *swept)
    lines = {line for line in err.splitlines() if "gradient_clip" in line}
    assert lines == {
        "error: defense.gradient_clip.max_norm=0.1,0.5: there is no such key in some of the runs. "
        "It is there only with defense=[gradient_clip]: run defense=[] without it."
    }


def test_a_sign_that_the_terminal_lacks_ends_no_run():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    print_what_can_be(stream)
    Console(file=stream).print("PSNR ≥ 20 dB")
    stream.flush()
    assert raw.getvalue() == b"PSNR ? 20 dB\n"


def test_in_a_python_session_standard_output_is_the_callers_own(capsys):
    with on_stderr():
        console.print("beside")
    console.print("again")
    assert capsys.readouterr() == ("again\n", "beside\n")


@pytest.fixture
def folder_of(tmp_path):
    """`folder_of("cat", "dog")`: pictures in these class folders; gives the settings that name it."""

    def write(*names):
        for name in names:
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            for index in range(4):
                Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / "data" / name / f"{index}.png")
        return "data=imagefolder", f"data.path={tmp_path}/data"

    return write


@pytest.mark.parametrize(
    ("classes", "settings", "part"),
    [
        (["cat"], [], "/data: holds one class; there must be at least two, or model.num_classes=2 or more"),
        (["cat"], ["model.num_classes=1"], "model.num_classes=1: must be at least 2"),
        ([""], [], "/data: holds pictures, but no class folders"),
        (["val/cat", "train/cat"], [], "/data: holds one class"),
    ],
)
def test_a_folder_without_classes_to_tell_apart_is_refused_early(
    command, folder_of, classes, settings, part, monkeypatch
):
    monkeypatch.setattr("experiments.cli.call.check_named", lambda _: pytest.fail("libraries were loaded"))
    code, _, err = command("fedsim-audit", *folder_of(*classes), *settings, "attack=[labels]")
    assert (code, part in err) == (2, True), err


def test_one_class_is_enough_for_a_model_of_more(command, folder_of, tmp_path):
    data = [*folder_of("cat"), "model.num_classes=2", "audit.num_images=1", "attack=[labels]"]
    code, _, err = command("fedsim-audit", *data, "simulation=inline", f"run_dir={tmp_path}/run")
    assert code == 0, err


def test_a_key_given_twice_is_said(command):
    code, _, err = command("fedsim", "num_rounds=1", "num_rounds=2", "num_clients=0")
    assert (code, err.splitlines()[0]) == (2, "num_rounds=2 counts, not num_rounds=1 before it")


def test_broken_yaml_is_one_line_with_its_place(command, tmp_path):
    (tmp_path / "own" / "attack").mkdir(parents=True)
    file = tmp_path / "own" / "attack" / "bad7.yaml"
    file.write_text("bad7:\n\t_target_: x\n")
    code, _, err = command("fedsim", "--config-dir", str(tmp_path / "own"), "attack=[bad7]")
    assert code == 2
    assert err == f"error: {file}, line 2: found character '\\t' that cannot start any token: must be YAML\n"
