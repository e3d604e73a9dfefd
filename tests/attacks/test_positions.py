"""The localisation regression's part of the position gradient is known, and taken out."""

import pytest
import torch

import fedsim
from attacks.analytic import PatchGradient
from attacks.analytic.patch_gradient import known_embedding
from attacks.positions import masked_rows, without_regression
from clients.app import ClientRuntime
from defenses.compose import build_chain
from defenses.mjp import LOCALISER
from fedsim.models import ModelSpec
from fedsim.observation import Observation
from fedsim.settings.composition import build_data
from tests.support.federation import settings

MASKED = ("defense=[mjp]", *(f"defense.mjp.{one}" for one in ("probability=1.0", "ratio=0.4", "class_token=unknown")))


def observed(*overrides: str) -> tuple[Observation, torch.Tensor]:
    """What a server sees of one clean picture of digits."""
    config = settings("audit", "data=digits", "model=vit_nano", *overrides)
    client = ClientRuntime(config, build_data(config))
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    client.load(state)
    pictures = client.data.train.subset([3])
    result = client.train(pictures, 0, 0)
    sent = client.share(result, state, 1, 0, 0)
    assert build_chain(config["defense"]).defenses.keys() == config["defense"].keys()
    return client.onlooker.make(sent, state), pictures.images([0])


@pytest.mark.parametrize("head", ["linear", "nonlinear", "pca"])
def test_rows_are_those_without_the_regression(head: str) -> None:
    with_dal, _ = observed("defense=[mjp]", "defense.mjp.probability=0.0", f"defense.mjp.dal={head}")
    without, _ = observed("defense=[mjp]", "defense.mjp.probability=0.0", "defense.mjp.dal=none")
    rows, plain = (o.gradient_of("pos_embed").flatten(0, -2)[-16:] for o in (with_dal, without))
    assert not torch.allclose(rows, plain, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(without_regression(with_dal, rows), plain, rtol=1e-3, atol=1e-6)
    assert without_regression(without, plain) is plain


def test_clean_pictures_of_an_mjp_model_come_out_exact() -> None:
    observation, picture = observed("defense=[mjp]", "defense.mjp.probability=0.0")
    found = PatchGradient()(observation, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert found.images is not None
    assert float((found.images - picture).abs().max()) < 1e-3


@pytest.mark.parametrize("spoilt", [".weight", ""])
def test_a_spoilt_head_costs_no_more_than_a_withheld_one(spoilt: str) -> None:
    """Some of the head's gradients are not finite, or all: the rest gives the regression's weight, or the settings."""
    observation, picture = observed("defense=[mjp]", "defense.mjp.probability=0.0")
    names = [name for name in observation.gradient if name.startswith(f"{LOCALISER}.") and name.endswith(spoilt)]
    assert names
    for name in names:
        observation.gradient[name].view(-1)[0] = torch.nan
    found = PatchGradient()(observation, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert found.images is not None
    assert float((found.images - picture).abs().max()) < 1e-3


@pytest.mark.parametrize(
    "optimizer",
    [
        ["client.optimizer._target_=torch.optim.SGD", "client.optimizer.lr=0.1"],
        ["client.optimizer._target_=torch.optim.SGD", "client.optimizer.lr=0.1", "+client.optimizer.momentum=0.9"],
        ["client.optimizer._target_=torch.optim.AdamW", "client.optimizer.lr=1e-3"],
    ],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_weight_decay_hides_no_mask(optimizer: list[str], steps: int) -> None:
    """It moves each row of the embedding, also those that no image has read."""
    mask = masked_rows(observed(*MASKED)[0])
    assert mask is not None
    assert bool(mask[0])
    step = ("client.share=delta", f"client.local_steps={steps}", "++client.optimizer.weight_decay=0.05")
    seen, _ = observed(*MASKED, *optimizer, *step)
    assert bool(seen.update.tensors["pos_embed"].any(dim=-1).all())
    found = masked_rows(seen)
    assert found is not None
    assert torch.equal(found, mask) or steps > 1
    assert int(found.sum()) > 1


def test_a_masked_class_token_is_known_as_the_model_read_it() -> None:
    seen, _ = observed(*MASKED)
    state = seen.global_state
    assert torch.equal(known_embedding(seen)[0], state["unknown_embed"].double().reshape(-1))


def test_a_mask_shows_where_what_decay_left_of_its_rows_was_clipped():
    vit = ModelSpec("vit_nano_patch2_8", 10).build(0)
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    decayed = {"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": 0.01}
    step = {"share": "delta", "local_steps": 1, "optimizer": decayed}
    masks = [
        masked_rows(fedsim.observe(vit, image, [3], defense=["mjp", *clip], **step))
        for clip in ([], [{"gradient_clip": {"max_norm": 1e-2}}])
    ]
    assert masks[0] is not None
    assert masks[0].any()
    assert torch.equal(*masks)
