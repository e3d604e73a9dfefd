"""What the first attention says of the order: logits of pairs, as its outputs tell them and as places would have them.

o_i = Σ_t a_it v_t gives the weights a of every token, since values know no position. log a_im - log a_ii is the logit
of the pair less that of i with itself, which no position changes: rotations cancel, the offset of a bias is zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attacks.analytic.patch_bag.block import UnplacedBlock

CHUNK = 256
LEAST = 1e-12
"""Of a weight: what noise has made smaller, or negative, says nothing."""


@dataclass(frozen=True)
class PairLogits:
    """log a_im - log a_ii of tokens i and m at places n and k, per head; of i and prefix tokens at place n.

    Attributes:
        told: as the outputs tell it; `told_prefix`: of prefix tokens.
        known: where the outputs tell it: not for tokens that share a patch, whose values are the same.
        placed: as the model would have it.
    """

    told: Float[Tensor, "heads tokens tokens"]
    told_prefix: Float[Tensor, "heads tokens prefix"]
    known: Bool[Tensor, "heads tokens tokens"]
    placed: Float[Tensor, "heads tokens tokens places places"]
    placed_prefix: Float[Tensor, "heads tokens places prefix"]

    def costs(self) -> Float[Tensor, "tokens tokens places places"]:
        """Squared differences, summed over heads; those of prefix tokens count with the pair of a token with itself."""
        off = (self.told[..., None, None] - self.placed).square()
        pairs = torch.where(self.known[..., None, None], off, 0.0).sum(dim=0)
        alone = (self.told_prefix[:, :, None] - self.placed_prefix).square()
        usable = self.known.diagonal(dim1=1, dim2=2)[:, :, None, None]
        alone = torch.where(usable, alone, 0.0).sum(dim=(0, 3))
        rows, places = torch.arange(len(alone)), torch.arange(alone.shape[1])
        pairs[rows[:, None], rows[:, None], places, places] = alone
        return pairs


def pair_logits(
    block: UnplacedBlock,
    patches: Float[Tensor, "tokens pixels"],
    outputs: Float[Tensor, "tokens inner"],
    picture: Callable[[Float[Tensor, "images places pixels"]], Float[Tensor, "images c h w"]],
) -> PairLogits | None:
    """For as many tokens as places.

    None where the outputs do not give the weights: norms or gates inside, or more tokens than a head is wide.
    """
    attention, norm = block.module.attn, block.norm
    inside = (getattr(attention, "norm", None), getattr(attention, "gate", None))
    if any(not isinstance(part or nn.Identity(), nn.Identity) for part in inside):
        return None
    heads, prefix = attention.num_heads, norm.prefix_tokens
    tokens = block.attention(picture(patches[None]))[1][0]
    values = _values(attention, tokens).unflatten(1, (heads, -1)).transpose(0, 1)
    if len(tokens) > values.shape[2]:
        return None
    told = _weights(values, outputs.unflatten(1, (heads, -1)).transpose(0, 1))
    alike = torch.cdist(patches, patches) < 1e-6 * patches.norm(dim=1).max()
    alone = alike.sum(dim=1) == 1
    own = told[:, :, prefix:].diagonal(dim1=1, dim2=2)
    logs = told.clamp(min=LEAST).log() - own.clamp(min=LEAST).log()[..., None]
    known = (told[:, :, prefix:] > LEAST) & (own > LEAST)[..., None] & alone[:, None] & alone
    images = _two_token_images(patches)
    weights = torch.cat([block.attention(picture(some))[0] for some in images.split(CHUNK)])
    placed, placed_prefix = _placed(weights, len(patches), prefix)
    return PairLogits(logs[:, :, prefix:], logs[:, :, :prefix], known, placed, placed_prefix)


def _weights(
    values: Float[Tensor, "heads members size"], outputs: Float[Tensor, "heads tokens size"]
) -> Float[Tensor, "heads tokens members"]:
    """a with a v = o and Σ a = 1, in the scale of the values; on the CPU, as CUDA has no solver for any rank."""
    scale = values.square().mean().sqrt()
    system = torch.cat([values, scale.expand(*values.shape[:2], 1)], dim=2)
    known = torch.cat([outputs, scale.expand(*outputs.shape[:2], 1)], dim=2)
    found: Tensor = torch.linalg.lstsq(system.mT.cpu(), known.mT.cpu(), driver="gelsd").solution
    return found.mT.to(values.device)


def _values(attention: Any, tokens: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens inner"]:
    """W_v u + b_v, wherever the family keeps them."""
    if getattr(attention, "qkv", None) is None:
        read: Tensor = attention.v_proj(tokens)
        return read
    inner = len(attention.qkv.weight) // 3
    bias = attention.qkv.bias[-inner:] if attention.qkv.bias is not None else getattr(attention, "v_bias", None)
    return nn.functional.linear(tokens, attention.qkv.weight[-inner:], bias)


def _two_token_images(patches: Float[Tensor, "tokens pixels"]) -> Float[Tensor, "images places pixels"]:
    """For tokens i < m and each bit: i where the place's bit is set and m where not, and the other way round.

    So every pair stands at every two places once at least. The images of a pair follow each other.
    """
    places = len(patches)
    masks = _masks(places).to(patches.device)
    first, second = torch.triu_indices(places, places, offset=1)
    images = torch.where(masks[None, :, :, None], patches[first][:, None, None], patches[second][:, None, None])
    return images.flatten(0, 1)


def _masks(places: int) -> Bool[Tensor, "masks places"]:
    bits = [(torch.arange(places) >> bit) & 1 == 1 for bit in range(max(1, (places - 1).bit_length()))]
    return torch.stack([mask for bit in bits for mask in (bit, ~bit)])


def _placed(
    weights: Float[Tensor, "images heads members members"], places: int, prefix: int
) -> tuple[Float[Tensor, "heads tokens tokens places places"], Float[Tensor, "heads tokens places prefix"]]:
    masks = _masks(places).to(weights.device)
    logs = weights[:, :, prefix:].clamp(min=LEAST).log()
    logs = logs - logs[..., prefix:].diagonal(dim1=2, dim2=3)[..., None]
    logs = logs.unflatten(0, (-1, len(masks)))
    heads = weights.shape[1]
    placed = weights.new_zeros(heads, places, places, places, places)
    alone = weights.new_zeros(heads, places, places, prefix)
    first, second = torch.triu_indices(places, places, offset=1)
    for number, mask in enumerate(masks):
        here, there = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        rows = logs[:, number]
        block = rows[..., prefix:][:, :, here[:, None], there].transpose(0, 1)
        placed[:, first[:, None, None], second[:, None, None], here[:, None], there] = block
        back = rows[..., prefix:][:, :, there[:, None], here].transpose(0, 1)
        placed[:, second[:, None, None], first[:, None, None], there[:, None], here] = back
        alone[:, first[:, None], here] = rows[:, :, here, :prefix].transpose(0, 1)
        alone[:, second[:, None], there] = rows[:, :, there, :prefix].transpose(0, 1)
    return placed, alone
