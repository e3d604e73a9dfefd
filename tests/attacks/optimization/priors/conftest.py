import pytest


def check_term(term, candidates):
    """What every term of an image prior must satisfy.

    Scalar; gradient as by finite differences; the same under vmap as in a loop, value and gradient; nothing written.

    `candidates`: [candidates,B,C,H,W], float64.
    """
    import torch
    from torch.func import grad, vmap

    before = candidates.clone()
    one = candidates[0].clone().requires_grad_()
    assert term(one).shape == ()
    assert torch.autograd.gradcheck(term, one, fast_mode=True)
    torch.testing.assert_close(vmap(term)(candidates), torch.stack([term(c) for c in candidates]))
    torch.testing.assert_close(vmap(grad(term))(candidates), torch.stack([grad(term)(c) for c in candidates]))
    leaf = candidates.clone().requires_grad_()
    (through,) = torch.autograd.grad(vmap(term)(leaf).sum(), leaf)
    torch.testing.assert_close(through, torch.stack([grad(term)(c) for c in candidates]))
    assert torch.equal(candidates, before)


@pytest.fixture(scope="session")
def check():
    return check_term


@pytest.fixture(scope="session")
def vit(tools):
    """The update of two pictures of different classes, ViT-Ti/4 at 32 px with one block, float64."""
    return tools.observe(tools.tiny(kwargs={"depth": 1}, dtype="float64"), tools.photographs(32), [3, 7])


@pytest.fixture
def candidates():
    import torch

    return torch.randn(3, 2, 3, 32, 32, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
