"""Weight decay by groups: timm's choice, torch's steps, and attacks that take out what there is."""

import json

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay
from torch.nn import functional as F

import fedsim
from attacks.label.head.gradient import decays
from clients.app import ClientRuntime
from fedsim.errors import ConfigError
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.local.decay import groups, undecayed
from fedsim.update import LocalProtocol
from tests.support.clients import observe_client
from tests.support.federation import settings

TINY = ("data=digits", "model=vit_nano", "+model.kwargs.depth=1")
STEP = (*TINY, "client.share=delta", "client.optimizer.lr=1", "+client.optimizer.weight_decay=0.05")


def client_of(*overrides):
    config = config_of(settings("audit", *overrides))
    config.client.check_optimizer()
    return ClientRuntime(config, build_data(config))


def trained(client, ids=(5,)):
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    result = client.train(client.data.train.subset(ids), 0, 0)
    client.load(state)
    return result


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_they_are_those_of_timm(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    first = next(model.parameters()).requires_grad_(False)
    own = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    apart = next(
        one for one in param_groups_weight_decay(model, 0.1, no_weight_decay_list=own) if not one["weight_decay"]
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = undecayed(model)
    assert list(found) == [names[id(parameter)] for parameter in apart["params"]]
    assert 0 < len(found) < len(names)
    assert names[id(first)] not in found


def test_an_empty_group_is_left_out():
    layer = torch.nn.Linear(2, 2)
    trained = dict(layer.named_parameters())
    assert groups(trained, ()) == list(trained.values())
    assert [len(one["params"]) for one in groups(trained, ("bias",))] == [1, 1]
    assert groups({"bias": layer.bias}, ("bias",)) == [{"params": [layer.bias], "weight_decay": 0.0}]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_steps_are_torchs_on_timms_groups(optimizer):
    client = client_of(*STEP, f"client.optimizer._target_=torch.optim.{optimizer}", "client.no_decay=true")
    result, (pictures, model) = trained(client), (client.data.train.subset([5]), client.model)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    parts = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    model.zero_grad()
    F.cross_entropy(model((pictures.images([0]) - 0.5) / 0.5), pictures.labels).backward()
    getattr(torch.optim, optimizer)(parts, lr=1.0).step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.tensors[name], parameter.detach() - start[name], rtol=1e-5, atol=1e-7)
    assert set(result.protocol.undecayed) >= {"pos_embed", "cls_token", "head.bias", "norm.weight"}
    assert "head.weight" not in result.protocol.undecayed


def test_off_is_one_group_and_no_name():
    plain, same = trained(client_of(*STEP)), trained(client_of(*STEP, "client.no_decay=false"))
    apart = trained(client_of(*STEP, "client.no_decay=true"))
    assert plain.protocol == same.protocol
    assert plain.protocol.undecayed == ()
    assert all(torch.equal(tensor, same.tensors[name]) for name, tensor in plain.tensors.items())
    for name in ("head.weight", "blocks.0.norm1.weight"):  # biases begin at zero
        decays_still = name not in apart.protocol.undecayed
        assert torch.equal(plain.tensors[name], apart.tensors[name]) == decays_still


def test_an_update_is_the_gradient_without_the_decay_that_there_was():
    gradient, _ = observe_client(*TINY)
    seen, truth = observe_client(*STEP, "client.no_decay=true")
    for name, expected in gradient.gradient.items():
        torch.testing.assert_close(seen.gradient[name], expected, rtol=1e-3, atol=1e-6)
    assert seen.protocol.decay_of("pos_embed") == 0.0 < seen.protocol.decay_of("head.weight") == 0.05
    assert decays(observe_client(*STEP)[0])
    assert not decays(seen)
    result = fedsim.attack("patch_gradient", seen)
    assert float((result.images.double() - truth.images.double()).square().mean()) < 1e-5


def test_a_bias_that_does_not_decay_keeps_its_sign_over_steps():
    certified = []
    for apart in ("true", "false"):
        seen, truth = observe_client(
            *STEP, "client.optimizer.lr=0.1", "client.local_steps=3", f"client.no_decay={apart}"
        )
        result = fedsim.attack("labels", seen)
        assert result.labels.tolist() == truth.labels.tolist()
        certified.append(result.certificate.status)
    assert certified == ["certified", "uncertified"]


def test_it_is_kept_on_disk_and_old_files_had_one_group(tmp_path):
    seen, _ = observe_client(*STEP, "client.no_decay=true")
    seen.save(tmp_path / "seen")
    assert fedsim.Observation.load(tmp_path / "seen").protocol == seen.protocol
    record = json.loads(json.dumps(seen.protocol.to_dict()))
    assert LocalProtocol.from_dict(record) == seen.protocol
    del record["undecayed"]
    assert LocalProtocol.from_dict(record).decay_of("head.bias") == 0.05


def test_where_nothing_decays_it_is_refused():
    with pytest.raises(ConfigError, match=r"^client\.no_decay=True: must be false beside client\.share=gradient"):
        config_of(settings("audit", "client.no_decay=true"))
    with pytest.raises(
        ConfigError, match=r"^client\.no_decay=True: must be false beside client\.optimizer\.weight_decay=0"
    ):
        client_of(*TINY, "client.share=delta", "client.no_decay=true")


def test_what_a_client_keeps_for_itself_is_not_named():
    words = ("finetune=lora", "finetune.aggregate=local_pair", "client.no_decay=true")
    client = client_of(*STEP, *words)
    result = trained(client)
    assert result.protocol.undecayed
    assert not set(result.protocol.undecayed) & set(client.own)
