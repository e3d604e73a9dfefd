"""What of a model does not go with the clients that would train it."""

from torch import nn

from fedsim.errors import ConfigError
from fedsim.settings.commands import FederatedConfig, JobConfig


def check_trainable(config: JobConfig, model: nn.Module) -> None:
    """Raises ConfigError for what clients could not train, or would train to no effect."""
    if isinstance(config, FederatedConfig):
        _refuse_tied(config, model)


def _refuse_tied(config: FederatedConfig, model: nn.Module) -> None:
    """Messages carry each trained tensor by one name, and the old values under another would win."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first != name and parameter.requires_grad:
            expected = f"a model whose parameters have one name each: {first} and {name} are one tensor"
            raise ConfigError("model.name", config.model["name"], expected)
