"""What local training reads of a worker's model, found once for all of its clients."""

from collections.abc import Mapping

from torch import nn

from fedsim.update import State


class LocalModel:
    """A model, and its parameters and buffers by name: a walk through its modules takes as long as a layer of it.

    Between clients values change, and modes; names and which parameters are trained must not.

    Attributes:
        trained: the parameters that local steps change.
        buffers: what training changes besides, less the count of batches: an average of it means nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.trained = {name: one for name, one in self.parameters.items() if one.requires_grad}
        persistent = set(model.state_dict())
        held = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self.buffers: State = {name: buffer for name, buffer in held.items() if buffer.is_floating_point()}
        self._modules = list(model.modules())

    def set_mode(self, training: bool) -> None:
        """`model.train(training)`, where it is not so already."""
        if any(module.training != training for module in self._modules):
            self.model.train(training)
