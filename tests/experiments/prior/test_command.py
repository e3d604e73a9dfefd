"""`fedsim-prior` as a user calls it, on digits."""

import errno
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from attacks.generative import GIAS, Generator, GeneratorLatent, GeneratorSamples
from experiments.engine.setup import prepare
from experiments.prior import inversion, training
from experiments.prior.command import run_prior, use
from experiments.prior.inversion import Simulator
from experiments.prior.settings import PriorImages, prior_images
from experiments.python.load_config import load_config
from fedsim.data.copies import contents
from fedsim.data.tensors import TensorImages
from fedsim.errors import ConfigError
from fedsim.models.generator import ConvGenerator, load_generator, save_generator
from fedsim.storage.durable import locked
from tests.support.federation import settings

PUBLIC = ["data.auxiliary_fraction=0.3", "prior.validation=8", "threads=1"]
GENERATOR = ["prior.generator.steps=30", "prior.generator.channels=[16,8]", "prior.generator.latent=8"]
GENERATOR += ["prior.generator.batch_size=16", "prior.generator.save_every=10"]
LTI = ["kind=lti", "model=mlp", "model.img_size=8", "model.kwargs.hidden=[16]", "prior.lti.updates=18"]
LTI += ["prior.lti.steps=50", "prior.lti.hidden=64", "prior.lti.bins=256", "prior.lti.save_every=20"]


def test_a_generator_of_all_classes_but_some(command, tmp_path):
    root = tmp_path / "prior"
    call = ["fedsim-prior", f"run_dir={root}", *PUBLIC, *GENERATOR, "prior.exclude_classes=[3,8]"]
    code, out, err = command(*call)
    assert code == 0, err
    assert out.strip().splitlines()[-1] == str(root)
    call_of_use = next(shlex.split(line) for line in out.splitlines() if line.startswith("fedsim-audit "))
    assert {"data=digits", "model=vit_nano", "data.auxiliary_fraction=0.3", "attack=[gias]"} < set(call_of_use)
    generator = load_generator(root / "generator.safetensors")
    assert generator.trained_on.nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
    assert generator(torch.zeros(1, 8)).shape == (1, 3, 8, 8)
    assert generator.class_names == tuple("0123456789")
    summary = json.loads((root / "summary.json").read_text())
    assert summary["classes"] == 8
    assert summary["excluded_pictures"] == 8
    with Image.open(root / "samples.png") as sheet:
        assert sheet.size[0] > sheet.size[1] > 100
    code, out, _ = command(*call)
    assert code == 0
    assert "finished by an earlier call" in out
    code, _, err = command(*call, "seed=1")
    assert code == 2
    assert "seed=1 now, 0 there" in err


def test_it_trains_on_the_gpu_of_this_process_and_goes_on_where_it_began(tmp_path, monkeypatch):
    devices = []

    def train(setup, *_):
        devices.append(setup.config.client.device)
        return {"learned_from": 1, "classes": 1}

    monkeypatch.setattr("experiments.prior.command._train", train)
    given = load_config("prior", *PUBLIC, *GENERATOR)
    for gpu, place in ((False, "a"), (True, "a"), (True, "b")):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpu=gpu: gpu)
        run_prior(given, tmp_path / place)
    assert devices == ["cpu", "cpu", "cuda"]


def test_seconds_are_of_trainings_that_one_call_did_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.prior.command._train", lambda *_: {"learned_from": 1, "classes": 1})
    given = load_config("prior", *PUBLIC, *GENERATOR)
    run_prior(given, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["seconds"] >= 0
    (tmp_path / "checkpoints" / "10.safetensors").write_bytes(b"")
    run_prior(given, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["seconds"] is None


def test_the_command_of_use_repeats_what_the_prior_holds_for():
    choices = {"data": "imagefolder", "model": "mlp", "defense": None}
    given = ["data=imagefolder", "data.path='a b'", "kind=lti", "defense=[topk]", "++defense.topk.ratio=0.5", "seed=3"]
    given += ["client.batch_size=2", "client.share=delta", "finetune=lora", "finetune.rank=2"]
    given += ["prior.lti.steps=9", "run_dir=x"]
    words = shlex.split(use("lti", Path("x/inversion.safetensors"), 2, choices, given))
    assert words[:-2] == [
        "fedsim-audit", "data=imagefolder", "model=mlp", "data.path='a b'", "defense=[topk]",
        "++defense.topk.ratio=0.5", "seed=3", "client.share=delta", "finetune=lora", "finetune.rank=2",
        "audit.batch_size=2",
    ]  # fmt: skip
    assert "audit.num_images=18" in shlex.split(use("lti", Path("x"), 3, choices, given))
    generator = shlex.split(use("generator", Path("g.safetensors"), 1, choices, given))
    assert not {"defense=[topk]", "finetune=lora"} & set(generator)
    assert generator[-2:] == ["attack=[gias]", f"attack.gias.generator.checkpoint={Path('g.safetensors').resolve()}"]


def test_simulated_clients_begin_with_the_pair_that_real_ones_begin_with():
    given = ["data=digits", "model=vit_nano", "kind=lti", "client.share=delta", "client.local_steps=1"]
    given += ["finetune=lora", "finetune.aggregate=local_pair"]
    setup = prepare(load_config("prior", *given))
    own, simulated = setup.runtime().own, Simulator(setup)._runtime.own
    assert own
    assert own.keys() == simulated.keys()
    assert all(torch.equal(tensor, simulated[name]) for name, tensor in own.items())


def test_a_generator_of_another_size_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "g.safetensors"
    save_generator(ConvGenerator(8, 16, (8,)), path)
    given = ["data=digits", "model=vit_nano", "attack=[gias]", f"attack.gias.generator.checkpoint={path}"]
    with pytest.raises(ConfigError, match=r"^attack\.gias\.generator\.checkpoint=.*3×8×8.*3×16×16"):
        prepare(settings("audit", *given))


def test_a_generator_that_numbers_the_classes_otherwise_is_refused(tmp_path):
    path = tmp_path / "g.safetensors"
    for index in range(8):
        image = tmp_path / "data" / ("cat", "dog")[index % 2] / f"{index}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (index, 9, 9)).save(image)
    save_generator(ConvGenerator(8, 8, (8,), num_classes=2), path, class_names=("dog", "cat"))
    given = ["data=imagefolder", f"data.path={tmp_path / 'data'}", "data.test_fraction=0", "data.auxiliary_fraction=0"]
    given += ["model=vit_nano", "attack=[gias]", f"attack.gias.generator.checkpoint={path}"]
    line = r"^attack=gias: its generator's class 0 is dog, that of the data cat: give .*\.conditional=false$"
    with pytest.raises(ConfigError, match=line):
        prepare(settings("audit", *given))


def test_a_folder_at_work_is_left_as_it_is(command, tmp_path):
    with locked(tmp_path):
        code, _, err = command("fedsim-prior", f"run_dir={tmp_path}", *PUBLIC, *GENERATOR)
    assert code == 2
    assert "another process is at work in this folder" in err
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(("kind", "settings", "result"), [
    ("generator", GENERATOR, "generator.safetensors"),
    ("lti", LTI, "inversion.safetensors"),
])  # fmt: skip
def test_a_killed_training_comes_to_the_same_bits(command, tmp_path, monkeypatch, kind, settings, result):
    monkeypatch.setattr(inversion, "CHUNK", 16)  # two files of updates
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command("fedsim-prior", f"run_dir={whole}", *PUBLIC, *settings)[0] == 0
    save = training.Training._save

    def deadly(self):
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "_save", deadly)
        code, _, err = command("fedsim-prior", f"run_dir={killed}", *PUBLIC, *settings)
    assert code == 130
    assert "goes on" in err
    assert not (killed / result).exists()
    assert command("fedsim-prior", f"run_dir={killed}", *PUBLIC, *settings)[0] == 0
    first, again = load_file(whole / result), load_file(killed / result)
    assert first.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def test_a_training_does_not_go_on_over_other_images(command, tmp_path):
    for index in range(24):
        path = tmp_path / "data" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((8, 8), 10.0 + index).convert("RGB").save(path)
    data = ["data=imagefolder", f"data.path={tmp_path / 'data'}", "data.auxiliary_fraction=0.6", "prior.validation=4"]
    call = ["fedsim-prior", f"run_dir={tmp_path / 'prior'}", *data, "threads=1", *GENERATOR, "model=vit_nano"]
    assert command(*call)[0] == 0
    for index, path in enumerate((tmp_path / "data").rglob("*.png")):
        Image.new("RGB", (8, 8), (9, 9, index)).save(path)
    code, _, err = command(*call)
    assert code == 2
    assert "choose a new folder, or bring back what there was: this one holds results of other images" in err


@pytest.mark.parametrize("saved", [0, 1])
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_is_kept_is_said_to_be_once_there_is_a_checkpoint(command, tmp_path, monkeypatch, fault, saved):
    save, root = training.Training._save, tmp_path / "prior"

    def deadly(self):
        if self.step > 10 * saved:
            raise fault
        save(self)

    monkeypatch.setattr(training.Training, "_save", deadly)
    _, _, err = command("fedsim-prior", f"run_dir={root}", *PUBLIC, *GENERATOR)
    last = err.strip().splitlines()[-1]
    assert ("nothing is kept yet" in last) is (not saved)
    assert ("what had finished is" in last) is bool(saved)
    assert last.endswith(f"the same command with run_dir={root} {'goes on' if saved else 'begins anew'}")


def test_lti_is_trained_through_the_defense_and_used_by_an_audit(command, tmp_path):
    root, audit = tmp_path / "lti", tmp_path / "audit"
    same = ["model=mlp", "model.img_size=8", "model.kwargs.hidden=[16]", "data.auxiliary_fraction=0.3"]
    same += ["defense=[topk]", "defense.topk.ratio=0.5"]
    more = ["prior.lti.updates=256", "prior.lti.steps=300", "prior.lti.lr=2e-3", "prior.lti.any_label=0"]
    code, _, err = command("fedsim-prior", f"run_dir={root}", *PUBLIC, *LTI, *same, *more)
    assert code == 0, err
    summary = json.loads((root / "summary.json").read_text())
    assert summary["validation_psnr"] > summary["validation_psnr_of_mean_picture"] + 1
    network = f"checkpoint={root / 'inversion.safetensors'}"
    attack = ["data=digits", "simulation=inline", "attack=[lti,lti_mean]", f"attack.lti.{network}"]
    attack += [f"attack.lti_mean.{network}", "audit.num_images=4"]
    code, _, err = command("fedsim-audit", f"run_dir={audit}", *same, *attack)
    assert code == 0, err
    results = [json.loads(line) for line in (audit / "attacks.jsonl").read_text().splitlines()]
    mean = {
        name: sum(r["images"][0]["psnr"] for r in results if r["attack"] == name) / 4 for name in ("lti", "lti_mean")
    }
    assert mean["lti"] > mean["lti_mean"]
    code, _, err = command("fedsim-audit", f"run_dir={tmp_path / 'other'}", *same, *attack, "defense.topk.ratio=0.4")
    assert code == 0, err
    other = [json.loads(line) for line in (tmp_path / "other" / "attacks.jsonl").read_text().splitlines()]
    assert {r["reason"] for r in other if r["attack"] == "lti"} == {
        "the network was trained for something else: defense was topk, now topk: ratio was 0.5, now 0.4"
    }


WITHHELD = ["client.batch_size=2", "prior.lti.updates=9", "prior.lti.steps=2"]


@pytest.fixture
def withholding(monkeypatch):
    """`withholding(numbers)`: updates of these simulated clients are not shared; four updates are in a file."""
    observe = inversion.Simulator.observe
    monkeypatch.setattr(inversion, "CHUNK", 4)

    def withhold(numbers):
        def gated(self, pictures, client):
            seen = observe(self, pictures, client)
            return replace(seen, update=replace(seen.update, tensors={})) if client in numbers else seen

        monkeypatch.setattr(inversion.Simulator, "observe", gated)

    return withhold


def test_updates_that_a_defense_withholds_are_left_out_even_a_whole_file_of_them(command, tmp_path, withholding):
    withholding({0, *range(4, 8)})
    root = tmp_path / "gated"
    code, _, err = command("fedsim-prior", f"run_dir={root}", *PUBLIC, *LTI, *WITHHELD)
    assert code == 0, err
    assert (root / "inversion.safetensors").exists()


def test_a_defense_that_withholds_every_update_is_named(command, tmp_path, withholding):
    withholding(range(9))
    code, _, err = command("fedsim-prior", f"run_dir={tmp_path / 'none'}", *PUBLIC, *LTI, *WITHHELD)
    assert code == 2
    assert "none of 4 was" in err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["kind=gan"], "kind=gan: must be one of generator, lti"),
        (["prior.exclude_classes=[tree]"], "prior.exclude_classes=tree: must be a class of the data: 0, 1"),
        (["prior.exclude_classes=3"], "a list of names"),
        (["data.auxiliary_fraction=0"], "data.auxiliary_fraction=0: must be more than 64 public pictures"),
        (["prior.generator.steps=0"], "prior.generator.steps=0: must be a whole number of at least 1"),
        (["prior.generator.channels=[7]"], "prior.generator.channels=[7]: must be one or more multiples of 8"),
        (["simulation=ray"], "simulation=ray: must be inline"),
        (["prior.generator.latent=0"], "prior.generator.latent=0: must be 1 or more"),
        (
            ["model=lenet_dlg", "model.img_size=250"],
            "model.img_size=250: must be a side that halves down to few pixels",
        ),
        (["prior.generator.any_class=0"], "any_class=0: must be above 0 and below 1 with conditional=true"),
        (["prior.generator.any_class=1"], "any_class=1: must be above 0 and below 1 with conditional=true"),
        (["+prior.generator.depth=3"], "prior.generator.depth=3: there is no such setting"),
        (["kind=lti", "prior.lti.any_label=2"], "prior.lti.any_label=2: must be a share"),
        (
            ["kind=lti", "prior.validation=1", "client.batch_size=2"],
            "prior.validation=1: must be at least the 2 pictures",
        ),
        (["kind=lti", "prior.lti.decoder=magic"], "prior.lti.decoder=magic: must be one of linear, conv"),
        (["kind=lti", "prior.lti.hidden=0"], "prior.lti.hidden=0: must be 1 or more"),
        (["kind=lti", "defense=[secure_aggregation]"], "the server sees single clients"),
        (
            ["kind=lti", "client.batch_size=64", "data.auxiliary_fraction=0.05"],
            "client.batch_size=64: must be at most the",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(command, tmp_path, settings, words):
    root = tmp_path / "none"
    code, _, err = command("fedsim-prior", f"run_dir={root}", "prior.lti.updates=4", *settings)
    assert code == 2
    assert words in err
    assert not root.exists() or not any(path.is_file() for path in root.glob("*.yaml"))


def test_an_audit_of_images_that_its_prior_was_trained_on_is_refused(command, tmp_path):
    """Other data settings than the prior's, and its own images are attacked: results would be recollections."""
    root = tmp_path / "prior"
    known = [*PUBLIC[:2], "threads=2", *LTI, "prior.lti.steps=1", f"run_dir={root}"]
    before = torch.get_num_threads()
    assert command("fedsim-prior", *known)[0] == 0
    assert torch.get_num_threads() == before  # what follows in the process has the bits of its own settings
    place = root / "inversion.safetensors"
    given = ["data=digits", "model=mlp", "model.img_size=8", "model.kwargs.hidden=[16]", "attack=[lti]"]
    given += [f"attack.lti.checkpoint={place}", "simulation=inline"]
    audit = ["fedsim-audit", *given, "audit.num_images=40", f"run_dir={tmp_path / 'audit'}"]
    code, _, err = command(*audit)  # data.auxiliary_fraction=0.1: a fourth of the clients' images are the prior's
    assert code == 2
    assert re.search(r"attack=lti: its prior was trained on \d+ of the 40 images that would be attacked", err)
    code, _, err = command(*audit, "data.auxiliary_fraction=0.3")
    assert code == 0, err
    run = ["fedsim", "num_clients=2", "num_rounds=1", *given, f"run_dir={tmp_path / 'run'}"]
    code, _, err = command(*run, "client.batch_size=1")
    assert code == 2
    assert re.search(r"attack=lti: its prior was trained on \d+ of the", err)


def test_a_public_copy_of_a_clients_picture_is_not_learned_from(tmp_path, caplog):
    """The same data settings then never meet an attacked image that the prior was trained on."""
    for index in range(24):
        path = tmp_path / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shade = index // 2 % 6  # half of each class are copies of the other half
        Image.new("RGB", (8, 8), (10 * shade, 9 * (index % 2), 9)).save(path)
    given = ["data=imagefolder", f"data.path={tmp_path}", "data.auxiliary_fraction=0.6", "data.test_fraction=0"]
    setup = prepare(load_config("prior", *given, "model=vit_nano", "prior.validation=1"))
    held, public = set(contents(setup.data.train)), list(contents(setup.data.auxiliary))
    copies = sum(digest in held for digest in public)
    images = prior_images(setup)
    assert 0 < copies < len(public) - 1
    assert len(images.train) + len(images.validation) == len(public) - copies
    assert held.isdisjoint(contents(images.train))
    assert f"{copies} of the public pictures are copies of clients' ones, and left out" in caplog.text


def test_a_generator_keeps_what_it_was_trained_on(tmp_path):
    save_generator(ConvGenerator(8, 16, (8,)), tmp_path / "g.safetensors", {"ab", "cd"})
    generator = Generator(str(tmp_path / "g.safetensors"))
    assert generator.learned_from == {"ab", "cd"}
    assert GIAS(latent=GeneratorLatent(generator)).learned_from == {"ab", "cd"}
    assert GeneratorSamples(generator).learned_from == {"ab", "cd"}


def test_the_mean_image_is_of_all_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("experiments.prior.settings.TOGETHER", 3)
    images = TensorImages(torch.rand(7, 3, 2, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(7).long())
    found = PriorImages(images, images, images, (0,)).mean
    torch.testing.assert_close(found, images.images(range(7)).mean(dim=0))
