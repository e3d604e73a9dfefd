"""Gradient matching on updates of a masked jigsaw: at the picture that the model saw, nothing is left to match."""

import json
from dataclasses import replace

import pytest
import torch

from attacks.optimization.engine import GradientMatching, _alike
from attacks.optimization.matching.objectives import Cosine, SquaredL2
from attacks.optimization.problem import shared_update
from attacks.optimization.search.optimisers import OptimiserSettings
from attacks.positions import masked_rows, of_images
from attacks.session import Session
from attacks.victim import make_victim
from clients.training import LossGradient
from defenses import (
    Batch,
    ClientRound,
    DefenseChain,
    GradientClip,
    MaskedJigsawPuzzle,
    TopK,
    Withhold,
    WithholdPositionEmbedding,
)
from defenses.mjp import LOCALISER, UNKNOWN
from fedsim.effects import AddsRegression, MasksPositions
from fedsim.errors import NotApplicable
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, Update

SPEC = ModelSpec("vit_nano_patch2_8", num_classes=5, dtype="float64")
SWIN = ModelSpec(
    "swin_ape_tiny_patch4_window7_224",
    5,
    8,
    2,
    dtype="float64",
    kwargs={"window_size": 2, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 2], "drop_path_rate": 0.0},
)
CPU = torch.device("cpu")
LR = 0.1
HEADS = ["none", "linear", "nonlinear", "nonlinear3", "pca"]


def observe(labels=(2,), spec=SPEC, steps=0, beside=(), kind="delta", server_round=3, **puzzle):
    """What a server sees of a client with a jigsaw, and what the model saw; `steps` of SGD, or 0: a gradient."""
    settings = {"ratio": 0.4, "min_block": 1, "lambda_dal": 0.5, "lambda_warmup_rounds": 6, **puzzle}

    def chain_of():
        return DefenseChain({"mjp": MaskedJigsawPuzzle(**settings), **{type(d).__name__: d for d in beside}})

    chain, rng = chain_of(), torch.Generator().manual_seed(3)
    architecture = Architecture(spec, (chain_of(),), 0)
    model = chain.wrap_model(spec.build(0)).train()
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    pictures = torch.randint(256, (len(labels), 3, 8, 8), generator=rng).double() / 255
    private = Batch(((pictures - 0.5) / 0.5).to(next(iter(trained.values()))), torch.tensor(labels))
    chain.begin(ClientRound(server_round, len(labels), model=model))
    for _ in range(max(1, steps)):
        batch = chain.transform_batch(private, rng)
        found = chain.gradient(model, batch, LossGradient(model, chain, label_smoothing=0.0), rng)
        gradient = {name: found.get(name, torch.zeros_like(p)).clone() for name, p in trained.items()}
        with torch.no_grad():
            for name, p in trained.items():
                p -= LR * gradient[name] if steps else 0.0
    shared = {name: p.detach() - state[name] for name, p in trained.items()} if steps else gradient
    update = chain.transform_update(Update(shared, "delta" if steps else "gradient", len(labels)), rng)
    if kind == "weights":
        update = replace(update, tensors={n: t + state[n] for n, t in update.tensors.items()}, kind="weights")
    protocol = LocalProtocol(len(labels), max(1, steps), "sgd" if steps else "none", (LR,) * steps)
    recorded = ({"name": "mjp", "_target_": "defenses.MaskedJigsawPuzzle", **settings},)
    observation = Observation(
        server_round,
        0,
        state,
        update,
        protocol,
        architecture,
        find_roles(model),
        (3, 8, 8),
        (0.5,) * 3,
        (0.5,) * 3,
        5,
        recorded,
    )
    return observation, batch, chain.defenses["mjp"]._mask


def distance(observation, batch, objective=None, target=None, masked=True, local="gradient"):
    """D at what the model saw, as the engine has it."""
    attack = GradientMatching(objective=objective or SquaredL2(relative=True), labels="joint", local_updates=local)
    problem = attack._problem(observation, torch.Generator().manual_seed(0), CPU)
    target = problem.target if target is None else target
    derivative, _ = attack._task([replace(problem, target=target)], CPU, Session()).derivative("auto")
    update = derivative.update
    if not masked:
        update.victim = replace(update.victim, masked=None)
    found = update({"images": batch.images, "labels": batch.labels})
    return float(derivative.objective(found, {name: target[name] for name in update.victim.params}))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_nothing_is_left_at_what_the_model_saw(head, probability):
    observation, batch, mask = observe(dal=head, probability=probability)
    assert (mask is None) == (probability == 0.0)
    assert distance(observation, batch) < 1e-20
    if head != "none":
        assert distance(observation, batch, target=shared_update(observation, "gradient", CPU)) > 1e-5
    if mask is not None:
        assert distance(observation, batch, masked=False) > 1e-4


@pytest.mark.parametrize("head", ["nonlinear", "pca"])
@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 1},
        {"steps": 1, "kind": "weights"},
        {"labels": (2, 4), "per": "batch"},
        {"labels": (2, 4), "probability": 0.0},
        {"class_token": "unknown"},
        {"dal_coordinates": "unit", "server_round": 9},
        {"spec": SWIN},
    ],
)
def test_nor_for_other_updates(head, settings):
    observation, batch, _ = observe(dal=head, **settings)
    assert distance(observation, batch) < 1e-18
    assert distance(observation, batch, target=shared_update(observation, "gradient", CPU)) > 1e-6


def test_in_float32_it_is_rounding():
    observation, batch, _ = observe(dal="nonlinear", spec=replace(SPEC, dtype="float32"))
    assert distance(observation, batch) < 1e-10


def test_the_head_leaves_the_target_and_the_rest_stays_as_it_was():
    observation, _, _ = observe(dal="nonlinear")
    target = shared_update(observation, "gradient", CPU)
    kept = of_images(observation, target)
    assert target.keys() - kept.keys() == {f"dal.layers.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}
    assert all(kept[name] is target[name] for name in kept if name != "pos_embed")
    plain, _, _ = observe(dal="none")
    same = shared_update(plain, "gradient", CPU)
    kept = of_images(plain, same)
    assert all(kept[name] is same[name] for name in same)


@pytest.mark.parametrize("per", ["image", "batch"])
def test_masked_rows(per):
    observation, _, mask = observe(labels=(1, 2, 3), per=per, dal="linear", ratio=0.8)
    hidden = mask.all(dim=0)
    assert hidden.any()
    found = masked_rows(observation)
    assert found[0] == 0
    assert torch.equal(found[1:], hidden)


def test_a_batch_of_several_masks_keeps_little_of_the_term():
    observation, batch, mask = observe(labels=(1, 2, 3, 4), dal="nonlinear", ratio=0.1)
    assert len({tuple(row) for row in mask.tolist()}) > 1
    target = shared_update(observation, "gradient", CPU)
    model = observation.build_model()
    mjp = next(iter(observation.architecture.wrappers)).defenses["mjp"]
    with mjp.masking(mask):
        loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
        (expected,) = torch.autograd.grad(loss, model.pos_embed)
    before, after = (target["pos_embed"] - expected, of_images(observation, target)["pos_embed"] - expected)
    assert float(after.norm()) < 0.3 * float(before.norm())


def test_a_scaled_gradient_has_a_scaled_term():
    """A clip takes the head's gradient along, and with it the weight of the regression."""
    observation, batch, _ = observe(dal="nonlinear", beside=[GradientClip(0.01)])
    assert sum(float(t.square().sum()) for t in observation.update.tensors.values()) == pytest.approx(1e-4)
    assert distance(observation, batch, Cosine()) < 1e-12


def test_a_withheld_head_leaves_the_public_weight():
    observation, batch, _ = observe(dal="nonlinear", beside=[Withhold(["dal.*"])])
    assert distance(observation, batch) < 1e-20


def stating(observation, weight):
    """The same behind a plug-in's defense that publishes this weight."""

    class Stated(MaskedJigsawPuzzle):
        def effects(self):
            return (MasksPositions(UNKNOWN), AddsRegression(LOCALISER, weight))

    chain = DefenseChain({"mjp": Stated(0.4, min_block=1, dal="pca")})
    return replace(observation, architecture=Architecture(SPEC, (chain,), 0))


@pytest.mark.parametrize("weight", [0.25, lambda server_round: 0.5 * server_round / 6])
def test_the_weight_is_the_one_that_the_defense_states(weight):
    observation, batch, _ = observe(dal="pca")
    assert observation.effect(AddsRegression) == AddsRegression(LOCALISER, 0.25)
    assert distance(stating(observation, weight), batch) < 1e-20


@pytest.mark.parametrize("weight", [None, "0.25", True, float("nan"), lambda server_round: None])
def test_a_weight_that_nothing_tells_is_one_refusal(weight):
    observation = stating(observe(dal="pca")[0], weight)
    with pytest.raises(NotApplicable, match=r"regression dal tells nothing, and .* weight"):
        of_images(observation, observation.update.tensors)
    (refused,) = GradientMatching(labels="joint", steps=1).run_many([observation], [torch.Generator()], CPU)
    assert isinstance(refused, NotApplicable)


def test_the_rounds_weight_is_kept_and_files_without_it_are_read(tmp_path):
    observe(dal="pca")[0].save(tmp_path / "one")
    file = tmp_path / "one" / "observation.json"
    assert Observation.load(tmp_path / "one").effect(AddsRegression) == AddsRegression(LOCALISER, 0.25)
    record = json.loads(file.read_text())
    (regression,) = (effect for effect in record["effects"] if effect["effect"] == "AddsRegression")
    del regression["weight"]
    file.write_text(json.dumps(record))
    assert Observation.load(tmp_path / "one").effect(AddsRegression) == AddsRegression(LOCALISER)


def test_a_term_that_was_taken_out_is_not_taken_twice():
    observation, batch, _ = observe(dal="nonlinear")
    rest = of_images(observation, observation.update.tensors)
    cleaned = replace(observation, update=replace(observation.update, tensors=rest))
    assert of_images(cleaned, rest)["pos_embed"] is rest["pos_embed"]
    assert distance(cleaned, batch) < 1e-20


def test_pruned_and_withheld_embeddings_show_no_mask():
    pruned, _, _ = observe(dal="nonlinear", beside=[TopK(0.02)])
    shared = pruned.update.tensors["pos_embed"]
    assert not shared.any(dim=-1).all()
    assert masked_rows(pruned) is None
    kept = of_images(pruned, shared_update(pruned, "gradient", CPU))["pos_embed"]
    assert not kept[shared == 0].any()
    withheld, _, _ = observe(beside=[WithholdPositionEmbedding()])
    assert masked_rows(withheld) is None
    assert "pos_embed" not in of_images(withheld, shared_update(withheld, "gradient", CPU))


def test_several_steps_keep_little_of_the_term():
    observation, batch, _ = observe(dal="nonlinear", probability=0.0, steps=3)
    raw = shared_update(observation, "unroll", CPU)
    left = distance(observation, batch, local="unroll")
    assert left < 0.05 * distance(observation, batch, target=raw, local="unroll")
    adam = replace(observation, protocol=replace(observation.protocol, optimizer="adam"))
    kept = of_images(adam, raw)
    assert not any(name.startswith("dal.") for name in kept)
    assert kept["pos_embed"] is raw["pos_embed"]


def test_victims_of_different_masks_are_searched_apart():
    first, _, _ = observe(dal="linear")
    other, _, _ = observe(labels=(4,), dal="linear", ratio=0.2)
    other = replace(other, global_state=first.global_state, defenses=first.defenses)
    clean, _, _ = observe(dal="linear", probability=0.0)
    clean = replace(clean, global_state=first.global_state, defenses=first.defenses)
    assert _alike([first, clean, other, first]) == [[0, 3], [1], [2]]
    attack = GradientMatching(optimiser=OptimiserSettings(lr=0.1), steps=3, labels="bias_sign")
    together = attack.run_many([first, other], [torch.Generator().manual_seed(n) for n in (0, 1)], CPU)
    alone = [attack(o, torch.Generator().manual_seed(n), CPU) for n, o in enumerate((first, other))]
    for one, two in zip(together, alone, strict=True):
        torch.testing.assert_close(one.images, two.images)


def test_make_victim_has_the_mask():
    observation, _, mask = observe(dal="pca")
    victim = make_victim(observation, observation.gradient, CPU, fused_attention=False)
    assert torch.equal(victim.masked[1:], mask[0])


def test_a_baseline_sees_no_mask():
    observation, _, mask = observe()
    assert mask is not None
    assert masked_rows(observation) is not None
    attack = GradientMatching(labels="joint", target="random")
    problem = attack._problem(observation, torch.Generator().manual_seed(0), CPU)
    assert masked_rows(problem.observation) is None
    derivative, _ = attack._task([problem], CPU, Session()).derivative("auto")
    assert derivative.update.victim.masked is None
