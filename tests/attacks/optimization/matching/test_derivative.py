"""The mixed derivative against float64 differences of the distance itself."""

import gc
import weakref

import pytest
import torch

from attacks.optimization.matching.derivative import (
    DoubleBackward,
    FiniteDifference,
    Replayed,
    make_derivative,
)
from attacks.optimization.matching.local_steps import GradientMap
from attacks.optimization.matching.objectives import Cosine, LayerL2, PositionAlignment, SquaredL2
from fedsim.errors import ConfigError

LABELS = torch.tensor([[3]])


def test_double_backward_is_the_derivative_of_the_distance(small, victim_of, candidates):
    observation, _ = small(dtype="float64")
    victim, target = victim_of(observation)
    for objective in (Cosine(), SquaredL2(), LayerL2(), PositionAlignment().prepare(observation)):
        derivative = DoubleBackward(GradientMap(victim), objective)
        images = candidates(1, dtype=torch.float64)
        found = derivative({"images": images, "labels": LABELS}, target, True)
        rng = torch.Generator().manual_seed(1)
        for _ in range(3):
            way = torch.randn(images.shape, generator=rng, dtype=torch.float64)
            ends = [
                objective(victim.gradient(victim.params, (images + s * 1e-5 * way)[0], LABELS[0]), target)
                for s in (1, -1)
            ]
            expected = (ends[0] - ends[1]) / 2e-5
            torch.testing.assert_close((found.by["images"] * way).sum(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("objective", [Cosine(), SquaredL2(), LayerL2()])
def test_central_differences_are_near_the_exact_derivative(small, victim_of, candidates, objective):
    observation, _ = small(dtype="float64")
    exact_victim, target = victim_of(observation)
    fused_victim, _ = victim_of(observation, fused=True)
    variables = {"images": candidates(1, dtype=torch.float64), "labels": LABELS}
    exact = DoubleBackward(GradientMap(exact_victim), objective)(variables, target, True)
    central = FiniteDifference(GradientMap(fused_victim), objective, 1e-3, central=True)(variables, target, True)
    torch.testing.assert_close(central.values, exact.values)
    error = (central.by["images"] - exact.by["images"]).norm() / exact.by["images"].norm()
    assert float(error) < 1e-4


def test_signs_of_one_sided_differences_agree_on_a_photograph(tools, victim_of):
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), tools.photographs(32)[:1], [3])
    exact_victim, target = victim_of(observation)
    fused_victim, _ = victim_of(observation, fused=True)
    photograph = ((tools.photographs(32)[1:] - 0.5) / 0.5).float()[None]
    variables = {"images": photograph, "labels": LABELS}
    exact = DoubleBackward(GradientMap(exact_victim), Cosine())(variables, target, True).by["images"]
    found = FiniteDifference(GradientMap(fused_victim), Cosine())(variables, target, True).by["images"]
    assert float((found.sign() == exact.sign()).float().mean()) >= 0.99


@pytest.mark.parametrize("method", ["double_backward", "finite_difference", "central_difference"])
@pytest.mark.parametrize("shared", [True, False])
def test_many_candidates_are_those_one_by_one(small, victim_of, candidates, method, shared):
    observation, _ = small(dtype="float64")
    victim, target = victim_of(observation)
    derivative = make_derivative(method, GradientMap(victim), Cosine(), 1e-3)
    images, labels = candidates(3, dtype=torch.float64), torch.tensor([[3], [1], [2]])
    targets = target if shared else {n: torch.stack([t, 2 * t + 0.01, t.flip(0)]) for n, t in target.items()}
    together = derivative({"images": images, "labels": labels}, targets, shared)
    for index in range(3):
        one = target if shared else {n: t[index] for n, t in targets.items()}
        variables = {"images": images[index : index + 1], "labels": labels[index : index + 1]}
        alone = derivative(variables, one, True)
        torch.testing.assert_close(together.values[index], alone.values[0])
        torch.testing.assert_close(together.by["images"][index], alone.by["images"][0], rtol=1e-6, atol=1e-12)


def test_soft_labels_have_a_derivative_too(small, victim_of, candidates):
    observation, _ = small(dtype="float64")
    victim, target = victim_of(observation)
    logits = torch.randn(1, 1, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    variables = {"images": candidates(1, dtype=torch.float64), "labels": logits}
    exact = DoubleBackward(GradientMap(victim), SquaredL2())(variables, target, True)
    central = FiniteDifference(GradientMap(victim), SquaredL2(), 1e-3, central=True)(variables, target, True)
    assert exact.by["labels"].shape == logits.shape
    torch.testing.assert_close(central.by["labels"], exact.by["labels"], rtol=1e-4, atol=1e-9)


def test_differences_leave_the_weights_as_they_were(small, victim_of, candidates):
    observation, _ = small()
    victim, target = victim_of(observation, fused=True)
    before = {n: t.clone() for n, t in victim.params.items()}
    shared = {n: t.clone() for n, t in target.items()}
    FiniteDifference(GradientMap(victim), Cosine())({"images": candidates(1), "labels": LABELS}, target, True)
    assert all(torch.equal(victim.params[n], t) for n, t in before.items())
    assert all(torch.equal(target[n], t) for n, t in shared.items())


def test_differences_need_one_gradient(small, victim_of):
    from attacks.optimization.matching.local_steps import UnrolledSteps

    observation, _ = small(lr=0.1, steps=2)
    victim, _ = victim_of(observation)
    with pytest.raises(ConfigError, match="double_backward"):
        FiniteDifference(UnrolledSteps(victim, observation.protocol), Cosine())


def test_a_graph_is_of_the_shared_target_that_it_was_given(small, victim_of, candidates):
    observation, _ = small(dtype="float64")
    victim, target = victim_of(observation)
    inner, variables = DoubleBackward(GradientMap(victim), Cosine()), {"images": candidates(1), "labels": LABELS}
    once, other = Replayed(inner), {name: tensor + 0.01 for name, tensor in target.items()}
    variables["images"] = variables["images"].double()
    for goal in (target, other, target):
        torch.testing.assert_close(once(variables, goal, True).values, inner(variables, goal, True).values)
    assert len(once._graphs) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["double_backward", "finite_difference", "central_difference"])
@pytest.mark.parametrize("shared", [True, False])
def test_as_one_cuda_graph_it_is_the_same(small, candidates, method, shared):
    """Wherever candidates have moved, and with other targets."""
    from attacks.optimization.problem import shared_update
    from attacks.victim import make_victim

    observation, device = small(dtype="float64")[0], torch.device("cuda")
    target = shared_update(observation, "gradient", device)
    victim = make_victim(observation, target, device, False)
    inner = make_derivative(method, GradientMap(victim), Cosine(), 1e-3)
    once = Replayed(inner)
    for count in (2, 1):
        for number in range(3):
            images = (candidates(count, dtype=torch.float64) + 0.1 * number).to(device)
            variables = {"images": images, "labels": torch.tensor([[3], [1]])[:count].to(device)}
            goal = target if shared else {n: torch.stack([t, number * t + 0.01])[:count] for n, t in target.items()}
            found, expected = once(variables, goal, shared), inner(variables, goal, shared)
            torch.testing.assert_close(found.values, expected.values)
            torch.testing.assert_close(found.by["images"], expected.by["images"], rtol=1e-5, atol=1e-10)
    assert len(once._graphs) == 2
    assert all(getattr(graph, "__name__", "") == "replay" for graph in once._graphs.values())


def test_what_is_replayed_goes_with_its_last_user(small, victim_of, candidates):
    observation, _ = small()
    victim, target = victim_of(observation)
    once, collecting = Replayed(DoubleBackward(GradientMap(victim), SquaredL2())), gc.isenabled()
    once({"images": candidates(1), "labels": LABELS}, target, True)
    seen = weakref.ref(once)
    gc.disable()
    try:
        del once
        assert seen() is None
    finally:
        if collecting:
            gc.enable()
