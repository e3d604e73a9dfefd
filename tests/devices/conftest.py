"""Clients and attacks on the stand-in, with digits, and on a GPU where there is one."""

import pytest


@pytest.fixture
def strict():
    """The stand-in."""
    import torch

    from tests.devices.strict_device import strict_device

    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch has no backends written in Python")
    with strict_device() as device:
        yield device


@pytest.fixture(params=["strict", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where clients of this process compute, whatever their settings say."""
    import torch

    chosen = torch.device("cuda") if request.param == "cuda" else request.getfixturevalue("strict")
    monkeypatch.setattr("clients.app.resolve_device", lambda _: chosen)
    return chosen
