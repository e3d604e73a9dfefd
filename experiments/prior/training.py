"""Adam in steps that a killed process goes on with, on a CPU to the same bits."""

import json
from collections.abc import Callable
from logging import getLogger
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedsim.errors import RunError
from fedsim.settings.trained import TrainingSchedule
from fedsim.storage.durable import write_whole
from fedsim.update import under

logger = getLogger(__name__)

LossAt = Callable[[int], Tensor]
"""The loss of a step, by its number: every draw in it must follow from that."""


class Training:
    """One network, its optimiser and the file that holds both.

    A step's randomness follows from its number, so weights, moments and the number are all there is to keep.
    """

    def __init__(self, module: nn.Module, schedule: TrainingSchedule, path: Path) -> None:
        self.module, self.schedule, self.path = module, schedule, path
        self.step = 0
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=schedule.lr)
        self._load()

    def run(self, loss_at: LossAt, progress: Callable[[int, float], None]) -> None:
        """Train to the end; `progress` hears each step's number and loss.

        Raises:
            RunError: a loss that is not finite: nothing of it is kept.
        """
        self.module.train()
        while self.step < self.schedule.steps:
            for group in self.optimiser.param_groups:
                group["lr"] = self.schedule.lr_at(self.step)
            self.optimiser.zero_grad(set_to_none=True)
            loss = loss_at(self.step)
            if not bool(loss.isfinite()):
                raise RunError(f"step {self.step}: the loss is {loss.item()}; a lower learning rate may help")
            loss.backward()
            self.optimiser.step()
            self.step += 1
            if self.step % self.schedule.save_every == 0 or self.step == self.schedule.steps:
                self._save()
            progress(self.step, loss.item())
        self.module.eval()

    def _save(self) -> None:
        tensors = {f"module/{name}": tensor for name, tensor in self.module.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            tensors |= {f"adam/{index}/{key}": value for key, value in self.optimiser.state[parameter].items()}
        whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        write_whole(self.path, save(whole, {"step": json.dumps(self.step)}))

    def _load(self) -> None:
        if not self.path.is_file():
            return
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                step = int(json.loads((file.metadata() or {})["step"]))
        except (SafetensorError, KeyError, ValueError) as error:
            logger.warning("%s cannot be read, the training starts anew: %s", self.path, error)
            return
        self.module.load_state_dict(under("module/", tensors))
        for index, parameter in enumerate(self.parameters):
            self.optimiser.state[parameter] = {
                key: value.to(parameter.device) if value.dim() else value
                for key, value in under(f"adam/{index}/", tensors).items()
            }
        self.step = step
