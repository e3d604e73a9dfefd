"""Clients and attacks on the stand-in, with digits."""

import pytest


@pytest.fixture
def strict(monkeypatch):
    """The stand-in, on which clients of this process compute whatever their settings say."""
    import torch

    from tests.devices.strict_device import strict_device

    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch has no backends written in Python")
    with strict_device() as device:
        monkeypatch.setattr("clients.app.resolve_device", lambda _: device)
        yield device
