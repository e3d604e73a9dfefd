"""A function as one CUDA graph gives what the function gives."""

import pytest
import torch

from attacks.optimization.cuda_graph import replayed
from attacks.optimization.second_order.steps.products import KeptProducts
from attacks.optimization.second_order.steps.sketch import Pieces


def test_without_cuda_a_function_stays_as_it_is():
    def double(given):
        return (2.0 * given[0],)

    assert replayed(double, [torch.ones(3)]) is double


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's own, in the thread that goes back
def test_products_at_every_point(rng):
    first = torch.randn(40, 12, generator=rng, dtype=torch.float64).cuda()
    second = torch.randn(300, 40, generator=rng, dtype=torch.float64).cuda()
    for _ in range(3):
        x = torch.randn(12, generator=rng, dtype=torch.float64).cuda()
        kept = KeptProducts(Pieces(lambda x: (second @ torch.tanh(first @ x),), x.new_ones(0)), x, 12)

        def normal(given, kept=kept):
            return (kept.normal(*given),)

        once = replayed(normal, [x])
        assert once is not normal
        for _ in range(3):
            v = torch.randn(12, generator=rng, dtype=torch.float64).cuda()
            assert torch.allclose(once([v])[0], normal([v])[0], rtol=1e-12)


@pytest.mark.gpu
def test_what_waits_for_the_gpu_is_not_captured():
    def waits(given):
        return (given[0] * float(given[0].sum()),)

    assert replayed(waits, [torch.ones(3).cuda()]) is waits
    assert torch.cuda.get_sync_debug_mode() == 0
    assert float(torch.ones(3).cuda().sum()) == 3.0
