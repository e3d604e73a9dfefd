"""What a generator leaves to search for: its latent, its weights, the features between its stages."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, vmap

from attacks.generative.ball import project_l1
from attacks.generative.generator import Generator
from attacks.optimization.parametrisation import Parametrisation, Space
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation
from fedsim.settings.grouped import SettingsGroup


class GeneratorLatent(Parametrisation, SettingsGroup):
    """The latent of a generator.

    Args:
        norm_weight: factor on the mean square of the latent, which is 1 for a likely one; 0 leaves it free.
        conditional: ask for pictures of the recovered labels, where the generator knows classes.
    """

    def __init__(self, generator: Generator, norm_weight: float | int = 0.0, conditional: bool = True) -> None:
        require("parametrisation.norm_weight", norm_weight, norm_weight >= 0, "a number that is not negative")
        self.generator, self.norm_weight = generator, float(norm_weight)
        self.conditional = conditional
        self.learned_from = generator.learned_from

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.generator.class_names if self.conditional and self.generator.num_classes else ()

    def check_image_shape(self, image_shape: tuple[int, ...]) -> None:
        self.generator.check_image_shape(image_shape)

    def prepare(
        self,
        observation: Observation,
        count: int,
        device: torch.device,
        labels: Int[Tensor, " batch"] | None = None,
    ) -> "LatentSpace":
        """Raises NotApplicable where the generator makes pictures of another shape, or of no class that it is told."""
        generator = self.generator.to(device)
        generator.check(observation.image_shape)
        # Those of fedsim-prior know which classes they were trained on, and have pictures of any class.
        any_class = hasattr(generator.module, "trained_on")
        if labels is not None:
            unknown = labels >= generator.num_classes
            if not self.conditional or bool(unknown.all() if any_class else unknown.any()):
                labels = None
            else:
                labels = torch.where(unknown, -1, labels)
        if labels is None and generator.num_classes and not any_class:
            raise NotApplicable(
                f"the generator must be told one of its {generator.num_classes} classes for each picture: it needs "
                "conditional=true, a label rule, and labels among them"
            )
        return LatentSpace(self, generator, observation, count, labels)


class GeneratedSpace(Space):
    """Pictures of one victim that a generator makes; without labels it chooses the class."""

    def __init__(
        self, generator: Generator, observation: Observation, count: int, labels: Int[Tensor, " batch"] | None
    ) -> None:
        self.generator, self.observation, self.count, self.labels = generator, observation, count, labels

    def every_label(self, candidates: int) -> Int[Tensor, " pictures"] | None:
        return None if self.labels is None else self.labels.repeat(candidates)

    def as_input(self, unit: Float[Tensor, "pictures c h w"], like: Tensor) -> Float[Tensor, "candidates batch c h w"]:
        """Pictures in [0, 1] as the model reads them."""
        seen: Tensor = self.observation.from_unit_range(unit).to(like).unflatten(0, (len(like), self.count))
        return seen


class LatentSpace(GeneratedSpace):
    """Latents of one victim's pictures, [batch, latent]."""

    def __init__(
        self,
        settings: GeneratorLatent,
        generator: Generator,
        observation: Observation,
        count: int,
        labels: Int[Tensor, " batch"] | None,
    ) -> None:
        super().__init__(generator, observation, count, labels)
        self._settings = settings

    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        return torch.randn(self.count, self.generator.latent, generator=rng)

    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        labels = self.every_label(len(point))
        return self.as_input(self.generator.pictures(point.flatten(0, 1).float(), labels), point)

    def penalty(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, " candidates"]:
        return self._settings.norm_weight * point.square().flatten(1).mean(dim=1)


class WeightSpace(GeneratedSpace):
    """The generator's weights, as one vector for each candidate, at latents that stay (Jeon et al. 2021, GIAS).

    All pictures of a batch share the vector; the authors' code gives each picture a generator of its own.

    Args:
        latent: [batch, latent].
    """

    def __init__(self, before: LatentSpace, latent: Float[Tensor, "batch latent"]) -> None:
        super().__init__(before.generator, before.observation, before.count, before.labels)
        self._latent = latent.float()
        self._params = {n: p.detach() for n, p in before.generator.module.named_parameters()}

    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        return torch.cat([p.flatten() for p in self._params.values()]).cpu()

    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        def one(weights: Tensor) -> Tensor:
            parts = weights.split([p.numel() for p in self._params.values()])
            state = {n: part.view_as(p) for (n, p), part in zip(self._params.items(), parts, strict=True)}
            given = (self._latent, self.labels) if self.generator.num_classes else (self._latent,)
            made: Tensor = functional_call(self.generator.module, state, given)
            return self.generator.as_images(made)

        weights = point.float()
        unit = one(weights[0])[None] if len(point) == 1 else vmap(one)(weights)
        return self.as_input(unit.flatten(0, 1), point)


class FeatureSpace(GeneratedSpace):
    """What stage `layer` reads, within an L1 ball around where it starts (Fang et al. 2023, GIFD).

    Args:
        start: [batch, …], the features that the search before ended with.
        radius: of each picture's ball, as a multiple of the L1 norm of its start.
    """

    def __init__(self, before: GeneratedSpace, start: Float[Tensor, "batch *shape"], layer: int, radius: float) -> None:
        super().__init__(before.generator, before.observation, before.count, before.labels)
        self.start, self.layer = start.detach().float(), layer
        self._bounds = radius * self.start.flatten(1).abs().sum(dim=1)

    def initial(self, rng: torch.Generator) -> Float[Tensor, "*shape"]:
        return self.start.cpu()

    def images(self, point: Float[Tensor, "candidates *shape"]) -> Float[Tensor, "candidates batch c h w"]:
        made = self.generator.run(point.flatten(0, 1).float(), self.layer)
        return self.as_input(self.generator.as_images(made), point)

    def project(self, point: Float[Tensor, "candidates *shape"]) -> None:
        start = self.start.to(point)
        moved = (point - start).flatten(0, 1).flatten(1)
        within = project_l1(moved, self._bounds.to(point).repeat(len(point)))
        point.copy_(start + within.view_as(point))


def features_at(space: GeneratedSpace, point: Float[Tensor, "batch *shape"], layer: int) -> Tensor:
    """What stage `layer` reads, for a point of a space that begins before it: [batch, …]."""
    with torch.no_grad():
        if isinstance(space, FeatureSpace):
            return space.generator.run(point.float(), space.layer, layer)
        embedded = space.generator.embed(point.float(), space.labels)
        return space.generator.run(embedded, 0, layer)
