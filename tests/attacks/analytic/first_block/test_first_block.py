"""The first block's equations: exact on a batch of two, and refused or uncertified where they must be."""

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from attacks.analytic.first_block import FirstBlock
from attacks.analytic.first_block.attack import _problem
from attacks.analytic.first_block.levenberg_marquardt import Normal, deflated
from defenses import Defense
from fedsim.errors import ConfigError, NotApplicable
from fedsim.observation import Observation


@pytest.fixture(scope="module")
def pair(tools: ModuleType) -> Observation:
    spec = tools.tiny(img_size=24, patch_size=8, dtype="float64", kwargs={"depth": 2})
    return tools.observe(spec, tools.photographs(24), [3, 5])


def test_two_pictures_come_back_exactly(pair: Observation, tools: ModuleType, cpu: torch.device) -> None:
    result = FirstBlock()(pair, torch.Generator().manual_seed(0), cpu)
    assert result.images is not None
    assert result.certificate.certified, result.certificate
    truth = tools.photographs(24)
    for picture in truth:
        assert max(tools.psnr(found, picture) for found in result.images) > 80.0


def test_one_picture_leaves_nothing_to_search(tools: ModuleType, cpu: torch.device) -> None:
    spec = tools.tiny(patch_size=8, dtype="float64", kwargs={"depth": 2})
    alone = tools.observe(spec, tools.photographs(32)[:1], [3])
    result = FirstBlock()(alone, torch.Generator().manual_seed(0), cpu)
    assert result.images is not None
    assert tools.psnr(result.images[0], tools.photographs(32)[0]) > 80.0


def test_a_second_table_of_embeddings_counts(indexed: dict[str, Defense], tools: ModuleType, cpu: torch.device) -> None:
    spec = tools.tiny(patch_size=8, dtype="float64", kwargs={"depth": 2})
    alone = tools.observe(spec, tools.photographs(32)[:1], [3], defenses=indexed)
    result = FirstBlock()(alone, torch.Generator().manual_seed(0), cpu)
    assert result.images is not None
    assert tools.psnr(result.images[0], tools.photographs(32)[0]) > 80.0
    assert result.certificate.values["forward_residual"] < 1e-9


def test_the_jacobian_is_the_derivative(pair: Observation, cpu: torch.device) -> None:
    system = _problem(pair, cpu).system
    rows = torch.arange(2)
    x = torch.randn(
        2, system.tokens.directions.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    step = torch.zeros_like(x)
    step[:, 3] = 1e-6
    slope = (system.at(rows, x + step).values - system.at(rows, x - step).values) / 2e-6
    torch.testing.assert_close(slope, system.at(rows, x).jacobian[..., 3], rtol=1e-5, atol=1e-8)


def test_deflation_is_the_gauss_newton_system_of_the_scaled_residual() -> None:
    rng = torch.Generator().manual_seed(0)
    A, b, x, known = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((6, 3), (6,), (3,), (3,)))

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (A @ x - b) * (1.0 + 0.25 / (x - known).square().sum()).sqrt()

    r = A @ x - b
    plain = Normal(r.square().sum()[None], (A.T @ r)[None], (A.T @ A)[None])
    found = deflated(plain, x[None], known[None, None], 0.5)
    jacobian, value = torch.autograd.functional.jacobian(scaled, x), scaled(x)
    torch.testing.assert_close(found.matrix[0], jacobian.T @ jacobian)
    torch.testing.assert_close(found.gradient[0], jacobian.T @ value)


def test_the_same_seed_gives_the_same_bits(pair: Observation, cpu: torch.device) -> None:
    one, two = (FirstBlock(starts=2)(pair, torch.Generator().manual_seed(4), cpu) for _ in range(2))
    assert one.images is not None
    assert two.images is not None
    assert torch.equal(one.images, two.images)


def test_a_random_gradient_is_not_certified(pair: Observation, tools: ModuleType, cpu: torch.device) -> None:
    result = FirstBlock(starts=2)(tools.random_gradient(pair), torch.Generator().manual_seed(0), cpu)
    assert result.certificate.status == "uncertified"


def test_more_tokens_than_width_are_refused(tools: ModuleType, cpu: torch.device) -> None:
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), torch.rand(3, 3, 32, 32), [0, 1, 2])
    with pytest.raises(NotApplicable, match="195 tokens of 3 images >= width 192"):
        FirstBlock()(observation, torch.Generator(), cpu)


def test_a_withheld_gradient_is_named(pair: Observation, cpu: torch.device) -> None:
    tensors = {name: tensor for name, tensor in pair.update.tensors.items() if name != "blocks.0.mlp.fc2.weight"}
    observation = replace(pair, update=replace(pair.update, tensors=tensors))
    with pytest.raises(NotApplicable, match=r"mlp\.fc2\.weight's gradient is withheld"):
        FirstBlock()(observation, torch.Generator(), cpu)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("patch_embed.proj.weight", 0.0, "is zero"), ("blocks.0.attn.qkv.weight", float("nan"), "is not finite")],
)
def test_a_pruned_or_broken_gradient_is_named(
    pair: Observation, name: str, value: float, said: str, cpu: torch.device
) -> None:
    tensors = {**pair.update.tensors, name: torch.full_like(pair.update.tensors[name], value)}
    observation = replace(pair, update=replace(pair.update, tensors=tensors))
    with pytest.raises(NotApplicable, match=said):
        FirstBlock()(observation, torch.Generator(), cpu)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="starts"):
        FirstBlock(starts=0)
