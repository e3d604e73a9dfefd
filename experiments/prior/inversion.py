"""LTI: updates of simulated clients on public pictures, through the configured defense, and a network to undo them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from attacks.learned.checkpoint import Trained
from attacks.learned.circumstances import Circumstances, change
from attacks.learned.hashing import UpdateHash
from attacks.learned.loss import best_orders, matched_mse
from attacks.learned.network import InversionNetwork
from clients.app import ClientRuntime
from experiments.engine.setup import Setup
from experiments.prior.settings import PriorImages
from experiments.prior.training import Training
from fedsim.data import ImageSet
from fedsim.data.copies import contents
from fedsim.determinism import derive_seed, seeded_globals, torch_generator
from fedsim.errors import ConfigError
from fedsim.observation import Observation
from fedsim.settings.trained import InversionSettings
from fedsim.storage.durable import write_whole

CHUNK = 256
"""Updates in one file: so many are computed anew after a kill, at most."""


class Simulator:
    """Clients of the attacker's own: the configured model, protocol and defense, and other randomness.

    The seed of their draws is derived one way from the run's, as an attacker's own would be unrelated.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._runtime = ClientRuntime(setup.config, setup.data)
        self._runtime.seed = derive_seed(setup.config.seed, "prior-clients")
        self._state = {name: tensor.detach().clone() for name, tensor in setup.model.state_dict().items()}
        self._factory = setup.factory()

    @property
    def num_classes(self) -> int:
        return self._setup.data.num_classes

    def observe(self, pictures: ImageSet, client: int) -> Observation:
        """What the server would see of a client with these pictures; it may share nothing."""
        return self._factory.make(self._runtime.answer(pictures, self._state, client), self._state)


@dataclass(frozen=True)
class Updates:
    """Hashed updates, and which pictures are behind them."""

    hashed: Float[Tensor, "updates inputs"]
    positions: Int[Tensor, "updates batch"]


def simulate(
    setup: Setup,
    pictures: ImageSet,
    settings: InversionSettings,
    hash_seed: int,
    folder: Path,
    progress: Callable[[int], None],
) -> tuple[Updates, Circumstances, UpdateHash]:
    """Updates of random batches; those of files that an earlier call left are read instead.

    Raises:
        ConfigError: the defense shares nothing, or now this and now that.
    """
    simulator, count = Simulator(setup), settings.updates
    seed, batch = setup.config.seed, setup.config.client.batch_size

    def observed(number: int) -> tuple[Observation, list[int]]:
        rng = torch_generator(seed, "prior-batch", number)
        chosen = torch.randperm(len(pictures), generator=rng)[:batch].tolist()
        own = pictures.subset(chosen)
        others = torch.randint(simulator.num_classes, (batch,), generator=rng)
        own.labels = torch.where(torch.rand(batch, generator=rng) < settings.any_label, others, own.labels)
        return simulator.observe(own, number), chosen

    tried = range(min(CHUNK, count))
    first = next((seen for number in tried if (seen := observed(number)[0]).update.tensors), None)
    if first is None:
        wanted = f"one that shares updates: none of {len(tried)} was"
        raise ConfigError("defense", list(setup.config.defense), wanted)
    circumstances = Circumstances.of(first)
    hashing = UpdateHash({name: t.numel() for name, t in first.update.tensors.items()}, settings.bins, hash_seed)
    parts: list[Updates] = []
    for start in range(0, count, CHUNK):
        path = folder / f"updates-{start // CHUNK:05d}.safetensors"
        numbers = range(start, min(start + CHUNK, count))
        part = _read(path)
        if part is None:
            part = _simulated(observed, numbers, batch, circumstances, hashing, progress)
            write_whole(path, save({"hashed": part.hashed, "positions": part.positions}))
        else:
            progress(numbers.stop)
        parts.append(part)
    whole = Updates(torch.cat([part.hashed for part in parts]), torch.cat([part.positions for part in parts]))
    return whole, circumstances, hashing


def _simulated(
    observed: Callable[[int], tuple[Observation, list[int]]],
    numbers: range,
    batch: int,
    circumstances: Circumstances,
    hashing: UpdateHash,
    progress: Callable[[int], None],
) -> Updates:
    hashed, positions = [], []
    for number in numbers:
        observation, chosen = observed(number)
        progress(number + 1)
        if not observation.update.tensors:  # withheld: the server sees nothing to invert
            continue
        shapes = {name: list(tensor.shape) for name, tensor in observation.update.tensors.items()}
        if shapes != circumstances.tensors:
            names = [defense["name"] for defense in circumstances.defenses]
            raise ConfigError("defense", names, "one whose updates always hold the same tensors")
        hashed.append(hashing(change(observation)))
        positions.append(torch.tensor(chosen))
    if not hashed:
        return Updates(torch.empty(0, hashing.length), torch.empty(0, batch, dtype=torch.int64))
    return Updates(torch.stack(hashed), torch.stack(positions))


def _read(path: Path) -> Updates | None:
    try:
        found = load_file(path)
        return Updates(found["hashed"], found["positions"])
    except (OSError, SafetensorError, KeyError):
        return None


def train_inversion(
    setup: Setup,
    pictures: PriorImages,
    settings: InversionSettings,
    folder: Path,
    simulated: Callable[[int], None],
    progress: Callable[[int, float], None],
    device: torch.device,
) -> Trained:
    """Train it from the seed alone, whatever kills it on the way."""
    seed = setup.config.seed
    hash_seed = derive_seed(seed, "prior-hash")
    updates, circumstances, hashing = simulate(setup, pictures.train, settings, hash_seed, folder, simulated)
    batch = updates.positions.shape[1]
    with seeded_globals(seed, "prior-weights"):
        network = InversionNetwork(hashing.length, batch, circumstances.image_shape, **settings.network)
    network.standardise_by(updates.hashed)
    network.mean_picture.copy_(pictures.mean)
    network.to(device)
    training = Training(network, settings, folder / "training.safetensors")

    def loss_at(step: int) -> Tensor:
        rng = torch_generator(seed, "prior-step", step)
        chosen = torch.randint(len(updates.hashed), (settings.batch_size,), generator=rng)
        positions = updates.positions[chosen]
        truth = pictures.train.images(positions.flatten().tolist()).unflatten(0, positions.shape).to(device)
        return matched_mse(network(updates.hashed[chosen].to(device)), truth).mean()

    training.run(loss_at, progress)
    return Trained(network.eval(), hashing, hash_seed, circumstances, frozenset(contents(pictures.train)))


def inverted(
    setup: Setup, trained: Trained, pictures: ImageSet, device: torch.device
) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"]]:
    """Fresh pictures and what the network makes of their updates, in the order that suits them best."""
    simulator, batch = Simulator(setup), trained.network.batch
    originals, found = [], []
    for number, start in enumerate(range(0, len(pictures) - batch + 1, batch)):
        own = pictures.subset(range(start, start + batch))
        seen = simulator.observe(own, -1 - number)
        if not seen.update.tensors:
            continue
        with torch.no_grad():
            made = trained.network(trained.hash(change(seen))[None].to(device)).cpu()
        truth = own.images(range(batch))[None]
        originals.append(truth[0, best_orders(made, truth)[0]])
        found.append(made[0])
    if not found:
        shape = (0, *trained.network.image_shape)
        return torch.empty(shape), torch.empty(shape)
    return torch.cat(originals), torch.cat(found)
