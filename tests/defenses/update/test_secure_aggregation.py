"""Secure aggregation changes what is observed, and nothing else."""

from pathlib import Path

import pytest
import torch
import yaml

import fedsim
from defenses import GradientNoise, Plan, SecureAggregation
from defenses.compose import build_chain, load_wrappers
from experiments.audit.images import divide
from experiments.audit.worker import AuditBatch, AuditWorker
from experiments.engine.setup import prepare
from fedsim.errors import ConfigError
from fedsim.storage.observation_files import load_observation
from server.sums.summing import Sums
from tests.experiments.run_files import rows, same_state
from tests.support.federation import settings

CONF = Path(__file__).resolve().parents[3] / "conf"
AUDIT = ("data=digits", "model=vit_nano", "attack=[patch_gradient]")
RUN = ("num_clients=5", "num_rounds=2", "evaluate_every=1", "observe.every=1", "simulation=inline", "tracker=[]")


def plan(strategy=None, **defenses):
    return Plan(torch.nn.Linear(1, 1), {}, strategy or {}, defenses)


def test_a_single_clients_update_is_not_handed_out_as_a_sum():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    with pytest.raises(ConfigError, match="defense=secure_aggregation: must be left out"):
        fedsim.observe(model, torch.rand(2, 3, 4, 4), [1, 3], defense=["half", "secure_aggregation"])


@pytest.mark.parametrize("clients", [1, 0, -3, True])
def test_a_sum_is_over_two_clients_or_more(clients):
    with pytest.raises(ConfigError, match=r"secure_aggregation\.clients=.*: must be 2 or more, or null"):
        SecureAggregation(clients)


@pytest.mark.parametrize("clients", [2.5, "ten", [3]])
def test_a_number_of_clients_is_a_whole_number(clients):
    settings = {"_target_": "defenses.SecureAggregation", "clients": clients}
    with pytest.raises(ConfigError, match=r"defense\.secure_aggregation\.clients="):
        build_chain({"secure_aggregation": settings})


@pytest.mark.parametrize("path", sorted((CONF / "strategy").glob("*.yaml")), ids=lambda path: path.stem)
def test_strategies_that_need_single_updates_are_refused(path):
    needs_single = path.stem in ("krum", "multikrum", "bulyan", "fedmedian", "fedtrimmedavg", "qfedavg")
    strategy = yaml.safe_load(path.read_text())["strategy"]
    defense = SecureAggregation()
    if needs_single:
        with pytest.raises(ConfigError, match=r"strategy=flwr.*the server only sums"):
            defense.check(plan(strategy, secure_aggregation=defense))
    else:
        defense.check(plan(strategy, secure_aggregation=defense))


def test_flowers_privacy_wrappers_clip_single_updates():
    strategy = {"_target_": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping"}
    with pytest.raises(ConfigError, match="compares or changes single updates"):
        SecureAggregation().check(plan(strategy))


def test_what_a_strategy_wraps_must_need_no_single_updates_either():
    inner = {"_target_": "flwr.serverapp.strategy.Krum"}
    outer = {"_target_": "flwr.serverapp.strategy.DifferentialPrivacyClientSideFixedClipping", "strategy": inner}
    with pytest.raises(ConfigError, match=r"^strategy\.strategy=.*Krum: must be .*Krum compares"):
        SecureAggregation().check(plan(outer))
    SecureAggregation().check(plan({**outer, "strategy": {"_target_": "flwr.serverapp.strategy.FedAvg"}}))


def test_a_mean_by_another_weight_than_the_sums_is_refused():
    """Two different sums of the same updates give each of them."""
    inner = {"_target_": "flwr.serverapp.strategy.FedAvg", "weighted_by_key": "train_loss"}
    for key, strategy in (
        ("strategy", inner),
        ("strategy.strategy", {"_target_": "flwr.serverapp.strategy.FedAvg", "strategy": inner}),
    ):
        with pytest.raises(ConfigError, match=rf"^{key}\.weighted_by_key=train_loss: must be num-examples"):
            SecureAggregation().check(plan(strategy))


def test_one_is_enough():
    one, two = SecureAggregation(), SecureAggregation(3)
    with pytest.raises(ConfigError, match="one secure aggregation"):
        one.check(plan(one=one, noise=GradientNoise(), two=two))


def test_it_is_found_by_its_class_and_rebuilt_from_a_record():
    config = settings(
        "audit", *AUDIT, "defense=[gradient_clip,secure_aggregation]", "defense.secure_aggregation.clients=3"
    )
    assert prepare(config).sums == Sums(3, "secure_aggregation")
    assert prepare(settings("audit", *AUDIT)).sums is None
    described = [{"name": name, **values} for name, values in config["defense"].items()]
    assert isinstance(load_wrappers(described)[1], SecureAggregation)


def test_an_audit_is_divided_into_sums_of_clients():
    assert divide(list(range(10, 15)), 2, None) == [(0, (10, 11)), (1, (12, 13)), (2, (14,))]
    assert divide(list(range(10)), 1, Sums(4)) == [(0, (0, 1, 2, 3)), (4, (4, 5, 6, 7, 8, 9))]
    assert divide(list(range(7)), 2, Sums(2)) == [(0, (0, 1, 2, 3)), (2, (4, 5, 6))]
    assert divide(list(range(5)), 2, Sums()) == [(0, (0, 1, 2, 3, 4))]
    with pytest.raises(
        ConfigError, match=r"audit\.num_images=6: must be at least 8: secure_aggregation sums over 4 clients"
    ):
        divide(list(range(6)), 2, Sums(4))
    with pytest.raises(ConfigError, match="at least 4"):
        divide(list(range(2)), 2, Sums())


def observed(batch, *overrides):
    """An audit's observation and truth, and its setup."""
    config = settings("audit", *AUDIT, *overrides)
    setup = prepare(config)
    worker = AuditWorker(config, setup=setup)
    return setup, *worker._observe(AuditBatch(3, batch, (), 12))


def test_four_clients_sum_is_the_gradient_of_their_joint_batch():
    batch = (5, 9, 2, 30, 31, 7, 8, 4)
    over = ("defense=[secure_aggregation]", "defense.secure_aggregation.clients=4")
    setup, observation, truth = observed(batch, *over, "audit.batch_size=2", "model.dtype=float64")
    pictures = setup.data.train.subset(batch)
    assert sorted(truth.ids[:2]) == sorted(pictures.ids[:2])
    assert sorted(truth.ids) == sorted(pictures.ids)
    assert (observation.protocol.batch_size, observation.update.num_examples) == (8, 8)
    model = setup.model.train()
    inputs = setup.normaliser(pictures.images(range(8)))
    torch.nn.functional.cross_entropy(model(inputs), pictures.labels).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(observation.gradient[name], parameter.grad, rtol=1e-9, atol=1e-12)


def test_each_client_of_a_sum_is_defended_by_itself():
    """Clipping acts on a client: the mean of four clipped gradients is no longer than each may be, and not clipped."""
    over = ("audit.batch_size=1", "defense.gradient_clip.max_norm=1e-3", "model.dtype=float64")
    both = ("defense=[gradient_clip,secure_aggregation]", "defense.secure_aggregation.clients=4")
    _, summed, _ = observed((5, 9, 2, 30), *both, *over)
    config = settings("audit", *AUDIT, "defense=[gradient_clip]", *over)
    worker = AuditWorker(config, setup=prepare(config))
    single = [worker._observe(AuditBatch(i, (p,), (), 12 + i))[0] for i, p in enumerate((5, 9, 2, 30))]
    norm = torch.cat([tensor.flatten() for tensor in summed.gradient.values()]).norm()
    assert 0 < norm < 0.999e-3
    for name, tensor in summed.gradient.items():
        mean = torch.stack([one.gradient[name] for one in single]).mean(dim=0)
        torch.testing.assert_close(tensor, mean, rtol=1e-9, atol=1e-15)


def test_an_audit_attacks_sums(command, tmp_path):
    over = ["audit.num_images=8", "audit.batch_size=2", "defense=[secure_aggregation]", "simulation=inline", "seed=4"]
    arguments = [*AUDIT, *over, "defense.secure_aggregation.clients=2", f"run_dir={tmp_path / 'run'}"]
    code, out, err = command("fedsim-audit", *arguments)
    assert code == 0, err
    found = rows(tmp_path / "run", "attacks")
    assert [(row["client"], row["batch_size"], len(row["images"])) for row in found] == [
        ("0 (sum of 2 clients)", 4, 4),
        ("1 (sum of 2 clients)", 4, 4),
    ]
    assert {row["status"] for row in found} == {"done"}
    assert not any(row["certificate"]["status"] == "certified" for row in found)
    assert "secure_aggregation" in (tmp_path / "run" / "report.html").read_text()
    before = (tmp_path / "run" / "attacks.jsonl").read_bytes()
    code, out, err = command("fedsim-audit", *arguments)
    assert (code, (tmp_path / "run" / "attacks.jsonl").read_bytes()) == (0, before)
    assert "2 of 2 updates were finished" in out


def test_a_run_observes_sums_and_trains_the_same_bits(command, tmp_path):
    runs = {}
    apart = "simulation.worker_sums=0"  # as of groups: another order of sums rounds otherwise
    for name, over in (
        ("plain", [apart]),
        ("summed", ["defense=[secure_aggregation]", "defense.secure_aggregation.clients=2"]),
    ):
        runs[name] = tmp_path / name
        code, _, err = command("fedsim", *RUN, *over, "attack=[patch_gradient,labels]", f"run_dir={runs[name]}")
        assert code == 0, err
    assert same_state(runs["plain"], runs["summed"])
    assert (runs["plain"] / "metrics.jsonl").read_bytes() == (runs["summed"] / "metrics.jsonl").read_bytes()
    found = [row for row in rows(runs["summed"], "attacks") if row["attack"] == "patch_gradient"]
    first, second = "0 (sum of 2 clients)", "2 (sum of 3 clients)"
    assert [(row["round"], row["client"], row["batch_size"]) for row in found] == [
        (1, first, 2),
        (1, second, 3),
        (2, first, 2),
        (2, second, 3),
    ]
    assert f"client {first}" in (runs["summed"] / "report.html").read_text()
    mixed = [image["psnr"] for row in found for image in row["images"] if image["psnr"] is not None]
    assert len(mixed) == 4
    assert max(mixed) < 30
    single = [row for row in rows(runs["plain"], "attacks") if row["attack"] == "patch_gradient"]
    assert all(image["psnr"] > 80 for row in single for image in row["images"])
    folders = sorted(path.name for path in (runs["summed"] / "observations").iterdir() if path.is_dir())
    assert folders == [f"round-0000{r}-client-0000{c}" for r in (1, 2) for c in (0, 2)]
    loaded = load_observation(runs["summed"] / "observations" / folders[1], load_wrappers)
    assert loaded.protocol.batch_size == loaded.update.num_examples == loaded.summed == 3


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["observe.clients=[0,3]"], "observe.clients=[0, 3]: must be a number of sums, or all"),
        (
            ["defense.secure_aggregation.clients=6"],
            "num_clients=5: must be at least 6: secure_aggregation sums over them",
        ),
        (
            ["strategy.fraction_train=0.3"],
            "strategy.fraction_train=0.3: must be enough for 2 of 5 clients in each round: secure_aggregation sums",
        ),
        (
            ["defense.secure_aggregation.clients=4", "strategy.fraction_train=0.6"],
            "strategy.fraction_train=0.6: must be enough for 4 of 5 clients in each round",
        ),
        (["strategy=krum", "client.batch_size=4"], "secure_aggregation shows the server only sums"),
    ],
)
def test_contradictions_are_refused_before_anything_starts(command, tmp_path, over, words):
    code, _, err = command("fedsim", *RUN, "defense=[secure_aggregation]", *over, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
