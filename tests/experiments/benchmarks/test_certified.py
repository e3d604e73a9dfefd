"""The sweep of certificates calls a wrong one wrong, and lets a right one pass."""

import pytest
import torch

from attacks.base import Certificate
from experiments.benchmarks.certified import images, models
from experiments.benchmarks.certified.cells import CertifiedCell, cells
from experiments.benchmarks.certified.defended import DEFENSES
from experiments.benchmarks.certified.images import SEVERAL, SINGLE, draw
from experiments.benchmarks.certified.judging import judge
from experiments.benchmarks.certified.models import MODELS, STATES
from experiments.benchmarks.certified.page import certified, page, wrong
from experiments.benchmarks.certified.protocols import PROTOCOLS
from experiments.benchmarks.certified.work import certificates
from fedsim.ground_truth import GroundTruth
from fedsim.result import AttackResult
from fedsim.settings.options import option

PLANTED = "tests.experiments.benchmarks.planted_attacks.Sure"


def _truth(count=2):
    rng = torch.Generator().manual_seed(0)
    return GroundTruth(torch.rand(count, 3, 8, 8, generator=rng), torch.arange(count), tuple(map(str, range(count))))


def _result(images, labels=None, certificate=None):
    return AttackResult("o", "a", "done", certificate=certificate or Certificate(), images=images, labels=labels)


def _judged(found, labels=None, **values):
    return judge(_result(found, labels, Certificate("certified", "", values)), _truth())


def _off_by(db):
    truth = _truth().images.double()
    return torch.where(truth < 0.5, truth + 10 ** (-db / 20), truth - 10 ** (-db / 20))


def test_a_right_certificate_passes_in_any_order():
    judgement = _judged(_truth().images.flip(0), promised_psnr=140.0)
    assert (judgement.fault, judgement.label_fault) == ("", False)
    assert judgement.margin > 0


@pytest.mark.parametrize(
    ("db", "promised", "fault"),
    [(70, 69.0, ""), (70, 71.0, "promise"), (50, 40.0, "image"), (50, None, "image"), (59, None, "")],
)
def test_an_image_is_held_to_its_promise_and_to_8_bits(db, promised, fault):
    judgement = _judged(_off_by(db), **({} if promised is None else {"promised_psnr": promised}))
    assert judgement.fault == fault
    assert judgement.true == pytest.approx(db, abs=0.01)


def test_one_wrong_image_of_two_is_wrong():
    found = torch.stack([_truth().images[0], torch.full((3, 8, 8), 0.5)])
    assert _judged(found).fault == "image"


def test_fewer_images_than_the_truth_has_are_judged_alone_and_more_are_wrong():
    assert _judged(_truth().images[1:]).fault == ""
    assert _judged(_truth().images[[0, 1, 1]]).fault == "image"


def test_images_without_a_value_are_wrong():
    assert _judged(_truth().images * torch.nan).fault == "image"


@pytest.mark.parametrize(("labels", "fault"), [([1, 0], ""), ([1, 1], "labels"), ([0], "labels")])
def test_certified_labels_are_the_clients_with_their_counts(labels, fault):
    assert _judged(None, torch.tensor(labels)).fault == fault


def test_labels_beside_a_certified_image_are_told_apart():
    judgement = _judged(_truth().images[:1], torch.tensor([5]))
    assert (judgement.fault, judgement.label_fault) == ("", True)


def test_an_uncertified_result_is_not_judged():
    with pytest.raises(ValueError, match="promises nothing"):
        judge(_result(_truth().images), _truth())


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Where the module's one model is trained once, a few steps on a few images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MOST_STEPS", 3)
        patch.setattr(images, "POOL", 24)
        images.pool.cache_clear()
        yield tmp_path_factory.mktemp("states")
        images.pool.cache_clear()


@pytest.fixture
def corner(states):
    """One image and two of one client."""

    def entries(state="0", defense="none", attacks=("patch_gradient",), configs=None):
        cell = CertifiedCell("vit_nano", state, defense, "gradient", (("plain", 1), ("twins", 2)), attacks, 0, "test")
        parts = {"model": cell.model, "state": state, "defense": defense, "protocol": "gradient"}
        return [{**parts, **entry} for entry in certificates(cell, None, states, configs)]

    return entries


def test_a_corner_of_the_sweep(corner):
    attacks = ("patch_gradient", "labels_certified", "sure_image", "sure_labels", "sure_promise")
    planted = {"sure_image": {}, "sure_labels": {"labels": True}, "sure_promise": {"promised": 20.0}}
    configs = {name: option("attack", name) for name in attacks if name not in planted}
    configs |= {name: {"_target_": PLANTED, **settings} for name, settings in planted.items()}
    found = corner(attacks=attacks, configs=configs)
    by = {(entry["attack"], entry["size"]): entry for entry in found}
    assert len(found) == 10
    assert by["patch_gradient", 1]["certificate"] == "certified"
    assert by["patch_gradient", 1]["fault"] == ""
    assert by["sure_image", 1]["fault"] == by["sure_image", 2]["fault"] == by["sure_promise", 1]["fault"] == "image"
    assert by["sure_labels", 2]["fault"] == "labels"
    assert {entry["attack"] for entry in wrong(found)} == set(planted)
    assert len(certified(found)) > len(wrong(found))
    text = page(found, "command", "stamp")
    assert f"{len(certified(found))} certificates, {len(wrong(found))} wrong" in text
    assert "3/k" not in text


def test_without_a_wrong_one_the_page_bounds_the_rate(corner):
    text = page(corner(), "command", "stamp")
    assert "1 certificates, 0 wrong" in text
    assert "a rate of at most 3/k at 95 %" in text


def test_two_attacks_on_one_update_are_one_draw():
    sort = {"model": "m", "state": "0", "defense": "none", "protocol": "gradient", "kind": "plain", "size": 1}
    done = {"status": "done", "certificate": "certified", "fault": "", "label_fault": False, "margin": None}
    names = ("patch_gradient", "patch_gradient", "row_space", "labels", "labels_certified")
    text = page([{**sort, **done, "attack": name, "seconds": 0.1} for name in names], "command", "stamp")
    assert "5 certificates, 0 wrong" in text
    assert "so many updates are different at least: 2 of images, 1.5; 1 of labels, 3. " in text


def test_states_of_training_differ_and_are_kept(corner, states):
    assert all("attack" in entry for entry in corner("saturated", "scaled_tensors"))
    heads = {path.stem: models.load_file(path)["head.weight"] for path in states.glob("*.safetensors")}
    assert {f"vit_nano-{state}" for state in STATES} == set(heads)
    assert torch.equal(heads["vit_nano-saturated"], 4 * heads["vit_nano-300"])
    assert not torch.equal(heads["vit_nano-0"], heads["vit_nano-30"])


def test_what_does_not_go_together_is_left_out(corner):
    assert [entry["status"] for entry in corner(defense="secure_aggregation")] == ["invalid", "done"]


def test_a_pass_takes_everything_and_names_each_cell_once():
    first = cells(0)
    assert len({cell.key for cell in first}) == len(first)
    assert {cell.defense for cell in first} == set(DEFENSES)
    assert {cell.protocol for cell in first} == set(PROTOCOLS)
    assert {cell.model for cell in first} == set(MODELS)
    assert {cell.state for cell in first} == set(STATES)
    assert {kind for cell in first for kind, _ in cell.batches} == {*SINGLE, *SEVERAL}
    assert cells(0) == first
    assert {cell.key for cell in cells(1)}.isdisjoint(cell.key for cell in first)


@pytest.mark.parametrize("kind", [*SINGLE, *SEVERAL])
def test_each_kind_of_batch_holds_what_it_says(kind):
    pool = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    size = 1 if kind in SINGLE and kind not in SEVERAL else 4
    held = draw(pool, torch.arange(60) % 10, 10, kind, size, torch.Generator().manual_seed(1))
    found = held.images(range(size))
    assert found.shape == (size, 3, 8, 8)
    assert len(set(held.ids)) == size
    different = len(torch.unique(found.flatten(1), dim=0))
    assert different == {"twins": 2, "burst": 1}.get(kind, size)
    if kind == "mirrored":
        assert torch.equal(found[:2].flip(-1), found[2:])
    if kind == "same_label":
        assert len(held.labels.unique()) == 1
    if kind == "one_class":
        places = [int((pool == image).flatten(1).all(dim=1).nonzero()) for image in found]
        assert len({place % 10 for place in places}) == 1
