"""A checkpoint of a defended model is read as it was trained; one of a bare model as its defenses make it."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from safetensors.torch import save_file

from defenses.base import DefenseChain
from defenses.compose import build_chain
from defenses.mjp import MaskedJigsawPuzzle
from defenses.model.position import FixedPositionEmbedding
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec
from fedsim.models.checkpoint import REDRAWN
from fedsim.storage.run_folder import RunFolder

SPEC = ModelSpec("vit_tiny_patch16_224", 5, 16, 8, kwargs={"depth": 1, "embed_dim": 16, "num_heads": 2})
CHANGING = ("mjp", "mjp_jp_unk", "mjp_jp_idx", "mjp_dal", "mjp_linear", "mjp_pca", "precode", "no_pe", "fixed_pe")


@cache
def composed(option):
    with initialize_config_module("conf", version_base=None):
        return OmegaConf.to_container(compose("config", [f"defense=[{option}]", "run_dir=unused"]))["defense"]


def configured(option):
    return deepcopy(composed(option))


def trained(state):
    rng = torch.Generator().manual_seed(5)
    return {name: value + torch.randn(value.shape, generator=rng, dtype=value.dtype) for name, value in state.items()}


def same(model, state):
    mine = model.state_dict()
    return mine.keys() == state.keys() and all(torch.equal(mine[name], state[name]) for name in state)


def redrawing(**settings):
    return (DefenseChain({"mjp": MaskedJigsawPuzzle(embedding="own", dal="pca", init_std=1.0, **settings)}),)


@pytest.mark.parametrize("option", CHANGING)
@pytest.mark.parametrize("variant", ["stock", "april"])
def test_a_run_s_checkpoint_comes_back_to_the_bit(option, variant, tmp_path):
    settings = configured(option)
    spec = replace(SPEC, variant=variant)
    first = Architecture(spec, (build_chain(settings),), 3)
    state = trained(first.build().state_dict())
    note = (REDRAWN, first.redrawn()) if first.redrawn() else None
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(state, 1, note=note)
    saved = replace(spec, checkpoint=str(folder.checkpoints / "round-00001.safetensors"))
    assert same(Architecture(saved, (build_chain(settings),), 4).build(keep=True), state)


@pytest.mark.parametrize("option", CHANGING)
def test_a_bare_checkpoint_is_read_before_the_defenses(option, tmp_path):
    state = trained(SPEC.build(0).state_dict())
    save_file(state, tmp_path / "bare.safetensors")
    chain = build_chain(configured(option))
    found = Architecture(replace(SPEC, checkpoint=str(tmp_path / "bare.safetensors")), (chain,), 1).build()
    bare = SPEC.build(0)
    bare.load_state_dict(state)
    assert same(found, build_chain(configured(option)).wrap_model(bare).state_dict())


def test_what_a_defense_drew_anew_is_kept_only_where_it_was_trained(tmp_path):
    architecture = Architecture(SPEC, redrawing(), 0)
    state = trained(architecture.build().state_dict())
    assert Architecture(SPEC, (DefenseChain({}),), 0).redrawn() == "" != architecture.redrawn()
    for name, metadata in [("ours", {REDRAWN: architecture.redrawn()}), ("bare", {"server_round": "3"})]:
        save_file(state, tmp_path / name, metadata)
        (tmp_path / name).rename(tmp_path / f"{name}.safetensors")
    ours = replace(SPEC, checkpoint=str(tmp_path / "ours.safetensors"))
    bare = replace(SPEC, checkpoint=str(tmp_path / "bare.safetensors"))
    assert same(Architecture(ours, redrawing(), 9).build(), state)
    redrawn = architecture.build().state_dict()["pos_embed"]
    assert same(Architecture(bare, redrawing(), 9).build(), state | {"pos_embed": redrawn})
    # Another defense's values are not those that were trained.
    fixed = Architecture(ours, (FixedPositionEmbedding(),), 0).build()
    sincos = FixedPositionEmbedding().wrap_model(SPEC.build(0)).state_dict()["pos_embed"]
    assert same(fixed, state | {"pos_embed": sincos})


def test_a_checkpoint_of_neither_is_refused(tmp_path):
    state = Architecture(SPEC, (build_chain(configured("precode")),), 0).build().state_dict()
    save_file(state, tmp_path / "w.safetensors")
    spec = replace(SPEC, checkpoint=str(tmp_path / "w.safetensors"))
    with pytest.raises(ConfigError, match=r"model\.checkpoint=.*fit"):
        Architecture(spec, (build_chain(configured("mjp")),), 0).build()
