"""Steps by products beside J whole."""

import gc
import weakref

import pytest
import torch

from attacks.forward_mode import jacobian
from attacks.optimization.second_order.steps.levenberg_marquardt import LMState, take_step
from attacks.optimization.second_order.steps.products import KeptProducts, MatrixFree
from attacks.optimization.second_order.steps.sketch import Pieces, Sketch, sketch


def alone(function):
    """A function of one tensor."""
    return Pieces(lambda x: (function(x),), torch.ones(0))


@pytest.fixture
def curved(rng):
    first = torch.randn(40, 12, generator=rng, dtype=torch.float64)
    second = torch.randn(300, 40, generator=rng, dtype=torch.float64)
    right = torch.randn(300, generator=rng, dtype=torch.float64)
    return lambda x: second.to(x) @ torch.tanh(first.to(x) @ x) - right.to(x)


@pytest.fixture
def x(rng):
    return 0.1 * torch.randn(12, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(("active", "first"), [(12, 12), (12, 5), (7, 12), (7, 3)])
def test_a_step_is_that_of_j_whole(curved, x, active, first):
    """However little of it the sketch covers, and whatever part of the coordinates is varied."""
    model = MatrixFree(alone(curved), alone(curved), active, first, 4, tolerance=1e-12, most=60)(x)
    r, J = curved(x), jacobian(curved, x)[:, :active]
    for damping in (1e-3, 1.0):
        step, predicted = model.step(damping)
        shift = damping * float(model._sketch.scale) * torch.eye(active, dtype=torch.float64)
        oracle = -torch.linalg.solve(J.T @ J + shift, J.T @ r)
        assert torch.allclose(step[:active], oracle, rtol=1e-8)
        assert bool((step[active:] == 0).all())
        assert predicted == pytest.approx(float(r.square().sum() - (r + J @ oracle).square().sum()), rel=1e-8)
    assert model.cost == pytest.approx(float(r.square().sum()))


def test_with_a_prior_besides_a_step_and_what_bends_it_are_those_of_all_rows(curved, x, rng):
    """The sketch is of the others, and serves at any weight of the prior."""
    system, second = (
        MatrixFree(alone(curved), alone(curved), 12, 12, 4, tolerance=1e-12),
        torch.randn(312, generator=rng).double(),
    )
    for weight in (100.0, 0.01):

        def held(x, weight=weight):
            return torch.cat([curved(x), weight**0.5 * x])

        model = system.held(alone(held), weight)(x)
        r, J = held(x), jacobian(held, x)
        damped = J.T @ J + 0.1 * (model._sketch.scale + weight) * torch.eye(12, dtype=torch.float64)
        step, _ = model.step(0.1)
        assert torch.allclose(step, -torch.linalg.solve(damped, J.T @ r), rtol=1e-8)
        bent, share = model.bend(0.1, step, second)
        oracle = -0.5 * torch.linalg.solve(damped, J.T @ second)
        assert float((bent - oracle).norm() / oracle.norm()) < 0.1
        assert share == pytest.approx(float(bent.norm() / step.norm()))
        assert model.cost == pytest.approx(float(r.square().sum()))
        assert system.anchor is x


def test_products_are_those_of_j_whole(curved, x, rng):
    model, J = MatrixFree(alone(curved), alone(curved), 12, 12, 4)(x), jacobian(curved, x)
    v = torch.randn(12, generator=rng, dtype=torch.float64)
    w = torch.randn(300, generator=rng, dtype=torch.float64)
    assert torch.allclose(model._kept.forward(v), J @ v)
    assert torch.allclose(model._kept.transposed(w), J.T @ w)
    assert torch.allclose(model._kept.normal(v), J.T @ (J @ v))


def test_tensors_are_weighed_and_one_that_nothing_moves_has_no_part_in_it(rng, x):
    matrix = torch.randn(70, 12, generator=rng, dtype=torch.float64)
    weights, target = torch.rand(2, 63, generator=rng, dtype=torch.float64)

    def tensors(x):
        found = torch.tanh(matrix @ x)
        return found[:10].view(2, 5), torch.ones(3, dtype=x.dtype), found[10:60], found[60:]

    pieces = Pieces(tensors, weights, target)
    rows = torch.cat([weights, torch.ones(10, dtype=torch.float64)])
    flat = torch.cat([tensor.flatten() for tensor in tensors(x)])
    kept, J = KeptProducts(pieces, x, 7), jacobian(pieces, x)[:, :7]
    assert torch.equal(kept.value, pieces(x))
    assert torch.allclose(kept.value, rows * (flat - torch.cat([target, torch.zeros(10, dtype=torch.float64)])))
    v, w = torch.randn(7, generator=rng).double(), torch.randn(73, generator=rng).double()
    assert torch.allclose(kept.forward(v), J @ v)
    assert torch.allclose(kept.transposed(w), J.T @ w)
    assert torch.allclose(kept.normal(v), J.T @ (J @ v))


def test_a_sketch_of_no_fewer_rows_is_exact(rng, x):
    matrix = torch.randn(20, 12, generator=rng, dtype=torch.float64)
    found = sketch(alone(lambda x: matrix @ x), x, 12, 10, together=3)
    assert torch.allclose(found.normal, (matrix.T @ matrix)[:10, :10])


def test_a_sketch_of_fewer_rows_is_within_a_factor(rng):
    matrix = torch.randn(5000, 40, generator=rng, dtype=torch.float64) * torch.logspace(0, -4, 40, dtype=torch.float64)
    exact = matrix.T @ matrix
    found = sketch(alone(lambda x: matrix @ x), torch.zeros(40, dtype=torch.float64), 40, 40, together=16)
    ratios = torch.linalg.eigvals(torch.linalg.solve(found.normal, exact)).real
    assert 1 / 20 < float(ratios.min()) < float(ratios.max()) < 20
    assert torch.allclose(
        found.inverse(0.5)(exact[0]), torch.linalg.solve(found.normal + 0.5 * torch.eye(40), exact[0])
    )
    for solve in (found.by_spectrum(0.5), found.by_inverse(0.5)):
        assert torch.allclose(solve(exact[0]), torch.linalg.solve(found.normal + 0.5 * torch.eye(40), exact[0]))


def test_a_sketch_that_rounding_leaves_singular_is_solved_all_the_same():
    found = Sketch(torch.diag(torch.tensor([1.0, 1e-3, -1e-18], dtype=torch.float64)), 1.0)
    v = torch.ones(3, dtype=torch.float64)
    solved = found.by_inverse(1e-20)(v)
    torch.testing.assert_close(solved[:2], found.by_spectrum(1e-20)(v)[:2])
    assert solved.isfinite().all()


def test_a_sketch_of_tensors_is_that_of_all_their_numbers_in_a_row(rng, x):
    matrix = torch.randn(90, 12, generator=rng, dtype=torch.float64)
    weights = torch.rand(60, generator=rng, dtype=torch.float64)

    def tensors(x):
        whole = matrix @ x
        return whole[:10].view(2, 5), whole[10:60], whole[60:]

    pieces = Pieces(tensors, weights)
    assert torch.allclose(pieces(x)[:60], weights * (matrix @ x)[:60])
    assert torch.allclose(pieces(x)[60:], (matrix @ x)[60:])
    found, oracle = sketch(pieces, x, 12, 8, 3), sketch(alone(pieces), x, 12, 8, 3)
    assert torch.allclose(found.normal, oracle.normal)
    assert found.rest == pytest.approx(oracle.rest)


def test_what_the_sketch_does_not_cover_has_its_mean_curvature(rng):
    matrix = torch.diag(torch.tensor([5.0, 5.0, 1.0, 3.0, 7.0], dtype=torch.float64))
    found = sketch(alone(lambda x: matrix @ x), torch.zeros(5, dtype=torch.float64), 4, 2, together=2)
    assert found.rest == pytest.approx((1 + 9) / 2)


def test_a_sketch_is_kept_while_it_serves_and_made_anew_where_it_does_not(curved, x):
    good = MatrixFree(alone(curved), alone(curved), 12, 12, 4)
    good(x).step(1e-3)
    assert good.anchor is x
    poor = MatrixFree(alone(curved), alone(lambda x: torch.ones_like(x) @ x + curved(x) * 0.0), 12, 12, 4, most=3)
    poor(x).step(1e-9)
    assert poor.anchor is None
    dear = MatrixFree(alone(curved), alone(curved), 12, 12, 4, most=60)
    dear(x).step(1e-3)
    assert 0 < dear.spent <= 60
    dear.spent = 60
    dear(x).step(1e-3)
    assert dear.anchor is None
    dear(2.0 * x)
    assert torch.equal(dear.anchor, 2.0 * x)
    assert dear.spent == 0


def test_another_system_begins_with_the_sketch_in_use(curved, x):
    first = MatrixFree(alone(curved), alone(curved), 12, 12, 4)
    first(x).step(1e-3)
    first.rough = False
    second = first.again()
    assert second(2.0 * x)._sketch is first(x)._sketch
    assert (second.rough, second.spent) == (True, 0)
    second.anchor = None
    assert second(2.0 * x)._sketch is not first(x)._sketch


def test_what_float32_does_not_solve_is_solved_in_float64(curved, x):
    r, J = curved(x), jacobian(curved, x)
    for tolerance, rough in ((1e-2, True), (1e-12, False)):
        system = MatrixFree(alone(curved), alone(curved), 12, 12, 4, tolerance, most=60)
        model = system(x)
        step, _ = model.step(1e-3)
        shift = 1e-3 * float(model._sketch.scale)
        left = J.T @ (J @ step + r) + shift * step
        better = model._sketch.inverse(shift)
        size, whole = float(left @ better(left)), float((J.T @ r) @ better(J.T @ r))
        assert size <= (2.0 * tolerance) ** 2 * whole
        assert system.rough is rough


def test_of_float32_without_any_sense_nothing_is_kept(curved, x):
    """The step is that of float64 alone."""
    nonsense = alone(lambda x: -3e4 * curved(x) ** 2 if x.dtype == torch.float32 else curved(x))
    system = MatrixFree(alone(curved), nonsense, 12, 12, 4, tolerance=1e-10, most=60)
    model, r, J = system(x), curved(x), jacobian(curved, x)
    step, _ = model.step(1e-3)
    shift = 1e-3 * float(model._sketch.scale) * torch.eye(12, dtype=torch.float64)
    assert torch.allclose(step, -torch.linalg.solve(J.T @ J + shift, J.T @ r), rtol=1e-6)
    assert not system.rough


def test_a_valley_is_followed_to_its_end(curved, x):
    """With a start away from the solution; each step from the sketch of an earlier one."""
    truth = 2.0 * x
    goal = curved(truth)

    def residual(x):
        return curved(x) - goal.to(x)

    state, system = LMState(x), MatrixFree(alone(residual), alone(residual), 12, 12, 4)
    for _ in range(25):
        if not state.ended:
            take_step(state, residual, system)
    assert torch.allclose(state.x, truth, atol=1e-6)


@pytest.mark.parametrize("active", [12, 7])
def test_a_linear_model_goes_with_its_last_user(curved, x, active):
    """Its graph and its sketch are large: they do not wait for a search for cycles."""
    model = MatrixFree(alone(curved), alone(curved), active, active, 4)(x)
    model.step(1e-3)
    seen, collecting = [weakref.ref(model), weakref.ref(model._kept)], gc.isenabled()
    gc.disable()
    try:
        del model
        assert [one() for one in seen] == [None, None]
    finally:
        if collecting:
            gc.enable()
