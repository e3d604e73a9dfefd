"""Row spaces of whatever projections are shared: what `row_space` does with fewer gradients."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.patch_gradient import check_embedding, known_prefix, pixels_of
from attacks.analytic.row_space.attack import Spaces, make_readers, to_image
from attacks.analytic.row_space.first_norm import FirstNorm, first_norm, plain_blocks
from attacks.analytic.row_space.later_norms import Readers, refine
from attacks.analytic.row_space.solution import solve
from attacks.analytic.row_space.subspace import Subspace, row_space
from attacks.analytic.row_space.system import patch_system
from attacks.base import Attack, Certificate, Reconstruction
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

FLOORS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Floors under the noise of the equations, one Gauss-Newton step each."""


class RowSpaces(Attack):
    """A picture from the gradients of some of the first projections, without those of embedding or patch projection.

    u_t = LN(z_t) lies in the row space of ∂L/∂W_qkv: D - T linear equations for each patch. Where they outnumber its
    pixels, nothing else is needed; ∂L/∂W_p, where it is shared, leaves fewer unknowns. In APRIL's architecture u = z.
    The next projections read LN(z_t + r_t), with r_t from the blocks before: the same equations, no longer linear.

    Args:
        search: only where the first attention's gradient is missing: Gauss-Newton on the next projections', from a
            grey picture. Otherwise only where it is shared.
        projections: so many, in the model's order: first attention, first MLP, second attention, …
        levels: as in `row_space`.
    """

    def __init__(self, search: bool = False, projections: int = 4, levels: int | None = 255) -> None:
        self.search = search
        self.projections = projections
        self.levels = levels

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for other models than pre-norm ViTs and APRIL's, withheld gradients, and batches."""
        if observation.protocol.batch_size > 1:
            raise NotApplicable("one picture in an update: the tokens of several share their row spaces")
        direct = observation.roles.direct_attention
        norm = position_embedding(observation, device) if direct else first_norm(observation, device)
        tokens = len(norm.known) + norm.prefix_tokens
        width = len(norm.patch_weight)
        if tokens >= width:
            raise NotApplicable(f"{tokens} tokens >= width {width}: their row space is everything")
        gradients = self._gradients(observation)
        if self.search != (gradients[0] is None):
            which = "shared: nothing is left to search" if self.search else "withheld"
            raise NotApplicable(f"the gradient of the first attention's projection is {which}")
        image = _picture(observation, norm, device)
        if gradients[0] is None:
            if direct:
                raise NotApplicable("a first block of another kind: the next projections are not modelled")
            found = [everything(width, device) if g is None else row_space(g.to(device), tokens) for g in gradients]
            return _searched(observation, norm, image, found)
        spaces = Spaces(norm, image, row_space(gradients[0].to(device), tokens))
        return _direct(observation, spaces) if direct else self._linear(observation, spaces)

    def _linear(self, observation: Observation, spaces: Spaces) -> Reconstruction:
        pixels = pixels_of(observation, spaces.norm.patch_weight)
        system = patch_system(spaces.norm, spaces.image.basis, spaces.tokens)

        def later(short: bool) -> Readers | None:
            return make_readers(observation, spaces, self.projections - 1 if short else 1)

        solution = solve(system, spaces.norm, spaces.image, spaces.tokens, pixels, later, self.levels)
        claim = Certificate("certified", "whole pixel levels satisfy every equation")
        certificate = claim if solution.levels_hold else Certificate("uncertified", "pixels are no whole levels")
        return Reconstruction(images=to_image(observation, solution.patches, pixels), certificate=certificate)

    def _gradients(self, observation: Observation) -> list[Tensor | None]:
        """Of the projections up to the last shared one; None for the withheld.

        Raises:
            NotApplicable: none is shared.
        """
        stem = str(observation.roles.qkv_weight).removesuffix("0.attn.qkv.weight")
        result = []
        for number in range(self.projections):
            part = "mlp.fc1" if number % 2 else "attn.qkv"
            gradient = observation.gradient.get(f"{stem}{number // 2}.{part}.weight")
            usable = gradient is not None and bool(gradient.any()) and bool(gradient.isfinite().all())
            result.append(gradient if usable else None)
        while result and result[-1] is None:
            result.pop()
        if not result:
            raise NotApplicable(f"the gradients of the first {self.projections} projections are withheld")
        return result


def position_embedding(observation: Observation, device: torch.device) -> FirstNorm:
    """What the first attention reads in APRIL's architecture, z = W_p p + b_p + e: scale 1, shift 0, nothing centred.

    Raises:
        NotApplicable: the embedding is not that.
    """
    check_embedding(observation)
    roles, state = observation.roles, observation.global_state
    if roles.patch_weight is None or roles.pos_embed is None or roles.qkv_weight is None:
        raise NotApplicable("the model has no patch projection, position embedding or fused qkv projection")
    weight = state[roles.patch_weight].double().flatten(1).to(device)
    embedding = state[roles.pos_embed].double().flatten(0, -2).to(device)
    known = embedding[roles.embedded_prefix_tokens :]
    if roles.patch_bias is not None:
        known = known + state[roles.patch_bias].double().to(device)
    one = torch.ones_like(weight[:, 0])
    return FirstNorm(weight, known, one, torch.zeros_like(one), roles.prefix_tokens)


def _direct(observation: Observation, spaces: Spaces) -> Reconstruction:
    """Q (W_p V a_n + b_p + e_n) = 0 with Q off the row space of ∂L/∂W_qkv; without norm the equations are exact."""
    norm, null = spaces.norm, spaces.tokens.null
    equations = null @ norm.patch_weight @ spaces.image.basis.T
    solved = torch.linalg.lstsq(
        equations, -(null @ norm.known.T), driver="gelsd" if null.device.type == "cpu" else None
    )
    patches = solved.solution.T @ spaces.image.basis
    return Reconstruction(images=to_image(observation, patches, pixels_of(observation, norm.patch_weight)))


def everything(width: int, device: torch.device) -> Subspace:
    """The row space of a gradient that nobody shared: no equation."""
    one = torch.eye(width, dtype=torch.float64, device=device)
    return Subspace(one, one[:0], torch.ones(width, dtype=torch.float64, device=device), math.inf)


def _picture(observation: Observation, norm: FirstNorm, device: torch.device) -> Subspace:
    """Where patches may lie: the row space of ∂L/∂W_p, or anywhere."""
    gradient = observation.gradient.get(str(observation.roles.patch_weight))
    if gradient is None or not bool(gradient.any()) or not bool(gradient.isfinite().all()):
        return everything(norm.patch_weight.shape[1], device)
    flat = gradient.to(device).flatten(1)
    return row_space(flat, min(len(norm.known), *flat.shape), complete=False)


def _searched(observation: Observation, norm: FirstNorm, image: Subspace, spaces: list[Subspace]) -> Reconstruction:
    model = plain_blocks(observation)
    if model is None:
        raise NotApplicable("the blocks are not timm's plain pre-norm blocks, or dropout makes them random")
    model = model.to(norm.known.device)
    start: Float[Tensor, "tokens unknowns"] = norm.known.new_zeros(len(norm.known), len(image.basis))
    readers = Readers(norm, spaces, model, known_prefix(observation).to(norm.known))
    base = norm.known.new_zeros(len(norm.known), image.basis.shape[1])
    refined = refine(readers, base, image.basis, start, FLOORS)
    pixels = pixels_of(observation, norm.patch_weight)
    images = to_image(observation, base + refined.coordinates @ image.basis, pixels)
    values = {"misfit": refined.misfit} if math.isfinite(refined.misfit) else {}
    return Reconstruction(images=images, certificate=Certificate("uncertified", "a local solution", values))
