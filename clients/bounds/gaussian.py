"""The Gaussian reference of audited images behind Gaussian noise: what second moments alone could give."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clients.bounds.base import Bound, Party, gaussian_std, refuse_sums
from clients.bounds.jacobian import check_linear, jacobian
from clients.bounds.settings import wholes
from defenses.settings import whole
from fedsim.bounds.gaussian_prior import GaussianPrior, ImagePrior
from fedsim.bounds.public_prior import MOST_IMAGES, PublicPrior
from fedsim.bounds.references import gaussian_reference, image_by_image, information, prior_precision
from fedsim.bounds.statement import Statement
from fedsim.errors import NotApplicable

IMAGE_BY_IMAGE = "image by image, no bound"


class GaussianReference(Bound):
    """dB of van Trees' bound on the mean squared error under Gaussian models of images: white, smooth, public.

    `public` has the mean and spectrum of images that no client holds, where there are any. `image by image` is what
    each image's own linearisation leaves, to first order: no bound, and below the reference where images differ.

    Labels are given to the attacker, which only raises it. Laplace noise counts by its Fisher information.

    Args:
        image_mean, image_std, decay, colour: of the smooth model, as `fedsim.bounds.gaussian_prior` has them; the white
            one has the same mean and deviation of a pixel.
        rounds: for so many equal releases the reference is printed too, as information adds up.
        images: how many updates at most.
    """

    kind = "reference"

    def __init__(
        self,
        image_mean: float = 0.5,
        image_std: float = 0.3,
        decay: float = 1.0,
        colour: float = 0.3,
        rounds: Sequence[int] = (10, 100),
        images: int = 16,
    ) -> None:
        self.smooth = GaussianPrior(image_mean, image_std, decay, colour)
        self.white = GaussianPrior(image_mean, image_std, 0.0, 1.0)
        key, least = "bound.gaussian_reference", "1 or more"
        self.rounds = wholes(f"{key}.rounds", rounds, f"numbers of releases, {least}", lambda one: one >= 1)
        self.images = whole(f"{key}.images", images, f"a whole number, {least}", lambda one: one >= 1)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Raises NotApplicable: noise of unknown size or shape, several images in an update, or J not computed."""
        found = [self._information(party) for party in parties[: self.images]]
        each, std = [one for one, _ in found], found[0][1]
        shape = tuple(parties[0].images.shape[1:])
        rows, values = [], {"std": std}
        average = torch.stack(each).mean(dim=0)
        for name, prior in self._priors(parties[0]).items():
            precision = prior_precision(prior, shape)
            values[name] = gaussian_reference(each, precision)
            values[f"{name}_each"] = image_by_image(each, precision)
            later = [gaussian_reference([times * average], precision) for times in self.rounds]
            rows.append((name, *(f"{one:.1f} dB" for one in (values[name], values[f"{name}_each"], *later))))
        known = f" ({values['public']:.1f} dB with the moments of public images)" if "public" in values else ""
        sentence = (
            f"Were images Gaussian ones of standard deviation {self.smooth.image_std:g}, each as legible in the "
            f"update as these {len(each):,} are on average, no estimate from one whose noise tells as little as a "
            f"Gaussian one of {std:.3g} would have a better mean squared error than {values['white']:.1f} dB "
            f"(independent pixels) or {values['smooth']:.1f} dB (smooth ones){known}; real images are not Gaussian, "
            "nor equally legible, and who knows more of them may pass it. Image by image is the mean of what each "
            "image's own linearisation leaves, to first order: no bound."
        )
        header = ("images taken as", "one release", IMAGE_BY_IMAGE, *(f"{times:,} releases" for times in self.rounds))
        return Statement("reference", sentence, values, header, tuple(rows))

    def _priors(self, party: Party) -> dict[str, ImagePrior]:
        held = party.runtime.data.auxiliary if party.public is None else party.public
        found: dict[str, ImagePrior] = {"white": self.white, "smooth": self.smooth}
        count = min(MOST_IMAGES, len(held))
        return found | ({"public": PublicPrior.of(held.images(range(count)))} if count else {})

    def _information(self, party: Party) -> tuple[Tensor, float]:
        """About the one image of an update, and the deviation of the noise behind which it stands."""
        refuse_sums([party])
        check_linear(party)
        if len(party.pictures) > 1:
            raise NotApplicable(f"{len(party.pictures)} images in an update: computed for one")
        result = party.train()
        std = gaussian_std(party, result, informed=True)
        found, _ = jacobian(party, party.share(result))
        return information(found, torch.full((len(found),), std, dtype=torch.float64)), std
