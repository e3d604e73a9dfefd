import torch

from experiments.prior.autoencoder import Autoencoder, fit_latent
from fedsim.determinism import seeded_globals
from fedsim.models.generator import ConvGenerator


class Pictures:
    """As an ImageSet."""

    def __init__(self, images):
        self.all = images

    def __len__(self):
        return len(self.all)

    def images(self, places):
        return self.all[list(places)]


def test_the_latent_is_fitted_to_the_codes(rng):
    with seeded_globals(0, "test"):
        model = Autoencoder(ConvGenerator(3, 8, [8, 8]))
    pictures = Pictures(torch.rand(300, 3, 8, 8, generator=rng))
    fit_latent(model, pictures, torch.device("cpu"))
    mean, log_variance = (part.detach().double() for part in model.encoder(pictures.all))
    codes = mean + (0.5 * log_variance).exp() * torch.randn(200, 300, 3, generator=rng, dtype=torch.float64)
    latent = torch.randn(60_000, 3, generator=rng, dtype=torch.float64)
    drawn = model.generator.mean + latent @ model.generator.spread.double().T
    torch.testing.assert_close(drawn.mean(dim=0), codes.mean(dim=(0, 1)), atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), codes.flatten(0, 1).T.cov(), atol=0.04, rtol=0.03)


def test_the_loss_is_error_and_divergence(rng):
    with seeded_globals(0, "test"):
        model = Autoencoder(ConvGenerator(3, 8, [8, 8]))
    images, noise = torch.rand(5, 3, 8, 8, generator=rng), torch.randn(5, 3, generator=rng)
    mean, log_variance = model.encoder(images)
    codes = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    rebuilt = model.generator.decode(codes.mean + codes.stddev * noise)
    normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    divergence = torch.distributions.kl_divergence(codes, normal).sum(dim=1).mean()
    expected = (rebuilt - images).square().mean() + 0.5 * divergence / (3 * 8 * 8)
    torch.testing.assert_close(model.loss(images, None, noise, 0.5), expected)
