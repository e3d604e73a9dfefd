"""Where a model's patches are, and whether it has position embeddings that masks can act on."""

from dataclasses import dataclass

from torch import nn

from defenses.mjp.embedding import POSITION
from fedsim.errors import ConfigError
from fedsim.models import find_roles, input_size


@dataclass(frozen=True)
class Layout:
    """A grid of patches, and a patch in pixels: (rows, columns) each."""

    grid: tuple[int, int]
    patch: tuple[int, int]

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def size(self) -> tuple[int, int]:
        """Size of a picture, in pixels."""
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]


def square_patches(height: int, width: int, side: int) -> Layout:
    """Raises ConfigError for pictures that patches of `side` pixels do not fill."""
    if height % side or width % side:
        raise ConfigError("defense.mjp.patch", side, f"a divisor of the pictures' {height}x{width} pixels")
    return Layout((height // side, width // side), (side, side))


def model_layout(model: nn.Module, patch: int | None) -> Layout:
    """The model's own patches, or square ones of so many pixels on a side.

    Raises:
        ConfigError: the model has no patches of its own and `patch` is None.
    """
    if patch is not None:
        side = input_size(model)
        return square_patches(side, side, patch)
    grid = find_roles(model).grid
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if grid is None or size is None:
        raise ConfigError("defense.mjp.patch", None, f"pixels: {type(model).__name__} has no patches of its own")
    return Layout(grid, (int(size[0]) // grid[0], int(size[1]) // grid[1]))


def position_embedding(model: nn.Module) -> nn.Parameter:
    """[1, rows, width]: one row for each patch, behind those of class tokens.

    Raises:
        ConfigError: there is none that is trained and added to every picture alike.
    """
    roles, parameters = find_roles(model), dict(model.named_parameters())
    embedding = parameters.get(POSITION)
    if embedding is not None and not embedding.requires_grad:
        expected = "a position embedding that is trained: here it is frozen, as finetune= or another defense has it"
        raise ConfigError("defense", "mjp", f"{expected}; mjp_jp (embedding=own dal=none) needs none")
    if embedding is None or roles.grid is None:
        expected = f"a model with a learnable absolute position embedding, {type(model).__name__} has none here"
        raise ConfigError("defense", "mjp", f"{expected}; mjp_jp (embedding=own dal=none) needs none")
    prefix = embedding.shape[1] - roles.grid[0] * roles.grid[1]
    if embedding.ndim != 3 or len(embedding) != 1 or not 0 <= prefix <= max(1, roles.prefix_tokens):
        raise ConfigError("defense", "mjp", f"one position embedding a patch, not {tuple(embedding.shape)}")
    if getattr(model, "dynamic_img_size", False) or not hasattr(model, "forward_features"):
        raise ConfigError("defense", "mjp", "a model whose position embeddings are not resampled")
    return embedding
