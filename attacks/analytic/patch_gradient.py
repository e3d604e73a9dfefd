"""The picture from the gradients of patch projection and position embedding, by one linear system."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.analytic.linear.certificate import finite, judge, relative_error, solution_values
from attacks.analytic.linear.errors_in_variables import NoisyRows, complete_patches
from attacks.analytic.linear.least_squares import PatchSolution, solve_patches
from attacks.analytic.linear.patches import PatchPixels, patchify, unpatchify
from attacks.analytic.linear.pixel_grid import EXCESS, MAX_WRONG, GridSolution, round_to_grid
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import LinearSystem, linear_error, own_equations
from attacks.label.one_example.label import single_label
from attacks.noise import is_even, noise_of_gradient
from attacks.positions import masked_rows, without_regression
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.effects import AddsPositions, MasksPositions
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation

LOCALISATIONS = ("subtract", "keep")


class PatchGradient(Attack):
    """Solve ∂L/∂W_p = Gᵀ X, with G the gradient of the position embedding, for the patches X.

    Nothing behind the token matters: any depth, pooling, norm placement or dropout. Exact for one image and fewer
    patches than the model is wide; as many where no LayerNorm centres the tokens. A larger batch gives one mixed
    picture, never certified. Behind noise of a known size it solves for what stands out of the noise, and public images
    complete the rest, unless rcond is given.

    Args:
        rcond: singular values below rcond·largest are dropped; None chooses by generalised cross-validation.
        equilibrate: scale the token gradients to unit norm before the decomposition.
        weigh: weigh the equations by their rounding errors where these dominate.
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits): the solution is
            rounded to them where these satisfy all equations; None: never.
        localisation: what becomes of the term that a position regression (MJP's, say) adds to the gradient:
            `subtract`, as a server does that knows the defense, or `keep`, for one that is told nothing of it.
    """

    needs = Needs(roles=("pos_embed", "patch_weight"), sizes=True, auxiliary=True)
    shrinks_to_mean = True

    def __init__(
        self,
        rcond: float | None = None,
        equilibrate: bool = True,
        weigh: bool = True,
        levels: int | None = 255,
        localisation: str = "subtract",
    ) -> None:
        require("attack.patch_gradient.localisation", localisation, localisation in LOCALISATIONS, "subtract or keep")
        self.rcond = rcond
        self.equilibrate = equilibrate
        self.weigh = weigh
        self.levels = levels
        self.localisation = localisation

    def check(self, observation: Observation) -> None:
        check_embedding(observation)
        super().check(observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for models whose patch embedding is not one linear map, and withheld gradients."""
        check_embedding(observation)
        roles = observation.roles
        assert roles.grid is not None
        assert roles.patch is not None
        rows = self._rows(observation).to(device)
        token_grads = rows[roles.embedded_prefix_tokens :]
        weight_grad = observation.gradient_of("patch_weight").to(device).flatten(1)
        if not bool(weight_grad.any()):
            raise NotApplicable("patch_weight's gradient is zero: it was not trained")
        clean = observation.update.kind == "gradient" and observation.keeps("equations")
        eps = observation.eps if clean else None
        solution = solve_patches(token_grads, weight_grad, self.rcond, self.equilibrate, self.weigh, eps)
        rounded = self._round(observation, token_grads, weight_grad, solution)
        patches = solution.patches if rounded is None else rounded.patches
        if rounded is None and self.rcond is None and is_even(observation):
            patches = _completed(observation, token_grads, weight_grad)
        image = unpatchify(patches, roles.grid, roles.patch)
        return Reconstruction(
            images=observation.to_unit_range(image).clamp(0.0, 1.0),
            labels=single_label(observation) if observation.num_images == 1 else None,
            certificate=_certificate(observation, rows, solution, rounded),
        )

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        assert result.images is not None
        assert observation.roles.patch is not None
        require_image(observation, result.images, patch_layer(observation))
        prefix = observation.roles.embedded_prefix_tokens
        shared, found = (
            LinearSystem(self._rows(one)[prefix:], one.gradient_of("patch_weight").flatten(1))
            for one in (observation, again)
        )
        patches = patchify(observation.normalised(result.images.cpu()), observation.roles.patch)
        errors = linear_error(shared, found, patches, observation.eps)
        return own_equations(errors, observation.std)

    def _rows(self, observation: Observation) -> Float[Tensor, "rows width"]:
        return (embedding_rows if self.localisation == "subtract" else shared_rows)(observation)

    def _round(
        self,
        observation: Observation,
        token_grads: Float[Tensor, "tokens width"],
        weight_grad: Float[Tensor, "width pixels"],
        solution: PatchSolution,
    ) -> GridSolution | None:
        """The exact patches, where a whole number of levels in every pixel satisfies all equations; else None."""
        if self.levels is None or math.isnan(solution.noise_variance):
            return None
        pixels = pixels_of(observation, weight_grad)
        step, offset = 1.0 / (self.levels * pixels.std), -pixels.mean / pixels.std
        rounded = round_to_grid(
            token_grads,
            weight_grad,
            solution.noise,
            solution.noise_variance,
            step,
            offset,
            self.levels,
            precision=observation.eps,
        )
        return rounded if rounded.excess <= EXCESS and rounded.expected_wrong <= MAX_WRONG else None


def _completed(
    observation: Observation, token_grads: Float[Tensor, "tokens width"], weight_grad: Float[Tensor, "width pixels"]
) -> Float[Tensor, "tokens pixels"]:
    roles = observation.roles
    assert roles.patch is not None
    assert roles.pos_embed is not None
    noise = noise_of_gradient(observation)
    assert noise is not None
    std = float(noise[roles.pos_embed].square().mean().sqrt())
    prior: ImagePrior = observation.image_prior or GaussianPrior()
    centre = patchify(observation.normalised(prior.centre((1, *observation.image_shape))), roles.patch)
    return complete_patches(NoisyRows(token_grads, std), weight_grad, centre.to(token_grads)).patches


def check_embedding(observation: Observation) -> None:
    """Refuse a model whose patch tokens are not W_p p_n + b_p + e_n."""
    roles = observation.roles
    if roles.obstacles:
        raise NotApplicable("; ".join(roles.obstacles))
    if roles.grid is None or roles.patch is None:
        raise NotApplicable("the model has no patch grid")
    covered = (roles.grid[0] * roles.patch[0], roles.grid[1] * roles.patch[1])
    if covered != observation.image_shape[1:]:
        height, width = observation.image_shape[1:]
        raise NotApplicable(
            f"pictures of {height}x{width} px on a patch grid of {covered[0]}x{covered[1]} px: "
            "padded pictures, or resampled position embeddings"
        )


def patch_layer(observation: Observation) -> str:
    """The name of the patch projection, which must be given the image itself."""
    assert observation.roles.patch_weight is not None
    return observation.roles.patch_weight.rpartition(".")[0]


def pixels_of(observation: Observation, weight: Float[Tensor, "width pixels"]) -> PatchPixels:
    """Of the patches that the patch projection's weight, or its gradient, reads."""
    roles = observation.roles
    assert roles.grid is not None
    assert roles.patch is not None
    per_channel = weight.shape[1] // len(observation.std)
    mean = weight.new_tensor(observation.mean).repeat_interleave(per_channel)
    std = weight.new_tensor(observation.std).repeat_interleave(per_channel)
    return PatchPixels(mean, std, roles.grid, roles.patch)


def known_embedding(observation: Observation) -> Float[Tensor, "rows width"]:
    """e_n as the model adds it, from the global state: float64, one row a token, those of prefix tokens first.

    For models with a position embedding; without the bias of the patch projection. Masked rows show, and are the
    embedding that they share.
    """
    state, position = observation.global_state, observation.roles.pos_embed
    assert position is not None
    embedding = state[position].double()
    for effect in observation.effects:
        if isinstance(effect, AddsPositions):
            embedding = embedding + state[effect.embedding].double()
    rows, masked = embedding.reshape(-1, embedding.shape[-1]), masked_rows(observation)
    masking = observation.effect(MasksPositions)
    if masked is None or masking is None:
        return rows
    return torch.where(masked[:, None], state[masking.embedding].double(), rows)


def known_prefix(observation: Observation) -> Float[Tensor, "prefix width"]:
    """Class and register tokens as the first block reads them, float64, from the global state."""
    roles, state, embedding = observation.roles, observation.global_state, known_embedding(observation)
    tokens = [state[name].double().reshape(-1, embedding.shape[1]) for name in roles.prefix_names]
    prefix = torch.cat(tokens) if tokens else embedding[:0]
    rows = roles.embedded_prefix_tokens
    return prefix + embedding[:rows] if rows else prefix


def embedding_rows(observation: Observation) -> Float[Tensor, "rows width"]:
    """`shared_rows` less what a regression of the embeddings added: ∂L/∂pos_embed of the classification loss alone."""
    rows, prefix = shared_rows(observation), observation.roles.embedded_prefix_tokens
    return torch.cat([rows[:prefix], without_regression(observation, rows[prefix:])])


def shared_rows(observation: Observation) -> Float[Tensor, "rows width"]:
    """∂L/∂pos_embed as it was shared, one row a token, those of prefix tokens first.

    Raises:
        NotApplicable: the gradient was not shared, is zero or not finite, or has not one row for each patch.
    """
    roles = observation.roles
    gradient = observation.gradient_of("pos_embed")
    rows = gradient.reshape(-1, gradient.shape[-1])
    assert roles.grid is not None
    expected = roles.embedded_prefix_tokens + roles.grid[0] * roles.grid[1]
    if len(rows) != expected:
        raise NotApplicable(f"pos_embed has {len(rows)} rows for {expected} tokens")
    if not bool(rows.any()):
        raise NotApplicable("pos_embed's gradient is zero: it was not trained")
    return rows


def _certificate(
    observation: Observation,
    rows: Float[Tensor, "rows width"],
    solution: PatchSolution,
    rounded: GridSolution | None,
) -> Certificate:
    roles, gradient = observation.roles, observation.gradient
    token_grads = rows[roles.embedded_prefix_tokens :]
    variance = sum(std**2 for std in observation.std) / len(observation.std)
    values = solution_values(solution, token_grads.shape[1], variance)
    bias_grad = gradient.get(roles.patch_bias) if roles.patch_bias else None
    if bias_grad is not None:
        values["identity"] = relative_error(token_grads.sum(dim=0).cpu(), bias_grad.cpu())
    class_grad = gradient.get(roles.class_token) if roles.class_token else None
    if class_grad is not None and roles.embedded_prefix_tokens:
        values["class_token"] = relative_error(rows[0].cpu(), class_grad.flatten().cpu())
    examples = observation.num_images
    if rounded is not None:
        values |= {"grid_excess": rounded.excess, "grid_expected_wrong": rounded.expected_wrong}
    if rounded is not None and examples == 1:
        reason = f"whole pixel levels satisfy every equation, {rounded.expected_wrong:.0e} wrong pixels expected"
        return Certificate("certified", reason, finite(values))
    return judge(values, examples, "Σ_n G_n = ∂L/∂b_p")
