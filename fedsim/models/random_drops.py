"""Which parts of a model drop units at random: what it computes in training is then known to nobody else."""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def random_drops(model: nn.Module) -> list[str]:
    """Names of dropout, drop path and patch dropout whose rate is above 0: in training mode they draw.

    >>> random_drops(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.0)))
    ['0']
    """
    return [name for name, module in model.named_modules() if _rate(module) > 0]


def _rate(module: nn.Module) -> float:
    if isinstance(module, _DropoutNd):
        return module.p
    return float(getattr(module, "prob" if type(module).__name__ == "PatchDropout" else "drop_prob", None) or 0.0)
