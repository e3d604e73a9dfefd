"""What local training reads of a worker's model, found once for all of its clients."""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import nn

from clients.compiled import Forward, compiled
from fedsim.models.buffers import Buffers
from fedsim.settings.groups import ClientSettings
from fedsim.settings.local.decay import groups, undecayed
from fedsim.settings.local.optimizers import Optimisers
from fedsim.settings.local.sgd import SGD
from fedsim.update import State
from fedsim.wire.blocks import are_alike


class LocalModel:
    """A model, and its parameters and buffers by name: a walk through its modules takes as long as a layer of it.

    Between clients values change, and modes; names and which parameters are trained must not.

    Attributes:
        trained: the parameters that local steps change.
        buffers: what training changes besides, less the count of batches: an average of it means nothing.
        all_buffers: of the model, those that no state holds among them.
        alike: whether the trained parameters are of one type and on one device.
        forward: what a batch goes through: the model, or its compiled code.
    """

    def __init__(self, model: nn.Module, compiles: bool = False) -> None:
        self.model = model
        self.forward: Forward = compiled(model) if compiles else model
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.trained = {name: one for name, one in self.parameters.items() if one.requires_grad}
        persistent = set(model.state_dict())
        held = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self.buffers: State = {name: buffer for name, buffer in held.items() if buffer.is_floating_point()}
        self.all_buffers = Buffers(model)
        self._modules = list(model.modules())
        self._changing: State = {**self.trained, **self.buffers}
        self.alike = are_alike(self.trained.values())
        self._optimizer: tuple[ClientSettings, SGD] | None = None

    def set_mode(self, training: bool) -> None:
        """`model.train(training)`, where it is not so already."""
        if any(module.training != training for module in self._modules):
            self.model.train(training)

    def keep(self) -> State:
        """The values that local steps will change, as they are now; the next client's take their place."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._kept.values()), list(self._changing.values()))
        return self._kept

    def change(self) -> State:
        """What has been added to the values that were kept."""
        with torch.no_grad():
            changes = torch._foreach_sub(list(self._changing.values()), list(self._kept.values()))
        return dict(zip(self._changing, changes, strict=True))

    def optimisers(self, settings: ClientSettings, rated: bool) -> Optimisers:
        """For the next client; what the last one's steps left nothing in serves again.

        Args:
            rated: the learning rate will be changed from step to step.
        """
        if not rated and self._optimizer is not None and self._optimizer[0] is settings:
            return self._optimizer[1], None
        apart = self.undecayed if settings.no_decay else ()
        optimizer, scheduler = settings.optimisers(groups(self.trained, apart))
        if not rated and scheduler is None and isinstance(optimizer, SGD) and optimizer.keeps_nothing:
            self._optimizer = settings, optimizer
        return optimizer, scheduler

    @cached_property
    def undecayed(self) -> tuple[str, ...]:
        """See `fedsim.settings.local.decay`."""
        return undecayed(self.model)

    @cached_property
    def _kept(self) -> State:
        return {name: torch.empty_like(tensor, requires_grad=False) for name, tensor in self._changing.items()}
