"""Which parts of a model drop units at random: what it computes in training is then known to nobody else."""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

RATES = ("drop_prob", "attn_drop_p", "dropout_prob", "drop_rate")
"""Attributes that hold a rate in modules of timm and others: drop path and blocks, attention, a classifier's input."""


def random_drops(model: nn.Module) -> list[str]:
    """Names of the modules with a rate above 0, as of dropout, drop path or patch dropout: in training mode they draw.

    >>> random_drops(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.0)))
    ['0']
    """
    return [name for name, module in model.named_modules() if any(_rates(module))]


def leave_out_drops(model: nn.Module) -> None:
    """Set every such rate to 0, in place.

    Modules of which dropping is all are put into eval mode too: what maps a model over inputs refuses what may draw.
    """
    for module in model.modules():
        for name in _rates(module):
            setattr(module, name, 0.0)
        if isinstance(module, _DropoutNd) or type(module).__name__ in ("DropPath", "PatchDropout"):
            module.eval()


def _rates(module: nn.Module) -> Iterator[str]:
    """Names of its attributes that hold a rate above 0.

    A rate may be read by another module than the one that has it: fused attention reads that of its dropout.
    """
    names: tuple[str, ...] = RATES
    if isinstance(module, _DropoutNd) or type(module).__name__ == "StochasticDepth":
        names = ("p",)
    elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        names = ("dropout",)
    elif type(module).__name__.startswith("PatchDropout"):
        names = ("prob",)
    for name in names:
        rate = getattr(module, name, None)
        if isinstance(rate, float | int) and rate > 0:
            yield name
