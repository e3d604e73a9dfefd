"""A model as a recipe: what a client, the server and an attacker build the same way."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from fedsim.determinism import derive_seed, seeded_globals
from fedsim.errors import ConfigError, nearest
from fedsim.models.checkpoint import Checkpoint, read_checkpoint, redrawn_mark
from fedsim.models.copies import Copies
from fedsim.models.finetune import FULL, Finetune
from fedsim.models.finetune.recipe import head_names, known_head
from fedsim.models.zoo.april import read_embedding_directly
from fedsim.settings.places import check_model_file
from fedsim.settings.plugins import load_plugins

# What timm's models raise for arguments that do not fit: among them a division by zero heads, a layer of no such name.
REFUSALS = (TypeError, AssertionError, ValueError, RuntimeError, ArithmeticError, LookupError, AttributeError)
DTYPES = {"float32": torch.float32, "float64": torch.float64}
VARIANTS = ("stock", "april")
SOURCES = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments of timm's by which it would read weights from a path or an address that no setting shows."""

KEPT, SMALL = 4, 1_000_000
"""So many models of so many parameters are kept, to be copied; a larger one alone."""


@runtime_checkable
class ModelWrapper(Protocol):
    """Whatever changes a model before anybody trains it: a defense, mostly."""

    def wrap_model(self, model: nn.Module) -> nn.Module: ...


@dataclass(frozen=True)
class ModelSpec:
    """A timm model by name, with the few settings that change what its gradient gives away.

    Attributes:
        img_size: side of the square input in pixels; None takes the model's own. A network that reads pictures of
            any size (a ResNet) gets it as the size of its pictures.
        patch_size: side of a patch in pixels; None takes the model's own.
        pretrained: load timm's pretrained weights (from its hub, or a local cache of it).
        checkpoint: a `.safetensors` file, or a `.pt`/`.pth` state dict (read with `weights_only=True`); of the stock
            model, or of one that was trained in this variant and as the defenses make it.
        checkpoint_head: its classifier is loaded too; without it the model keeps the one that is drawn.
        variant: `stock`, or `april`: the first block's attention reads the embedding directly.
        dtype: `float32` or `float64`.
        kwargs: further arguments of the timm constructor (`depth`, `embed_dim`, `num_heads` …).
    """

    name: str
    num_classes: int
    img_size: int | None = None
    patch_size: int | None = None
    pretrained: bool = False
    checkpoint: str | None = None
    checkpoint_head: bool = True
    variant: str = "stock"
    dtype: str = "float32"
    kwargs: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """`checkpoint_head` where it is false: records of before there was one have none."""
        values = asdict(self)
        return values if not self.checkpoint_head else {k: v for k, v in values.items() if k != "checkpoint_head"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        return cls(**values)

    def without_weights(self) -> "ModelSpec":
        """The same model with weights that are drawn and not read from anywhere."""
        return replace(self, pretrained=False, checkpoint=None, checkpoint_head=True)

    def check(self) -> None:
        """Refuse what could not be built, in one line, without building it.

        Raises:
            ConfigError: a name, variant, dtype, checkpoint or size that cannot be.
        """
        from fedsim.models.registry import timm

        if not timm.is_model(self.name):
            load_plugins()
        if not timm.is_model(self.name):
            raise ConfigError("model.name", self.name, fault=f"timm has no such model.{_similar(self.name)}")
        try:
            timm.get_pretrained_cfg(self.name)
        except RuntimeError as error:  # the part behind the dot, which is_model ignores
            hint = nearest(self.name, timm.list_pretrained(f"{self.name.partition('.')[0]}.*"))
            raise ConfigError("model.name", self.name, fault=f"{error}{hint}") from error
        if self.variant not in VARIANTS:
            raise ConfigError("model.variant", self.variant, f"one of {', '.join(VARIANTS)}")
        if self.dtype not in DTYPES:
            raise ConfigError("model.dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        check_model_file(self.checkpoint)
        if not self.checkpoint_head and self.checkpoint is None:
            raise ConfigError(
                "model.checkpoint_head", "false", "true, or model.checkpoint=FILE to load all but its head"
            )
        if (channels := self.kwargs.get("in_chans", 3)) != 3:
            raise ConfigError("model.kwargs.in_chans", channels, "3: pictures are read as RGB, grey ones too")
        if source := next((key for key in SOURCES if key in self.kwargs), None):
            expected = "left out: weights come from model.checkpoint=FILE or model.pretrained=true"
            raise ConfigError(f"model.kwargs.{source}", self.kwargs[source], expected)
        for key in ("img_size", "patch_size"):
            side = getattr(self, key)
            if side is not None and side < 1:
                raise ConfigError(f"model.{key}", side, "a positive number of pixels")
        if self.img_size and self.patch_size and self.img_size % self.patch_size:
            raise ConfigError("model.img_size", self.img_size, f"a multiple of model.patch_size={self.patch_size}")

    def build(self, seed: int) -> nn.Module:
        """Build the model with weights drawn from `seed`, or read from where the spec says.

        Raises:
            ConfigError: timm refuses the arguments, or the checkpoint does not fit.
        """
        self.check()
        arguments: dict[str, Any] = {"num_classes": self.num_classes, **self.kwargs}
        if self.img_size is not None:
            arguments["img_size"] = self.img_size
        if self.patch_size is not None:
            arguments["patch_size"] = self.patch_size
        model = self._create(arguments, seed).to(DTYPES[self.dtype])
        self._check_patches(model)
        saved = None if self.checkpoint is None else self.saved_for(model, Path(self.checkpoint))
        as_stock = saved is not None and (self.variant == "stock" or saved.fits(model.state_dict()))
        if saved is not None and as_stock:
            saved.load_into(model, head_names(model))
        if self.variant == "april":
            read_embedding_directly(model)
        if saved is not None and not as_stock:
            saved.load_into(model, head_names(model))
        return model

    def saved_for(self, model: nn.Module, checkpoint: Path) -> Checkpoint:
        """The file's weights, beside the model's own head where that is not loaded.

        Raises:
            ConfigError: the file cannot be read, or which head the model has is not known.
        """
        saved = read_checkpoint(checkpoint, names=model.state_dict().keys())
        if self.checkpoint_head:
            return saved
        return saved.but_head(model, known_head(model, "model.checkpoint_head", "false"))

    def _create(self, arguments: dict[str, Any], seed: int) -> nn.Module:
        import httpx  # timm brings it along

        from fedsim.models.registry import timm

        try:
            with seeded_globals(seed, "model"):
                model: nn.Module = timm.create_model(self.name, pretrained=self.pretrained, **arguments)
        except (OSError, httpx.HTTPError) as error:
            if not self.pretrained:
                raise
            words = f"the weights of {self.name} cannot be fetched: {' '.join(str(error).split())[:200]}"
            raise ConfigError(
                "model.pretrained", "true", fault=f"{words}; model.checkpoint=FILE needs no network"
            ) from error
        except REFUSALS as error:
            if isinstance(error, TypeError) and "argument 'img_size'" in str(error) and self.img_size is not None:
                others = {name: value for name, value in arguments.items() if name != "img_size"}
                return self._create(others, seed)
            if self.pretrained and str(error).startswith("No pretrained weights exist"):
                words = f"there are no pretrained weights of {self.name}: model.pretrained=false"
                raise ConfigError("model.pretrained", "true", fault=words) from error
            raise ConfigError(
                "model.name", self.name, fault=f"timm refuses {arguments}: {type(error).__name__}: {error}"
            ) from error
        if self.img_size is not None:
            _tell_size(model, self.img_size)
        return model

    def _check_patches(self, model: nn.Module) -> None:
        """timm silently ignores the rest of a picture that its patches do not fill."""
        patch_embed = getattr(model, "patch_embed", None)
        patch, size = getattr(patch_embed, "patch_size", None), getattr(patch_embed, "img_size", None)
        if patch is None or size is None or (self.patch_size is None and self.img_size is None):
            return
        if size[0] % patch[0] or size[1] % patch[1]:
            key, value = ("patch_size", patch[0]) if self.patch_size is not None else ("img_size", size[0])
            wanted = f"a multiple of patch_size={patch[0]}" if key == "img_size" else f"a divisor of img_size={size[0]}"
            raise ConfigError(f"model.{key}", value, wanted)


@dataclass(frozen=True)
class Architecture:
    """A spec, what of it is trained, the defenses that alter the model, and the seed of its initial weights.

    An attacker gets all of it. `seed` must therefore never be the run's own, from which the clients' noise is
    drawn: `architecture_seed` derives one that says nothing about that.
    """

    spec: ModelSpec
    wrappers: Sequence[ModelWrapper] = ()
    seed: int = 0
    finetune: Finetune = FULL

    def build(self, keep: bool = False) -> nn.Module:
        """The model with its initial weights.

        Args:
            keep: hold on to the model of this spec, and copy it next time: drawing weights takes longer.

        Raises:
            ConfigError: as `ModelSpec.build` does, and where a trained parameter is complex.
        """
        if self.spec.checkpoint is not None and (self.wrappers or not self.finetune.whole):
            trained = self._as_trained(Path(self.spec.checkpoint))
            if trained is not None:
                return trained
        return self._wrapped(_kept.copy_of(self.spec, self.seed) if keep else self.spec.build(self.seed))

    def redrawn(self) -> str:
        """A mark of the values that the wrappers put in place of a fresh model's own; empty where they put none.

        A checkpoint of the wrapped model carries it, where names alone do not tell it from one of the bare model.
        """
        return self._fresh()[1]

    def _as_trained(self, checkpoint: Path) -> nn.Module | None:
        """The wrapped model with weights that were saved from it; None where they are the bare model's.

        A wrapper that draws weights anew does so on a bare model's, and never on what was trained after it.
        """
        model, mark, bare = self._fresh()
        saved = self.spec.saved_for(model, checkpoint)
        if not saved.fits(model.state_dict()) or (saved.fits(bare) and saved.mark != mark):
            return None
        saved.load_into(model)
        return model

    def _fresh(self) -> tuple[nn.Module, str, dict[str, torch.Tensor]]:
        """The wrapped model without a checkpoint, the mark of what was redrawn, and the bare model's state."""
        model = self.spec.without_weights().build(self.seed)
        bare = copy.deepcopy(model.state_dict())
        model = self._wrapped(model)
        return model, redrawn_mark(bare, model.state_dict()), bare

    def _wrapped(self, model: nn.Module) -> nn.Module:
        model = self.finetune.prepare(model, self.seed)
        for wrapper in self.wrappers:
            model = wrapped_by(wrapper, model)
        _refuse_complex(model)
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False  # the same gradient, laid out as defenses and attacks read it
        return model


def wrapped_by(wrapper: ModelWrapper, model: nn.Module) -> nn.Module:
    """What it makes of the model, by draws that are fixed for its class: every party builds the same one."""
    with seeded_globals(0, "wrap_model", type(wrapper).__qualname__):
        return wrapper.wrap_model(model)


def _refuse_complex(model: nn.Module) -> None:
    """Every model is built with this check: what clips, adds noise, compresses or proves passes over complex numbers.

    Raises:
        ConfigError: a trained parameter is complex.
    """
    trained = ((name, one.dtype) for name, one in model.named_parameters() if one.requires_grad)
    if found := next(((name, dtype) for name, dtype in trained if dtype.is_complex), None):
        expected = f"a model whose trained parameters are real: {found[0]} is {str(found[1]).removeprefix('torch.')}"
        raise ConfigError("model", type(model).__name__, expected)


class _Kept:
    """The models that were built last, a large one or some small ones, where a copy is as good as another.

    Models of others may hold on to themselves.
    """

    def __init__(self) -> None:
        self._last: list[tuple[ModelSpec, int, Copies, int]] = []

    def copy_of(self, spec: ModelSpec, seed: int) -> nn.Module:
        for known, drawn, copies, _ in self._last:
            if (known, drawn) == (spec, seed):
                return copies.one()
        model = spec.build(seed)
        if spec.checkpoint is not None or not type(model).__module__.startswith(("timm.", "fedsim.")):
            return model
        size = parameter_count(model)
        small = [one for one in self._last if max(one[-1], size) <= SMALL]
        copies = Copies(model)
        self._last = [(copy.deepcopy(spec), seed, copies, size), *small[: KEPT - 1]]
        return copies.one()


_kept = _Kept()


def architecture_seed(seed: int) -> int:
    """The public seed of the initial weights, derived one way from a run's secret seed."""
    return derive_seed(seed, "architecture")


def normalisation(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation, per channel in [0, 1], that timm trained this model with."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return tuple(cfg.get("mean", (0.5, 0.5, 0.5))), tuple(cfg.get("std", (0.5, 0.5, 0.5)))


def input_sides(model: nn.Module) -> tuple[int, int]:
    """Height and width in pixels of the pictures that `model` reads."""
    patch_embed = getattr(model, "patch_embed", None)
    size = getattr(patch_embed, "img_size", None)
    if size is None:
        size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    return int(size[0]), int(size[1])


def input_size(model: nn.Module) -> int:
    """The side in pixels of the square pictures that `model` reads."""
    height, width = input_sides(model)
    if height != width:
        raise ConfigError("model.img_size", f"{height}x{width}", "a square picture")
    return height


def _tell_size(model: nn.Module, side: int) -> None:
    """Write the pictures' size where timm's models keep it; patch embeddings know theirs already."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    channels = next(iter(cfg.get("input_size", (3, side, side))))
    model.pretrained_cfg = {**cfg, "input_size": (channels, side, side)}  # type: ignore[assignment]


def parameter_count(model: nn.Module) -> int:
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


def _similar(name: str) -> str:
    from fedsim.models.registry import timm

    names = timm.list_models()
    ours = [one.name.removesuffix(".yaml") for one in files("conf").joinpath("model").iterdir()]
    found = get_close_matches(name, [*names, *ours], n=1, cutoff=0.6)
    if found and found[0] not in names:
        return f" Did you mean model={found[0]}?"
    hint = nearest(name, names) or " timm.list_models() names them all."
    return f"{hint} A model of your own is registered with timm by a package: docs/extending.md."
