"""A small generator of pictures, and the encoder that it is trained with: priors of attacks, never a client's model."""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedsim.errors import ConfigError, require
from fedsim.storage.durable import write_whole

FORMAT = "fedsim-generator-1"
GROUPS = 8
"""Of the normalisation between convolutions, which mixes no pictures of a batch."""

MAX_WEIGHTS = 2**27
"""Of the first layer, which grows with the least side squared: 512 MiB."""

UNTOLD = -1
"""The label of a picture whose class the generator is not told."""


class ConvGenerator(nn.Module):
    """From [batch, latent] numbers, standard normal, to pictures in [0, 1], through `stages` that can be entered alone.

    A first linear stage gives feature maps of the least size, each further one doubles it, the last makes colours.

    Args:
        latent: length of the input.
        side: of the square pictures in pixels.
        channels: of the feature maps, from the first stage on; the last count is repeated where more are needed.
        num_classes: classes to choose from; 0: unconditional. A class that was not trained on is asked for as "any".
        colours: 3, or 1 for grey pictures.

    Attributes:
        learned_from: digests (`fedsim.ground_truth.content_of`) of the pictures that it was trained on, where its file
            has them.
        class_names: of the data that it was trained on, by number, where its file has them.
    """

    learned_from: frozenset[str] = frozenset()
    class_names: tuple[str, ...] = ()

    def __init__(
        self,
        latent: int = 128,
        side: int = 32,
        channels: tuple[int, ...] | list[int] = (128, 64, 32),
        num_classes: int = 0,
        colours: int = 3,
    ) -> None:
        super().__init__()
        require("generator.latent", latent, latent >= 1, "1 or more")
        require("generator.side", side, side >= 4, "4 or more")
        fitting = bool(channels) and all(c >= GROUPS and c % GROUPS == 0 for c in channels)
        require("generator.channels", list(channels), fitting, f"one or more multiples of {GROUPS}")
        self.settings: dict[str, Any] = {
            "latent": latent,
            "side": side,
            "channels": list(channels),
            "num_classes": num_classes,
            "colours": colours,
        }
        self.latent, self.num_classes = latent, num_classes
        doublings = doublings_of(side)
        widths = [channels[min(index, len(channels) - 1)] for index in range(doublings + 1)]
        small = side // 2**doublings
        if (weights := latent * widths[0] * small**2) > MAX_WEIGHTS:
            wanted = f"a side that halves down to few pixels, as {max(32, 32 * round(side / 32))} does: {side} ends at"
            raise ConfigError("generator.side", side, f"{wanted} {small}, with {weights:,} weights in the first layer")
        stages: list[nn.Module] = [
            nn.Sequential(nn.Linear(latent, widths[0] * small**2), nn.Unflatten(1, (widths[0], small, small)))
        ]
        for before, after in pairwise(widths):
            stages.append(_Doubling(before, after))
        stages.append(nn.Sequential(nn.SiLU(), nn.Conv2d(widths[-1], colours, 3, padding=1), nn.Sigmoid()))
        self.stages = nn.ModuleList(stages)
        self.classes = nn.Embedding(num_classes + 1, latent) if num_classes else None
        # Codes of pictures have this mean and spread: with them a standard normal input is a likely code.
        self.mean = nn.Buffer(torch.zeros(latent))
        self.spread = nn.Buffer(torch.eye(latent))
        self.trained_on = nn.Buffer(torch.zeros(num_classes, dtype=torch.bool))

    def embed(
        self, latent: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch latent"]:
        """The input of the first stage. None is a picture of any class."""
        return self.code(self.mean + latent @ self.spread.T, labels)

    def code(
        self, codes: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch latent"]:
        """An encoder's codes with what the class adds to them."""
        if self.classes is None:
            return codes
        if labels is None:
            return codes + self.classes.weight[-1]
        known = torch.where((labels >= 0) & self.trained_on[labels], labels, torch.full_like(labels, self.num_classes))
        shifted: Tensor = codes + self.classes(known)
        return shifted

    def forward(
        self, latent: Float[Tensor, "batch latent"], labels: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch colours side side"]:
        return self.decode(self.embed(latent, labels))

    def decode(self, features: Tensor) -> Float[Tensor, "batch colours side side"]:
        for stage in self.stages:
            features = stage(features)
        return features


class Encoder(nn.Module):
    """Mean and log-variance of the code of each picture; the generator's other half while it is trained."""

    def __init__(self, generator: ConvGenerator) -> None:
        super().__init__()
        settings = generator.settings
        doublings, channels = doublings_of(settings["side"]), settings["channels"]
        widths = [channels[min(index, len(channels) - 1)] for index in range(doublings + 1)][::-1]
        layers: list[nn.Module] = [nn.Conv2d(settings["colours"], widths[0], 3, padding=1)]
        for before, after in pairwise(widths):
            layers += [nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, after, 4, 2, padding=1)]
        small = settings["side"] // 2**doublings
        layers += [nn.SiLU(), nn.Flatten(), nn.Linear(widths[-1] * small**2, 2 * settings["latent"])]
        self.layers = nn.Sequential(*layers)

    def forward(
        self, images: Float[Tensor, "batch colours side side"]
    ) -> tuple[Float[Tensor, "batch latent"], Float[Tensor, "batch latent"]]:
        mean, log_variance = self.layers(2.0 * images - 1.0).chunk(2, dim=1)
        return mean, log_variance.clamp(-10.0, 4.0)


class _Doubling(nn.Module):
    """Twice the side: nearest neighbours and two convolutions with a shortcut, no checkerboard."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.larger = nn.Upsample(scale_factor=2)
        self.first = nn.Sequential(nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(GROUPS, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.shortcut = nn.Conv2d(before, after, 1)

    def forward(self, features: Tensor) -> Tensor:
        larger = self.larger(features)
        result: Tensor = self.shortcut(larger) + self.second(self.first(larger))
        return result


def doublings_of(side: int) -> int:
    """How often a side can be halved until it is odd or at most 4 pixels."""
    count = 0
    while side % 2 == 0 and side > 4:
        side //= 2
        count += 1
    return count


def save_generator(
    generator: ConvGenerator, path: Path, learned_from: Collection[str] = (), class_names: Sequence[str] = ()
) -> None:
    """Weights, what they fit into and what they were trained on, in one safetensors file: whole or not at all."""
    metadata = {"format": FORMAT, "settings": json.dumps(generator.settings)}
    metadata |= {"learned_from": json.dumps(sorted(learned_from)), "class_names": json.dumps(list(class_names))}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in generator.state_dict().items()}
    write_whole(path, save(tensors, metadata))


def note_training(generator: nn.Module, metadata: Mapping[str, str]) -> None:
    """Give it what the metadata of its file say that it was trained on; files of others say nothing."""
    if metadata.get("format") == FORMAT:
        found = {name: json.loads(metadata.get(name, "[]")) for name in ("learned_from", "class_names")}
        setattr(generator, "learned_from", frozenset(found["learned_from"]))  # noqa: B010 - not every module has it
        setattr(generator, "class_names", tuple(found["class_names"]))  # noqa: B010


def load_generator(path: Path) -> ConvGenerator:
    """What `save_generator` wrote.

    Raises:
        ConfigError: no such file, or not one of these.
    """
    if not path.is_file():
        raise ConfigError("generator.checkpoint", path, fault="there is no such file; fedsim-prior writes one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                wanted = "a generator.safetensors of fedsim-prior; for other weights name their module as well"
                raise ConfigError("generator.checkpoint", path, wanted)
            with torch.device("meta"):  # the header may ask for any size: only what the file holds is allocated
                generator = ConvGenerator(**json.loads(metadata["settings"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            generator.load_state_dict(tensors, assign=True)
            note_training(generator, metadata)
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError("generator.checkpoint", path, f"a whole safetensors file of fedsim-prior: {what}") from error
    return generator.float()
