"""What an attack varies, and the pictures that it stands for."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.analytic.linear.patches import unpatchify
from attacks.analytic.row_space.attack import batch_subspace
from fedsim.errors import NotApplicable, one_of, require
from fedsim.observation import Observation

INITIAL = ("normal", "uniform")


class Parametrisation(ABC):
    """Candidates as a tensor of free numbers. Stateless between victims: `prepare` gives what belongs to one.

    Attributes:
        learned_from: as `Attack.learned_from`.
    """

    learned_from: frozenset[str] = frozenset()

    @property
    def class_names(self) -> tuple[str, ...]:
        """As `Attack.class_names`."""
        return ()

    def check_image_shape(self, image_shape: tuple[int, ...]) -> None:  # noqa: B027 - most span any shape
        """Refuse images of a shape that cannot be served, as `Attack.check_image_shape`."""

    @abstractmethod
    def prepare(
        self,
        observation: Observation,
        count: int,
        device: torch.device,
        labels: Int[Tensor, " batch"] | None = None,
    ) -> "Space":
        """The search space of `count` pictures.

        Args:
            labels: of the pictures, None where they are searched for too; only what is made for a class reads them.

        Raises:
            NotApplicable: the observation does not span one.
        """


class Space(ABC):
    """The search space of one victim.

    Attributes:
        labels: [batch], the class that is asked for at each place; None where a picture of any class can be made.
    """

    labels: Int[Tensor, " batch"] | None = None

    @abstractmethod
    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        """A start of one candidate, on the CPU."""

    @abstractmethod
    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        """The model's input of each candidate, differentiable."""

    def project(self, point: Float[Tensor, "candidates *shape"]) -> None:  # noqa: B027 - most spaces have no bounds
        """Move a point back into the space, in place."""

    def penalty(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, " candidates"]:
        """What is added to the objective for a point that is unlikely in itself, differentiable."""
        return point.new_zeros(len(point))


class Pixels(Parametrisation):
    """The pixels of the model's input.

    Args:
        init: `normal` of the model's input, or `uniform` over [0, 1].
        scale: factor on `normal`.
        boxed: keep pixels within [0, 1].
    """

    def __init__(self, init: str = "normal", scale: float | int = 1.0, boxed: bool = False) -> None:
        one_of("parametrisation.init", init, INITIAL)
        require("parametrisation.scale", scale, scale == 1.0 or init == "normal", f"1 with init={init}, which has none")
        self.init, self.scale, self.boxed = init, float(scale), boxed

    def prepare(
        self,
        observation: Observation,
        count: int,
        device: torch.device,
        labels: Int[Tensor, " batch"] | None = None,
    ) -> "PixelSpace":
        return PixelSpace(self, observation, count, device)


class PixelSpace(Space):
    """Pixels of one victim's pictures."""

    def __init__(self, settings: Pixels, observation: Observation, count: int, device: torch.device) -> None:
        self._settings = settings
        self._shape = (count, *observation.image_shape)
        mean, std = (
            torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (observation.mean, observation.std)
        )
        self._mean, self._std = mean, std
        self._low, self._high = (-mean / std).float().to(device), ((1.0 - mean) / std).float().to(device)

    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        if self._settings.init == "normal":
            return self._settings.scale * torch.randn(self._shape, generator=rng)
        return ((torch.rand(self._shape, generator=rng) - self._mean) / self._std).float()

    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        return point

    def project(self, point: Float[Tensor, "candidates *shape"]) -> None:
        if self._settings.boxed:
            torch.maximum(torch.minimum(point, self._high.to(point)), self._low.to(point), out=point)


class PatchRowSpace(Parametrisation):
    """Patches base_n + F c_n within the row spaces of two gradients; c is varied.

    For a batch the gradients of patch projection and first attention leave each patch known up to a subspace
    of min(pixels, patches·(batch - 1)) dimensions.

    Args:
        scale: standard deviation of the starting pixels within the subspace.
    """

    def __init__(self, scale: float | int = 0.5) -> None:
        self.scale = float(scale)

    def prepare(
        self,
        observation: Observation,
        count: int,
        device: torch.device,
        labels: Int[Tensor, " batch"] | None = None,
    ) -> "RowSpaceCoordinates":
        if count < 2:
            raise NotApplicable("one picture leaves nothing free in its row space: attack=[row_space] solves for it")
        return RowSpaceCoordinates(self.scale, observation, count, device)


class RowSpaceCoordinates(Space):
    """Coordinates of one victim's patches in their row space."""

    def __init__(self, scale: float, observation: Observation, count: int, device: torch.device) -> None:
        base, factors = batch_subspace(observation, device)
        assert observation.roles.grid is not None
        assert observation.roles.patch is not None
        self._base, self._factors = base.float(), factors.float()
        self._grid, self._patch = observation.roles.grid, observation.roles.patch
        self._scale, self._count = scale, count

    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        shape = (self._count, self._base.shape[0], self._factors.shape[1])
        return self._scale * torch.randn(shape, generator=rng)

    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        patches = self._base.to(point) + point @ self._factors.to(point).T
        images = [unpatchify(one, self._grid, self._patch) for one in patches.flatten(0, 1)]
        result: Tensor = torch.cat(images).unflatten(0, patches.shape[:2])
        return result
