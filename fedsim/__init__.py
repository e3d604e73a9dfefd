"""fedsim: what an honest-but-curious server learns from federated vision training, and what a defense costs.

The names below are loaded when they are first used, so that `import fedsim` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.attack import attack as attack
    from attacks.base import Attack as Attack
    from clients.observe import observe as observe
    from clients.replay import replay as replay
    from defenses.base import Defense as Defense
    from experiments.python.audit import Audit as Audit
    from experiments.python.audit import audit as audit
    from experiments.python.load_config import load_config as load_config
    from experiments.python.run import Run as Run
    from experiments.python.run import run as run
    from fedsim.errors import ConfigError as ConfigError
    from fedsim.errors import NotApplicable as NotApplicable
    from fedsim.history import History as History
    from fedsim.metrics.results import score as score
    from fedsim.observation import Observation as Observation
    from fedsim.report.show import show as show
    from fedsim.result import AttackResult as AttackResult
    from fedsim.update import LocalProtocol as LocalProtocol
    from fedsim.update import Update as Update
    from server.curious.honest_but_curious import HonestButCurious as HonestButCurious

__version__ = "0.1.0"

_HOMES = {
    "observe": "clients.observe",
    "attack": "attacks.attack",
    "score": "fedsim.metrics.results",
    "show": "fedsim.report.show",
    "audit": "experiments.python.audit",
    "run": "experiments.python.run",
    "load_config": "experiments.python.load_config",
    "replay": "clients.replay",
    "Observation": "fedsim.observation",
    "History": "fedsim.history",
    "Update": "fedsim.update",
    "LocalProtocol": "fedsim.update",
    "AttackResult": "fedsim.result",
    "Audit": "experiments.python.audit",
    "Run": "experiments.python.run",
    "HonestButCurious": "server.curious.honest_but_curious",
    "Attack": "attacks.base",
    "Defense": "defenses.base",
    "ConfigError": "fedsim.errors",
    "NotApplicable": "fedsim.errors",
}
"""Where each public name lives."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    result = getattr(import_module(_HOMES[name]), name)
    globals()[name] = result
    return result


def __dir__() -> list[str]:
    """The public names, and modules that are loaded already; none of what this file imports."""
    own = {"Any", "TYPE_CHECKING", "import_module", "_HOMES"}
    return sorted({*globals(), *_HOMES} - own)
