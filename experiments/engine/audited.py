"""Clients of an audit, one after the other, by the code that runs in a federation; what the server observes of each."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from experiments.engine.setup import Setup
from fedsim.data import ImageSet
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.wire.records import Contribution, to_arrays
from fedsim.wire.reply.checks import check_shared
from server.sums.summing import RunningSum


class AuditedClients:
    """Each gets the model of the setup; their draws depend on their numbers alone."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._runtime = setup, setup.runtime()
        self._state = {name: tensor.detach().clone() for name, tensor in setup.model.state_dict().items()}
        self._start, self._rules, self._factory = to_arrays(self._state), setup.rules(simulated=False), setup.factory()

    def observe(
        self, images: Sequence[ImageSet], first_client: int, number: int, auxiliary_probs: Tensor | None = None
    ) -> tuple[Observation, GroundTruth]:
        """An observation of that number, and the truth: of one client, or under secure aggregation the sum of several.

        Args:
            images: of each client.

        Raises:
            MalformedReply: no server would take what a client shares.
        """
        sent = (self._sent(own, client) for client, own in enumerate(images, first_client))
        if (sums := self._setup.sums) is None:
            (seen,) = sent
        else:
            total = RunningSum(sums.by)
            for one in sent:
                total.add(one)
            seen = total.result()
        assert seen.truth is not None
        return self._factory.make(replace(seen, client=number), self._state, auxiliary_probs), seen.truth

    def _sent(self, images: ImageSet, client: int) -> Contribution:
        sent = self._runtime.answer(images, self._state, client)
        # As a federation's server does: an attack on what no client could share says nothing about the defense.
        check_shared(sent.update, self._start, self._rules)
        return sent
