"""The matrix as conf/matrix.yaml has it: rows that defend and compare with something, columns for batches."""

from dataclasses import replace

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from experiments.matrix.rows import Asked, audit_config, described, read_columns, read_rows, training_config
from experiments.studies.harness.client import Client
from fedsim.errors import ConfigError
from fedsim.settings.commands import MatrixConfig
from fedsim.settings.schema import parse

PUZZLES = ("mjp", "mjp_jp", "mjp_jp_idx", "mjp_jp_unk", "mjp_linear", "mjp_pca", "mjp_spp")


@pytest.fixture(scope="module")
def rows():
    """Name → resolved settings of each row."""
    with initialize_config_module("conf", version_base=None):
        entries = read_rows(notation())
        return {entry.name: resolved(*entry.overrides) for entry in entries}


@pytest.fixture(scope="module")
def columns():
    with initialize_config_module("conf", version_base=None):
        return read_columns(notation())


def notation():
    return parse(MatrixConfig, resolved()).matrix


def resolved(*overrides):
    return OmegaConf.to_container(compose("matrix", overrides=["run_dir=x", *overrides]), resolve=True)


def test_every_defense_has_an_undefended_row_whose_updates_hold_as_many_pictures(rows):
    sizes = {name: row["audit"]["batch_size"] for name, row in rows.items()}
    sizes["secure_aggregation"] = rows["secure_aggregation"]["audit"]["num_images"]  # all in one sum
    undefended = {sizes[name] for name, row in rows.items() if not row["defense"]}
    assert len(rows) >= 27
    assert set(sizes.values()) == undefended


def test_attacks_on_batches_are_columns(columns):
    assert {"first_block", "gauss_newton", "labels"} <= {column.name for column in columns}


def test_the_gate_is_trained_with_the_batches_that_are_audited(rows):
    gate = rows["leakage_gate"]
    assert training_config(gate)["client"]["batch_size"] == audit_config(gate, {})["client"]["batch_size"] == 1


@pytest.mark.parametrize("name", PUZZLES)
def test_puzzles_move_patches(rows, name):
    """One masked patch has no other place: its permutation is the identity, and what is shared that of no defense."""
    client = Client({**audit_config(rows[name], {}), "simulation": rows[name]["simulation"]})
    truths = [client.shares([number], number)[1] for number in range(4)]
    moved = [not torch.equal(truth.images, truth.originals) for truth in truths]
    assert sum(moved) >= 3


def test_a_column_tells_all_its_settings():
    attack = {
        "_target_": "attacks.Search",
        "objective": {"_target_": "attacks.Cosine", "alpha": 2.0},
        "steps": 200,
        "priors": {"tv": {"_target_": "attacks.TotalVariation", "weight": None}},
    }
    column = described(Asked("search", ("search",), (), "search, search.steps=200"), attack)
    assert (column.name, column.asked) == ("search", "search, search.steps=200")
    told = "objective=Cosine, objective.alpha=2.0, steps=200, priors.tv=TotalVariation, priors.tv.weight=None"
    assert column.settings == told


@pytest.mark.parametrize("parallel", [True, False])
def test_a_row_has_its_own_simulation_where_rows_follow_each_other(parallel):
    own = {"defenses": {"x": ["half", "simulation.worker_sums=0"]}, "rows": ["x"], "parallel": parallel}
    with initialize_config_module("conf", version_base=None):
        asked = replace(notation(), **own)
        if parallel:
            with pytest.raises(ConfigError, match="simulation is set for the whole matrix"):
                read_rows(asked)
        else:
            assert "simulation.worker_sums=0" in read_rows(asked)[0].overrides


def test_a_trained_model_is_audited_with_the_classifier_that_it_was_trained_to(rows):
    own = {**rows["none"], "model": {**rows["none"]["model"], "checkpoint": "backbone", "checkpoint_head": False}}
    assert audit_config(own, {})["model"]["checkpoint_head"] is False
    trained = audit_config(own, {}, "trained.safetensors")["model"]
    assert (trained["checkpoint"], trained["checkpoint_head"]) == ("trained.safetensors", True)
