"""Settings that attacks would misread are refused when they are read."""

from dataclasses import replace

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.optimizers import optimizer_factory
from tests.support.federation import settings


@pytest.mark.parametrize("key", ["client", "strategy"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_that_climbs_is_refused(key, name):
    settings = {"_target_": f"torch.optim.{name}", "lr": 0.1}
    with pytest.raises(ConfigError, match=rf"^{key}\.optimizer\.maximize=True: must be false"):
        optimizer_factory(key, {**settings, "maximize": True}, None)
    for kept in (settings, {**settings, "maximize": False}):
        made, scheduler = optimizer_factory(key, kept, None)([torch.nn.Parameter(torch.zeros(1))])
        assert isinstance(made, getattr(torch.optim, name))
        assert scheduler is None


@pytest.mark.parametrize("share", ["delta", "weights"])
def test_settings_of_a_client_are_refused_where_it_takes_steps(share):
    client = config_of(settings("audit", "client.optimizer._target_=torch.optim.Adan")).client
    replace(client, share="gradient").check_optimizer()
    with pytest.raises(ConfigError, match=r"^client\.optimizer\._target_=torch\.optim\.Adan: must be an importable"):
        replace(client, share=share).check_optimizer()
