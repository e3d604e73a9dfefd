"""Whose images are attacked, at which model: digits at `vit_nano`, a folder's at ViT-Ti of 32 pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedsim
from defenses import Defense, FixedPositionEmbedding
from experiments.engine.guess import public_images, public_prior
from experiments.prior.settings import held_by_no_client
from experiments.studies.harness.weights import train
from fedsim.bounds.public_prior import PublicPrior
from fedsim.data import FederatedData, ImageFolder, ImageSet
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, Normaliser
from fedsim.observation import Observation
from fedsim.public_images import PublicImages

CLASSES = 10
SHAPE = (3, 8, 8)
SIDE = 32
LARGE = (3, SIDE, SIDE)
STOCK_STD = 0.02
"""timm's own standard deviation of position embeddings; `vit_nano` is built with 0.5."""
DIGITS_MODELS = {
    "built": "position embeddings of std 0.5, as built",
    "stock": "of std 0.02, as timm's",
    "sincos": "fixed sin-cos, not shared",
    "trained": "as built, then trained",
}
FOLDER_MODELS = {
    f"vit_tiny_{patch}{sincos}{precision}": f"ViT-Ti/{patch}{fixed}{shared}"
    for sincos, fixed in (("", ""), ("_sincos", ", fixed sin-cos, not shared"))
    for precision, shared in (("", ""), ("_float32", ", float32"))
    for patch in (8, 4)
}
"""Two blocks, as timm initialises them; in float64, if the name does not end otherwise."""
MODELS = {**DIGITS_MODELS, **FOLDER_MODELS}
TRAINING_STEPS = 300
PRIVATE, DIGITS = 1000, 1797
"""The first are attacked; of the others the attacker knows the mean and the spectrum."""


@dataclass(frozen=True)
class Victims:
    """Images of one source, in their order, and what is public of others.

    Attributes:
        pictures: a folder; None: digits.
    """

    pictures: Path | None = None

    @classmethod
    def of(cls, model: str, pictures: Path | None) -> "Victims":
        return cls(pictures if model in FOLDER_MODELS else None)

    @property
    def available(self) -> int:
        """How many may be attacked."""
        return PRIVATE if self.pictures is None else len(_folder(self.pictures).train)

    def check_count(self, images: int) -> None:
        """Raises ConfigError: there are not so many."""
        if not 1 <= images <= self.available:
            where = f", {self.pictures} having {self.available} private images" if self.pictures else ""
            raise ConfigError("--images", images, f"1 to {self.available}{where}")

    def images(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """[B,3,H,W] in [0, 1], float64, and [B] labels."""
        if self.pictures is None:
            return digits(chosen)
        held = _folder(self.pictures).train
        return held.images(list(chosen)).double(), held.labels[list(chosen)]

    def of_nobody(self) -> tuple[Tensor, Tensor]:
        """All that are public, as `images` has them."""
        if self.pictures is None:
            return digits(range(PRIVATE, DIGITS))
        held = _of_nobody(self.pictures)
        return held.images(range(len(held))).double(), held.labels[:]

    def public(self) -> PublicPrior:
        """The moments of images that are nobody's."""
        found = public() if self.pictures is None else public_prior(_of_nobody(self.pictures))
        assert found is not None
        return found

    def public_images(self) -> PublicImages | None:
        """Those images themselves, with their labels."""
        return _public_digits() if self.pictures is None else public_images(_of_nobody(self.pictures))


def digits(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """[B,3,8,8] in [0, 1], float64, and [B] labels; the first 1,797 in their order."""
    found = load_digits()
    images = torch.from_numpy(found.images[list(chosen)] / 16.0)[:, None].expand(-1, *SHAPE)
    return images.contiguous(), torch.from_numpy(found.target[list(chosen)])


@cache
def public() -> PublicPrior:
    """The moments of the digits that are nobody's."""
    return PublicPrior.of(digits(range(PRIVATE, DIGITS))[0])


@cache
def of_class(label: int) -> PublicPrior:
    """The moments of those of one class."""
    return PublicPrior.of_class(*digits(range(PRIVATE, DIGITS)), label)


@cache
def _public_digits() -> PublicImages:
    return PublicImages.of(*digits(range(PRIVATE, DIGITS)))


@cache
def _folder(pictures: Path) -> FederatedData:
    """Raises ConfigError: the folder has more classes than the models have outputs."""
    found = FederatedData(ImageFolder(pictures, auxiliary_fraction=0.5, verify=False), None, SIDE)
    if found.num_classes > CLASSES:
        raise ConfigError("--pictures", pictures, f"a folder of at most {CLASSES} classes, not {found.num_classes}")
    return found


@cache
def _of_nobody(pictures: Path) -> ImageSet:
    return held_by_no_client(_folder(pictures))


@cache
def trained() -> Mapping[str, Tensor]:
    """The state of `built` after training on the digits that are nobody's."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=CLASSES), (), 0).build(keep=True)
    images, labels = digits(range(PRIVATE, DIGITS))
    inputs, rng = Normaliser(vit)(images.float()), torch.Generator().manual_seed(0)
    train(vit, inputs, labels, TRAINING_STEPS, batch=64, lr=1e-3, rng=rng)
    return vit.state_dict()


def observed(
    model: str,
    defenses: Sequence[Defense],
    images: Tensor,
    labels: Tensor,
    seed: int,
    prior: PublicPrior,
    held: PublicImages | None = None,
) -> Observation:
    """What one client would share."""
    tiny = model in FOLDER_MODELS
    spec = ModelSpec("vit_nano_patch2_8", num_classes=CLASSES)
    if tiny:
        patch, dtype = int(model.split("_")[2]), "float32" if model.endswith("float32") else "float64"
        spec = ModelSpec("vit_tiny_patch16_224", CLASSES, SIDE, patch, dtype=dtype, kwargs={"depth": 2})
    vit = Architecture(spec, (), 0).build(keep=True)
    if model == "stock":
        torch.manual_seed(0)
        nn.init.normal_(vit.get_parameter("pos_embed"), std=STOCK_STD)
    if model == "trained":
        vit.load_state_dict(trained())
    fixed: list[Defense] = [FixedPositionEmbedding()] if "sincos" in model else []
    shown = images.to(vit.get_parameter("head.weight").dtype)
    seen = fedsim.observe(vit, shown, labels, defense=[*fixed, *defenses], seed=seed)
    return replace(seen, image_prior=prior, public_images=held)
