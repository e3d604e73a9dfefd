"""What a round's metrics say of ε: no client has spent more."""

import math

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import METRICS, from_arrays, to_reply
from server.completion import CompleteUpdates
from server.epsilon import LargestEpsilon
from server.sampling import SeededSampling
from server.silence import OmitSilent
from server.strategy_state import restore_strategy, strategy_state
from server.worker_sums import WorkerSums


class Reporting(LargestEpsilon):
    """Keeps what it was told by clients, and what it reported."""

    def __init__(self, inner):
        super().__init__(inner)
        self.told, self.reported = [], []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.told.append(
            {
                reply.metadata.src_node_id: float(reply.content.metric_records[METRICS]["dp_sgd_epsilon"])
                for reply in replies
                if not reply.has_error()
            }
        )
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.reported.append(float(metrics["dp_sgd_epsilon"]))
        return arrays, metrics


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("summed", [False, True])
def test_no_client_of_a_federation_has_spent_more_than_is_reported(strategy, summed, federate):
    federation = federate(
        f"strategy={strategy}",
        "num_clients=4",
        "strategy.fraction_train=0.5",
        "defense=[dp_sgd]",
        "client.batch_size=4",
        "client.local_steps=2",
    )
    inner = federation.strategy() if strategy == "fedsgd" else CompleteUpdates(federation.strategy())
    reporting = Reporting(WorkerSums(OmitSilent(inner), size=2) if summed else OmitSilent(inner))
    federation.start(SeededSampling(reporting, 0), num_rounds=4)
    spent = {}
    for told, reported in zip(reporting.told, reporting.reported, strict=True):
        spent |= told
        assert reported == max(spent.values())
    assert len({round(epsilon, 6) for epsilon in spent.values()}) > 1, "clients took part in unequally many rounds"


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Flower's messages are made within a task."""
    for identity in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, identity, 1)


def replies(*reports):
    """A client for each, with ten times the examples of the one before; None: it failed."""
    made = []
    for number, metrics in enumerate(reports):
        asked = Message(RecordDict(), dst_node_id=number + 1, message_type="train")
        if metrics is None:
            made.append(Message(Error(1, "broken"), reply_to=asked))
            continue
        update = Update({"weight": torch.ones(2)}, "gradient", 10**number)
        made.append(Message(to_reply(update, LocalProtocol(1), number, metrics, None), reply_to=asked))
    return made


def test_other_metrics_stay_means_and_the_largest_stays():
    strategy = LargestEpsilon(FedAvg(fraction_evaluate=0.0))
    reports = [{"a_epsilon": 8.0, "loss": 2.0}, {"a_epsilon": 1.0, "loss": 13.0}, None]
    arrays, metrics = strategy.aggregate_train(1, replies(*reports))
    assert from_arrays(arrays)["weight"].tolist() == [1.0, 1.0]
    assert dict(metrics) == {"a_epsilon": 8.0, "loss": pytest.approx(12.0)}
    _, metrics = strategy.aggregate_train(2, replies(None, {"a_epsilon": 3.0, "loss": 1.0}))
    assert dict(metrics) == {"a_epsilon": 8.0, "loss": 1.0}
    assert dict(strategy.aggregate_train(3, replies(None))[1]) == {"a_epsilon": 8.0}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(4.0, 1), (6.0, 1), (8.0, 1)], 8.0),
        ([(4.0, 1), (6.0, 1), (4.0, 3), (6.0, 3)], math.inf),
        ([(4.0, 1), (4.0, 2)], math.inf),
        ([(4.0, 1), (9.0, 2)], math.inf),
        ([(0.0, 1), (0.0, 1)], 0.0),
        ([(4.0, None), (6.0, None)], 6.0),
        ([(4.0, None), (3.0, None)], math.inf),
    ],
)
def test_a_client_that_forgot_what_it_had_spent_bounds_nothing(told, expected, caplog):
    strategy = LargestEpsilon(FedAvg(fraction_evaluate=0.0))
    for server_round, (epsilon, since) in enumerate(told, 1):
        more = {} if since is None else {"a_epsilon_since": float(since)}
        steady = {"a_epsilon": 0.1 * server_round, "a_epsilon_since": 1.0} if more else {"a_epsilon": 0.1}
        if server_round == 2:  # a resumed run remembers
            before, strategy = strategy, LargestEpsilon(FedAvg(fraction_evaluate=0.0))
            restore_strategy(strategy, strategy_state(before))
        _, metrics = strategy.aggregate_train(server_round, replies(steady, {"a_epsilon": epsilon, **more}))
    assert dict(metrics) == {"a_epsilon": pytest.approx(max(expected, steady["a_epsilon"]))}
    assert ("client 1 has forgotten" in caplog.text) == (expected == math.inf)
    assert "client 0" not in caplog.text


@pytest.mark.parametrize("defense", ["dp_sgd", "local_dp"])
def test_a_node_that_is_started_anew_makes_the_budget_unknown(defense, federate):
    federation = federate("strategy=fedavg", "num_clients=2", f"defense=[{defense}]", "client.local_steps=1")
    found = []

    class Kept(LargestEpsilon):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            found.append(dict(metrics))
            return arrays, metrics

    strategy = Kept(OmitSilent(CompleteUpdates(federation.strategy())))
    federation.start(strategy, num_rounds=2)
    federation.start(strategy, num_rounds=2)  # the same server, nodes without a memory
    values = [metrics[f"{defense}_epsilon"] for metrics in found]
    assert 0 < values[0] < values[1] < values[2] == values[3] == math.inf
    assert not any("since" in name for metrics in found for name in metrics)


def test_without_a_budget_nothing_is_added():
    strategy = LargestEpsilon(FedAvg(fraction_evaluate=0.0))
    assert dict(strategy.aggregate_train(1, replies({"loss": 2.0}))[1]) == {"loss": 2.0}
    assert strategy.aggregate_train(2, replies(None)) == (None, None)


def test_a_resumed_run_remembers_it():
    first, second = (LargestEpsilon(FedAvg(fraction_evaluate=0.0)) for _ in range(2))
    first.aggregate_train(1, replies({"a_epsilon": 8.0}))
    restore_strategy(second, strategy_state(first))
    assert dict(second.aggregate_train(2, replies(None, {"a_epsilon": 3.0}))[1]) == {"a_epsilon": 8.0}
