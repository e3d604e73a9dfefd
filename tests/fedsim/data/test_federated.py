import logging
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    GroupedNaturalIdPartitioner,
    IidPartitioner,
    LinearPartitioner,
    NaturalIdPartitioner,
    PathologicalPartitioner,
    ShardPartitioner,
    SizePartitioner,
)

from fedsim.data import Digits, FederatedData
from fedsim.errors import ConfigError
from tests.support.table import Table

PARTITIONERS = {
    "iid": lambda: IidPartitioner(10),
    "dirichlet": lambda: DirichletPartitioner(10, "label", 0.5, min_partition_size=1, seed=1),
    "shard": lambda: ShardPartitioner(10, "label", num_shards_per_partition=2, seed=1),
    "pathological": lambda: PathologicalPartitioner(10, "label", 2, "first-deterministic", seed=1),
    "natural": lambda: NaturalIdPartitioner("writer"),
    "grouped": lambda: GroupedNaturalIdPartitioner("writer", 2),
    "linear": lambda: LinearPartitioner(10),
    "size": lambda: SizePartitioner([100, 150, 50]),
}


def skew(data: FederatedData) -> float:
    """Mean total variation distance of a client's labels from everybody's: 0 is IID."""
    everybody = np.bincount(data.train.labels, minlength=data.num_classes) / len(data.train)
    clients = [data.client(number).labels for number in range(data.num_partitions)]
    shares = [np.bincount(labels, minlength=data.num_classes) / len(labels) for labels in clients]
    return float(np.mean([np.abs(share - everybody).sum() / 2 for share in shares]))


def refusal(partitioner, source=None, num_clients=None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        FederatedData(source or Table(), partitioner, image_size=8).check(num_clients)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", PARTITIONERS)
def test_partitions_are_disjoint_and_complete(name):
    data = FederatedData(Table(), PARTITIONERS[name](), image_size=8)
    data.check()
    clients = [data.client(number) for number in range(data.num_partitions)]
    held = [picture for client in clients for picture in client.ids]
    assert len(held) == len(set(held))
    assert set(held) == set(data.train.ids)
    assert data.partition_sizes() == [len(client) for client in clients]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_client_keeps_its_own_labels(name):
    data = FederatedData(Table(), PARTITIONERS[name](), image_size=8)
    label_of = dict(zip(data.train.ids, data.train.labels.tolist(), strict=True))
    client = data.client(data.num_partitions - 1)
    assert [label_of[picture] for picture in client.ids] == client.labels.tolist()


@pytest.mark.parametrize("name", PARTITIONERS)
def test_partitions_are_the_same_whatever_was_asked_first(name):
    first, second = (FederatedData(Table(), PARTITIONERS[name](), image_size=8) for _ in range(2))
    numbers = range(first.num_partitions)
    forwards = [first.client(number).ids for number in numbers]
    backwards = [second.client(number).ids for number in reversed(numbers)]
    assert forwards == backwards[::-1]


@pytest.mark.subprocess
def test_another_process_makes_the_same_partitions(warm, tmp_path):
    script = tmp_path / "partition.py"
    script.write_text(
        "from flwr_datasets.partitioner import DirichletPartitioner as D\n"
        "from fedsim.data import Digits, FederatedData\n"
        "print(*FederatedData(Digits(), D(5, 'label', 0.3, seed=4), 8).client(3).ids)"
    )
    here = FederatedData(Digits(), DirichletPartitioner(5, "label", 0.3, seed=4), image_size=8).client(3).ids
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    there = subprocess.run([warm, script], capture_output=True, text=True, check=True, env=environment)
    assert tuple(there.stdout.split()) == here


def test_dirichlet_is_skewed_and_iid_is_not():
    iid = skew(FederatedData(Digits(), IidPartitioner(8), image_size=8))
    near_iid = skew(FederatedData(Digits(), DirichletPartitioner(8, "label", 1000.0, seed=0), image_size=8))
    some = skew(FederatedData(Digits(), DirichletPartitioner(8, "label", 0.5, seed=0), image_size=8))
    assert iid < 0.2
    assert near_iid < 0.15
    assert some > 0.3


def test_pathological_clients_hold_two_classes():
    data = FederatedData(Table(), PARTITIONERS["pathological"](), image_size=8)
    assert all(len(data.client(number).labels.unique()) == 2 for number in range(10))


def test_one_partitioner_serves_several_data_and_is_left_alone():
    partitioner = PARTITIONERS["dirichlet"]()
    first, second = (FederatedData(Table(), partitioner, image_size=8) for _ in range(2))
    assert first.client(0).ids == second.client(0).ids
    assert not partitioner.is_dataset_assigned()


def test_without_a_partitioner_one_client_holds_everything():
    data = FederatedData(Table(), None, image_size=8)
    data.check()
    assert data.num_partitions == 1
    assert data.client(0).ids == data.train.ids
    assert len(data.auxiliary) == 0


def test_a_client_is_built_once():
    data = FederatedData(Table(), IidPartitioner(3), image_size=8)
    assert data.client(1) is data.client(1)
    assert data.test is data.test


def test_nothing_is_decoded_to_divide():
    """The files of `Table` do not exist."""
    data = FederatedData(Table(), PARTITIONERS["shard"](), image_size=8)
    data.check()
    assert sum(data.partition_sizes()) == 300


def test_left_over_pictures_are_reported(caplog):
    with caplog.at_level(logging.WARNING):
        FederatedData(Table(), ShardPartitioner(7, "label", 2), image_size=8).check()
    assert "ShardPartitioner leaves 6 of 300 training pictures to no client" in caplog.text


@pytest.mark.parametrize(
    "partitioner",
    [
        IidPartitioner(301),
        DirichletPartitioner(301, "label", 1.0),
        ShardPartitioner(301, "label", 1),
        PathologicalPartitioner(301, "label", 1),
    ],
)
def test_more_clients_than_pictures(partitioner):
    assert str(refusal(partitioner)) == "num_clients=301: must be at most 300, the number of training pictures"


def test_no_clients():
    assert str(refusal(PathologicalPartitioner(0, "label", 1))) == "num_clients=0: must be at least 1"


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (DirichletPartitioner(10, "label", 0.01, min_partition_size=25, seed=0), "max number of attempts"),
        (PathologicalPartitioner(10, "label", 6), "num_classes_per_partition"),
        (PathologicalPartitioner(200, "label", 2), "needed to be assigned to more partitions"),
        (ShardPartitioner(10, "label", 2, shard_size=100), "impossible"),
        (ShardPartitioner(200, "label", 2), "some client or shard would be empty"),
        (SizePartitioner([200, 200]), "greater than the size of the dataset"),
        (NaturalIdPartitioner("hospital"), "hospital"),
        (DirichletPartitioner(3, "lable", 1.0), "lable"),
        (ShardPartitioner(3, "lable", 1), "lable"),
        (GroupedNaturalIdPartitioner("writer", 3, mode="strict"), "remainder"),
    ],
)
def test_what_a_partitioner_refuses(partitioner, message):
    error = refusal(partitioner)
    assert (error.key, error.value) == ("partition", type(partitioner).__name__)
    assert message in str(error)
    assert "300 training pictures of 5 classes" in str(error)
    no_column = message in ("hospital", "lable")
    assert ("or natural_id by data=hub data.natural_id_column=COLUMN" in str(error)) == no_column
    assert ("Fewer clients (num_clients) may do" in str(error)) == (not no_column)


def test_a_client_without_pictures_is_named():
    error = refusal(PathologicalPartitioner(3, "label", 0))
    assert error.key == "partition"
    assert "client 0 of 3 would hold no picture" in str(error)


def test_partitions_that_no_client_takes_are_reported(caplog):
    data = FederatedData(Table(), NaturalIdPartitioner("writer"), image_size=8)
    sizes = data.partition_sizes()
    with caplog.at_level(logging.WARNING):
        data.check()
        data.check(7)
        assert not caplog.text
        data.check(4)
    told = f"num_clients=4 of 7 partitions: {sum(sizes[4:])} of 300 training pictures belong to no client"
    assert told in caplog.text


def test_more_clients_than_natural_ids():
    error = refusal(NaturalIdPartitioner("writer"), num_clients=8)
    assert (
        str(error)
        == "num_clients=8: must be at most 7, the number of partitions that NaturalIdPartitioner makes of this data"
    )
    data = FederatedData(Table(), NaturalIdPartitioner("writer"), image_size=8)
    data.check(7)
    with pytest.raises(ConfigError, match="num_clients=8: must be at most 7"):
        data.client(7)


def test_a_negative_client():
    with pytest.raises(ConfigError, match="partition_id=-1"):
        FederatedData(Table(), IidPartitioner(3), image_size=8).client(-1)


@pytest.mark.parametrize(("settings", "key"), [({"image_size": 0}, "image_size"), ({"cache_bytes": -1}, "cache_bytes")])
def test_sizes_that_cannot_be(settings, key):
    with pytest.raises(ConfigError, match=key):
        FederatedData(Table(), None, **{"image_size": 8, **settings})


@pytest.mark.parametrize("name", ["dirichlet", "natural", None])
def test_who_is_told_how_it_is_divided_has_the_same_clients(name):
    data = FederatedData(Table(), PARTITIONERS[name]() if name else None, image_size=8)
    told = FederatedData(Table(), None, image_size=8, divided=data.partitions())
    told.check(data.num_partitions)
    assert told.partition_sizes() == data.partition_sizes()
    assert [told.client(number).ids for number in range(told.num_partitions)] == [
        data.client(number).ids for number in range(data.num_partitions)
    ]
    with pytest.raises(ConfigError, match="num_clients"):
        told.client(told.num_partitions)
