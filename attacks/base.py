"""What every attack is: from an Observation to a Reconstruction, and no other way in."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attacks.certificate.confirm import confirmed, labels_confirmed
from attacks.certificate.jacobian import jacobian_bound
from attacks.result import Certificate, Frame, PsnrBound, Reconstruction, check_result, finished, uncertified
from attacks.session import Session
from fedsim.effects import SharesSigns
from fedsim.errors import NotApplicable
from fedsim.history import History
from fedsim.observation import Observation

__all__ = ["Attack", "Certificate", "Frame", "Needs", "NotApplicable", "PsnrBound", "Reconstruction", "finished"]


@dataclass(frozen=True)
class Needs:
    """What an attack asks for. All but `auxiliary` it cannot do without: `Attack.check` refuses before it runs.

    Attributes:
        roles: names of `ViTRoles` that hold parameters, all of whose gradients must have been shared.
        max_batch_size: the most images behind an update that can be served, those of all its local steps
            (`Observation.num_images`); None for any.
        sizes: how large gradients are; their signs do not do.
        auxiliary: wants what public images tell where the server has any: `auxiliary_probs`, `image_prior`,
            `public_images`. Never checked: commands prepare them if any attack asks or shrinks to their mean, and
            where defenses change images; an observation without them is no refusal.
    """

    roles: tuple[str, ...] = ()
    max_batch_size: int | None = None
    sizes: bool = False
    auxiliary: bool = False


def is_ours(part: object) -> bool:
    """Whether its class is one of this package's, and no plug-in's."""
    return type(part).__module__.partition(".")[0] == __package__


class Attack(ABC):
    """Subclass it, set `needs`, write `run`, and add `conf/attack/NAME.yaml` with its `_target_` and what it
    `knows` beside the shared tensors and the protocol.

    A long attack may use `self.session`: `load()` once before its first step, `save()` every so many steps and
    `progress()` every few. Its worker may be killed at any time; the next try then goes on from what was saved, and
    must come to the same bits: save the state of the generators too. One that serves several victims faster together
    than one by one overrides `run_many`; one that searches several times in a run gives each search its own
    `session.part(name)`.

    Attributes:
        session: set by whoever runs the attack; does nothing outside a run.
        baseline: it never reads what was shared, but for labels that it is given: report, comparison and matrix mark
            it, and leave it out of every verdict.
        recovers: what the attack is after: `images`, `labels`, or something else by a name of one's own. Verdicts are
            about images, and leave all others out.
        cost: how long it takes on one update, in steps of a search, about; closed forms take less than one. Of the
            attacks that wait for a worker the cheapest go first, and `simulation=auto` reckons with it.
        shrinks_to_mean: an image that is not certified is drawn towards the mean of public ones as far as that
            explains the update better (`attacks.toward_mean`). Not for settings of a published attack, whose numbers
            are its own.
        then: an attack that goes on from the result's images (`polish`) before anything is certified. It reads one
            round: with several (`fedsim.History`) it is refused.
        learned_from: digests (`fedsim.ground_truth.content_of`) of the images that it was trained on, as far as they
            are known: an audit or a run that would attack one of them is refused.
        certify: False leaves out the client's computation once more, and every certificate with it.
    """

    needs: Needs = Needs()
    session: Session = Session()
    baseline: bool = False
    recovers: str = "images"
    cost: float = 0.0
    shrinks_to_mean: bool = False
    then: "Attack | None" = None
    learned_from: frozenset[str] = frozenset()
    certify: bool = True
    _polishing: bool = False
    """`then` is at work, or was when it raised."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the classes that it asks a generator for, by number, as far as they are known.

        An audit or a run of data whose classes have other names is refused.
        """
        return ()

    @abstractmethod
    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Rebuild what can be rebuilt.

        Args:
            rng: the only source of randomness, on the CPU.
            device: where to compute; results may stay there.

        Raises:
            NotApplicable: the observation cannot be served, and why. The report shows it.
        """

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[torch.Generator], device: torch.device
    ) -> list[Reconstruction | NotApplicable]:
        """One result or refusal for each observation, the same as one by one; audits call it with `audit.victims`.

        An override checks each observation itself (`self.check`), and gives refusals back instead of raising them.
        """
        results: list[Reconstruction | NotApplicable] = []
        for observation, rng in zip(observations, rngs, strict=True):
            try:
                results.append(self(observation, rng, device))
            except NotApplicable as refusal:
                results.append(NotApplicable(str(refusal)))  # its traceback would keep what its frames held
        return results

    def run_history(self, history: History, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Rebuild the images of one client from several rounds together.

        Raises:
            NotApplicable: the attack reads one round, or the rounds cannot be served.
        """
        raise NotApplicable(f"{type(self).__name__} reads one round: give it one of the history's observations")

    def polish(
        self, observation: Observation, result: Reconstruction, rng: torch.Generator, device: torch.device
    ) -> Reconstruction:
        """Go on from another attack's images; for attacks that `then` names.

        Raises:
            NotApplicable: it starts by itself alone, or the observation cannot be served.
        """
        raise NotApplicable(f"{type(self).__name__} does not go on from another attack's images")

    def finish(
        self,
        observation: Observation,
        result: Reconstruction,
        rng: torch.Generator,
        device: torch.device,
        part: str = "then",
    ) -> Reconstruction:
        """Polish by `then`, unless the attack's own equations hold, and confirm or take back the certificate.

        Where `then` does not apply the result stays, and its note says why.

        Args:
            rng: as `run` left it.
            part: of the session, for `then`: another one for each of several victims that share a session.

        Raises:
            TypeError, ValueError: what `run` gave is no result of this observation.
        """
        check_result(f"{type(self).__name__}.run", result, observation)
        if self.then is None or result.certificate.status == "certified":
            return self.confirm(observation, result)
        self.then.session, self.then.certify = self.session.part(part), self.certify
        self._polishing = True
        try:
            polished = self.then.polish(observation, result, rng, device)
        except NotApplicable as refusal:
            self._polishing = False
            said = f"{type(self.then).__name__} did not go on from it: {refusal}"
            return self.confirm(observation, replace(result, note="; ".join(filter(None, [result.note, said]))))
        finally:
            self.then.session = Session()
        polished = self.then.confirm(observation, polished)
        self._polishing = False
        return polished

    def check_image_shape(self, image_shape: tuple[int, ...]) -> None:  # noqa: B027 - most serve any shape
        """Refuse, before anything runs, a model whose images have a shape that the attack cannot serve.

        Args:
            image_shape: [channels, height, width] of the model's input.

        Raises:
            ConfigError: naming a setting within the attack's.
        """

    def check_stated(self, observation: Observation) -> None:  # noqa: B027 - most are told nothing of the images
        """Refuse what settings state of the client's images, where it cannot be true of this update's.

        Raises:
            ConfigError: naming a setting within the attack's.
        """

    def shrink(self, device: torch.device) -> str:
        """Take less memory from now on, as after running out of it on `device`.

        Returns:
            The setting that it now has, such as `memory_gib=2`; empty where it cannot do with less.
        """
        return ""

    def take_less(self, device: torch.device) -> str:
        """`shrink` of what has just run out of memory: the attack itself, or `then` where that was at work."""
        polishing, self._polishing = self._polishing, False
        if not polishing or self.then is None:
            return self.shrink(device)
        smaller = self.then.shrink(device)
        return f"then.{smaller}" if smaller else ""

    def __call__(
        self, observation: Observation | History, rng: torch.Generator, device: torch.device
    ) -> Reconstruction:
        """Check `needs`, run, confirm or take back the certificate, and put the seconds into the result.

        Raises:
            NotApplicable: the observation cannot be served; `then` with several rounds, of which it would read one.
        """
        self._polishing = False
        rounds = observation.observations if isinstance(observation, History) else (observation,)
        for one in rounds:
            self.check(one)
        if self.then is not None and len(rounds) > 1:
            raise NotApplicable(f"`then` goes on from one round, not from {len(rounds)}: leave it out (then=null)")
        start = time.perf_counter()
        if isinstance(observation, History):
            result = self.run_history(observation, rng, device)
        else:
            result = self.run(observation, rng, device)
        result = self.finish(rounds[0], result, rng, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return finished(result, time.perf_counter() - start)

    def bound(self, observation: Observation, result: Reconstruction, again: Observation) -> PsnrBound | None:
        """How far the result may be from what the model saw, by the conditioning of what determines it.

        The whole Jacobian of a single shared gradient, for small images; an attack with a system of its own overrides
        it. None: the conditioning is not known, and nothing is certified.

        Args:
            again: the observation with the update that the result itself gives a client.
        """
        return jacobian_bound(observation, result, again)

    def confirm(self, observation: Observation, result: Reconstruction) -> Reconstruction:
        """`result` with its certificate where the client's computation once more, and `bound`, grant it; else without.

        What `run` calls certified is a claim: its own equations hold. Of one image they do whatever loss was
        differentiated and however it was scaled, which no computation by the stated protocol repeats.
        """
        if result.certificate.status != "certified":
            return result
        if observation.num_images == 1:
            result = replace(result, solves_equations=True)
        if not self.certify:
            return uncertified(result, "left out: certify=false")
        result = confirmed(observation, result, self.bound)
        return result if is_ours(self) or result.images is not None else labels_confirmed(observation, result)

    def check(self, observation: Observation) -> None:
        """Refuse an observation that lacks what `needs` names."""
        for role in self.needs.roles:
            observation.gradients_of(role)
        if self.needs.sizes and observation.effect(SharesSigns) is not None:
            raise NotApplicable("signs alone were shared: its equations need sizes too")
        limit = self.needs.max_batch_size
        if limit is not None and observation.num_images > limit:
            raise NotApplicable(f"{observation.num_images} images behind the update: at most {limit} can be served")
