"""One client's parties on digits, as an audit makes them."""

import pytest

from clients.app import ClientRuntime
from clients.bounds import Party
from fedsim.settings.composition import build_data
from tests.support.federation import settings


@pytest.fixture(scope="session")
def digits():
    return build_data(settings("audit", "data=digits", "model=vit_nano"))


@pytest.fixture
def parties(digits):
    """`parties(*overrides, images=2)`: as many clients with one image each, or with `batch` of them."""

    def make(*overrides, images=2, batch=1, summed=False):
        config = settings("audit", "data=digits", "model=vit_nano", f"audit.batch_size={batch}", *overrides)
        runtime = ClientRuntime(config, digits)
        state = {name: tensor.detach().clone() for name, tensor in runtime.model.state_dict().items()}
        return [
            Party(runtime, state, digits.train.subset(range(k * batch, (k + 1) * batch)), k, summed=summed)
            for k in range(images)
        ]

    return make
