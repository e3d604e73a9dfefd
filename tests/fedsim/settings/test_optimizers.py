"""Settings that attacks would misread are refused when they are read."""

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.settings.optimizers import optimizer_factory


@pytest.mark.parametrize("key", ["client", "strategy"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_that_climbs_is_refused(key, name):
    settings = {"_target_": f"torch.optim.{name}", "lr": 0.1}
    with pytest.raises(ConfigError, match=rf"^{key}\.optimizer\.maximize=True: false"):
        optimizer_factory(key, {**settings, "maximize": True}, None)
    for kept in (settings, {**settings, "maximize": False}):
        made, scheduler = optimizer_factory(key, kept, None)([torch.nn.Parameter(torch.zeros(1))])
        assert isinstance(made, getattr(torch.optim, name))
        assert scheduler is None
