"""Models that clients could not train, or would train to no effect, are refused before any worker starts."""

import pytest

from experiments.engine.setup import prepare
from fedsim.data import FederatedData
from fedsim.errors import ConfigError
from fedsim.models import Architecture
from tests.support.federation import settings

NANO = ("data=digits", "model=vit_nano")
LOCAL = ("strategy=fedavg", "client.share=weights", "client.local_steps=6")
ENDS = "{_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.1, total_steps: 5, cycle_momentum: false}"


@pytest.mark.parametrize("trained", [True, False])
def test_a_trained_parameter_of_two_names_is_refused_in_a_federation(trained, monkeypatch):
    build = Architecture.build

    def tied(*given):
        model = build(*given)
        model.blocks[1].norm1 = model.blocks[0].norm1.requires_grad_(trained)
        return model

    monkeypatch.setattr(Architecture, "build", tied)
    prepare(settings("audit", *NANO))
    if not trained:  # nobody's values differ
        prepare(settings("config", *NANO))
        return
    said = r"^model\.name=vit_nano_patch2_8: must be a model whose parameters have one name each: "
    with pytest.raises(ConfigError, match=said + r"blocks\.0\.norm1\.weight and blocks\.1\.norm1\.weight are one"):
        prepare(settings("config", *NANO))


RESNET = ("data=digits", "model=resnet18_32", "model.img_size=8", "+model.kwargs.channels=[4,4,4,4]")
RESNET = (*RESNET, "+model.kwargs.layers=[1,1,1,1]")  # its last maps are 1x1


def test_batchnorm_on_one_value_a_channel_is_refused():
    why = "of an image alone BatchNorm would read one value a channel, on which it cannot train"
    other = r"larger images, or client\.training_mode=false: " + why
    with pytest.raises(ConfigError, match=rf"^audit\.batch_size=1: must be 2, {other}"):
        prepare(settings("audit", *RESNET, "audit.batch_size=1"))
    with pytest.raises(ConfigError, match=rf"^client\.batch_size=1: must be \d+, {other}"):
        prepare(settings("config", *RESNET, "client.batch_size=1"))
    odd = max(prepare(settings("config", *RESNET, "client.batch_size=64")).data.partition_sizes()) - 1
    prepare(settings("config", *RESNET, f"client.batch_size={odd}"))  # a gradient of the first batch
    steps = (*RESNET, "strategy=fedavg", f"client.batch_size={odd}")
    with pytest.raises(ConfigError, match=rf"^client\.batch_size={odd}: must be {odd + 1}, {other}"):
        prepare(settings("config", *steps))
    prepare(settings("config", *steps, "client.local_steps=1"))
    prepare(settings("config", *steps, "client.training_mode=false"))
    prepare(settings("audit", *RESNET, "audit.batch_size=1", "client.training_mode=false"))
    prepare(settings("audit", *RESNET, "audit.batch_size=1", "model.img_size=32"))


def test_a_scheduler_that_ends_before_a_client_does_is_refused():
    said = r"^client\.scheduler=.*OneCycleLR: must be one that lasts the 6 steps of a client of \d+ images"
    with pytest.raises(ConfigError, match=said):
        prepare(settings("config", *NANO, *LOCAL, f"client.scheduler={ENDS}"))
    prepare(settings("config", *NANO, *LOCAL, f"client.scheduler={ENDS.replace('5', '6')}"))


def test_a_scheduler_that_ends_before_an_audited_client_does_is_refused():
    audit = settings("audit", *NANO, "client.share=weights", "client.local_steps=6", f"client.scheduler={ENDS}")
    with pytest.raises(ConfigError, match=r"^client\.scheduler=.*OneCycleLR: must be one that lasts the 6 steps"):
        prepare(audit)
    audit["client"]["local_steps"] = 5
    prepare(audit)


def test_images_of_no_client_and_of_supernodes_are_not_judged(monkeypatch):
    given = settings("config", *RESNET, "client.batch_size=3", "num_clients=2", "partition.num_partitions=3")
    monkeypatch.setattr(FederatedData, "partition_sizes", lambda _: [6, 6, 1])  # the third is nobody's
    prepare(given)
    alone = {**given, "num_clients": 3}
    with pytest.raises(ConfigError, match=r"^client\.batch_size=3: must be"):
        prepare(alone)
    prepare(alone, simulated=False)


def test_running_statistics_beside_a_servers_noise_are_refused():
    given = settings("config", *RESNET, "strategy=fedavg", "client.batch_size=3")
    inner = given["strategy"]
    outer = {"_target_": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping", "strategy": inner}
    outer |= {"clipping_norm": 1.0, "num_sampled_clients": 5}
    prepare({**given, "strategy": {**outer, "noise_multiplier": 0.0}})
    noisy = {**given, "strategy": {**outer, "noise_multiplier": 1.0}}
    with pytest.raises(
        ConfigError, match=r"^strategy\.noise_multiplier=1\.0: must be 0, client.* those of bn1 get no noise"
    ):
        prepare(noisy)
    prepare({**noisy, "client": {**given["client"], "training_mode": False}})
    prepare({**settings("config", *NANO, "strategy=fedavg"), "strategy": noisy["strategy"]})
    kept = "defense.withhold.patterns=['{}']"
    of_all, of_some = (
        settings("config", *RESNET, "client.batch_size=3", "defense=[withhold]", kept.format(pattern))
        for pattern in ("*.running_*", "bn1.running_*")
    )
    clients = {"client": {**given["client"]}, "strategy": noisy["strategy"]}
    prepare({**of_all, **clients})
    with pytest.raises(ConfigError, match=r"^strategy\.noise_multiplier=1\.0: .* those of layer1\.0\.bn1 get no noise"):
        prepare({**of_some, **clients})
