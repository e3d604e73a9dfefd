"""pfl-research's ways: one user of its FedAvg, and an iteration of its simulated backend, in one process or several."""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.benchmarks.training.work import Work
from fedsim.settings.groups import ClientSettings
from fedsim.update import State

NEVER = 2**31
"""Iterations between evaluations: the first one of all evaluates, and is no part of what is timed."""


class Pfl:
    """Its FedAvg on the same work. A user's images stand in the order of their batches, which it slices once."""

    def __init__(self, work: Work, settings: ClientSettings) -> None:
        if settings.local_steps is None and settings.local_epochs > 1:
            raise SystemExit("client.local_epochs: pfl-research takes the same batches in each epoch; compare one")
        self._work, self._module = work, _Module(work.model)
        self._model = PyTorchModel(self._module, torch.optim.SGD, torch.optim.SGD(self._module.parameters(), lr=1.0))
        self._users = {str(number): self._user(number) for number in range(len(work.images))}
        data = FederatedDataset(self._users.__getitem__, get_user_sampler("minimize_reuse", list(self._users)))
        self._backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._training = NNTrainHyperParams(
            local_batch_size=settings.batch_size,
            local_num_epochs=None if settings.local_steps else 1,
            local_num_steps=settings.local_steps,
            local_learning_rate=work.sgd["lr"],
        )
        self._evaluating = NNEvalHyperParams(settings.batch_size)
        self._iterations = 0
        self.iteration()
        contexts, _, _ = self._algorithm.get_next_central_contexts(
            self._model, self._iterations, self._until(NEVER), self._training, self._evaluating
        )
        (self._context,) = contexts

    def iteration(self) -> State:
        """All users from the first weights; the model that follows."""
        self._iterations += 1
        self._module.inner.load_state_dict(self._work.start)
        params = self._until(self._iterations)
        self._algorithm.run(params, self._backend, self._model, self._training, self._evaluating)
        return self._module.inner.state_dict()

    def users(self) -> None:
        """Each user alone: trained, its change taken, the model set back."""
        for user in self._users.values():
            self._algorithm.simulate_one_user(self._model, user, self._context)

    def ends(self) -> list[State]:
        """The weights of each user, by `users`."""
        self._module.inner.load_state_dict(self._work.start)
        ends = []
        for user in self._users.values():
            change, _ = self._algorithm.simulate_one_user(self._model, user, self._context)
            ends.append({name: tensor + change[f"inner.{name}"] for name, tensor in self._work.start.items()})
        return ends

    def _until(self, iterations: int) -> NNAlgorithmParams:
        return NNAlgorithmParams(
            central_num_iterations=iterations,
            evaluation_frequency=NEVER,
            train_cohort_size=len(self._users),
            val_cohort_size=None,
        )

    def _user(self, number: int) -> Dataset:
        order = torch.cat(self._work.orders[number])
        held = torch.ones(len(self._work.labels[number]), dtype=torch.bool)
        held[order] = False
        order = torch.cat([order, held.nonzero().flatten()])  # those of no batch count in the weight of a user
        return Dataset((self._work.images[number][order], self._work.labels[number][order]), user_id=str(number))


class _Module(nn.Module):
    """What pfl-research asks of a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> Metrics:
        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}
