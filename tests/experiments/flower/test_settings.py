"""Overrides in Flower's flat configuration: composed as on the command line, told in one line, and no pictures."""

import pytest

from experiments.flower.settings import client_config, faults_in_one_line, partition_id, server_config
from fedsim.errors import ConfigError, RunError


def test_the_overrides_compose_as_on_the_command_line():
    config = server_config({"overrides": "data=digits num_rounds=7 attack=[patch_gradient] run_dir='a folder/b'"})
    assert config.num_rounds == 7
    assert list(config.attack) == ["patch_gradient"]
    assert config.run_dir == "a folder/b"
    assert config.simulation.engine == "inline"
    assert server_config({"overrides": "simulation=ray"}).simulation.engine == "ray"
    assert server_config({}).num_rounds == server_config({"overrides": ""}).num_rounds > 0


def test_a_supernode_says_more_about_itself_than_the_run_does():
    run = {"overrides": "client.device=cuda seed=3"}
    node = {"partition-id": 0, "overrides": "client.device=cpu data=imagefolder data.path=/srv/pictures ~partition"}
    config = client_config(run, node)
    assert config.client.device == "cpu"
    assert config.seed == 3
    assert config.data["path"] == "/srv/pictures"
    assert config.partition == {}


def test_settings_of_an_option_go_with_it_where_a_supernode_chooses_another():
    run = {"overrides": "partition=dirichlet partition.alpha=0.1 defense=[gradient_noise] defense.gradient_noise.std=1"}
    site = client_config(run, {"overrides": "data=imagefolder data.path=/srv ~partition defense=[local_dp]"})
    assert site.partition == {}
    assert list(site.defense) == ["local_dp"]
    same = client_config(run, {"overrides": "partition=dirichlet defense=[gradient_noise,local_dp]"})
    assert same.partition["alpha"] == 0.1
    assert same.defense["gradient_noise"]["std"] == 1
    assert client_config(run, {"overrides": "partition.alpha=0.2"}).partition["alpha"] == 0.2


def test_a_supernode_may_name_the_option_that_the_run_has_anyway():
    """Its settings went, and the client held other test images than the server."""
    run = {"overrides": "data.test_fraction=0.4"}
    assert client_config(run, {"overrides": "data=digits"}).data["test_fraction"] == 0.4
    other = client_config(run, {"overrides": "data=imagefolder data.path=/srv"})
    assert other.data["test_fraction"] != 0.4
    prescribed = {"overrides": "experiment=mjp_training data.path=/srv data.test_fraction=0.4"}
    assert client_config(prescribed, {"overrides": "data=imagefolder"}).data["test_fraction"] == 0.4
    assert client_config(prescribed, {"overrides": "data=digits"}).data["test_fraction"] != 0.4


@pytest.mark.parametrize("asked", ["", "audit=true", "seed=1 audit=true audit=true"])
def test_no_run_makes_a_client_send_its_pictures(asked):
    assert client_config({"overrides": asked}, {"partition-id": 0}).audit is False
    assert client_config({"overrides": asked}, {"overrides": "client.device=cpu"}).audit is False
    assert client_config({"overrides": asked}, {"overrides": "audit=true"}).audit is True


@pytest.mark.parametrize("asked", ["audit=true", "audit=yes", "audit=1"])
def test_a_server_that_asks_for_pictures_is_told_whose_they_are(asked):
    with pytest.raises(ConfigError, match=r"^audit=.*: must be false: .*--node-config"):
        server_config({"overrides": asked})
    assert server_config({"overrides": ""}).audit is False


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("num_rouns=2", "num_rouns=2: there is no such key. Did you mean 'num_rounds'?"),
        ("attack=[patch_gradiant]", "attack=patch_gradiant: there is no such option"),
        ("attack=[labels,labels]", "attack=[labels,labels]: must be each name once"),
        ("data='digits", "overrides=data='digits: must be Hydra overrides as in a shell"),
        ("--multirun", "--multirun"),
        ("seed", "seed: settings are written KEY=VALUE"),
        ("partition=null", "partition"),
    ],
)
def test_a_bad_override_is_one_line(overrides, line):
    settings = {"overrides": overrides}
    with pytest.raises(RunError) as caught, faults_in_one_line(settings):
        server_config(settings)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("node_config", "key"),
    [
        ({}, "partition-id=None"),
        ({"partition-id": 2}, "partition-id=2"),
        ({"partition-id": -1}, "partition-id=-1"),
        ({"partition-id": "0"}, "partition-id=0"),
        ({"partition-id": True}, "partition-id=True"),
        ({"partition-id": 0, "num-partitions": 3}, "num_clients=2: must be 3"),
    ],
)
def test_a_supernode_without_a_number_is_refused(node_config, key):
    with pytest.raises(ConfigError, match=f"^{key}"):
        partition_id(node_config, num_clients=2)
    assert partition_id({"partition-id": 1, "num-partitions": 2}, num_clients=2) == 1


def test_a_setting_that_there_is_not_is_refused_on_a_supernode():
    with pytest.raises(ConfigError, match=r"^client\.foo=1: there is no such setting"):
        client_config({"overrides": "seed=1"}, {"overrides": "+client.foo=1"})
