import torch

from attacks.optimization.matching.derivative import make_derivative
from attacks.optimization.matching.local_steps import GradientMap
from attacks.optimization.matching.objectives import Cosine
from attacks.optimization.search.memory import GIB, candidate_bytes, chunk_size, default_budget


def test_a_chunk_keeps_within_the_budget():
    assert chunk_size(8, GIB, 3.5) == 3
    assert chunk_size(8, GIB, 100.0) == 8
    assert chunk_size(8, 5 * GIB, 1.0) == 1


def test_a_candidate_needs_more_the_larger_it_is(small, victim_of, candidates):
    observation, _ = small()
    victim, _ = victim_of(observation)
    model = sum(tensor.numel() * 4 for tensor in victim.params.values())
    sizes = {}
    for method in ("finite_difference", "double_backward"):
        derivative = make_derivative(method, GradientMap(victim), Cosine())
        for batch in (1, 8):
            variables = {"images": candidates(1, batch)[0], "labels": torch.zeros(batch, dtype=torch.long)}
            sizes[method, batch] = candidate_bytes(derivative, method, variables, steps=1)
            assert sizes[method, batch] > 4 * model
        assert sizes[method, 8] > sizes[method, 1]
    assert sizes["double_backward", 8] > sizes["finite_difference", 8]


def test_a_cpu_has_a_budget():
    assert default_budget(torch.device("cpu")) > 0
