"""The generator: the decoder of a variational autoencoder, made to fit a standard normal latent at the end."""

from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.prior.settings import PriorImages
from experiments.prior.training import Training
from fedsim.data import ImageSet
from fedsim.determinism import seeded_globals, torch_generator
from fedsim.models.generator import UNTOLD, ConvGenerator, Encoder
from fedsim.settings.trained import GeneratorSettings

ENCODED_AT_ONCE = 256
JITTER = 1e-4
"""Added to the variances of the codes, so that unused ones have a root too."""


class Autoencoder(nn.Module):
    """Encoder and generator, trained together."""

    def __init__(self, generator: ConvGenerator) -> None:
        super().__init__()
        self.generator, self.encoder = generator, Encoder(generator)

    def loss(
        self,
        images: Float[Tensor, "batch c h w"],
        labels: Int[Tensor, " batch"] | None,
        noise: Float[Tensor, "batch latent"],
        beta: float,
    ) -> Float[Tensor, ""]:
        """Mean squared error + beta·KL/pixels (Higgins et al. 2017): with beta = 2σ² that of a Gaussian of width σ."""
        mean, log_variance = self.encoder(images)
        rebuilt = self.rebuild(mean + (0.5 * log_variance).exp() * noise, labels)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()
        total: Tensor = (rebuilt - images).square().mean() + beta * divergence / images[0].numel()
        return total

    def rebuild(
        self, codes: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch c h w"]:
        return self.generator.decode(self.generator.code(codes, labels))


def train_generator(
    pictures: PriorImages,
    settings: GeneratorSettings,
    seed: int,
    side: int,
    num_classes: int,
    folder: Path,
    progress: Callable[[int, float], None],
    device: torch.device,
) -> Autoencoder:
    """Train it from `seed` alone, whatever kills it on the way."""
    with seeded_globals(seed, "prior-weights"):
        classes = num_classes if settings.conditional else 0
        model = Autoencoder(ConvGenerator(settings.latent, side, settings.channels, classes)).to(device)
    if settings.conditional:
        model.generator.trained_on[list(pictures.classes)] = True
    training = Training(model, settings, folder / "training.safetensors")

    def loss_at(step: int) -> Tensor:
        rng = torch_generator(seed, "prior-step", step)
        chosen = torch.randint(len(pictures.train), (settings.batch_size,), generator=rng)
        images, labels = pictures.train.images(chosen), pictures.train.labels[chosen]
        if settings.flip:
            turned = torch.rand(len(images), generator=rng) < 0.5
            images = torch.where(turned[:, None, None, None], images.flip(-1), images)
        noise = torch.randn(len(images), settings.latent, generator=rng)
        hidden = torch.rand(len(images), generator=rng) < settings.any_class
        classes = torch.where(hidden, UNTOLD, labels).to(device) if settings.conditional else None
        return model.loss(images.to(device), classes, noise.to(device), settings.beta)

    training.run(loss_at, progress)
    fit_latent(model, pictures.train, device)
    return model


@torch.no_grad()
def fit_latent(model: Autoencoder, pictures: ImageSet, device: torch.device) -> None:
    """Give the codes of these pictures, as they are distributed, a standard normal latent: mean and Cholesky factor."""
    means, variances = [], []
    for start in range(0, len(pictures), ENCODED_AT_ONCE):
        part = range(start, min(start + ENCODED_AT_ONCE, len(pictures)))
        mean, log_variance = model.encoder(pictures.images(part).to(device))
        means.append(mean.double())
        variances.append(log_variance.double().exp())
    codes = torch.cat(means)
    centred = codes - codes.mean(dim=0)
    covariance = centred.T @ centred / len(codes) + torch.diag(torch.cat(variances).mean(dim=0) + JITTER)
    model.generator.mean.copy_(codes.mean(dim=0))
    model.generator.spread.copy_(torch.linalg.cholesky(covariance))


@torch.no_grad()
def rebuilt(model: Autoencoder, pictures: ImageSet, device: torch.device) -> Float[Tensor, "n c h w"]:
    """What the autoencoder makes of pictures without being told their class; a search may find better latents."""
    return model.rebuild(model.encoder(pictures.images(range(len(pictures))).to(device))[0], None).cpu()


@torch.no_grad()
def drawn(generator: ConvGenerator, count: int, seed: int) -> Float[Tensor, "n c h w"]:
    """Pictures of any class from a standard normal latent."""
    latent = torch.randn(count, generator.latent, generator=torch_generator(seed, "prior-samples"))
    device = generator.mean.device
    made: Tensor = generator(latent.to(device)).cpu()
    return made
