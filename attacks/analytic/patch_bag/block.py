"""The first block of any of timm's pre-norm families, as far as its gradients name what it read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attacks.analytic.row_space.first_norm import FirstNorm, check_first_attention, norm_of
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops
from fedsim.observation import Observation


@dataclass(frozen=True)
class UnplacedBlock:
    """z' = z + W_o o + b_o, then the MLP, for patch tokens z_n = W_p p_n + b_p without a position.

    Attributes:
        norm: in front of the attention, `norm.known` the one row b_p.
        weight, bias: W_o and b_o with the layer scale in front of the residual.
        gradients: ∂L/∂W_o, ∂L/∂W_1 and ∂L/∂W_2 of the MLP's first and last projection.
        model: in float64 and evaluation mode, of which block 0 alone is left.
    """

    norm: FirstNorm
    weight: Float[Tensor, "width inner"]
    bias: Float[Tensor, " width"]
    gradients: tuple[Float[Tensor, "_ inner"], Float[Tensor, "_ width"], Float[Tensor, "_ hidden"]]
    model: Any  # timm's, whose parts nn.Module types as Tensor | Module

    @property
    def module(self) -> Any:
        return self.model.blocks[0]

    def hidden(self, tokens: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens hidden"]:
        """What the MLP's last projection reads of tokens z'."""
        return _read(self.module.mlp.fc2, lambda: self.module.mlp(self.module.norm2(tokens)))

    def attention(
        self, images: Float[Tensor, "batch c h w"]
    ) -> tuple[Float[Tensor, "batch heads members members"], Float[Tensor, "batch members width"]]:
        """The weights of whole, normalised images, and the tokens that the projections read; prefix tokens first."""
        tokens: list[Tensor] = []
        attention = self.module.attn
        kept = attention.register_forward_pre_hook(lambda _, given: tokens.append(given[0]))
        try:
            weights = _read(attention.attn_drop, lambda: self.model.forward_features(images))
        finally:
            kept.remove()
        return weights, tokens[0]

    def forward(
        self, images: Float[Tensor, "batch c h w"]
    ) -> tuple[Float[Tensor, "batch tokens inner"], Float[Tensor, "batch tokens hidden"]]:
        """What W_o and W_2 read at each patch of whole, normalised images."""
        hidden: list[Tensor] = []
        kept = self.module.mlp.fc2.register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
        try:
            read = _read(self.module.attn.proj, lambda: self.model.forward_features(images))
        finally:
            kept.remove()
        prefix = self.norm.prefix_tokens
        return read[:, prefix:], hidden[0][:, prefix:]


def unplaced_block(observation: Observation, device: torch.device) -> UnplacedBlock:
    """Raises NotApplicable for models that add positions, for other blocks, and for withheld gradients."""
    check_first_attention(observation)
    roles = observation.roles
    if roles.pos_embed is not None:
        raise NotApplicable("a position embedding is added to the patches: row_space and first_block serve that")
    if roles.patch_bias is None or not bool(observation.global_state[roles.patch_bias].any()):
        raise NotApplicable("the patch projection has no bias: its patches are known up to a factor only")
    model: Any = observation.build_model()
    if model.training and random_drops(model):
        raise NotApplicable("dropout makes the blocks random")
    if len(getattr(model, "blocks", ())) < 2:
        raise NotApplicable("one block alone: no gradient reaches all of its outputs")
    block = model.blocks[0]
    if not _is_known(block):
        raise NotApplicable(f"{type(block).__name__} is no pre-norm block that is known here")
    if not isinstance(block.norm2, nn.LayerNorm) or block.norm2.weight is None or block.norm2.bias is None:
        raise NotApplicable("no LayerNorm with a bias stands before the first MLP")
    first = "fc1_g" if hasattr(block.mlp, "fc1_g") else "fc1"
    if not isinstance(getattr(block.mlp, "fc2", None), nn.Linear) or not hasattr(block.mlp, first):
        raise NotApplicable("the first block's MLP has no fc1 and fc2")
    stem = roles.qkv_weights[0].rpartition("attn.")[0]
    gradients = [_gradient(observation, f"{stem}{part}.weight") for part in ("attn.proj", f"mlp.{first}", "mlp.fc2")]
    width = block.norm2.normalized_shape[0]
    norm = norm_of(observation, torch.zeros(1, width, dtype=torch.float64), device)
    model = model.double().eval().requires_grad_(False).to(device)
    model.blocks = model.blocks[:1]
    model.blocks[0].attn.fused_attn = False  # the fused kernels show no weights
    projection, scale = model.blocks[0].attn.proj, _layer_scale(model.blocks[0])
    bias = projection.bias if projection.bias is not None else torch.zeros_like(scale)
    output, inner, outer = (gradient.to(device) for gradient in gradients)
    return UnplacedBlock(norm, scale[:, None] * projection.weight, scale * bias, (output, inner, outer), model)


def _is_known(block: nn.Module) -> bool:
    from timm.models import beit, eva, vision_transformer, vision_transformer_relpos

    known = (vision_transformer.Block, vision_transformer_relpos.RelPosBlock, beit.Block, eva.EvaBlock)
    return type(block) in known


def _layer_scale(block: Any) -> Float[Tensor, " width"]:
    """BEiT and EVA keep it as a parameter of the block, ViT as a module."""
    scale = getattr(block, "gamma_1", None)
    if scale is None:
        scale = getattr(getattr(block, "ls1", None), "gamma", None)
    weight = block.attn.proj.weight
    return scale if isinstance(scale, Tensor) else weight.new_ones(len(weight))


def _gradient(observation: Observation, name: str) -> Tensor:
    gradient = observation.gradient_named(name)
    if not bool(gradient.any()):
        raise NotApplicable(f"{name}'s gradient is zero")
    return gradient


def _read(layer: nn.Module, call: Callable[[], object]) -> Tensor:
    """What `layer` reads while `call` runs."""
    given: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        call()
    finally:
        hook.remove()
    return given[0]
