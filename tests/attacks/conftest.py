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
