"""Settings of every command: there and back, and one line for what cannot be."""

from copy import deepcopy

import pytest

from experiments.python.load_config import COMMANDS, load_config
from fedsim.errors import ConfigError
from fedsim.settings.commands import AuditConfig, MatrixConfig, MeasureConfig, PriorConfig, RunConfig, config_of
from fedsim.settings.schema import parse, plain

KINDS = {
    "run": RunConfig,
    "audit": AuditConfig,
    "measure": MeasureConfig,
    "matrix": MatrixConfig,
    "prior": PriorConfig,
}


@pytest.fixture(scope="module")
def composed():
    return {name: load_config(name) for name in COMMANDS}


@pytest.fixture
def given(composed):
    return lambda name: deepcopy(composed[name])


@pytest.mark.parametrize("name", KINDS)
def test_what_a_command_composes_is_its_schema_and_comes_back_as_it_was(name, given):
    config = parse(KINDS[name], given(name))
    assert plain(config) == given(name)
    assert parse(KINDS[name], plain(config)) == config
    assert parse(KINDS[name], config) is config
    assert parse(KINDS[name], given(name) | {"run_dir": 0}).run_dir == 0  # a folder called so


def test_a_message_is_read_by_what_only_one_command_has(given):
    assert [type(config_of(given(name))) for name in ("run", "audit", "prior")] == [RunConfig, AuditConfig, PriorConfig]


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_that_conf_has_is_needed(name, given):
    for key, value in given(name).items():
        if key in ("run_dir", "resume", "resume_every_seconds", "bound", "finetune"):
            continue
        less = given(name)
        del less[key]
        with pytest.raises(ConfigError, match=rf"^{key}=: missing; leave it as it is"):
            parse(KINDS[name], less)
        if isinstance(value, dict):
            with pytest.raises(ConfigError, match=rf"^{key}=3: must be a group of settings: {key}\.NAME=VALUE"):
                parse(KINDS[name], given(name) | {key: 3})


@pytest.mark.parametrize(
    ("name", "group", "key", "value", "words"),
    [
        ("run", "client", "batch_size", True, "client.batch_size=True: must be a whole number of at least 1"),
        (
            "run",
            "client",
            "share",
            "delte",
            "client.share=delte: must be one of gradient, delta, weights. Did you mean 'delta'?",
        ),
        ("run", "client", "local_steps", 3, "client.local_steps=3: must be null beside client.share=gradient"),
        ("run", "client", "local_epochs", 2, "client.local_epochs=2: must be 1 beside client.share=gradient"),
        ("run", "client", "training_mode", "yes", "client.training_mode=yes: must be true or false"),
        ("run", "client", "label_smoothing", 1, "label_smoothing=1: must be a number of at least 0 and at most 0.999"),
        ("run", "client", "max_grad_norm", 1e30, "max_grad_norm=1e.30: must be a number above 0 and at most 1e.12, or"),
        ("run", "client", "micro_batch_size", 2**17, "size=131072: must be a whole number from 1 to 65,536, or null"),
        ("run", "simulation", "workers", "none", "simulation.workers=none: must be a whole number of at least 1"),
        (
            "run",
            "simulation",
            "attack_crews",
            {"x": {"cpus": 1}},
            "attack_crews.x.cpus=1: must be one of .* Did you mean",
        ),
        (
            "run",
            "observe",
            "clients",
            [0, 40],
            r"observe.clients=\[0, 40\]: must be partition ids from 0 to 39; 40 is none",
        ),
        ("run", "ray", "address", "there", "ray.address=there: must be null, auto, HOST:PORT"),
        ("audit", "audit", "select", "frist", "audit.select=frist: must be one of .* Did you mean 'first'?"),
        ("audit", "simulation", "attack_workers", 2, "attack_workers=2: must be 1 in an audit: its workers attack too"),
        ("audit", "simulation", "attack_crews", {"x": {"threads": 2}}, r"x.threads=2: must be left out: .* its like"),
        ("matrix", "matrix", "seeds", 0, "matrix.seeds=0: must be a whole number of at least 1"),
        ("measure", "measure", "ratios", [2], "numbers from 0 to 1"),
        ("prior", "prior", "exclude_classes", "cat", "prior.exclude_classes=cat: must be a list of names"),
    ],
)
def test_what_cannot_be_is_one_line_with_what_would_be_right(given, name, group, key, value, words):
    wrong = given(name)
    wrong[group][key] = value
    with pytest.raises(ConfigError, match=words):
        parse(KINDS[name], wrong)
