import pytest


@pytest.fixture
def cpu():
    import torch

    return torch.device("cpu")


@pytest.fixture(scope="session")
def tools():
    """`tests.support.observations`: `observe`, `tiny`, `psnr` and the pictures."""
    from tests.support import observations

    return observations


@pytest.fixture
def victim_of(tools, cpu):
    """`victim_of(observation, dtype)`: its victim, target and a batch of random candidates."""
    from attacks.optimization.problem import shared_update
    from attacks.victim import make_victim

    def make(observation, fused=False):
        target = shared_update(observation, "gradient", cpu)
        return make_victim(observation, target, cpu, fused), target

    return make


@pytest.fixture
def small(tools):
    """One block, 16 patches, width 48: an observation of `count` photographs."""

    def make(count=1, labels=(3, 5), dtype="float32", depth=1, **settings):
        spec = tools.tiny(
            img_size=16, patch_size=4, dtype=dtype, kwargs={"depth": depth, "embed_dim": 48, "num_heads": 3}
        )
        pictures = tools.photographs(16)[:count]
        return tools.observe(spec, pictures, list(labels)[:count], **settings), pictures

    return make


@pytest.fixture
def candidates(rng):
    import torch

    def make(count, batch=1, dtype=torch.float32, side=16):
        return torch.randn(count, batch, 3, side, side, generator=rng, dtype=dtype)

    return make
