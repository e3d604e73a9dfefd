"""From an observation to the results of all attacks on it."""

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

from attacks.running import reads_history
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from server.attack_queue.pending import PendingObservations
from server.attack_queue.results import ResultWriter
from server.attack_queue.scheduling import AttackScheduler

logger = getLogger(__name__)


@dataclass(frozen=True)
class AttackQueue:
    """What becomes of the observations of a run.

    Attributes:
        pending: those whose attacks are not finished, for a run that goes on.
        recorded: where each is kept; None: nowhere.
        history: attacks that read several rounds get what the client sent before, too, where a batch holds all of its
            images: they are the same in each round then.
        say: tells whoever watches.
    """

    scheduler: AttackScheduler
    writer: ResultWriter
    pending: PendingObservations
    recorded: Path | None
    say: Callable[[str], None]
    history: bool = False

    def __call__(self, observation: Observation, truth: GroundTruth | None) -> None:
        """Record it, and attack it."""
        if self.recorded is not None:
            self._record(observation, self.recorded / observation.name)
        self._attack(observation, truth)

    def take_up(self, server_round: int) -> None:
        """Attack what was not finished up to this round when the run was interrupted."""
        for observation, truth in self.pending.load(server_round, self.say):
            self._attack(observation, truth)

    def keep(self) -> int:
        """Write down what a resumed run does not observe again; how many results there are."""
        self.pending.keep(self.scheduler.unfinished())
        return self.writer.written

    def _attack(self, observation: Observation, truth: GroundTruth | None) -> None:
        """An attack that came to its end before the run was interrupted is not made again."""
        same = observation.update.num_examples <= observation.protocol.batch_size
        read = self.history and same and any(map(reads_history, self.scheduler.attacks.values()))
        earlier = self.pending.earlier(observation, self.say) if read else ()
        self.scheduler.submit(observation, truth, self.writer.ended(observation.name), earlier)

    def _record(self, observation: Observation, folder: Path) -> None:
        """A full disk costs the copy of the observation, not the training and not the attack in memory."""
        try:
            observation.save(folder)
        except OSError as error:
            logger.error("%s: %s", folder, error)
            self.say(f"observation {observation.name} could not be saved: {error.strerror}")
