"""`import fedsim`: five lines attack what any model's client would share."""

import doctest
import json
import math
import re
import statistics
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import fedsim
from attacks.base import Reconstruction
from fedsim.data.own import own_data
from fedsim.effects import Clips
from fedsim.result import AttackResult

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = [3, 1]


class OwnNet(nn.Module):
    """Somebody's own: no name of timm's, no attribute that says what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten())
        self.answer = nn.Linear(4 * 15 * 15, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.answer(self.features(images))


def make_vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10)


def make_resnet() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(num_classes=10)


@pytest.fixture
def vit() -> nn.Module:
    return make_vit()


def test_five_lines_rebuild_the_image_of_a_vit(vit):
    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    result = fedsim.attack("patch_gradient", seen)
    scored = fedsim.score(result, IMAGES[:1], LABELS[:1])
    assert result.certified
    assert scored.psnr[0] > 100
    figure = fedsim.show(scored, IMAGES[:1])
    assert [axes.get_title() for axes in figure.axes] == ["original", f"{scored.psnr[0]:.1f} dB"]
    assert "certified (at least" in str(scored)


@pytest.mark.parametrize("make", [make_resnet, OwnNet], ids=["torchvision", "own"])
def test_any_module_is_attacked_by_what_needs_no_vit(make):
    torch.manual_seed(0)
    model = make().eval()  # BatchNorm of one image has no spread
    seen = fedsim.observe(model, IMAGES[:1], LABELS[:1])
    labels = fedsim.attack("labels", seen)
    assert labels.labels.tolist() == LABELS[:1]
    assert labels.target == "labels"
    refused = fedsim.attack("patch_gradient", seen)
    assert (refused.status, refused.images) == ("refused", None)
    searched = fedsim.attack("inverting_gradients", seen, steps=3)
    assert searched.images.shape == (1, 3, 32, 32)


def test_what_batch_norm_cannot_train_on_is_said():
    with pytest.raises(fedsim.ConfigError, match=r"images=1 of \(3, 32, 32\): must be more images, .* BatchNorm"):
        fedsim.observe(make_resnet(), IMAGES[:1], LABELS[:1])


def test_what_is_observed_is_the_gradient(vit):
    seen = fedsim.observe(vit, IMAGES, LABELS, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    loss = nn.functional.cross_entropy(vit((IMAGES - mean) / std), torch.tensor(LABELS))
    named = dict(vit.named_parameters())
    for (name, _), gradient in zip(named.items(), torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(seen.update.tensors[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_model_stays_as_it_is(vit):
    before = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    fedsim.observe(vit, IMAGES, LABELS, share="weights", local_steps=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in vit.state_dict().items())
    assert vit.training
    assert all(parameter.grad is None for parameter in vit.parameters())


def test_local_training_is_that_of_torch(vit):
    vit.eval()
    seen = fedsim.observe(vit, IMAGES, LABELS, share="delta", local_steps=3, lr=0.05)
    start = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    optimizer = torch.optim.SGD(vit.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(vit((IMAGES - 0.5) / 0.5), torch.tensor(LABELS)).backward()
        optimizer.step()
    for name, parameter in vit.named_parameters():
        torch.testing.assert_close(seen.update.tensors[name], parameter.detach() - start[name], rtol=1e-3, atol=1e-6)


def test_gradients_from_elsewhere_are_attacked_by_name_or_in_order(vit):
    loss = nn.functional.cross_entropy(vit((IMAGES[:1] - 0.5) / 0.5), torch.tensor(LABELS[:1]))
    gradients = torch.autograd.grad(loss, list(vit.parameters()))
    names = [name for name, _ in vit.named_parameters()]
    listed = fedsim.Observation.of(vit, gradients)
    named = fedsim.Observation.of(vit, dict(zip(names, gradients, strict=True)))
    for seen in (listed, named):
        result = fedsim.score(fedsim.attack("patch_gradient", seen), IMAGES[:1])
        assert result.psnr[0] > 100
        assert not result.certified  # nobody said that the client did nothing else
    replayed = fedsim.Observation.of(vit, gradients, replayer=fedsim.replay)
    assert fedsim.attack("patch_gradient", replayed).certified


def test_weights_before_and_after_are_an_observation(vit):
    vit.eval()
    shared = fedsim.observe(vit, IMAGES[:1], LABELS[:1], share="weights", local_steps=1, lr=0.01)
    protocol = fedsim.LocalProtocol(1, optimizer="sgd", lrs=(0.01,), training_mode=False)
    seen = fedsim.Observation.of(vit, weights=shared.update.tensors, protocol=protocol)
    assert fedsim.score(fedsim.attack("patch_gradient", seen), IMAGES[:1]).psnr[0] > 40


def test_an_observation_of_an_own_module_comes_back_from_disk(tmp_path):
    torch.manual_seed(0)
    model = OwnNet()
    seen = fedsim.observe(model, IMAGES[:1], LABELS[:1])
    seen.save(tmp_path / "seen")
    again = fedsim.Observation.load(tmp_path / "seen", model=model)
    assert fedsim.attack("labels", again).labels.tolist() == LABELS[:1]
    with pytest.raises(fedsim.ConfigError, match="what Linear reads"):
        fedsim.Observation.load(tmp_path / "seen", model=nn.Linear(3, 10))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"labels": [3, 12]}, "labels=12: must be classes from 0 to 9"),
        ({"labels": [3]}, "labels=.*one whole number for each of 2"),
        ({"images": 2 * IMAGES + 1}, r"images=1 … .*values in \[0, 1\]"),
        ({"images": IMAGES[0]}, r"images=torch.float32 \(3, 32, 32\)"),
        ({"images": IMAGES[:, :, :24, :24]}, r"image_shape=\(3, 24, 24\): must be what VisionTransformer reads"),
        ({"defense": "mjpp"}, "defense=mjpp: there is no such option. Did you mean 'mjp'"),
        ({"defense": ["half", "half"]}, "defense=half: must be each defense once"),
        (
            {"defense": {"mjp": {"ration": 0.3}}},
            "defense.mjp.ration=0.3: .* Did you mean 'ratio'",
        ),
        ({"local_steps": 2}, "local_steps=2: must be share='delta' or 'weights'"),
        ({"batch_size": 0}, "batch_size=0: must be a whole number of at least 1"),
        ({"share": "gradients"}, "share=gradients: must be gradient, delta or weights"),
        ({"share": "delta", "lr": -1.0}, "client.optimizer"),
    ],
)
def test_wrong_use_is_one_clear_line(vit, wrong, words):
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.observe(vit, **{"images": IMAGES, "labels": LABELS, **wrong})


def test_what_is_no_observation_is_refused(vit):
    with pytest.raises(fedsim.ConfigError, match="observation=VisionTransformer: must be an Observation"):
        fedsim.attack("labels", vit)
    seen = fedsim.observe(vit, IMAGES, LABELS)
    with pytest.raises(fedsim.ConfigError, match=r"^attack=<Observation .* before the observation$") as raised:
        fedsim.attack(seen, "labels")
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", "^device=gpu: must be cpu, cuda or cuda:N, or None"),
        (3.5, "^device=3.5: must be cpu, cuda"),
        ("cuda", "^device=cuda: must be cpu, or None: this machine has no CUDA device"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(device, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.attack("fc_bias", fedsim.observe(model, IMAGES[:1], LABELS[:1]), device=device)


def test_a_cuda_device_beyond_the_last_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(fedsim.ConfigError, match=r"^device=cuda:2: must be cuda:1 at most: .* has 2 CUDA devices"):
        fedsim.attack("fc_bias", [], device="cuda:2")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (IMAGES, "^dataset=Tensor: must be a data set of pairs"),
        ((IMAGES.numpy(), LABELS), r"^dataset=tuple of ndarray: must be a data set of pairs .* or \(images, labels\)"),
        (torch.utils.data.TensorDataset(IMAGES), "^dataset=TensorDataset of tuple: must be a data set of pairs"),
        (3, "^dataset=int: must be a data set of pairs"),
    ],
)
def test_images_without_labels_are_no_data_set(dataset, words):
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.audit(OwnNet(), dataset)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"finetune": {"lora": 4}}, r"^finetune\.lora=4: must be settings by name"),
        ({"defense": {"topk": 0.3}}, r"^defense\.topk=0\.3: must be settings by name"),
        ({"optimizer": "torch.optim.Adam"}, r"^optimizer=torch\.optim\.Adam: must be a group of settings"),
        ({"label_smoothing": "a"}, r"^label_smoothing=a: must be a number"),
        ({"share": "delta", "lr": math.nan}, r"^client\.optimizer\.lr=nan: must be a number from 0"),
    ],
)
def test_settings_of_another_kind_are_refused_by_name(given, words):
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.observe(OwnNet(), IMAGES[:1], LABELS[:1], **given)
    if "defense" in given:
        with pytest.raises(fedsim.ConfigError, match=words):
            fedsim.audit(OwnNet(), (IMAGES, torch.tensor(LABELS)), "labels", [given["defense"]], num_images=1)


@pytest.mark.parametrize("label", [0.6, 1.0, True, "3"])
def test_a_label_that_is_no_whole_number_is_refused(label):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    with pytest.raises(fedsim.ConfigError, match=r"dataset\[0\]=.*labelled by a whole number"):
        fedsim.audit(model, [(torch.rand(3, 4, 4), label)], ["labels"], num_images=1)


@pytest.mark.parametrize(("low", "high", "said"), [(0.0, 255.0, True), (-2.1, 2.6, True), (-0.2, 1.3, False)])
def test_images_on_another_scale_are_named(low, high, said):
    class Strange(fedsim.Attack):
        def run(self, observation, rng, device):
            return Reconstruction(images=low + (high - low) * IMAGES[:1])

    result = fedsim.attack(Strange(), fedsim.observe(OwnNet(), IMAGES[:1], LABELS[:1]))
    words = r"its pixels are \S+ … \S+, where \[0, 1\] is wanted: what lies outside is cut off for every score"
    assert bool(re.fullmatch(words, result.reason)) == said
    assert bool(re.search(words, str(fedsim.score(result, IMAGES[:1])))) == said


def test_of_ones_own_result_as_many_images_count_as_there_are_originals():
    images = torch.cat([torch.full_like(IMAGES[:1], 0.5), IMAGES[:1]])
    mine = fedsim.AttackResult("mine", "draws", "done", images=images)
    first = fedsim.AttackResult("mine", "draws", "done", images=images[:1])
    assert fedsim.score(mine, IMAGES[:1]).psnr == fedsim.score(first, IMAGES[:1]).psnr, "the truth chooses none"


def test_a_figure_of_several_names_each_and_says_what_it_leaves_out():
    originals = IMAGES[:1].expand(10, -1, -1, -1)
    why = "a reason that is far longer than a row of one image is wide, and whose last word is still to be read: end"
    refused, rebuilt = AttackResult("o", "other", "refused", why), AttackResult("o", "mine", "done", images=originals)
    one = fedsim.show([replace(rebuilt, images=originals[:1]), refused], originals[:1])
    words = [text.get_text() for axes in one.axes for text in axes.texts]
    assert words[0] == "mine"
    assert " ".join(words[1].split("\n")) == f"other: refused: {why}"
    assert max(map(len, words[1].split("\n"))) < 60
    assert one.get_suptitle() == ""
    many = fedsim.show([rebuilt, refused], originals)
    assert many.get_suptitle() == "8 of 10 images"
    assert len(many.axes) == 3 * 8


def test_who_names_an_attack_or_a_defense_of_their_own_is_told_how_it_is_given(vit):
    words = r"there is no such option\. One of your own is given as an object; commands find its YAML in DIR/{group} "
    with pytest.raises(fedsim.ConfigError, match="^attack=gray: " + words.format(group="attack")):
        fedsim.attack("gray", fedsim.observe(vit, IMAGES, LABELS))
    with pytest.raises(fedsim.ConfigError, match="^defense=my_own: " + words.format(group="defense")):
        fedsim.observe(vit, IMAGES, LABELS, defense="my_own")


def test_an_observation_says_what_was_shared_of_which_model_in_one_line(vit):
    seen = fedsim.observe(vit, IMAGES, LABELS, defense=["half"], finetune="lora")
    name = seen.architecture.spec.name
    shared = "<Observation round-00000-client-00000: gradient of 2 images, "
    assert repr(seen) == f"{shared}{name} (3x32x32, 10 classes, finetune=lora), defense=[half]>"


def test_the_front_door_names_nothing_that_it_imports_itself_and_nothing_twice():
    names = dir(fedsim)
    assert len(names) == len(set(names))
    assert {*fedsim.__all__} <= set(names)
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(names)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "gradients=None: must be one of gradients, delta and weights"),
        ({"gradients": []}, "gradients=0 tensors: must be one for each of the model's"),
        ({"gradients": {"head.weigth": torch.zeros(10, 192)}}, "head.weigth: .*Did you mean 'head.weight'"),
        ({"gradients": {"foo": torch.zeros(3)}}, "no parameter or buffer of the name 'foo'. Its names are cls_token"),
        ({"gradients": {"head.weight": torch.zeros(5, 192)}}, "is it another model's"),
        ({"gradients": {}}, "gradients=nothing"),
        (
            {"gradients": {"head.weight": torch.zeros(10, 192, dtype=torch.int8)}},
            r"gradients=head.weight: must be floating point, not torch.int8: .*\(codes - zero_point\) \* scale",
        ),
        ({"gradients": {"head.bias": np.array(["a"] * 10)}}, "gradients=head.bias: must be an array of numbers"),
        ({"delta": {"head.weight": torch.zeros(10, 192)}}, "protocol=None: must be the local training"),
    ],
)
def test_gradients_of_nothing_or_of_another_model_are_refused(vit, given, words):
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.Observation.of(vit, **given)


@pytest.mark.parametrize("every", [True, False])
def test_a_list_of_gradients_may_leave_out_frozen_parameters_or_hold_none_for_them(every):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.Linear(8, 10))
    model[1].requires_grad_(False)
    nn.functional.cross_entropy(model(IMAGES[:1]), torch.tensor(LABELS[:1])).backward()
    listed = [p.grad for p in model.parameters() if every or p.requires_grad]
    seen = fedsim.Observation.of(model, listed, image_shape=(3, 32, 32))
    assert {name: t.shape for name, t in seen.update.tensors.items()} == {"2.weight": (10, 8), "2.bias": (10,)}


@pytest.mark.parametrize("named", [True, False])
def test_a_gradient_of_a_parameter_that_is_frozen_here_is_not_dropped(named):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 10))
    model[1].requires_grad_(False)
    gradients = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(fedsim.ConfigError, match=r"gradients=1\.weight: must be None or zero: .* is frozen"):
        fedsim.Observation.of(model, gradients if named else list(gradients.values()), image_shape=(3, 2, 2))
    gradients |= {"1.weight": torch.zeros(8, 12), "1.bias": torch.zeros(8)}
    assert list(fedsim.Observation.of(model, gradients, image_shape=(3, 2, 2)).update.tensors) == ["2.weight", "2.bias"]


def test_arrays_are_gradients_too(vit):
    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    arrays = {name: tensor.numpy() for name, tensor in seen.update.tensors.items()}
    given = fedsim.Observation.of(vit, arrays)
    assert given.update.tensors.keys() == arrays.keys()
    assert all(torch.equal(tensor, given.update.tensors[name]) for name, tensor in seen.update.tensors.items())


def test_an_unknown_role_names_those_there_are(vit):
    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    with pytest.raises(ValueError, match=r"no role 'pos_embd'. Did you mean 'pos_embed'\? Roles are patch_weight, "):
        seen.gradient_of("pos_embd")
    with pytest.raises(ValueError, match=r"no role 'grid'\. Roles are patch_weight, .*gradient_named takes"):
        seen.gradients_of("grid")


def test_an_unknown_attack_and_an_unknown_setting_are_refused(vit):
    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    with pytest.raises(
        fedsim.ConfigError, match=r"attack=patch_gradent: there is no such option. Did you mean 'patch_gradient'"
    ):
        fedsim.attack("patch_gradent", seen)
    with pytest.raises(fedsim.ConfigError, match=r"attack.dlg.step=3: there is no such setting. Did you mean 'steps'"):
        fedsim.attack("dlg", seen, step=3)


def test_a_fault_in_an_attack_is_a_result(vit):
    class Broken(fedsim.Attack):
        def run(self, observation, rng, device):
            raise ZeroDivisionError("mine")

    result = fedsim.attack(Broken(), fedsim.observe(vit, IMAGES[:1], LABELS[:1]))
    assert (result.status, result.reason) == ("failed", "ZeroDivisionError: mine")
    assert "raise ZeroDivisionError" in result.fault


def test_an_attack_that_exits_has_failed(vit):
    class Exits(fedsim.Attack):
        def run(self, observation, rng, device):
            raise SystemExit(3)

    one = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    for result in fedsim.attack(Exits(), [one, one]):
        assert (result.status, result.reason) == ("failed", "SystemExit: 3")


def test_a_process_that_is_ended_is_no_fault_of_the_attacks(vit):
    class Ended(fedsim.Attack):
        def run(self, observation, rng, device):
            raise SystemExit(15)  # by Ray, on SIGTERM

    with pytest.raises(SystemExit):
        fedsim.attack(Ended(), fedsim.observe(vit, IMAGES[:1], LABELS[:1]))


def test_a_score_that_cannot_be_is_said_to_contradict_the_certificate(vit):
    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    for name in ("patch_gradient", "labels"):
        result = fedsim.attack(name, seen)
        assert result.certified
        assert "contradicts" not in str(fedsim.score(result, IMAGES[:1], LABELS[:1]))
        wrong = fedsim.score(result, 1 - IMAGES[:1], LABELS[1:])
        assert "the score contradicts the certificate: are these its originals?" in str(wrong)


def test_a_defense_of_ones_own_is_an_object(vit):
    class Quieter(fedsim.Defense):
        repeatable = True

        def effects(self):
            return (Clips(1.0, "update"),)

        def transform_update(self, update, rng):
            return type(update)({name: 0.5 * t for name, t in update.tensors.items()}, update.kind, update.num_examples)

    seen = fedsim.observe(vit, IMAGES[:1], LABELS[:1], defense=[Quieter(), "half"])
    plain = fedsim.observe(vit, IMAGES[:1], LABELS[:1])
    halved, whole = (one.update.tensors["head.bias"] for one in (seen, plain))
    torch.testing.assert_close(halved, 0.5 * whole, rtol=1e-3, atol=1e-6)
    assert [defense["name"] for defense in seen.defenses] == ["Quieter", "half"]


def test_several_victims_are_attacked_together(vit):
    several = [fedsim.observe(vit, IMAGES[n : n + 1], LABELS[n : n + 1], client=n) for n in range(2)]
    results = fedsim.attack("patch_gradient", several)
    assert [one.observation[-1] for one in results] == ["0", "1"]
    assert all(fedsim.score(one, IMAGES[n : n + 1]).psnr[0] > 100 for n, one in enumerate(results))


def test_an_audit_is_a_table_and_the_commands_page(vit, tmp_path):
    data = (torch.cat([level * IMAGES for level in (1.0, 0.9, 0.8)]), torch.tensor(LABELS * 3))
    found = fedsim.audit(vit, data, ["patch_gradient", "labels"], [(), "withhold_pe"], num_images=2)
    table = found.table.set_index(["defense", "attack"])
    assert table.loc[("none", "patch_gradient"), ["updates", "refused", "certified"]].tolist() == [2, 0, 2]
    assert table.loc[("withhold_pe", "patch_gradient"), "refused"] == 2
    assert table.loc[("withhold_pe", "labels"), "label_share"] == 1.0
    assert {str(table[name].dtype) for name in ("psnr", "least_psnr", "label_share")} == {"float64"}
    row = table.loc[("none", "patch_gradient")]
    scored = [image for one in found.results["none"] for image in (one.scores.images if one.scores else ())]
    own = sorted({int(image.image.rpartition("-")[2]) for image in scored})
    rest = data[0][[place for place in range(6) if place not in own]].mean(dim=0)
    guesses = [-10 * math.log10(float((data[0][place] - rest).square().mean())) for place in own]
    for column in ("guess_psnr", "seen_guess_psnr"):
        assert row[column] == pytest.approx(statistics.mean(guesses), abs=1e-3)
    assert row["psnr"] > row["guess_psnr"]
    assert math.isnan(table.loc[("withhold_pe", "patch_gradient"), "guess_psnr"])
    assert found.verdicts["none"].startswith("broken")
    page = found.report(tmp_path / "new" / "leak.html").read_text(encoding="utf-8")
    assert "withhold_pe" in page
    assert "There is no undefended run" not in page
    assert "<table" in found._repr_html_()


def test_the_page_may_stay_where_it_is(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    data = (torch.rand(3, 3, 4, 4), torch.arange(3))
    found = fedsim.audit(model, data, ["labels"], num_images=1, run_dir=tmp_path / "run")
    page = found.report(tmp_path / "run" / "report.html")
    assert page.read_text(encoding="utf-8") == found.report(tmp_path / "a" / "b.html").read_text(encoding="utf-8")


class Mostly(fedsim.Attack):
    """The one image exactly that it knows, and noise for all others."""

    def __init__(self, known: torch.Tensor) -> None:
        self.known = known

    def run(self, observation, rng, device):
        images = torch.rand(observation.num_images, *self.known.shape, generator=rng)
        if observation.client == 0:
            images[0] = self.known
        return Reconstruction(images=images)


def test_a_table_says_what_the_report_says():
    """One exact image of nine read as 40 dB beside a guess of 11; three forms of an image read as three images."""
    images, labels = torch.rand(9, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 5
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    row = fedsim.audit(model, (images, labels), [Mostly(images[0])], num_images=9, select="first").table.loc[0]
    assert 60.0 / 9 < row["psnr"] == row["private_psnr"] < row["guess_psnr"] + 60.0 / 9

    model.num_classes = 5
    changed = {"share": "delta", "local_steps": 3, "num_images": 4, "batch_size": 2}
    found = fedsim.audit(model, (images, labels), [Mostly(images[0])], ["mixup"], **changed)
    assert len(found.results["mixup"][0].psnr) > 2
    assert found.table.loc[0, ["updates", "images", "matched"]].tolist() == [2, 4, 4]


def test_defenses_that_are_objects_compare_with_none_and_apart_from_each_other(vit, tmp_path):
    from defenses import GradientNoise, Withhold
    from fedsim.report.compare.verdict import judge_defenses
    from fedsim.report.run.read import read_run

    data, noises = (IMAGES, torch.tensor(LABELS)), [GradientNoise(relative_norm=size) for size in (0.1, 0.2)]
    withheld = [Withhold([pattern]) for pattern in ("head.bias", "patch_weight")]
    found = fedsim.audit(vit, data, ["patch_gradient"], [[], *noises, *withheld], num_images=1)
    judged = judge_defenses([read_run(folder) for folder in found.folders.values()])
    assert len({verdict.name for verdict in judged}) == 4
    assert sum(verdict.level == "not tested" for verdict in judged) == 1, "patch_weight alone stops the attack"
    assert not any("no undefended run" in words for verdict in judged for words in verdict.details)


def test_an_audit_reads_torch_data_sets_with_pil_images(vit, tmp_path):
    from PIL import Image

    class Own:
        classes = ("cat", "dog")

        def __len__(self):
            return 3

        def __getitem__(self, place):
            return Image.new("RGB", (40, 50), (10 * place, 20, 30)), place % 2

    found = fedsim.audit(vit, Own(), "labels", num_images=3, run_dir=tmp_path / "run")
    assert found.table.loc[0, "label_share"] == 1.0
    assert (tmp_path / "run" / "attacks.jsonl").is_file()


def test_sets_of_one_defense_with_other_settings_stand_apart(vit):
    data = (IMAGES, torch.tensor(LABELS))
    several = [{"topk": {"ratio": 0.5}}, {"topk": {"ratio": 0.9}}, "half", "half"]
    found = fedsim.audit(vit, data, "labels", several, num_images=1)
    assert list(found.folders) == ["topk(ratio=0.5)", "topk(ratio=0.9)", "half", "half #2"]


def test_a_run_folder_of_another_model_or_other_images_is_refused(vit, tmp_path):
    data = (IMAGES, torch.tensor(LABELS))
    fedsim.audit(vit, data, "labels", num_images=1, run_dir=tmp_path)
    again = fedsim.audit(vit, data, "labels", num_images=1, run_dir=tmp_path)
    assert again.table.loc[0, "updates"] == 1
    with torch.no_grad():
        vit.head.bias += 1
    with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*data.digest"):
        fedsim.audit(vit, data, "labels", num_images=1, run_dir=tmp_path)


@pytest.mark.parametrize(
    ("defenses", "finetune", "words"),
    [
        (["mjp_jp_idx", {"withhold": {"patterns": ["pos_embed"]}}], "full", "indexed"),
        ([{"withhold": {"patterns": ["head*"]}}, "precode"], "full", "withhold behind precode"),
        (["soteria"], {"lora": {"targets": ["head"]}}, "classifier"),
    ],
)
def test_an_observation_refuses_what_an_audit_refuses(vit, defenses, finetune, words):
    """Checks that go by what a defense found in the model, which it has to be told first."""
    with pytest.raises(fedsim.ConfigError, match=words):
        fedsim.observe(vit, IMAGES[:1], LABELS[:1], defense=defenses, finetune=finetune)


def test_a_run_folder_of_other_model_code_or_another_normalisation_is_refused(tmp_path):
    def audit(change="none", act=nn.ReLU, **settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 3, 1), act(), AfterHead(change))
        data = IMAGES[..., :4, :4], torch.tensor(LABELS)
        return fedsim.audit(model, data, "labels", num_images=1, run_dir=tmp_path, **settings)

    audit()
    assert audit().table.loc[0, "updates"] == 1
    for other in ({"act": nn.Sigmoid}, {"mean": (0.5, 0.5, 0.5)}, {"std": (0.5, 0.5, 0.5)}):
        with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*data.digest"):
            audit(**other)
    with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*results of other model code"):
        audit("scaled")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].requires_grad_(False),
        lambda model: setattr(model[2], "p", 0.5),
        lambda model: setattr(model[3], "dropout", 0.5),
    ],
)
def test_a_run_folder_of_a_model_that_trains_otherwise_is_refused(tmp_path, change):
    """Its weights and its answers are the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Dropout(0.1), AttendsToItself(48), nn.Linear(48, 5))
    audit = partial(fedsim.audit, model, (IMAGES[..., :4, :4], torch.tensor(LABELS)), "labels", num_images=1)
    for _ in range(2):
        assert audit(run_dir=tmp_path).table.loc[0, "updates"] == 1
    change(model)
    with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*results of other model settings"):
        audit(run_dir=tmp_path)


def test_a_run_folder_of_another_defense_that_is_an_object_is_refused(vit, tmp_path):
    from defenses import Withhold

    def audit(defense):
        return fedsim.audit(vit, (IMAGES, torch.tensor(LABELS)), "labels", [defense], num_images=1, run_dir=tmp_path)

    given = Withhold(["head.bias"])
    for same in (given, given, Withhold(["head.bias"])):
        assert audit(same).table.loc[0, "updates"] == 1
    assert given.names == frozenset(), "what was given stays as it is"
    with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*data.defense_digest"):
        audit(Withhold(["patch_weight"]))
    given.more = lambda: 1
    with pytest.raises(fedsim.ConfigError, match=r"run_dir=.*data.defense_digest=new-"):
        audit(given)


def test_an_own_module_is_never_rebuilt_by_its_name(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_heads=6, num_classes=10)
    fedsim.observe(model, IMAGES[:1], LABELS[:1]).save(tmp_path / "seen")
    with pytest.raises(fedsim.ConfigError, match=r"model=.*the module itself"):
        fedsim.Observation.load(tmp_path / "seen").build_model()
    rebuilt = fedsim.Observation.load(tmp_path / "seen", model=model).build_model()
    assert rebuilt.blocks[0].attn.num_heads == 6


class AttendsToItself(nn.MultiheadAttention):
    """Holds a layer of its own, and its rate of dropout as a number that no `repr` tells."""

    def __init__(self, width) -> None:
        super().__init__(width, 1, dropout=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens, tokens, tokens, need_weights=False)[0]


class AfterHead(nn.Module):
    """What it answers is not what its last linear layer gives."""

    def __init__(self, change) -> None:
        super().__init__()
        self.head = nn.Linear(48, 48 if change == "twice" else 5)
        self.change = change

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.head(images.flatten(1))
        if self.change == "scaled":
            return found.mul_(-3)
        return self.head(found) if self.change == "twice" else found


@pytest.mark.parametrize(("change", "status"), [("none", "done"), ("scaled", "refused"), ("twice", "refused")])
def test_labels_are_read_from_a_head_whose_output_is_the_answer(change, status):
    torch.manual_seed(0)
    seen = fedsim.observe(AfterHead(change), IMAGES[:1, :, :4, :4], [3])
    assert fedsim.attack("labels", seen).status == status


def test_what_was_not_rebuilt_is_said():
    result = AttackResult("o", "mine", "done", images=IMAGES[:1])
    assert "compared with 1 of 2 originals" in str(fedsim.score(result, IMAGES))
    with pytest.raises(fedsim.ConfigError, match=r"private=.*, as images"):
        fedsim.score(result, IMAGES, private=IMAGES[:1])
    with pytest.raises(fedsim.ConfigError, match=r"images=.*originals with values in \[0, 1\]"):
        fedsim.score(result, 255 * IMAGES)


def test_the_figure_is_of_the_images_given(vit):
    scored = fedsim.score(AttackResult("o", "mine", "done", images=IMAGES[:1]), IMAGES[:1])
    figure = fedsim.show(scored, 1 - IMAGES)
    assert len(figure.axes) == 4
    assert "300.0 dB" not in [axes.get_title() for axes in figure.axes]


def test_a_result_goes_to_json_and_back(vit):
    result = fedsim.attack("patch_gradient", fedsim.observe(vit, IMAGES[:1], LABELS[:1]))
    scored = fedsim.score(result, IMAGES[:1], LABELS[:1])
    back = AttackResult.from_json(json.loads(json.dumps(scored.to_json())) | {"of_another_version": 1})
    assert back.to_json() == scored.to_json()
    with pytest.raises(ValueError, match="no attack's result"):
        AttackResult.from_json({"attack": "x", "observation": "y", "status": "odd"})


def test_names_in_html_are_escaped():
    result = AttackResult("o", "<b>", "refused", "<script>")
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()


def test_settings_of_commands_by_name():
    config = fedsim.load_config("run", "strategy=fedavg", num_rounds=3, client={"batch_size": 4})
    assert (config["num_rounds"], config["client"]["batch_size"]) == (3, 4)
    with pytest.raises(fedsim.ConfigError, match=r"command=audits.*Did you mean 'audit'"):
        fedsim.load_config("audits")
    with pytest.raises(fedsim.ConfigError, match=r"num_round=3: there is no such setting. Did you mean 'num_rounds'"):
        fedsim.load_config("run", num_round=3)
    with pytest.raises(fedsim.ConfigError, match="attack=patch_gradent"):
        fedsim.load_config("run", "attack=[patch_gradent]")
    here = {"run_dir": "runs/one"}  # by default the time
    named = fedsim.load_config("run", "defense=[half]", strategy="fedavg", attack=["labels", "dlg"], **here)
    assert named == fedsim.load_config("run", "defense=[half]", "strategy=fedavg", "attack=[labels,dlg]", **here)
    with pytest.raises(fedsim.ConfigError, match="attack=patch_gradent: there is no such option"):
        fedsim.load_config("run", attack=["patch_gradent"])
    with pytest.raises(fedsim.ConfigError, match="each name once: labels"):
        fedsim.load_config("run", attack=["labels", "labels"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"defense": {"mjp": {"ratio": 0.3}}}, ["defense=[mjp]", "defense.mjp.ratio=0.3"]),
        (
            {"defense": [{"mjp": {"ratio": 0.3}}, "fixed_pe"], "finetune": {"lora": {"rank": 2}}},
            ["defense=[mjp,fixed_pe]", "defense.mjp.ratio=0.3", "finetune=lora", "finetune.rank=2"],
        ),
        ({"attack": ["labels", {"dlg": {"steps": 9}}]}, ["attack=[labels,dlg]", "attack.dlg.steps=9"]),
        ({"model": {"vit_nano": {"img_size": 16}}}, ["model=vit_nano", "model.img_size=16"]),
        ({"model": {"img_size": 16}}, ["model.img_size=16"]),
    ],
)
def test_options_come_with_settings_of_their_own(given, words):
    here = {"run_dir": "runs/one"}
    assert fedsim.load_config("run", **given, **here) == fedsim.load_config("run", *words, **here)


def test_a_setting_that_an_option_lacks_is_refused():
    with pytest.raises(fedsim.ConfigError, match=r"defense\.mjp\.ratoi=0.3: there is no such setting.*'ratio'"):
        fedsim.load_config("run", defense=[{"mjp": {"ratoi": 0.3}}])
    with pytest.raises(fedsim.ConfigError, match="attack=dlgg: there is no such option"):
        fedsim.load_config("run", attack=["labels", {"dlgg": {"steps": 9}}])


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("model", OwnNet(), "a name that timm knows"),
        ("data", (IMAGES, torch.tensor(LABELS)), "a source of images"),
        ("num_rounds", OwnNet(), "a number, a text"),
    ],
)
def test_a_federation_refuses_objects_that_no_settings_file_holds(key, value, right):
    with pytest.raises(fedsim.ConfigError, match=f"^{key}={type(value).__name__}: must be .*{right}"):
        fedsim.load_config("run", **{key: value})


def test_a_run_goes_where_it_is_sent(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr("experiments.python.run.run_federated", lambda config, root: sent.append((config, root)))
    one, other = tmp_path / "one", tmp_path / "other"
    assert fedsim.run(f"run_dir={one}").folder == one
    assert fedsim.run(f"run_dir={one}", run_dir=other, num_rounds=3).folder == other
    assert [(config["run_dir"], root) for config, root in sent] == [(str(one), one), (str(other), other)]
    assert fedsim.run(resume=None).folder.is_relative_to(Path("runs").resolve())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fedsim.run(run_dir="~/one").folder == sent[-1][1] == one
    other.mkdir()
    (other / "config.yaml").write_text(json.dumps(sent[1][0]))
    assert fedsim.run(resume=other).folder == other
    assert sent[-1] == ({**sent[1][0], "resume": str(other)}, other)
    with pytest.raises(fedsim.ConfigError, match=r"num_rounds=5: must be resume= alone"):
        fedsim.run(resume=other, num_rounds=5)


def test_what_a_run_and_an_audit_found_stays_when_one_goes_elsewhere(tmp_path, monkeypatch):
    def metrics(config, root):
        root.mkdir()
        (root / "metrics.jsonl").write_text('{"round": 1}\n')

    monkeypatch.setattr("experiments.python.run.run_federated", metrics)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = fedsim.run(run_dir="a")
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), (torch.rand(3, 3, 4, 4), torch.arange(3))
    audits = [fedsim.audit(model, data, ["labels"], num_images=1, run_dir=given) for given in ("b", "~/c")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.metrics["round"].tolist() == [1]
    assert [audit.table["updates"].tolist() for audit in audits] == [[1.0]] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "elsewhere"]


def make_small(size=8, **settings) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=size, patch_size=2, depth=1, embed_dim=48, num_classes=10, **settings
    )


@pytest.mark.parametrize(("channels", "size"), [(1, (8, 8)), (4, (8, 8)), (3, (4, 8))])
def test_timms_models_of_other_channels_and_sides(channels, size, tmp_path):
    images = torch.rand(3, channels, *size, generator=torch.Generator().manual_seed(0))
    found = fedsim.audit(make_small(size, in_chans=channels), (images, torch.arange(3)), "patch_gradient", num_images=2)
    assert found.table.least_psnr[0] > 60
    assert found.report(tmp_path / "page.html").is_file()
    (result, *_) = found.results["none"]
    fedsim.show(result, images[:1])


def test_pictures_cover_an_oblong_model():
    wide = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8)[:, None, None] * 6, (1, 20, 3)))
    held = own_data([(wide, 0), (wide, 1)], (3, 4, 8), num_classes=10, num_images=1, select="first", seed=0)
    assert held.train.images([0]).min() > 0.3, "the middle rows, without a black border"


def test_what_no_client_can_send_and_what_no_model_says_is_refused_at_once():
    data = IMAGES[..., :8, :8], torch.tensor(LABELS)
    with pytest.raises(fedsim.ConfigError, match="model=bfloat16 in cls_token: must be float16, float32 or float64"):
        fedsim.audit(make_small().bfloat16(), data, "labels", num_images=1)
    grey = make_small(in_chans=1)
    grey.pretrained_cfg = {**grey.pretrained_cfg, "mean": (0.4, 0.5, 0.6)}
    with pytest.raises(fedsim.ConfigError, match=r"mean=.*one number for each of 1 channels, given by mean="):
        fedsim.observe(grey, IMAGES[:1, :1, :8, :8], [3])


class Brightness(fedsim.Attack):
    """Everywhere the same grey; counts its runs, which nothing may keep from one update to the next."""

    def __init__(self, level: float = 0.5) -> None:
        self.level, self.runs = level, 0

    def run(self, observation, rng, device):
        self.runs += 1
        assert self.runs == 1
        return Reconstruction(images=torch.full((1, *observation.image_shape), self.level))


def test_an_audit_takes_attacks_that_are_objects(tmp_path):
    data = IMAGES, torch.tensor(LABELS)
    attacks = [Brightness(), {"dark": Brightness(0.0)}, "labels"]

    def audit(attacks):
        torch.manual_seed(0)
        return fedsim.audit(OwnNet(), data, attacks, num_images=2, run_dir=tmp_path / "run")

    found = audit(attacks)
    assert list(found.table.attack) == ["Brightness", "dark", "labels"]
    assert found.table.psnr[0] > found.table.psnr[1]
    assert found.table.images.tolist() == [2, 2, 2]
    assert "dark" in found.report(tmp_path / "page.html").read_text()
    assert audit(attacks).table.equals(found.table)
    with pytest.raises(fedsim.ConfigError, match=r"attack\.Brightness\.digest"):
        audit([Brightness(0.4), *attacks[1:]])
    for twice in ([Brightness(), Brightness(0.0)], ["labels", {"labels": Brightness()}]):
        with pytest.raises(fedsim.ConfigError, match="each attack once"):
            audit(twice)
    for wrong in (Brightness, [Brightness], 3):
        with pytest.raises(fedsim.ConfigError, match=r"attacks=.*or objects of a subclass of fedsim\.Attack"):
            audit(wrong)


@pytest.mark.parametrize("name", fedsim.__all__)
def test_examples_in_docstrings_print_what_they_show(name):
    found = doctest.DocTestFinder().find(getattr(fedsim, name), name, module=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said = []
    failed = sum(runner.run(one, out=said.append).failed for one in found if one.examples)
    assert failed == 0, "".join(said)


def test_what_is_called_has_an_example():
    called = ("observe", "attack", "score", "show", "audit", "load_config")
    assert all(">>>" in getattr(fedsim, name).__doc__ for name in called)
    assert ">>>" in fedsim.Observation.of.__doc__


@pytest.mark.subprocess
def test_the_door_is_light_and_complete():
    code = "import fedsim, sys; print({'torch', 'flwr', 'ray', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
    assert [name for name in fedsim.__all__ if not getattr(fedsim, name).__doc__] == []
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        fedsim.atack  # noqa: B018


def test_a_users_type_checker_reads_the_types():
    """PEP 561: without the marker mypy takes every name of an installed package for Any."""
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert [p for p in settings["tool"]["mypy"]["packages"] if not files(p).joinpath("py.typed").is_file()] == []
