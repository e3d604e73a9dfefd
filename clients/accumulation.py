"""Where the gradient of a batch is the mean of its parts' gradients, which `client.micro_batch_size` rests on."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import Defense, DefenseChain
from fedsim.errors import ConfigError
from fedsim.settings.groups import ClientSettings


def check_accumulation(settings: ClientSettings, model: nn.Module, defenses: DefenseChain) -> None:
    """Raises ConfigError where BatchNorm or a defense reads the whole batch."""
    if settings.micro_batch_size is None:
        return
    key = "client.micro_batch_size"
    if settings.training_mode:
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                expected = f"null, or client.training_mode=false: {name} (BatchNorm) reads the whole batch"
                raise ConfigError(key, settings.micro_batch_size, expected)
    for name, defense in defenses.defenses.items():
        if type(defense).gradient is not Defense.gradient or type(defense).extra_loss is not Defense.extra_loss:
            raise ConfigError(key, settings.micro_batch_size, f"null beside {name}, which works on the whole batch")
