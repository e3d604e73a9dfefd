"""Clients and attacks on the stand-in, with digits."""

import pytest


@pytest.fixture
def strict(monkeypatch):
    """The stand-in, on which clients of this process compute whatever their settings say."""
    from tests.devices.strict_device import strict_device

    with strict_device() as device:
        monkeypatch.setattr("clients.app.resolve_device", lambda _: device)
        yield device
