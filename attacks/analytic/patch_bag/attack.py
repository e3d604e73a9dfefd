"""The image of a model that adds no positions to its patches: they are found as a set, and then put in order."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.analytic.first_block.subspaces import TokenFit
from attacks.analytic.linear.patches import patchify, unpatchify
from attacks.analytic.linear.pixel_grid import whole_levels
from attacks.analytic.patch_bag.attention import pair_logits
from attacks.analytic.patch_bag.block import UnplacedBlock, unplaced_block
from attacks.analytic.patch_bag.matching import by_gradient, by_outputs
from attacks.analytic.patch_bag.order import find_among_twins, find_order, order_of_pairs
from attacks.analytic.patch_bag.search import find_tokens
from attacks.analytic.patch_bag.tokens import TokenSystem, token_system
from attacks.analytic.patch_gradient import patch_layer
from attacks.analytic.row_space.first_norm import first_block_layers, require_read_once, spanned_gradients
from attacks.base import Attack, Certificate, Needs, PsnrBound, Reconstruction
from attacks.certificate.input_reached import require_image
from attacks.certificate.linear import own_equations
from attacks.label.one_example.label import single_label
from attacks.patch_order import expected_image
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation

NOISE_FACTOR = 20.0
TOLERANCE = (1e-9, 1e-2)
"""Least and largest tolerance of a relative residual; mixtures of patches were seen at 1e-2 and above."""

ORDERED = 0.1
"""Largest error of an order that counts as found: random ones have about 1."""

UNIQUE, ROUNDING = 3.0, 1e-6
"""How many times its error the next best order must have, and how much at least, for the order to be told apart."""


class PatchBag(Attack):
    """Solve block 0 for the patches as a set, then order them by what its attention was found to read.

    For one image and blocks that read patches without a position added to them: rotary, relative, or none at all.
    Exact where every patch and the order are found, which asks for float64 gradients and fewer tokens than the width;
    without any positions in the attention the patches are known up to their order, and public images say where each
    is likely to be.

    Args:
        starts: at most so many random starts for the patches; the search ends when all are found.
        steps: Levenberg-Marquardt steps of a start.
        orders: random orders from which the order is looked for.
        places: up to so many, an order that the first attention does not tell is looked for in the whole gradient.
        levels: the largest pixel value of pictures whose pixels are whole numbers (255 for 8 bits): rounded to them
            where all are near; None: never.
    """

    needs = Needs(roles=("patch_weight", "qkv_weights"), sizes=True, auxiliary=True)
    shrinks_to_mean = True

    def __init__(
        self, starts: int = 512, steps: int = 40, orders: int = 8, places: int = 36, levels: int | None = 255
    ) -> None:
        for key, value in (("starts", starts), ("steps", steps), ("orders", orders)):
            require(f"attack.patch_bag.{key}", value, value >= 1, "1 or more")
        require("attack.patch_bag.levels", levels, levels is None or levels >= 1, "1 or more, or null")
        require("attack.patch_bag.places", places, places >= 0, "0 or more")
        self.starts, self.steps, self.orders, self.places, self.levels = starts, steps, orders, places, levels

    def check(self, observation: Observation) -> None:
        unplaced_block(observation, torch.device("cpu"))
        super().check(observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable for batches and local steps, other blocks, withheld gradients, and too many tokens."""
        system = _system(observation, device)
        tolerance = min(max(NOISE_FACTOR * system.noise, TOLERANCE[0]), TOLERANCE[1])
        x, trace = find_tokens(system, tolerance, self.starts, self.steps, rng)
        bag = _bag(system, x)
        values = {
            "equations": float(system.equations),
            "unknowns": float(system.free),
            "gap": system.gap,
            "tolerance": tolerance,
            "patches_found": len(x) / system.distinct,
            "distinct_patches": float(system.distinct),
        }
        if len(x) < system.distinct:
            reason = f"{len(x)} of {system.distinct} patches were found within the starts"
            return self._unordered(observation, bag, Certificate("uncertified", reason, values), trace)
        order, apart = self._order(observation, system, bag, values, rng)
        if not apart:
            reason = "the patches up to their order: nothing that was shared tells it apart"
            return self._unordered(observation, bag, Certificate("uncertified", reason, values), trace, order)
        image, rounded = self._image(observation, bag.patches[order])
        values["forward_residual"] = _forward_residual(system, _unpatched(observation, bag.patches[order]))
        values["rounded_to_levels"] = float(rounded)
        return Reconstruction(
            images=image,
            labels=single_label(observation),
            certificate=_judge(values, tolerance),
            trace=tuple(trace),
            solves_equations=values["forward_residual"] <= tolerance,
        )

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        """Token by token: what the MLP's equations make of their noise, and how far the patches are off their set."""
        assert result.images is not None
        require_image(observation, result.images, patch_layer(observation), *first_block_layers(observation))
        image = observation.normalised(result.images.cpu())
        first, second = (_system(one, torch.device("cpu")) for one in (observation, again))
        errors = _fit(first, observation, image).errors(_fit(second, observation, image), first.noise)
        if errors is None:
            return None
        pixels = first.block.norm.patch_weight.shape[1]
        return own_equations(errors.square().mean().sqrt()[None] / pixels**0.5, observation.std)

    def _order(
        self, observation: Observation, system: TokenSystem, bag: "_Bag", values: dict[str, float], rng: torch.Generator
    ) -> tuple[Int[Tensor, " places"], bool]:
        """The likeliest order by the first attention, then by the whole gradient, and whether these tell it apart."""
        grid, tokens = observation.roles.grid, len(bag.patches)
        assert grid is not None
        places = grid[0] * grid[1]
        placed = observation.roles.rotary or observation.roles.relative
        if not placed and tokens == places:
            return torch.arange(places), False

        def picture(patches: Float[Tensor, "images places pixels"]) -> Float[Tensor, "images c h w"]:
            return torch.cat([_unpatched(observation, one) for one in patches])

        starts = [torch.randperm(places, generator=rng) % tokens for _ in range(self.orders)]
        pairs = pair_logits(system.block, bag.patches, bag.outputs, picture) if tokens == places else None
        if pairs is not None:
            starts.insert(0, order_of_pairs(pairs.costs()))
        outputs = by_outputs(system.block, bag.patches, bag.outputs, picture)
        order, _ = find_order(starts, tokens, outputs)
        order, error, following = find_among_twins(order, tokens, grid, outputs)
        values["order_error"], values["next_order_error"] = error, following
        if not placed:
            return order, False
        if error < ORDERED and values["next_order_error"] > max(UNIQUE * error, ROUNDING):
            return order, True
        gradient = by_gradient(observation, bag.patches, picture) if places <= self.places else None
        if gradient is None:
            return order, False
        order, error, following = find_among_twins(order, tokens, grid, gradient)
        values["gradient_error"], values["next_gradient_error"] = error, following
        return order, values["next_gradient_error"] > max(UNIQUE * error, ROUNDING)

    def _unordered(
        self,
        observation: Observation,
        bag: "_Bag",
        certificate: Certificate,
        trace: list[dict[str, float]],
        order: Int[Tensor, " places"] | None = None,
    ) -> Reconstruction:
        """Each patch where public images would have it; the mean patch stands for those that were not found."""
        assert observation.roles.grid is not None
        places = observation.roles.grid[0] * observation.roles.grid[1]
        if order is None:
            missing = bag.mean.expand(max(0, places - len(bag.patches)), -1)
            patches = torch.cat([bag.patches, missing])[:places]
        else:
            patches = bag.patches[order]
        image, _ = self._image(observation, patches)
        return Reconstruction(
            images=expected_image(observation, image),
            certificate=certificate,
            trace=tuple(trace),
            solves_equations=order is not None,
        )

    def _image(
        self, observation: Observation, patches: Float[Tensor, "places pixels"]
    ) -> tuple[Float[Tensor, "1 c h w"], bool]:
        """In [0, 1], and whether it was rounded to whole levels."""
        return whole_levels(observation.to_unit_range(_unpatched(observation, patches)), self.levels)


@dataclass(frozen=True)
class _Bag:
    """Patches, and what W_o read at each; `mean` is a mean of all patches."""

    patches: Float[Tensor, "found pixels"]
    outputs: Float[Tensor, "found inner"]
    mean: Float[Tensor, "1 pixels"]


def _bag(system: TokenSystem, x: Float[Tensor, "found free"]) -> _Bag:
    patches, outputs = system.tokens.split(torch.cat([x, x.new_zeros(1, x.shape[1])])[None])
    return _Bag(patches[0, :-1], outputs[0, :-1], patches[0, -1:])


def _system(observation: Observation, device: torch.device) -> TokenSystem:
    behind = observation.num_images
    if behind > 1:
        raise NotApplicable(f"{behind} images behind the update: the bag of one image's patches alone can be solved")
    if observation.protocol.steps > 1:
        raise NotApplicable(f"{observation.protocol.steps} local steps: the row spaces are those of one")
    require_read_once(observation, *(f"{layer}.weight" for layer in first_block_layers(observation)))
    block: UnplacedBlock = unplaced_block(observation, device)
    assert observation.roles.grid is not None
    patch_grad, qkv_grad = spanned_gradients(observation, device)
    return token_system(block, patch_grad, qkv_grad, observation.roles.grid[0] * observation.roles.grid[1])


def _unpatched(observation: Observation, patches: Float[Tensor, "places pixels"]) -> Float[Tensor, "1 c h w"]:
    assert observation.roles.grid is not None
    assert observation.roles.patch is not None
    return unpatchify(patches, observation.roles.grid, observation.roles.patch)


def _fit(system: TokenSystem, observation: Observation, image: Float[Tensor, "1 c h w"]) -> TokenFit:
    assert observation.roles.patch is not None
    patches, norm, tokens = patchify(image, observation.roles.patch), system.block.norm, system.tokens
    read = system.block.forward(image)[0][0]
    z = patches @ norm.patch_weight.T + norm.known + read @ system.block.weight.T + system.block.bias
    x = (z - tokens.tokens.base) @ tokens.tokens.directions
    alike = torch.zeros(len(z), dtype=torch.long)
    return tokens.fit(alike, x, patches, *system.residual(x), lambda: system.jacobian(x))


def _forward_residual(system: TokenSystem, image: Float[Tensor, "1 c h w"]) -> float:
    """The largest relative residual of the ordered image's tokens when it goes through the block itself."""
    hidden = system.block.forward(image)[1][0]
    outside = hidden - (hidden @ system.span.T) @ system.span
    return float((outside.norm(dim=1) / hidden.norm(dim=1)).max())


def _judge(values: dict[str, float], tolerance: float) -> Certificate:
    forward = values["forward_residual"]
    if forward > tolerance:
        return Certificate("uncertified", f"the image leaves the first MLP's row space by {forward:.1e}", values)
    if not values["rounded_to_levels"]:
        return Certificate("uncertified", f"residual {forward:.1e}, but the pixels are no whole levels", values)
    equations = f"{values['equations']:.0f} equations for {values['unknowns']:.0f} unknowns of each patch"
    by = "gradient" if "gradient_error" in values else "order"
    apart = values[f"next_{by}_error"] / max(values[f"{by}_error"], torch.finfo(torch.float64).tiny)
    order = f"the best order one exchange or turn away is off {apart:.0e} times more"
    return Certificate("certified", f"residual {forward:.1e} through the first block, {equations}; {order}", values)
