"""What stands between the patches and a pre-norm ViT's first projections, from the names of its parameters."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attacks.analytic.patch_gradient import check_embedding, known_embedding
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops
from fedsim.observation import Observation

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

WEIGHT_ROOT = 6.0
"""The root of the shared numbers' precision is the weight of a dimension, of the strongest one's, from which on it
counts: 0.07 in float32, 0.002 in float64. 0.01 in float32 cost one of two images 60 dB."""


@dataclass(frozen=True)
class FirstNorm:
    """u_t = γ∘C z_t / σ_t + β with z_n = W_p p_n + b_p + e_n, in float64 on one device.

    Attributes:
        patch_weight: W_p; known: b_p + e_n of each patch position.
        scale, shift: γ and β of the LayerNorm that the first attention reads through; C takes the mean off.
        prefix_tokens: class, distillation and register tokens, which the attention reads too.
        eps: what the LayerNorm adds to σ².
    """

    patch_weight: Float[Tensor, "width pixels"]
    known: Float[Tensor, "tokens width"]
    scale: Float[Tensor, " width"]
    shift: Float[Tensor, " width"]
    prefix_tokens: int
    eps: float = 1e-5


def first_norm(observation: Observation, device: torch.device) -> FirstNorm:
    """Read the values off the global state.

    What the attention does with u (query and key norms, rotary positions, bias) does not matter.

    Raises:
        NotApplicable: the first projection does not read LN(W_p p + b_p + e), or the embedding is unknown.
    """
    roles = observation.roles
    check_first_attention(observation)
    if roles.pos_embed is None:
        removed = observation.update.withheld.get("pos_embed")
        how = "rotary" if roles.rotary else "relative" if roles.relative else "none"
        why = f" (removed by {removed})" if removed else f" (positions: {how})"
        raise NotApplicable(f"no position embedding{why}: every position has the same solutions")
    known = known_embedding(observation)[roles.embedded_prefix_tokens :]
    assert roles.grid is not None
    if len(known) != roles.grid[0] * roles.grid[1]:
        raise NotApplicable(f"pos_embed has {len(known)} rows for {roles.grid[0] * roles.grid[1]} patches")
    return norm_of(observation, known, device)


def check_first_attention(observation: Observation) -> None:
    """Refuse a model whose first projections do not read a norm of the patches' embeddings."""
    check_embedding(observation)
    roles = observation.roles
    if roles.direct_attention:
        raise NotApplicable("the first attention reads the embedding without a norm: april serves that architecture")
    if not roles.qkv_weights or roles.patch_weight is None:
        raise NotApplicable("the model has no query, key and value projections in its first block")


def norm_of(observation: Observation, added: Float[Tensor, "tokens width"], device: torch.device) -> FirstNorm:
    """The first norm, of patches to which `added` is added.

    Raises:
        NotApplicable: something else stands before the first attention.
    """
    roles, state, known = observation.roles, observation.global_state, added
    assert roles.patch_weight is not None
    norm = _norm_before_qkv(observation.build_model(), roles.qkv_weights[0])
    width = norm.normalized_shape[0]
    scale = norm.weight if norm.weight is not None else torch.ones(width)
    shift = norm.bias if norm.bias is not None else torch.zeros(width)
    weight = state[roles.patch_weight].double().flatten(1)
    if roles.patch_bias is not None:
        known = known + state[roles.patch_bias].double()
    return FirstNorm(
        weight.to(device),
        known.to(device),
        scale.detach().double().to(device),
        shift.detach().double().to(device),
        roles.prefix_tokens,
        norm.eps,
    )


def embedded_rank(norm: FirstNorm, eps: float) -> int:
    """Dimensions that what is known of the tokens spans: fewer than tokens where position embeddings are sin-cos.

    Dimensions of hardly any weight count as none, and the more so the coarser the shared numbers are: the equations
    would hardly determine what they leave free. What all tokens have in common, such as a bias, always counts.
    """
    known = norm.scale * (norm.known - norm.known.mean(dim=1, keepdim=True))
    apart = known - known.mean(dim=0)
    shift = bool(norm.shift.any())
    common = torch.stack((known.mean(dim=0), norm.shift)) if shift else known.mean(dim=0)[None]
    size = apart.norm(dim=1).median()
    common = common * (size / common.norm(dim=1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny))
    singular = torch.linalg.svdvals(torch.cat((apart, common)))
    return int((singular > singular[0] * eps ** (1.0 / WEIGHT_ROOT)).sum()) - shift + norm.prefix_tokens


def _norm_before_qkv(model: nn.Module, qkv_weight: str) -> nn.LayerNorm:
    """The LayerNorm in front of the first attention.

    Raises:
        NotApplicable: something else stands there.
    """
    block = model.get_submodule(qkv_weight.rpartition(".attn.")[0])
    norm = getattr(block, "norm1", None)
    # ResPostBlock is no Block: its norm1 stands behind the attention. EVA's and DeiT-III's blocks are pre-norm.
    if type(norm) is not nn.LayerNorm and not isinstance(norm, nn.LayerNorm):
        raise NotApplicable(f"no LayerNorm stands before the first attention, but {type(norm).__name__}")
    if "Post" in type(block).__name__ or getattr(block, "use_post_norm", False):
        raise NotApplicable(f"{type(block).__name__} has its norm behind the attention, not before it")
    if not isinstance(getattr(model, "norm_pre", None) or nn.Identity(), nn.Identity):
        raise NotApplicable("a norm stands between the embedding and the first block (norm_pre)")
    dropout = getattr(model, "pos_drop", None)
    if isinstance(dropout, nn.Dropout) and dropout.p > 0 and model.training:
        raise NotApplicable("dropout after the embedding changes what the first block reads")
    return norm


def plain_blocks(observation: Observation) -> "VisionTransformer | None":
    """The model in float64 and evaluation mode; None unless its blocks are timm's plain ones, without randomness."""
    from timm.models.vision_transformer import Block, VisionTransformer

    model = observation.build_model()
    if not isinstance(model, VisionTransformer) or not all(type(block) is Block for block in model.blocks):
        return None
    if model.training and random_drops(model):
        return None
    for block in model.blocks:
        block.get_submodule("attn").fused_attn = False  # type: ignore[assignment]  # the fused kernels have no forward-mode derivative
    return model.double().eval().requires_grad_(False)


def first_block_layers(observation: Observation) -> list[str]:
    """The names of the first block's linear layers, whose equations closed forms solve."""
    block = observation.roles.qkv_weights[0].rpartition(".attn.")[0]
    layers = observation.build_model().get_submodule(block).named_modules(prefix=block)
    return [name for name, layer in layers if isinstance(layer, nn.Linear)]


def reads(observation: Observation) -> Counter[str]:
    """How often a forward pass calls each linear layer, by the name of its weight: blocks may share one.

    The gradient of a shared one spans what all its calls read.
    """
    model = observation.build_model().cpu().eval()
    names = {weight: name for name, weight in model.named_parameters()}
    found: Counter[str] = Counter()
    layers = [one for one in model.modules() if isinstance(one, nn.Linear)]
    hooks = [
        one.register_forward_hook(lambda layer, _, __: found.update([names.get(layer.weight, "")])) for one in layers
    ]
    try:
        with torch.no_grad():
            model(next(model.parameters()).new_zeros(1, *observation.image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def require_read_once(observation: Observation, *weights: str) -> None:
    """Raises NotApplicable where blocks share one of these weights of linear layers."""
    counts = reads(observation)
    for name in weights:
        if counts[name] > 1:
            raise NotApplicable(f"{name} is read {counts[name]} times: its gradient is not that of the first block")


def spanned_gradients(
    observation: Observation, device: torch.device
) -> tuple[Float[Tensor, "width pixels"], Float[Tensor, "rows width"]]:
    """∂L/∂W_p and the first block's ∂L/∂W_qkv, fused or apart: rows that span the patches and what it reads.

    Raises:
        NotApplicable: one of them is withheld, zero or not finite.
    """
    found = []
    for role in ("patch_weight", "qkv_weights"):
        gradient = torch.cat([one.flatten(1) for one in observation.gradients_of(role)]).to(device)
        if not bool(gradient.any()):
            raise NotApplicable(f"{role}'s gradient is zero: not trained, or nothing of it shared")
        found.append(gradient)
    return found[0], found[1]
