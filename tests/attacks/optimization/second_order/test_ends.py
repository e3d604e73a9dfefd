"""How far ends of several starts vouch for one another."""

import math
from types import SimpleNamespace

import pytest
import torch

from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.second_order.ends import End, Ends, agreement
from attacks.optimization.second_order.residual.residual import Residual
from fedsim.bounds.gaussian_prior import GaussianPrior


def end(cost, *x):
    return End(cost, torch.tensor(x, dtype=torch.float64))


def test_independent_errors_leave_the_image_its_share(rng):
    """Signal of variance 1 and errors of variance 3: the best linear estimate keeps a quarter."""
    image = torch.randn(20_000, generator=rng)
    ends = [End(1.0, image + 3**0.5 * torch.randn(20_000, generator=rng)) for _ in range(2)]
    found = agreement(ends, torch.zeros(20_000))
    assert found == pytest.approx(0.25, abs=0.02)
    errors = {share: float((share * ends[0].x - image).square().mean()) for share in (found, 0.0, 1.0)}
    assert errors[found] < errors[0.0] < errors[1.0]


def test_an_end_that_explains_far_less_has_no_say():
    mean = torch.zeros(2, dtype=torch.float64)
    assert agreement([end(1.0, 1.0, 0.0), end(11.0, 0.0, 1.0)], mean) == 1.0
    assert agreement([end(1.0, 1.0, 0.0), end(9.0, 0.0, 1.0)], mean) == 0.0


def test_one_end_has_none_against_it_and_two_that_are_the_same_agree():
    mean = torch.ones(2, dtype=torch.float64)
    assert agreement([end(1.0, 3.0, 0.0)], mean) == 1.0
    assert agreement([end(1.0, 3.0, 0.0), end(2.0, 3.0, 0.0)], mean) == pytest.approx(1.0)


def test_opposite_ends_leave_the_mean():
    assert agreement([end(1.0, 1.0, 1.0), end(1.0, -1.0, -1.0)], torch.zeros(2, dtype=torch.float64)) == 0.0


def test_images_of_one_class_have_no_order(rng):
    first, second = torch.randn(2, 50, generator=rng, dtype=torch.float64)
    ends = [End(1.0, torch.cat([first, second])), End(2.0, torch.cat([second, first]))]
    mean = torch.zeros(100, dtype=torch.float64)
    assert agreement(ends, mean, labels=torch.tensor([4, 4])) == pytest.approx(1.0)
    assert agreement(ends, mean, labels=torch.tensor([4, 5])) < 0.5
    assert agreement(ends, mean) < 0.5


def test_an_end_alone_is_taken_as_asked():
    end = End(1.0, torch.ones(3))
    assert agreement([end], torch.zeros(3)) == 1.0
    assert agreement([end], torch.zeros(3), alone=0.0) == 0.0


def test_what_noise_leaves_at_the_true_image_speaks_neither_for_nor_against_an_end():
    """Of what images explain, 2e4 of 3e4, the end leaves a twentieth, 6 above what errors allow."""
    residual = SimpleNamespace(before=lambda x: x, floor=1e4)
    plan = SimpleNamespace(stages=[SimpleNamespace(residual=residual)], varied=None, likely=())
    ends = Ends(SimpleNamespace(count=1, space=None, labels=None), plan, GaussianPrior(), torch.device("cpu"))
    ends.__dict__["least"] = 3e4
    ends.found = [End(11_100.0, torch.zeros(192))]
    assert ends.trust == 1.0
    ends.found = [End(25_000.0, torch.zeros(192))]
    assert ends.trust == 0.0


@pytest.mark.parametrize(("least", "settled"), [(1e11, True), (1e8, False)])
def test_behind_noise_an_end_within_its_errors_settles_what_they_hide_little_of(least, settled):
    residual = SimpleNamespace(before=lambda x: x, floor=1e4)
    plan = SimpleNamespace(stages=[SimpleNamespace(residual=residual)], varied=None, likely=())
    ends = Ends(SimpleNamespace(count=1, space=None, labels=None), plan, GaussianPrior(), torch.device("cpu"))
    ends.__dict__["least"] = least
    ends.found = [End(10_100.0, torch.zeros(192))]
    assert ends.settled == settled
    ends.found = [End(20_000.0, torch.zeros(192))]
    assert not ends.settled


def ends_of_waves(*places):
    """Behind noise, of an update that each whole number explains."""
    zero, weights = torch.zeros(1, dtype=torch.float64), torch.full((1,), 100.0, dtype=torch.float64)
    residual = Residual(lambda x: (torch.sin(math.pi * x),), zero, weights, floor=1.0, before=lambda x: 0.1 * x)
    plan = SimpleNamespace(stages=[SimpleNamespace(residual=residual)], varied=None, likely=())
    ends = Ends(SimpleNamespace(count=1, space=None, labels=None), plan, GaussianPrior(), torch.device("cpu"))
    ends.__dict__["least"] = 1e4
    for place in places:
        ends.add(torch.tensor([place], dtype=torch.float64))
    return ends


def test_behind_noise_two_ends_without_a_ridge_between_them_settle_it():
    assert ends_of_waves(0.0, 0.001).settled
    assert not ends_of_waves(0.0, 1.0).settled
    assert ends_of_waves(0.0, 1.0, 0.999, 0.001).settled
    assert not ends_of_waves(0.0).settled
    assert not ends_of_waves().settled


def test_modes_are_the_ends_that_ridges_set_apart_the_likeliest_first():
    found = ends_of_waves(2.0, 0.001, 1.0, 0.0, 0.5).modes
    assert [float(end.x) for end in found] == [0.0, 1.0, 2.0]
    assert [float(end.x) for end in ends_of_waves(3.0, 2.0, 1.0, 0.0, 4.0).modes] == [0.0, 1.0, 2.0, 3.0]
    assert [float(end.x) for end in ends_of_waves(0.0, 60.0).modes] == [0.0]  # it explains less by 36


def of_sums(labels, varied=None):
    """Behind noise, of a batch that shares the sum of its images' squares."""
    ends, square = ends_of_waves(), lambda x: (x.view(2, 48).square().sum(0),)
    weights = torch.full((48,), 100.0, dtype=torch.float64)
    residual = Residual(square, torch.ones(48, dtype=torch.float64), weights, floor=1.0, before=lambda x: 0.01 * x)
    ends.plan = SimpleNamespace(
        stages=[SimpleNamespace(residual=residual)],
        varied=varied,
        likely=varied and (None,),
        point=lambda x: 2.0 * x,
        unknowns=lambda x: x / 2.0,
    )
    ends.problem = SimpleNamespace(count=2, space=PixelSpace.__new__(PixelSpace), labels=torch.tensor(labels))
    return ends


def test_images_of_one_class_in_another_order_are_at_one_place_and_are_not_averaged(rng):
    angle = 6.3 * torch.rand(48, generator=rng, dtype=torch.float64)
    images = angle.cos(), angle.sin()
    for labels, settled, modes in (([4, 4], True, 1), ([4, 5], False, 2)):
        ends = of_sums(labels)
        for order in ((0, 1), (1, 0)):
            ends.add(torch.cat([images[place] for place in order]))
        assert ends.settled == settled
        assert len(ends.modes) == modes


def test_an_end_in_all_unknowns_may_fit_noise_that_ends_by_what_varies_leave():
    class Half:
        """Of 96 unknowns the first 48."""

        count = 48

        def unknowns(self, x):
            return x[:48]

        def point(self, z):
            return torch.cat([z, torch.zeros_like(z)])

    for beyond, settled in ((0.05, True), (0.0, False)):
        ends = of_sums([4, 5], Half())
        x = torch.cat([torch.ones(48), torch.full((48,), beyond)]).double()
        ends.found = [End(0.0, x), *(End(40.0, Half().point(x[:48])) for _ in range(2))]
        assert ends.settled == settled
