"""A generator from somebody's checkpoint, in one shape: latents and labels in, pictures in [0, 1] out."""

from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.errors import ConfigError, NotApplicable
from fedsim.models.generator import load_generator, note_training

WRAPPERS = ("generator", "g_ema", "model", "state_dict")
"""Keys under which checkpoints keep the state dict."""


class Generator:
    """A torch module that makes pictures, its weights, and what there is to know of its input.

    Args:
        checkpoint: `generator.safetensors` of fedsim-prior; or a state dict of `module`, as `.safetensors` or as
            `.pt` that is read with `weights_only=True`.
        module: by its `_target_`: maps [batch, latent] to pictures. With an attribute `num_classes` above 0 it takes
            labels as well; with `stages` (a list of modules, applied one after the other to `embed(latent, labels)`,
            or to the latent where it has no `embed`) its inner features can be searched. An `nn.Sequential` is its
            own stages. None: the checkpoint of fedsim-prior says.
        latent: length of the input; None: the module's attribute `latent`.
        symmetric: the module makes pictures in [-1, 1].
    """

    def __init__(
        self,
        checkpoint: str | None = None,
        module: nn.Module | None = None,
        latent: int | None = None,
        symmetric: bool = False,
    ) -> None:
        if module is None:
            if checkpoint is None:
                raise ConfigError(
                    "generator.checkpoint", None, "generator.safetensors of fedsim-prior, or a module too"
                )
            if symmetric:
                raise ConfigError("generator.symmetric", True, "false: fedsim-prior's make pictures in [0, 1]")
            module = load_generator(Path(checkpoint).expanduser())
        elif checkpoint is not None:
            _load(module, Path(checkpoint).expanduser())
        length = latent or getattr(module, "latent", None)
        if not isinstance(length, int) or length < 1:
            raise ConfigError("generator.latent", length, "the length of the generator's input")
        self.module = module.eval().requires_grad_(False)
        self.latent, self.symmetric, self._checkpoint = length, symmetric, checkpoint
        self.learned_from: frozenset[str] = getattr(module, "learned_from", frozenset())
        self.num_classes = int(getattr(module, "num_classes", 0))
        found: Any = module if isinstance(module, nn.Sequential) else getattr(module, "stages", ())
        self.stages: tuple[nn.Module, ...] = tuple(found)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of its classes by number, where its file has them."""
        found: tuple[str, ...] = getattr(self.module, "class_names", ())
        return found

    def to(self, device: torch.device) -> "Generator":
        self.module.to(device)
        return self

    def embed(self, latent: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None) -> Tensor:
        """What the first stage reads."""
        embed = getattr(self.module, "embed", None)
        if embed is None:
            return latent
        result: Tensor = embed(latent, labels) if self.num_classes else embed(latent)
        return result

    def run(self, features: Tensor, first: int, last: int | None = None) -> Tensor:
        """Stages `first` … `last` - 1 of features."""
        for stage in self.stages[first:last]:
            features = stage(features)
        return features

    def pictures(
        self, latent: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch c h w"]:
        """Pictures in [0, 1], differentiable."""
        return self.as_images(self.module(latent, labels) if self.num_classes else self.module(latent))

    def as_images(self, made: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch c h w"]:
        return 0.5 * (made + 1.0) if self.symmetric else made

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse pictures of another shape than the model's.

        Raises:
            NotApplicable: with both shapes.
        """
        if (made := self._makes()) != shape:
            raise NotApplicable(f"the generator makes pictures of {made}, the model reads {shape}")

    def check_image_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse as `check` does, before anything runs.

        Raises:
            ConfigError: it makes pictures of another shape, or takes no input of this length.
        """
        try:
            made = self._makes()
        except RuntimeError as error:
            what = " ".join(str(error).split())[:200]
            raise ConfigError(
                "generator.latent", self.latent, f"the length of the generator's input ({what})"
            ) from error
        if made != shape:
            given = ("checkpoint", self._checkpoint) if self._checkpoint else ("module", type(self.module).__name__)
            wanted = f"a generator of pictures of {_size(shape)}, which the model reads; this one makes {_size(made)}"
            advice = "fedsim-prior with the model and data settings of this call trains one that fits"
            raise ConfigError(f"generator.{given[0]}", given[1], f"{wanted} ({advice})")

    def _makes(self) -> tuple[int, ...]:
        """The shape of its pictures, made where the module is."""
        device = next(chain(self.module.parameters(), self.module.buffers()), torch.empty(0)).device
        with torch.no_grad():
            labels = torch.zeros(1, dtype=torch.long, device=device) if self.num_classes else None
            return tuple(self.pictures(torch.zeros(1, self.latent, device=device), labels).shape[1:])


def _size(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _load(module: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise ConfigError("generator.checkpoint", path, fault="there is no such file")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                note_training(module, file.metadata() or {})
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
            state = next((state[key] for key in WRAPPERS if key in state), state)
        module.load_state_dict(state)
    except (RuntimeError, SafetensorError, UnpicklingError, AttributeError, TypeError, EOFError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError("generator.checkpoint", path, f"a state dict that fits the module: {what}") from error
