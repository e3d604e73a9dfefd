"""Where the parts of a vision transformer live: the one place that knows timm's names."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from fedsim.models.zoo.april import reads_embedding_directly

STATED = ("patch_weight", "pos_embed", "class_token")
"""Roles that the owner of a module may state, as `pretrained_cfg["roles"]` keeps them: the rest follows from these."""

OF_PARAMETERS = (
    *("patch_weight", "patch_bias", "pos_embed", "class_token", "prefix_names"),
    *("qkv_weight", "qkv_bias", "qkv_weights", "head_weights", "head_biases"),
)
"""Roles that name parameters."""

LOOKED_FOR = (
    "a Conv2d at `patch_embed.proj`, as timm's ViTs; where its parts have other names state them in Python: "
    "roles={'patch_weight': NAME, 'pos_embed': NAME, 'class_token': NAME}"
)


@dataclass(frozen=True)
class ViTRoles:
    """Parameter names by role; None where the model has no such part.

    Attributes:
        pos_embed: the learnable absolute position embedding.
        class_token: the class token.
        prefix_tokens: how many class, distillation and register tokens stand before the patches in the first block.
        prefix_names: the parameters that hold them, in order.
        embedded_prefix_tokens: how many leading rows of `pos_embed` belong to prefix tokens.
        qkv_weight, qkv_bias: the fused projection of the first attention.
        qkv_weights: what the first attention reads its input by: that one, or query, key and value apart (EVA02).
        head_weights, head_biases: classifiers (two for distilled DeiT), whose logits are averaged.
        grid, patch: patch grid and patch size, (rows, columns).
        direct_attention: the first attention reads the embedding without norm or residual (APRIL).
        rotary: positions enter through rotary embeddings.
        relative: positions enter through relative position biases.
        obstacles: why the patch gradient is not Gᵀ X in this model; empty for stock ViTs.
    """

    patch_weight: str | None = None
    patch_bias: str | None = None
    pos_embed: str | None = None
    class_token: str | None = None
    prefix_tokens: int = 0
    prefix_names: tuple[str, ...] = ()
    embedded_prefix_tokens: int = 0
    qkv_weight: str | None = None
    qkv_bias: str | None = None
    qkv_weights: tuple[str, ...] = ()
    head_weights: tuple[str, ...] = ()
    head_biases: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None
    patch: tuple[int, int] | None = None
    direct_attention: bool = False
    rotary: bool = False
    relative: bool = False
    obstacles: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ViTRoles":
        known: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}
        if known.get("qkv_weight") is not None:  # all that earlier records name
            known.setdefault("qkv_weights", (known["qkv_weight"],))
        return cls(**known)


def find_roles(model: nn.Module) -> ViTRoles:
    """Look the parts up in any timm model, and where they were stated; one that is no ViT gets an obstacle."""
    known = getattr(model, "pretrained_cfg", None) or {}
    found = _as_timm(model)
    return _stated(model, found, known["roles"], known["input_size"]) if known.get("roles") else found


def owner_of(model: nn.Module, name: str) -> nn.Module:
    """The module that holds the parameter of this name."""
    return model.get_submodule(name.rpartition(".")[0])


def _as_timm(model: nn.Module) -> ViTRoles:
    patch_embed = getattr(model, "patch_embed", None)
    projection = getattr(patch_embed, "proj", None)
    pos_embed = getattr(model, "pos_embed", None)
    late = hasattr(model, "blocks_token_only")  # CaiT: `blocks` read the patches alone
    prefix = 0 if late else int(getattr(model, "num_prefix_tokens", 0))
    head_weights, head_biases = _heads(model)
    is_conv = isinstance(projection, nn.Conv2d)
    return ViTRoles(
        patch_weight=_name(model, getattr(projection, "weight", None)) if is_conv else None,
        patch_bias=_name(model, getattr(projection, "bias", None)) if is_conv else None,
        pos_embed=_name(model, pos_embed),
        class_token=_name(model, getattr(model, "cls_token", None)),
        prefix_tokens=prefix,
        prefix_names=_prefix_names(model),
        embedded_prefix_tokens=_embedded_prefix(pos_embed, _pair(getattr(patch_embed, "grid_size", None)), prefix),
        qkv_weight=_name(model, getattr(_first_qkv(model), "weight", None)),
        qkv_bias=_name(model, getattr(_first_qkv(model), "bias", None)),
        qkv_weights=_qkv_weights(model),
        head_weights=head_weights,
        head_biases=head_biases,
        grid=_pair(getattr(patch_embed, "grid_size", None)),
        patch=_pair(getattr(projection, "kernel_size", None)) if is_conv else None,
        direct_attention=reads_embedding_directly(model),
        rotary=getattr(model, "rope", None) is not None,
        relative=_relative(model),
        obstacles=_obstacles(model, patch_embed, projection),
    )


def _relative(model: nn.Module) -> bool:
    biases = any("relative_position" in name or "rel_pos" in name for name, _ in model.named_parameters())
    return biases or any("rel_indices" in name for name, _ in model.named_buffers())  # ConViT's, of the grid


def _stated(
    model: nn.Module, found: ViTRoles, stated: Mapping[str, str], image_shape: tuple[int, int, int]
) -> ViTRoles:
    """What was stated in place of what was found; None where a defense has removed the parameter since."""
    parameters = dict(model.named_parameters())
    names = {role: name if name in parameters else None for role, name in stated.items()}
    found = replace(found, **names)  # type: ignore[arg-type]
    projection = owner_of(model, found.patch_weight) if found.patch_weight else None
    if not isinstance(projection, nn.Conv2d):
        return found
    rows, columns = _pair(projection.kernel_size) or (1, 1)
    grid = image_shape[1] // rows, image_shape[2] // columns
    token = parameters.get(found.class_token or "")
    if names.get("class_token") and token is not None:
        prefix = token.numel() // token.shape[-1]
        found = replace(found, prefix_tokens=prefix, prefix_names=(str(found.class_token),))
    embedding = parameters.get(found.pos_embed or "")
    if "patch_weight" in stated:
        alone = SimpleNamespace(proj=projection)
        found = replace(found, obstacles=_obstacles(model, alone, projection))
    return replace(
        found,
        patch_bias=_name(model, projection.bias),
        embedded_prefix_tokens=_embedded_prefix(embedding, grid, found.prefix_tokens),
        grid=grid,
        patch=(rows, columns),
    )


def _prefix_names(model: nn.Module) -> tuple[str, ...]:
    """In timm's order: class, distillation, registers."""
    found = (_name(model, getattr(model, part, None)) for part in ("cls_token", "dist_token", "reg_token"))
    return tuple(name for name in found if name is not None)


def _embedded_prefix(pos_embed: object, grid: tuple[int, int] | None, prefix: int) -> int:
    """The rows of `pos_embed` beyond one for each patch; no other sign of them holds for every model."""
    if not isinstance(pos_embed, Tensor) or grid is None:
        return 0
    extra = pos_embed.numel() // pos_embed.shape[-1] - grid[0] * grid[1]
    return extra if 0 <= extra <= prefix else 0


def _name(model: nn.Module, parameter: object) -> str | None:
    """The full name of `parameter` in `model`, whatever module it sits in."""
    if parameter is None:
        return None
    for name, candidate in model.named_parameters():
        if candidate is parameter:
            return name
    return None


def _first_attention(model: nn.Module) -> object:
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or len(blocks) == 0:
        return None
    return getattr(blocks[0], "attn", None)


def _first_qkv(model: nn.Module) -> nn.Module | None:
    qkv = getattr(_first_attention(model), "qkv", None)
    return qkv if isinstance(qkv, nn.Linear) else None


def _qkv_weights(model: nn.Module) -> tuple[str, ...]:
    fused, attention = _first_qkv(model), _first_attention(model)
    parts = (getattr(attention, part, None) for part in ("q_proj", "k_proj", "v_proj"))
    read: list[object] = list(parts) if fused is None else [fused]
    names = [_name(model, one.weight) if isinstance(one, nn.Linear) else None for one in read]
    return tuple(name for name in names if name is not None) if None not in names else ()


def _heads(model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is not None:
        found = get_classifier()
    else:  # a module of somebody's own, which `own_architecture` has asked
        name = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
        found = dict(model.named_modules()).get(name) if isinstance(name, str) else None
    heads = found if isinstance(found, tuple | list) else (found,)
    linear = [head for head in heads if isinstance(head, nn.Linear)]
    weights = [_name(model, head.weight) for head in linear]
    biases = [_name(model, head.bias) for head in linear]
    return tuple(n for n in weights if n is not None), tuple(n for n in biases if n is not None)


def _pair(value: object) -> tuple[int, int] | None:
    return (int(value[0]), int(value[1])) if isinstance(value, tuple | list) else None


def _obstacles(model: nn.Module, patch_embed: object, projection: object) -> tuple[str, ...]:
    if patch_embed is None or projection is None:
        return (f"{type(model).__name__} has no patch embedding: {LOOKED_FOR}",)
    found = []
    if not isinstance(projection, nn.Conv2d):
        found.append("the patch embedding is not one linear projection (convolutional or hybrid stem)")
    elif projection.kernel_size != projection.stride or projection.groups != 1:
        found.append("the patch projection overlaps its patches")
    elif any(p != 0 for p in projection.padding if isinstance(p, int)):
        found.append("the patch projection pads the picture")
    norm = getattr(patch_embed, "norm", nn.Identity())
    if _parameters(patch_embed) - _parameters(projection) - _parameters(norm):
        found.append("further layers stand in the patch embedding (convolutional or hybrid stem)")
    if not isinstance(norm, nn.Identity):
        found.append("a norm stands inside the patch embedding, before the position embedding")
    if not isinstance(getattr(model, "patch_drop", None) or nn.Identity(), nn.Identity):
        found.append("patch dropout removes tokens")
    return tuple(found)


def _parameters(module: object) -> set[nn.Parameter]:
    return set(module.parameters()) if isinstance(module, nn.Module) else set()
