"""A start that leaves open which patch is where, for models whose update hardly tells the order."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.analytic.linear.patches import patchify, unpatchify
from attacks.optimization.second_order.residual import Residual
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from fedsim.models.roles import ViTRoles

SUM_WEIGHT = 0.01
"""Of the rows that ask of each patch and of each place for one position in all."""


@dataclass(frozen=True)
class SoftPermutation:
    """One image's patches x_i with positions of their own: tokens W·x_i + Σ_j P_ij·pos_j, x and P unknown.

    But for the position embedding's own gradient, what a transformer shares is the same for every order of its tokens.
    So each order of the right patches solves this one, and P then says where each belongs, by what it makes of
    positions outside the range of W.

    Attributes:
        point: the image's pixels, flat, of z.
    """

    known_logits: KnownLogits
    roles: ViTRoles
    point: Callable[[Tensor], Tensor]

    @classmethod
    def of(
        cls, known_logits: KnownLogits, roles: ViTRoles, point: Callable[[Tensor], Tensor] = lambda x: x
    ) -> "SoftPermutation | None":
        """None for several images, where patches have no learnable position each, or tokens span all positions do."""
        name, grid = roles.pos_embed, roles.grid
        if name is None or roles.patch_weight is None or grid is None or roles.patch is None:
            return None
        if (
            len(known_logits.labels) > 1
            or roles.rotary
            or roles.relative
            or roles.obstacles
            or set(known_logits.residual.names) <= {name}
        ):
            return None
        found = cls(known_logits, roles, point)
        if name not in known_logits.state:
            return None
        width, pixels = found._weight.shape
        return found if pixels < width and len(found._positions) == math.prod(grid) else None

    @property
    def _weight(self) -> Float[Tensor, "width pixels"]:
        return self.known_logits.state[str(self.roles.patch_weight)].flatten(1)

    @property
    def _positions(self) -> Float[Tensor, "patches width"]:
        return self.known_logits.state[str(self.roles.pos_embed)].flatten(0, -2)[self.roles.embedded_prefix_tokens :]

    def free(self, shape: tuple[int, ...]) -> Residual:
        """The residual of z, then P, flat; without the position embedding's gradient, which knows places."""
        name, known_logits = str(self.roles.pos_embed), self.known_logits
        whole, weights = known_logits.residual, known_logits.victim.params
        names = [one for one in whole.names if one != name]
        kept = torch.cat([torch.full((weights[one].numel(),), one != name) for one in whole.names])
        params = {one: weights[one] for one in names}

        def shared(u: Tensor) -> tuple[Tensor, ...]:
            found = known_logits.gradient(params, self.pixels(u).view(shape), {name: self._moved(self._places(u))})
            return tuple(found[one] for one in names)

        def before(u: Tensor) -> Tensor:
            P = self._places(u)
            sums = SUM_WEIGHT * (torch.cat([P.sum(0), P.sum(1)]) - 1.0)
            return torch.cat([sums, known_logits.rows(self.pixels(u).view(shape), {name: self._moved(P)})])

        kept = kept.to(whole.target.device)
        return Residual(shared, whole.target[kept], whole.weights[kept], whole.floor, tuple(names), before=before)

    def begin(self, x: Float[Tensor, " varied"]) -> Float[Tensor, " unknowns"]:
        """The image's patches where they are."""
        return torch.cat([x, torch.eye(len(self._positions)).to(x).flatten()])

    def pixels(self, u: Float[Tensor, " unknowns"]) -> Float[Tensor, " pixels"]:
        return self.point(u[: -(len(self._positions) ** 2)])

    def placed(self, u: Float[Tensor, " unknowns"], shape: tuple[int, ...]) -> Float[Tensor, " pixels"]:
        """The image with each patch where its positions are the nearest; as it is where patches do not cover it."""
        W, positions = self._weight, self._positions
        grid, patch = self.roles.grid, self.roles.patch
        assert grid is not None
        assert patch is not None
        if (grid[0] * patch[0], grid[1] * patch[1]) != shape[2:]:
            return self.pixels(u)
        own, inverse = self._places(u) @ positions, torch.linalg.pinv(W)
        outside = torch.eye(len(W)).to(W) - W @ inverse
        apart = torch.cdist(own @ outside, positions @ outside)
        places = torch.as_tensor(linear_sum_assignment(apart.cpu().numpy())[1])
        patches = patchify(self.pixels(u).view(shape), patch) + (own - positions[places]) @ inverse.T
        return unpatchify(torch.zeros_like(patches).index_copy(0, places.to(u.device), patches), grid, patch).flatten()

    def _places(self, u: Float[Tensor, " unknowns"]) -> Float[Tensor, "patches patches"]:
        count = len(self._positions)
        return u[-(count**2) :].view(count, count)

    def _moved(self, P: Float[Tensor, "patches patches"]) -> Tensor:
        whole = self.known_logits.state[str(self.roles.pos_embed)]
        rows = whole.flatten(0, -2)
        return torch.cat([rows[: len(rows) - len(P)], P @ self._positions]).view(whole.shape)
