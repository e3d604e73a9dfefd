"""Each distance against plain loops, and each derivative against float64 finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from attacks.optimization.matching.objectives import (
    L1,
    Cosine,
    LayerCosine,
    LayerL2,
    PositionAlignment,
    SquaredL2,
    TagDistance,
)
from attacks.optimization.matching.signs import SignCosine
from fedsim.errors import ConfigError, NotApplicable

OBJECTIVES = {
    "squared": SquaredL2(),
    "relative": SquaredL2(relative=True),
    "layer_l2": LayerL2(),
    "l1": L1(),
    "cosine": Cosine(),
    "masked": Cosine(mask_zeros=True),
    "layer_cosine": LayerCosine(),
    "tag": TagDistance(alpha=0.3),
    "sign": SignCosine(),
}


def gradients(seed, *leading):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 4), "b": (5,), "c": (1, 2, 3)}
    return {n: torch.randn(*leading, *s, generator=rng, dtype=torch.float64) for n, s in shapes.items()}


def by_differences(objective, found, target, step=1e-6):
    """Central differences, entry by entry."""
    derivative = {}
    for name, tensor in found.items():
        derivative[name] = torch.zeros_like(tensor)
        for index in range(tensor.numel()):
            moved = []
            for sign in (1, -1):
                shifted = {n: t.clone() for n, t in found.items()}
                shifted[name].view(-1)[index] += sign * step
                moved.append(float(objective(shifted, target)))
            derivative[name].view(-1)[index] = (moved[0] - moved[1]) / (2 * step)
    return derivative


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_direction_is_the_derivative(name):
    objective, found, target = OBJECTIVES[name], gradients(0), gradients(1)
    if name == "masked":
        target["a"][0] = 0.0
    value, direction = objective.direction(found, target)
    assert torch.isclose(value, objective(found, target))
    expected = by_differences(objective, found, target)
    for part in found:
        torch.testing.assert_close(direction[part], expected[part], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_replacing_in_place_gives_the_same_direction(name):
    objective, found, target = OBJECTIVES[name], gradients(0), gradients(1)
    value, direction = objective.direction(found, target)
    assert torch.isclose(objective.replace_by_direction(found, target), value)
    for part in found:
        torch.testing.assert_close(found[part], direction[part])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_many_candidates_are_those_one_by_one(name):
    objective, found, target = OBJECTIVES[name], gradients(0, 4), gradients(1)
    together = vmap(objective, in_dims=(0, None))(found, target)
    alone = torch.stack([objective({n: t[i] for n, t in found.items()}, target) for i in range(4)])
    torch.testing.assert_close(together, alone)


def test_definitions():
    found, target = gradients(0), gradients(1)
    flat = [torch.cat([t.flatten() for t in g.values()]) for g in (found, target)]
    difference = flat[0] - flat[1]
    cosine = float(flat[0] @ flat[1] / (flat[0].norm() * flat[1].norm()))
    assert math.isclose(SquaredL2()(found, target), difference.square().sum())
    assert math.isclose(SquaredL2(relative=True)(found, target), (difference.norm() / flat[1].norm()) ** 2)
    assert math.isclose(L1()(found, target), difference.abs().sum())
    assert math.isclose(Cosine()(found, target), 1 - cosine)
    norms = [float((found[n] - target[n]).norm()) for n in found]
    assert math.isclose(LayerL2()(found, target), sum(norms))
    tag = sum(
        norm**2 + 0.3 * (1 - i / 3) * float((found[n] - target[n]).abs().sum())
        for i, (n, norm) in enumerate(zip(found, norms, strict=True))
    )
    assert math.isclose(TagDistance(0.3)(found, target), tag)


def test_identity_is_zero_and_scale_does_not_matter_to_a_cosine():
    target = gradients(1)
    for name, objective in OBJECTIVES.items():
        if isinstance(objective, SignCosine):
            continue
        assert float(objective(target, target)) == pytest.approx(0.0, abs=1e-12), name
    for objective in (Cosine(), LayerCosine()):
        assert objective.scale_invariant
        assert float(objective({n: 3 * t for n, t in target.items()}, target)) == pytest.approx(0.0, abs=1e-12)


def test_a_soft_sign_is_the_sign_where_it_is_sharp_and_sees_no_scale():
    found, target = gradients(0), gradients(1)
    signs = [torch.cat([t.sign().flatten() for t in g.values()]) for g in (found, target)]
    cosine = float(signs[0] @ signs[1]) / len(signs[0])
    assert float(SignCosine(1e-6)(found, target)) == pytest.approx(1 - cosine, abs=1e-6)
    shared = {n: 0.01 * t.sign() for n, t in target.items()}  # as a client shares them, with a scale
    soft, plain = float(SignCosine()(target, shared)), float(Cosine()(target, shared))
    assert soft < plain / 2  # the truth is nearer to its own signs than by a cosine
    assert soft < float(SignCosine()(found, shared))
    assert float(SignCosine()({n: 7 * t for n, t in target.items()}, shared)) == pytest.approx(soft, rel=1e-9)
    with pytest.raises(ConfigError, match="temperature=0"):
        SignCosine(0)


@pytest.mark.parametrize("steps", [1, 10])
def test_positions_are_aligned_behind_adam_too(small, steps):
    observation, _ = small(lr=0.05, steps=steps)
    adaptive = replace(observation, protocol=replace(observation.protocol, optimizer="adamw"))
    assert PositionAlignment().prepare(adaptive)._name == "pos_embed"
    absent = replace(adaptive.update, tensors={n: t for n, t in adaptive.update.tensors.items() if n != "pos_embed"})
    with pytest.raises(NotApplicable, match="pos_embed's gradient is withheld"):
        PositionAlignment().prepare(replace(adaptive, update=absent))


def test_masking_ignores_what_was_pruned():
    found, target = gradients(0), gradients(1)
    target["a"][:2] = 0.0
    expected = SquaredL2()({**found, "a": torch.cat([torch.zeros(2, 4), found["a"][2:]])}, target)
    assert math.isclose(SquaredL2(mask_zeros=True)(found, target), expected)


@pytest.mark.parametrize("align", ["all", "patch", "row"])
def test_position_alignment_by_loops(small, align):
    observation, _ = small()
    objective = PositionAlignment(alpha=0.7, align=align).prepare(observation)
    target = observation.gradient
    rng = torch.Generator().manual_seed(0)
    found = {n: t + 0.1 * t.std() * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in target.items()}
    distance = sum(float((found[n] - target[n]).square().sum()) for n in target)
    distance /= sum(float(t.square().sum()) for t in target.values())
    rows = [(a, b) for a, b in zip(found["pos_embed"][0], target["pos_embed"][0], strict=True)]
    if align == "all":
        pairs = [(found["pos_embed"].flatten(), target["pos_embed"].flatten())]
    elif align == "patch":
        pairs = [(torch.cat([a for a, _ in rows[1:]]), torch.cat([b for _, b in rows[1:]]))]
    else:
        pairs = rows[1:]
    aligned = sum(float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs) / len(pairs)
    assert math.isclose(float(objective(found, target)), distance - 0.7 * aligned, rel_tol=1e-6)


def test_alignment_of_weight_nought_asks_for_no_gradient(small):
    observation, _ = small()
    shared = {name: t for name, t in observation.update.tensors.items() if name != "pos_embed"}
    kept = replace(observation, update=replace(observation.update, tensors=shared))
    objective = PositionAlignment(alpha=0).prepare(kept)
    found = {name: 1.1 * tensor for name, tensor in kept.gradient.items()}
    assert math.isclose(float(objective(found, kept.gradient)), 0.01, rel_tol=1e-6)


def test_position_alignment_needs_the_gradient(small):
    from defenses import WithholdPositionEmbedding

    observation, _ = small(defenses={"withhold_pe": WithholdPositionEmbedding()})
    with pytest.raises(NotApplicable, match="withhold_pe"):
        PositionAlignment().prepare(observation)
    with pytest.raises(ConfigError, match="align"):
        PositionAlignment(align="column")
