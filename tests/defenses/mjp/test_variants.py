"""The rows of Table 4 as they are configured, on a client."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from clients.app import ClientRuntime
from defenses import MaskedJigsawPuzzle, Plan
from defenses.compose import build_chain, load_wrappers
from fedsim.models import Architecture
from fedsim.settings.composition import build_data, build_spec
from tests.support.federation import settings

CONF = Path(__file__).resolve().parents[3] / "conf" / "defense"
TABLE = {
    "A": "",
    "B": "no_pe",
    "C": "mjp_spp",
    "D": "mjp_dal",
    "E": "mjp_jp",
    "F": "mjp_jp_idx",
    "G": "mjp_jp_unk",
    "H": "mjp_pca",
    "I": "mjp_linear",
    "J": "mjp",
}
VARIANTS = [name for name in TABLE.values() if name.startswith("mjp")]
EXTRA = {
    "mjp_spp": set(),
    "mjp_dal": {"dal"},
    "mjp_jp": set(),
    "mjp_jp_idx": {"index_embed"},
    "mjp_jp_unk": {"unknown_embed"},
    "mjp_pca": {"unknown_embed"},
    "mjp_linear": {"unknown_embed", "dal"},
    "mjp": {"unknown_embed", "dal"},
}


@pytest.fixture(scope="module")
def data():
    return build_data(configuration(""))


@pytest.fixture(scope="module")
def plain(data):
    """The undefended client's update."""
    return trained("", data, *STEPS)[0]


STEPS = ("client.share=delta", "audit.batch_size=3", "client.local_epochs=2")


def configuration(defense, *overrides):
    model = ("data=digits", "model=vit_nano", "model.patch_size=1")  # 8x8 patches
    return settings("audit", *model, f"defense=[{defense}]", *overrides)


def trained(defense, data, *overrides, server_round=1):
    """A client's update, and what it measured."""
    client = ClientRuntime(configuration(defense, *overrides), data)
    start = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    client.load(start)
    result = client.train(client.data.train.subset(range(6)), 0, server_round)
    update = client.share(result, start, 6, 0, server_round).update
    return update.tensors, client.defenses.measurements(), result


@pytest.mark.parametrize("name", VARIANTS)
def test_each_file_holds_its_name_and_the_keys_of_mjp(name):
    loaded = OmegaConf.load(CONF / f"{name}.yaml")
    assert list(loaded) == [name]
    assert set(loaded[name]) <= set(OmegaConf.load(CONF / "mjp.yaml").mjp) | {"patch"}
    assert isinstance(instantiate(loaded[name]), MaskedJigsawPuzzle)


@pytest.mark.parametrize("row", TABLE)
def test_each_row_is_built_checked_and_trains_a_step(row, data, plain):
    name = TABLE[row]
    config = configuration(name)
    client = ClientRuntime(config, data)
    client.defenses.check(Plan(client.model, config["client"], {}, client.defenses.defenses))
    delta, measured, result = trained(name, data, *STEPS)
    added = {parameter.split(".")[0] for parameter in delta.keys() - plain.keys()}
    assert added == EXTRA.get(name, set())
    assert plain.keys() - delta.keys() == ({"pos_embed"} if row == "B" else set())
    assert all(torch.isfinite(tensor).all() for tensor in delta.values())
    assert all(tensor.any() for key, tensor in delta.items() if not key.startswith("blocks"))
    assert math.isfinite(result.loss)
    assert any(not torch.equal(delta[key], plain[key]) for key in plain.keys() & delta.keys()) == (row != "A")
    if name in VARIANTS:
        ratio = {"mjp_spp": 1.0, "mjp_dal": 0.0}.get(name, 0.09)
        assert measured[f"{name}_mask_ratio"] == pytest.approx(ratio, abs=0.02)
        assert (f"{name}_dal_loss" in measured) == (name in ("mjp", "mjp_dal", "mjp_linear", "mjp_pca"))


@pytest.mark.parametrize("name", ["mjp", "mjp_spp", "mjp_jp_idx"])
def test_rounds_replay(name, data):
    overrides = ("client.share=weights", "audit.batch_size=2")
    first, second, other = (trained(name, data, *overrides, server_round=n)[0] for n in (3, 3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["pos_embed"], other["pos_embed"])


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_identity_shares_the_bits_of_the_undefended_client(share, data):
    overrides = [f"client.share={share}", "audit.batch_size=2", *["client.local_epochs=2"] * (share != "gradient")]
    expected, _, _ = trained("", data, *overrides)
    same, _, result = trained("mjp_jp_unk", data, *overrides, "defense.mjp_jp_unk.ratio=0.0")
    assert same.keys() - expected.keys() == {"unknown_embed"}
    assert all(torch.equal(same[key], expected[key]) for key in expected)
    assert not result.tensors["unknown_embed"].any()
    later, _, _ = trained("mjp_jp_unk", data, *overrides, "defense.mjp_jp_unk.start_round=2")
    assert all(torch.equal(later[key], expected[key]) for key in expected)


def test_a_recorded_defense_builds_the_same_model(data):
    config = configuration("mjp")
    spec = build_spec(config["model"], data)
    described = [{"name": name, **values} for name, values in config["defense"].items()]
    rebuilt, expected = (
        Architecture(spec, wrappers).build().state_dict()
        for wrappers in (load_wrappers(described), (build_chain(config["defense"]),))
    )
    assert "unknown_embed" in expected
    assert rebuilt.keys() == expected.keys()
    assert all(torch.equal(rebuilt[name], expected[name]) for name in expected)
