"""The first block's equations: exact on a batch of two, and refused or uncertified where they must be."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from attacks.analytic.first_block import FirstBlock
from attacks.analytic.first_block.attack import _possible, _problem
from attacks.analytic.first_block.levenberg_marquardt import Squares, deflated
from attacks.analytic.first_block.solutions import Solutions
from attacks.analytic.linear.patches import patchify
from attacks.analytic.patch_gradient import pixels_of
from attacks.base import Reconstruction
from defenses import Defense, FixedPositionEmbedding
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture
from fedsim.observation import Observation


@pytest.fixture(scope="module")
def pair(tools: ModuleType) -> Observation:
    spec = tools.tiny(img_size=24, patch_size=8, dtype="float64", kwargs={"depth": 2})
    return tools.observe(spec, tools.photographs(24), [3, 5])


@pytest.fixture(scope="module")
def found(pair: Observation) -> Reconstruction:
    return FirstBlock()(pair, torch.Generator().manual_seed(0), torch.device("cpu"))


def test_two_pictures_come_back_exactly(found: Reconstruction, tools: ModuleType) -> None:
    assert found.images is not None
    assert found.certificate.certified, found.certificate
    for picture in tools.photographs(24):
        assert max(tools.psnr(one, picture) for one in found.images) > 80.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_picture_leaves_nothing_to_search(dtype: str, tools: ModuleType, cpu: torch.device) -> None:
    spec = tools.tiny(patch_size=8, dtype=dtype, kwargs={"depth": 2})
    alone = tools.observe(spec, tools.photographs(32)[:1], [3])
    result = FirstBlock()(alone, torch.Generator().manual_seed(0), cpu)
    assert result.images is not None
    assert tools.psnr(result.images[0], tools.photographs(32)[0]) > 80.0
    assert result.certificate.certified or dtype == "float32", result.certificate
    assert result.certificate.values["tokens_found"] == 1.0


@pytest.mark.parametrize(("count", "drawn"), [(1, False), (2, True)])
def test_a_sincos_embedding_leaves_more_to_search_and_hides_nothing(
    count: int, drawn: bool, tools: ModuleType, cpu: torch.device
) -> None:
    """`drawn`: norm1's scale and shift are not timm's 1 and 0."""
    spec = tools.tiny(img_size=24, patch_size=8, dtype="float64", kwargs={"depth": 2})
    fixed = FixedPositionEmbedding("sincos")
    model: Any = Architecture(spec, (fixed,), 0).build(keep=True)
    if drawn:
        noise = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for part, std in ((model.blocks[0].norm1.weight, 0.2), (model.blocks[0].norm1.bias, 0.1)):
                part.add_(std * torch.randn(part.shape, generator=noise, dtype=part.dtype))
    truth = tools.photographs(24)[:count]
    observation = tools.observe(spec, truth, [3, 5][:count], defenses={"fixed_pe": fixed}, model=model)
    assert "pos_embed" not in observation.update.tensors
    result = FirstBlock(starts=16)(observation, torch.Generator().manual_seed(0), cpu)
    assert result.images is not None
    # 9 patches, whose embeddings span 3 + 3 - 1 dimensions, and the class token
    assert result.certificate.values["unknowns"] == 10 * count - 6
    for picture in truth:
        assert max(tools.psnr(found, picture) for found in result.images) > 80.0


def test_gray_images_span_fewer_dimensions(tools: ModuleType, cpu: torch.device) -> None:
    """Their channels are alike: what a third of the pixels span."""
    spec = tools.tiny(img_size=24, patch_size=2, dtype="float64", kwargs={"depth": 2})
    gray = tools.photographs(24)[:1].mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    problem = _problem(tools.observe(spec, gray, [3], defenses={"fixed_pe": FixedPositionEmbedding("sincos")}), cpu)
    assert problem.tokens.patches.directions.shape[1] <= 4


def test_images_that_are_alike_at_a_position_fill_each_other() -> None:
    x = torch.tensor([[[1.0], [torch.inf]], [[2.0], [3.0]], [[torch.inf], [torch.inf]]])
    x = torch.cat((x, x[2:]))
    nearly = torch.tensor([[7.0], [8.0], [torch.inf], [9.0]])
    found = Solutions(x, torch.zeros(4, 2), torch.tensor([1, 2, 0, 0]), nearly, torch.zeros(4))
    assert found.alike()[..., 0].tolist() == [[1.0, 1.0], [2.0, 3.0], [0.0, 0.0], [9.0, 9.0]]
    assert not found.complete


def test_neither_pixels_out_of_range_nor_outputs_above_any_value_are_possible(
    pair: Observation, found: Reconstruction, cpu: torch.device
) -> None:
    problem = _problem(pair, cpu)
    rows, free = torch.arange(9), problem.tokens.joint.directions.shape[1]
    pixels = pixels_of(pair, problem.norm.patch_weight)
    known = problem.tokens.patches.directions.shape[1]
    for part in (slice(known), slice(known, None)):  # the direction that moves patches, or outputs, the most
        far = torch.linalg.svd(problem.tokens.joint.directions[part])[2][0]
        assert not _possible(problem, pixels, 1e3 * far.expand(9, free), rows).any()
    assert found.images is not None
    z = patchify(pair.normalised(found.images[:1]), (8, 8)) @ problem.norm.patch_weight.T + problem.norm.known
    weight, bias = problem.block.projection()
    outputs = problem.block.attend(z, z)
    assert (outputs.abs() <= problem.block.largest_value()).all()
    x = (z + outputs @ weight.T + bias - problem.tokens.tokens.base) @ problem.tokens.tokens.directions
    assert _possible(problem, pixels, x, rows).all()


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
    plain = Squares(r.square().sum()[None], (A.T @ r)[None], (A.T @ A)[None])
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


def test_a_client_with_fewer_images_than_a_batch_shares_those(tools: ModuleType, cpu: torch.device) -> None:
    spec = tools.tiny(img_size=24, patch_size=8, dtype="float64", kwargs={"depth": 2})
    alone = tools.observe(spec, tools.photographs(24)[:1], [3])
    few = replace(alone, protocol=replace(alone.protocol, batch_size=64))
    assert few.num_images == 1
    assert _problem(few, cpu).values["unknowns"] == _problem(alone, cpu).values["unknowns"]


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
