"""One client's parties on digits, as an audit makes them."""

from dataclasses import replace

import pytest
import torch

from clients.app import ClientRuntime
from clients.bounds import Party
from defenses.named import chain_of
from fedsim.data.tensors import TensorImages
from fedsim.models import own_architecture
from fedsim.settings.commands import LocalConfig
from fedsim.settings.composition import build_data
from fedsim.settings.groups import ClientSettings
from fedsim.settings.schema import parse
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


@pytest.fixture
def own_party():
    """`own_party(model, defense)`: a client of a model of one's own, with images of 6 by 6."""

    def make(model, defense=(), training=True, count=1):
        torch.manual_seed(0)
        given, (chain, described) = own_architecture(model, (3, 6, 6), None, None, None, None), chain_of(defense, [])
        client = {"share": "gradient", "batch_size": count, "local_epochs": 1, "local_steps": None, "augment": []}
        client |= {"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}, "label_smoothing": 0.0}
        client |= {"training_mode": training, "precision": "float32", "max_grad_norm": None}
        client |= {"micro_batch_size": None, "no_decay": False, "scheduler": None, "device": "auto"}
        config = LocalConfig(client=parse(ClientSettings, client), seed=0, defense=described, data={}, model={})
        runtime = ClientRuntime(config, data=None, given=replace(given, wrappers=(chain,), seed=0))
        state = {name: tensor.detach().clone() for name, tensor in runtime.model.state_dict().items()}
        return Party(runtime, state, TensorImages(torch.rand(count, 3, 6, 6), torch.full((count,), 3)), 0)

    return make
