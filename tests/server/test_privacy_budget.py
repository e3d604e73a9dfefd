"""What a round's metrics say of ε: no client has spent more."""

import math
from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from clients.app import ClientRuntime
from defenses import DefenseChain, GradientNoise
from fedsim.data.tensors import TensorImages
from fedsim.errors import ConfigError
from fedsim.report.run.bounds.over_rounds import released
from fedsim.simulation import partition_of
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import METRICS, UPDATE, Contribution, from_arrays, to_arrays, to_reply
from server.privacy_budget import PrivacyBudget
from server.rounds import WorkerSums
from server.screening import Screening


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("summed", [False, True])
def test_no_client_of_a_federation_has_spent_more_than_is_reported(strategy, summed, federate):
    federation = federate(
        f"strategy={strategy}",
        "num_clients=4",
        "strategy.fraction_train=0.5",
        "defense=[dp_sgd]",
        "client.batch_size=4",
        *(["client.local_steps=2"] if strategy == "fedavg" else []),  # who shares a gradient takes no step
    )
    rounds = federation.rounds(worker_sums=WorkerSums(size=2) if summed else None)
    grid, arrays, spent = federation.grid(), to_arrays(federation.setup.model.state_dict()), {}
    exchange = grid.send_and_receive

    def listen(messages, *, timeout=None):
        replies = list(exchange(messages, timeout=timeout))
        for reply in replies:
            epsilon = reply.content.metric_records[METRICS]["dp_sgd_epsilon"]
            spent[reply.metadata.src_node_id] = float(epsilon)
        return replies

    grid.send_and_receive = listen
    for server_round in range(1, 5):
        arrays = rounds.train(server_round, arrays, grid)
        assert rounds.take().metrics["dp_sgd_epsilon"] == max(spent.values())
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
        if metrics is None:
            made.append(Message(Error(1, "broken"), reply_to=asked(number)))
            continue
        update = Update({"weight": torch.ones(2)}, "gradient", 10**number)
        made.append(
            Message(to_reply(Contribution(update, LocalProtocol(1), number, metrics=metrics)), reply_to=asked(number))
        )
    return made


def asked(number=0):
    return Message(RecordDict(), dst_node_id=number + 1, message_type="train")


def reported(budget, server_round, replies):
    """What Flower's strategy makes of a round, and its metrics with the budget."""
    budget.hear(server_round, replies)
    arrays, metrics = FedAvg(fraction_evaluate=0.0).aggregate_train(server_round, replies)
    return arrays, budget.put_into(metrics)


def test_other_metrics_stay_means_and_the_largest_stays():
    budget = PrivacyBudget()
    reports = [{"a_epsilon": 8.0, "loss": 2.0}, {"a_epsilon": 1.0, "loss": 13.0}, None]
    arrays, metrics = reported(budget, 1, replies(*reports))
    assert from_arrays(arrays)["weight"].tolist() == [1.0, 1.0]
    assert dict(metrics) == {"a_epsilon": 8.0, "loss": pytest.approx(12.0)}
    _, metrics = reported(budget, 2, replies(None, {"a_epsilon": 3.0, "loss": 1.0}))
    assert dict(metrics) == {"a_epsilon": 8.0, "loss": 1.0}
    assert dict(reported(budget, 3, replies(None))[1]) == {"a_epsilon": 8.0}


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
    budget = PrivacyBudget()
    for server_round, (epsilon, since) in enumerate(told, 1):
        more = {} if since is None else {"a_epsilon_since": float(since)}
        steady = {"a_epsilon": 0.1 * server_round, "a_epsilon_since": 1.0} if more else {"a_epsilon": 0.1}
        if server_round == 2:  # a resumed run remembers
            before, budget = budget, PrivacyBudget()
            budget.load_state_dict(before.state_dict())
        _, metrics = reported(budget, server_round, replies(steady, {"a_epsilon": epsilon, **more}))
    assert dict(metrics) == {"a_epsilon": pytest.approx(max(expected, steady["a_epsilon"]))}
    assert ("client 1 has forgotten" in caplog.text) == (expected == math.inf)
    assert "client 0" not in caplog.text


@pytest.mark.parametrize("defense", ["dp_sgd", "local_dp"])
def test_a_node_that_is_started_anew_makes_the_budget_unknown(defense, federate):
    federation = federate("strategy=fedavg", "num_clients=2", f"defense=[{defense}]", "client.local_steps=1")
    found, rounds = [], federation.rounds()
    for _ in range(2):  # the same server, nodes without a memory
        grid, arrays = federation.grid(), to_arrays(federation.setup.model.state_dict())
        for server_round in (1, 2):
            arrays = rounds.train(server_round, arrays, grid)
            found.append(rounds.take().metrics)
    values = [metrics[f"{defense}_epsilon"] for metrics in found]
    assert 0 < values[0] < values[1] < values[2] == values[3] == math.inf
    assert not any("since" in name for metrics in found for name in metrics)


def test_without_a_budget_nothing_is_added():
    budget = PrivacyBudget()
    assert dict(reported(budget, 1, replies({"loss": 2.0}))[1]) == {"loss": 2.0}
    assert reported(budget, 2, replies(None)) == (None, None)


def test_copies_of_an_image_count_in_what_a_federation_proves(federate, monkeypatch):
    """Three clients of two images each: the first holds one of them twice, and the second holds it too."""
    options = ["num_clients=3", "defense=[dp_sgd]", "defense.dp_sgd.noise_multiplier=8", "client.batch_size=2"]
    federation = federate("strategy=fedavg", *options)
    images, labels = federation.setup.data.train.images(range(4)), federation.setup.data.train.labels[:2]
    held, setup = [TensorImages(images[places], labels) for places in ([0, 0], [0, 1], [2, 3])], federation.setup
    monkeypatch.setattr(setup.data, "client", lambda number: held[number])
    assert (setup.holders(simulated=True), setup.holders(simulated=False)) == (2, None)
    assert replace(setup, defenses=DefenseChain({"noise": GradientNoise()})).holders(simulated=True) is None
    found = {}
    for holders in (1, setup.holders(simulated=True), None):
        rounds = federation.rounds(holders=holders)
        federation.start(rounds, num_rounds=2)
        found[holders] = {name: value for name, value in rounds.take().metrics.items() if "_gdp_" in name}
    once = {"dp_sgd_gdp_mu": pytest.approx(2 * 2**0.5 / 8), "dp_sgd_gdp_releases": 2.0, "dp_sgd_gdp_copies": 2.0}
    assert found[1] == once, "two copies in a batch, in each of two rounds"
    assert found[2] == once | {"dp_sgd_gdp_mu": pytest.approx(2 * 2 / 8), "dp_sgd_gdp_releases": 4.0}
    assert found[None] == {"dp_sgd_gdp_copies": 2.0}, "nothing is proven where nobody knows"
    assert released(found[2]).releases == 4
    assert released(found[None]) is None


def test_what_a_refused_reply_released_counts(federate):
    """A client's loss is no number in every other round: refused, and yet the server has its update."""
    options = ["num_clients=4", "strategy.fraction_train=0.5", "defense=[dp_sgd]", "client.batch_size=4"]
    federation = federate("strategy=fedavg", *options, "client.local_steps=1")
    rounds = federation.rounds(screening=Screening(federation.setup.rules(simulated=True), partition_of))
    grid, arrays, spent = federation.grid(), to_arrays(federation.setup.model.state_dict()), [0.0]
    exchange, told = grid.send_and_receive, []

    def spoil(messages, *, timeout=None):
        replies = list(exchange(messages, timeout=timeout))
        spent.append(max(spent[-1], *(float(one.content[METRICS]["dp_sgd_epsilon"]) for one in replies)))
        most = max(replies, key=lambda one: one.content[METRICS]["dp_sgd_epsilon"])
        most.content[METRICS]["train_loss"] = math.nan
        return replies

    grid.send_and_receive = spoil
    for server_round in range(1, 6):
        arrays = rounds.train(server_round, arrays, grid)
        record = rounds.take()
        assert len(record.failures) == 1, "one was refused"
        told.append(record.metrics["dp_sgd_epsilon"])
    assert told == spent[1:]


@pytest.mark.parametrize("worker_sums", [None, WorkerSums(size=2)], ids=["whole", "summed"])
def test_what_a_client_released_counts_wherever_its_reply_is_refused(federate, worker_sums, monkeypatch):
    """A worker that refused it said nothing of it: every ε was ∞ from then on."""
    federation = federate("strategy=fedavg", "num_clients=4", "defense=[dp_sgd]", "client.batch_size=4")
    screening = Screening(federation.setup.rules(simulated=True), partition_of)
    rounds = federation.rounds(screening=screening, worker_sums=worker_sums)
    share, spent = ClientRuntime.share, []

    def spoiled(self, result, state, num_examples, client, server_round):
        sent = share(self, result, state, num_examples, client, server_round)
        spent.append(self.defenses.measurements()["dp_sgd_epsilon"])
        if client == 1:
            next(iter(sent.update.tensors.values())).fill_(math.inf)
        return sent

    monkeypatch.setattr(ClientRuntime, "share", spoiled)
    grid = federation.grid()
    grid.rules = federation.setup.rules(simulated=True)  # as that of a run has
    rounds.train(1, to_arrays(federation.setup.model.state_dict()), grid)
    record = rounds.take()
    assert len(record.failures) == 1
    assert record.metrics["dp_sgd_epsilon"] == max(spent) < math.inf


def test_a_refused_reply_that_says_nothing_may_have_spent_anything():
    def budget_after(*reports, refused):
        budget = PrivacyBudget()
        answers = replies(*reports)
        answers[-1] = Message(Error(0, "malformed reply: of another shape"), reply_to=asked())
        budget.hear(1, answers, refused)
        after, known = PrivacyBudget(), replies({"a_epsilon": 2.0})
        after.load_state_dict(budget.state_dict())
        return dict(reported(after, 2, known)[1])["a_epsilon"]

    (_, said), (_, silent) = replies(None, {"a_epsilon": 8.0}), replies(None, {"loss": 1.0})
    assert budget_after({"a_epsilon": 2.0}, None, refused=[said]) == 8.0
    assert budget_after({"a_epsilon": 2.0}, None, refused=[silent]) == math.inf
    assert budget_after({"a_epsilon": 2.0}, None, refused=[]) == math.inf, "refused where it was to be summed"
    assert budget_after({"a_epsilon": 2.0, "b_epsilon": 1.0}, None, refused=[said]) == math.inf
    assert budget_after(None, refused=[said]) == 8.0, "no other client has answered yet"


def test_where_all_replies_were_refused_what_they_say_is_told():
    (_, said), budget = replies(None, {"a_epsilon": 3.0, "loss": 1.0}), PrivacyBudget()
    budget.hear(1, [Message(Error(0, "malformed reply: not finite"), reply_to=asked(1))], [said])
    assert dict(budget.put_into(None)) == {"a_epsilon": 3.0}
    budget.hear(2, [Message(Error(0, "late: no reply within 30 s"), reply_to=asked(0))])
    assert dict(budget.put_into(None)) == {"a_epsilon": math.inf}


@pytest.mark.parametrize("partition", [10**5000, -1, "one", [1], 1.5], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("spent", [10**5000, -(10**5000), math.nan, [1.0, 2.0]], ids=["long", "low", "nan", "list"])
def test_what_a_refused_reply_says_need_be_no_number(partition, spent):
    (_, refused), budget = replies(None, {"loss": 1.0}), PrivacyBudget()
    refused.content[METRICS]["a_epsilon"] = spent
    refused.content[UPDATE]["partition-id"] = partition
    answers = [*replies({"a_epsilon": 2.0}), Message(Error(0, "malformed reply: no number"), reply_to=asked())]
    budget.hear(1, answers, [refused])
    assert dict(budget.put_into(None)) == {"a_epsilon": math.inf}


def test_a_reply_that_came_late_may_have_spent_anything_until_its_client_reports_again():
    """The SuperLink has it; the client's next count holds it."""

    def late(number):
        return Message(Error(0, "late: no reply within 30 s"), reply_to=asked(number))

    budget, other, told = PrivacyBudget(), {"a_epsilon": 2.0}, []
    rounds = [(other, late(1)), (other, None), (other, {"a_epsilon": 3.0}), (other, None)]
    for server_round, (first, second) in enumerate(rounds, 1):
        answers = replies(first, None if isinstance(second, Message) else second)
        if isinstance(second, Message):
            answers[1] = second
        before, budget = budget, PrivacyBudget()
        budget.load_state_dict(before.state_dict())
        told.append(dict(reported(budget, server_round, answers)[1])["a_epsilon"])
    assert told == [math.inf, math.inf, 3.0, 3.0]
    older = {name: value for name, value in budget.state_dict().items() if name != "late"}
    PrivacyBudget().load_state_dict(older)
    unknown = PrivacyBudget()
    unknown.hear(1, [late(0)])
    assert unknown.put_into(None) is None, "nobody reports an ε"


def test_a_client_that_raised_has_released_nothing():
    budget = PrivacyBudget()
    budget.hear(1, replies({"a_epsilon": 2.0}, None))
    assert dict(budget.put_into(None)) == {"a_epsilon": 2.0}


def test_a_resumed_run_remembers_it():
    first, second = PrivacyBudget(), PrivacyBudget()
    reported(first, 1, replies({"a_epsilon": 8.0}))
    second.load_state_dict(first.state_dict())
    assert dict(reported(second, 2, replies(None, {"a_epsilon": 3.0}))[1]) == {"a_epsilon": 8.0}


def test_an_image_that_cannot_be_read_costs_the_theorem_and_ends_nothing(federate, monkeypatch):
    """No batch needs the third image of the first client."""

    class Torn(TensorImages):
        def images(self, indices):
            if 2 in list(indices):
                raise ConfigError("data.path", "torn.jpg", "a picture that can be decoded")
            return super().images(indices)

    options = ["num_clients=2", "defense=[dp_sgd]", "client.batch_size=2", "client.local_steps=1"]
    federation = federate("strategy=fedavg", *options)
    setup = federation.setup
    images, labels = setup.data.train.images(range(6)), setup.data.train.labels[:6]
    held = [Torn(images[:3], labels[:3]), TensorImages(images[3:], labels[3:])]
    monkeypatch.setattr(setup.data, "client", lambda number: held[number])
    monkeypatch.setattr("torch.randperm", lambda count, **_: torch.arange(count))
    assert setup.holders(simulated=True) is None
    rounds = federation.rounds(holders=1)
    federation.start(rounds, num_rounds=1)
    round_ = rounds.take()
    assert not round_.failures
    assert round_.metrics["dp_sgd_gdp_mu"] == math.inf, "of the client that holds it nothing is proven"


def test_what_an_earlier_version_did_not_count_proves_nothing_when_it_goes_on():
    spent = {"dp_sgd_gdp_mu": 0.5, "dp_sgd_gdp_releases": 5.0, "dp_sgd_gdp_copies": 1.0}
    before, budget = PrivacyBudget(1), PrivacyBudget(1)
    before.hear(1, replies(spent))
    state = before.state_dict()
    budget.load_state_dict(state)
    assert budget.state_dict()["largest"] == spent
    del state["largest"]["dp_sgd_gdp_copies"]
    budget.load_state_dict(state)
    budget.hear(2, replies(spent))
    assert dict(budget.put_into(None))["dp_sgd_gdp_mu"] == math.inf
