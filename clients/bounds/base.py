"""What every bound is: from one or several clients to a statement, or a refusal in one line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.app import ClientRuntime
from clients.training import LocalResult
from defenses.base import DefenseChain
from fedsim.bounds.statement import Kind, Statement
from fedsim.data import ImageSet
from fedsim.data.tensors import TensorImages
from fedsim.effects import AddsNoise, Clips, Effect, Withholds, effects_in, of_training
from fedsim.errors import NotApplicable
from fedsim.models.random_drops import random_drops
from fedsim.update import State, Update


@dataclass(frozen=True)
class Party:
    """A client in one round, as it knows itself, and images that the server has.

    Attributes:
        runtime: how the client computes: its model, settings and defenses.
        state: the weights that it got.
        pictures: the client's own.
        summed: the server sees this update in a sum over clients alone.
        public: images that the server has, less copies of what it attacks; None: all that no client holds.
    """

    runtime: ClientRuntime
    state: State
    pictures: ImageSet
    client: int
    server_round: int = 0
    summed: bool = False
    public: ImageSet | None = None

    @property
    def images(self) -> Tensor:
        """[n,c,h,w] in [0, 1]."""
        return self.pictures.images(range(len(self.pictures)))

    @property
    def defenses(self) -> DefenseChain:
        return self.runtime.defenses

    @property
    def effects(self) -> tuple[Effect, ...]:
        of_defenses = effects_in(self.server_round, self.defenses.effects())
        return (*of_training(self.runtime.settings.clip_norm), *of_defenses)

    def train(self, images: Tensor | None = None) -> LocalResult:
        """The client's computation, with its own draws: the same ones each time.

        Args:
            images: in place of the client's own, as many.
        """
        held = self.pictures
        if images is not None:
            held = TensorImages(images, self.pictures.labels, self.pictures.ids)
        self.runtime.load(self.state)
        return self.runtime.train(held, self.client, self.server_round)

    def share(self, result: LocalResult) -> Update:
        """The gradient or change that leaves the client, after its defenses."""
        return self.runtime.defended(result, len(self.pictures), self.client, self.server_round)


class Bound:
    """Subclass it and add `conf/bound/NAME.yaml` with its `_target_`.

    Attributes:
        kind: of its statements; the report never mixes kinds. A `proof` is kept of `ReconstructionRobustness` alone.
    """

    kind: Kind

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """What can be said of what these clients share, each in one release.

        Raises:
            NotApplicable: why nothing can be said here, in one line.
        """
        raise NotImplementedError


def gaussian_std(party: Party, result: LocalResult, informed: bool = False) -> float:
    """The standard deviation of independent Gaussian noise on each shared coordinate.

    Args:
        informed: Laplace noise, too: of Gaussian noise with as much Fisher information, 2/std² a coordinate.

    Raises:
        NotApplicable: there is none, or the noise is of another kind, depends on the images, or is changed after.
    """
    effects, noise = party.effects, [one for one in party.effects if isinstance(one, AddsNoise)]
    if not noise:
        raise NotApplicable("no Gaussian noise is added: whatever differs is told apart")
    if len(noise) > 1:
        raise NotApplicable("several defenses add noise: its covariance is not known in closed form")
    (added,) = noise
    laplace = informed and added.distribution == "laplace"
    if added.distribution != "gaussian" and not laplace:
        raise NotApplicable(f"the noise is {added.distribution}, not Gaussian")
    if added.relative:
        raise NotApplicable("the noise is as large as the update makes it: fix its std (relative_norm=null)")
    other = [one for one in effects if not isinstance(one, AddsNoise | Clips | Withholds)]
    if other:
        raise NotApplicable(f"{type(other[0]).__name__} stands beside the noise: only clipping and withholding may")
    later = effects[effects.index(added) :] if added.on == "update" else effects  # steps are before what is shared
    if any(isinstance(one, Clips) and (added.on == "update" or one.per == "update") for one in later):
        raise NotApplicable("the noisy update is clipped: its noise is Gaussian no more")
    unit = 1.0 if added.on == "update" else _of_one_step(party, result)
    return added.std * unit / (math.sqrt(2.0) if laplace else 1.0)


def _of_one_step(party: Party, result: LocalResult) -> float:
    """What a batch's sum is multiplied by, where it is shared after one step."""
    protocol = result.protocol
    share = 1.0 / protocol.batch_size
    if party.runtime.settings.share == "gradient":
        return share
    if protocol.steps > 1:
        raise NotApplicable(f"noise enters each of {protocol.steps} local steps: one step has a known covariance")
    if protocol.optimizer != "sgd" or protocol.nesterov:
        raise NotApplicable(f"{protocol.optimizer} changes the noise of its step: plain SGD has a known covariance")
    return share * protocol.lrs[0]


def refuse_draws(model: nn.Module, training: bool) -> None:
    """Raises NotApplicable where the model draws random numbers of its own: they belong to no covariance."""
    if training and (names := random_drops(model)):
        raise NotApplicable(f"{names[0] or 'the model'} drops units at random: client.training_mode=false")


def refuse_sums(parties: Sequence[Party]) -> None:
    """Raises NotApplicable where the server sees no client's update by itself."""
    if any(party.summed for party in parties):
        raise NotApplicable("the server sees sums over clients: this is of one client's update")


def same_buffers(one: LocalResult, other: LocalResult) -> None:
    """Raises NotApplicable where running statistics tell the images apart: they are shared without noise."""
    for name, tensor in one.buffers.items():
        if not torch.equal(tensor, other.buffers[name]):
            raise NotApplicable(f"{name} is shared without noise: client.training_mode=false")
