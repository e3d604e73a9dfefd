"""A start that leaves open which patch is where, for models whose update hardly tells the order."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.analytic.linear.patches import patchify, unpatchify
from attacks.optimization.matching.victim import Victim, make_victim
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual import Residual
from fedsim.models.roles import ViTRoles

SUM_WEIGHT = 0.01
"""Of the rows that ask of each patch and of each place for one position in all."""


@dataclass(frozen=True)
class AnyOrder:
    """One image's patches x_i with positions of their own: tokens W·x_i + Σ_j P_ij·pos_j, x and P unknown.

    But for the position embedding's own gradient, what a transformer shares is the same for every order of its tokens.
    So each order of the right patches solves this one, and P then says where each belongs, by what it makes of
    positions outside the range of W.

    Attributes:
        residual: of pixels alone, each tensor by its norm.
        labels: [1].
    """

    residual: Residual
    victim: Victim
    roles: ViTRoles
    labels: Tensor

    @classmethod
    def of(cls, problem: Problem, residual: Residual, device: torch.device) -> "AnyOrder | None":
        """None where patches have no learnable position each, or tokens span all that positions do."""
        observation, labels = problem.observation, problem.labels
        roles = observation.roles
        name, grid = roles.pos_embed, roles.grid
        if labels is None or name is None or roles.patch_weight is None or grid is None or roles.patch is None:
            return None
        if problem.count > 1 or problem.later or observation.protocol.max_grad_norm is not None:
            return None
        if roles.rotary or roles.relative or roles.obstacles or set(residual.names) <= {name}:
            return None
        victim = make_victim(observation, problem.target, device, fused_attention=False)
        victim.model.double()
        params, fixed = ({n: _as_double(t) for n, t in part.items()} for part in (victim.params, victim.fixed))
        found = cls(residual, replace(victim, params=params, fixed=fixed), roles, labels)
        if victim.masked is not None or name not in {**params, **fixed}:
            return None
        width, pixels = found._weight.shape
        return found if pixels < width and len(found._positions) == math.prod(grid) else None

    @property
    def _state(self) -> dict[str, Tensor]:
        return {**self.victim.fixed, **self.victim.params}

    @property
    def _weight(self) -> Float[Tensor, "width pixels"]:
        return self._state[str(self.roles.patch_weight)].flatten(1)

    @property
    def _positions(self) -> Float[Tensor, "patches width"]:
        return self._state[str(self.roles.pos_embed)].flatten(0, -2)[self.roles.embedded_prefix_tokens :]

    def free(self, shape: tuple[int, ...]) -> Residual:
        """The residual of the pixels, then P, flat; without the position embedding's gradient, which knows places."""
        name, whole, count = str(self.roles.pos_embed), self.residual, len(self._positions)
        names = [one for one in whole.names if one != name]
        sizes = [self.victim.params[one].numel() for one in whole.names]
        kept = torch.cat([torch.full((size,), one != name) for one, size in zip(whole.names, sizes, strict=True)])
        params = {one: tensor for one, tensor in self.victim.params.items() if one != name}

        def shared(u: Tensor) -> tuple[Tensor, ...]:
            images, P = u[: -(count**2)].view(shape), u[-(count**2) :].view(count, count)
            victim = replace(self.victim, fixed={**self.victim.fixed, name: self._moved(P)})
            found = victim.gradient(params, images, self.labels)
            return tuple(found[one] for one in names)

        def sums(u: Tensor) -> Tensor:
            P = u[-(count**2) :].view(count, count)
            return SUM_WEIGHT * (torch.cat([P.sum(0), P.sum(1)]) - 1.0)

        kept = kept.to(whole.target.device)
        return Residual(shared, whole.target[kept], whole.weights[kept], whole.floor, tuple(names), sums)

    def begin(self, x: Float[Tensor, " pixels"]) -> Float[Tensor, " unknowns"]:
        """The image's patches where they are."""
        return torch.cat([x, torch.eye(len(self._positions)).to(x).flatten()])

    def placed(self, u: Float[Tensor, " unknowns"], shape: tuple[int, ...]) -> Float[Tensor, " pixels"]:
        """The image with each patch where its positions are the nearest, all in all."""
        W, positions, count = self._weight, self._positions, len(self._positions)
        grid, patch = self.roles.grid, self.roles.patch
        assert grid is not None
        assert patch is not None
        own, inverse = u[-(count**2) :].view(count, count) @ positions, torch.linalg.pinv(W)
        outside = torch.eye(len(W)).to(W) - W @ inverse
        apart = torch.cdist(own @ outside, positions @ outside)
        places = torch.as_tensor(linear_sum_assignment(apart.cpu().numpy())[1])
        patches = patchify(u[: -(count**2)].view(shape), patch) + (own - positions[places]) @ inverse.T
        return unpatchify(torch.zeros_like(patches).index_copy(0, places.to(u.device), patches), grid, patch).flatten()

    def _moved(self, P: Float[Tensor, "patches patches"]) -> Tensor:
        whole = self._state[str(self.roles.pos_embed)]
        rows = whole.flatten(0, -2)
        return torch.cat([rows[: len(rows) - len(P)], P @ self._positions]).view(whole.shape)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
