"""The first block as the attack reads it: plain pre-norm timm blocks only, in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attacks.analytic.patch_gradient import known_prefix
from attacks.analytic.row_space.first_norm import plain_blocks
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

GRADIENTS = ("attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


@dataclass(frozen=True)
class PlainBlock:
    """Block 0 with its parameters, and the prefix tokens that it reads.

    Attributes:
        stem: the block's name in the model, with a dot behind.
    """

    module: Any  # timm.models.vision_transformer.Block, whose parts nn.Module types as Tensor | Module
    prefix: Float[Tensor, "prefix width"]
    stem: str

    def attend(self, queries: Float[Tensor, "n width"], members: Float[Tensor, "m width"]) -> Float[Tensor, "n width"]:
        """What the output projection reads for tokens z that attend to one picture's patch tokens and the prefix."""
        return self.read(self.heads(queries)[0], *self.heads(members)[1:])

    def heads(self, z: Float[Tensor, "n width"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [heads, n, d] of tokens z."""
        attention = self.module.attn
        qkv = attention.qkv(self.module.norm1(z)).unflatten(-1, (3, attention.num_heads, -1))
        queries, keys, values = (part.transpose(-2, -3) for part in qkv.unbind(dim=-3))
        return queries, keys, values

    def read(self, queries: Tensor, keys: Tensor, values: Tensor) -> Float[Tensor, "n width"]:
        """What the output projection reads for queries, by keys and values of one picture's patches and the prefix."""
        _, first_keys, first_values = self.heads(self.prefix)
        keys, values = torch.cat((first_keys, keys), dim=-2), torch.cat((first_values, values), dim=-2)
        weights = (queries @ keys.mT * self.module.attn.scale).softmax(dim=-1)
        found: Tensor = (weights @ values).transpose(-2, -3).flatten(-2)
        return found

    def largest_value(self) -> Float[Tensor, " width"]:
        """Of each entry of the values that attention averages, whatever it reads: a normalised token has length √D."""
        weight, bias = self.module.attn.qkv.weight, self.module.attn.qkv.bias
        weight, norm = weight[-len(weight) // 3 :], self.module.norm1
        largest: Tensor = (weight * norm.weight).norm(dim=1) * weight.shape[1] ** 0.5
        shift = weight @ norm.bias if bias is None else weight @ norm.bias + bias[-len(weight) :]
        values: Tensor = largest + shift.abs()
        return values

    def projection(self) -> tuple[Float[Tensor, "width width"], Float[Tensor, " width"]]:
        """W_o and b_o with the layer scale in front of the residual."""
        projection = self.module.attn.proj
        scale = _layer_scale(self.module.ls1, projection.weight)
        bias = projection.bias if projection.bias is not None else torch.zeros_like(scale)
        return scale[:, None] * projection.weight, scale * bias


def plain_block(observation: Observation, device: torch.device) -> PlainBlock:
    """Raises NotApplicable unless block 0 is timm's plain one, without randomness or further norms, and learns."""
    from timm.layers.mlp import Mlp

    qkv, model = observation.roles.qkv_weight, plain_blocks(observation)
    if model is None or qkv is None:
        raise NotApplicable("the blocks are not timm's plain pre-norm blocks, or dropout makes them random")
    if len(model.blocks) < 2 and model.global_pool == "token":
        raise NotApplicable("one block and a class token: no gradient reaches the patches' own outputs and MLP")
    model = model.to(device)
    block: Any = model.blocks[0]
    attention = block.attn
    further = (attention.q_norm, attention.k_norm, getattr(attention, "norm", None), getattr(block.mlp, "norm", None))
    if any(not isinstance(part or nn.Identity(), nn.Identity) for part in further) or getattr(attention, "gate", None):
        raise NotApplicable("norms or gates stand inside the first block's attention or MLP")
    if type(block.mlp) is not Mlp or not isinstance(block.norm2, nn.LayerNorm) or block.norm2.weight is None:
        raise NotApplicable("the first block's MLP is not LayerNorm, fc1, activation, fc2")
    prefix = known_prefix(observation).to(attention.proj.weight)
    return PlainBlock(block, prefix, qkv.removesuffix("attn.qkv.weight"))


def gradients(observation: Observation, block: PlainBlock) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂W_o, ∂L/∂W_fc1 and ∂L/∂W_fc2 of the block.

    Raises:
        NotApplicable: one of them was withheld, is zero or not finite.
    """
    found = []
    for part in GRADIENTS:
        name = block.stem + part
        gradient = observation.gradient_named(name)
        if not bool(gradient.any()):
            raise NotApplicable(f"{name}'s gradient is zero")
        found.append(gradient.to(block.prefix.device))
    return found[0], found[1], found[2]


def _layer_scale(module: nn.Module, weight: Tensor) -> Float[Tensor, " width"]:
    from timm.layers.layer_scale import LayerScale

    return module.gamma if isinstance(module, LayerScale) else weight.new_ones(weight.shape[0])
