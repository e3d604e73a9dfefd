"""What every recipe of fine-tuning is: which parameters are trained, and what is put into the model for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.models.buffers import Buffers
from fedsim.models.roles import find_roles


@dataclass(frozen=True)
class Finetune:
    """Subclass it as a frozen dataclass of its numbers, and add `conf/finetune/NAME.yaml` with its `_target_`.

    Clients, server and attackers prepare the same model by it, before any defense changes that model.

    Attributes:
        NAME: what it is called in `finetune=` and in what attacks say.
    """

    NAME: ClassVar[str]

    @property
    def whole(self) -> bool:
        """Whether everything is trained, and travels."""
        return False

    @property
    def keeps(self) -> bool:
        """Whether clients train and keep something of their own: then nobody can compute their updates once more."""
        return False

    def part(self, model: nn.Module) -> set[str]:
        """Parameters of the model itself that are trained.

        Raises:
            ConfigError: it has no such part.
        """
        raise NotImplementedError

    def insert(self, model: nn.Module, seed: int) -> set[str]:
        """Put in what is trained besides; the names of its trained parameters. What was there keeps its names.

        What an earlier call has put in stays, as it was trained since.

        Args:
            seed: of what is drawn; public, as the model's own.
        """
        return set()

    def personalise(self, model: nn.Module, seed: int) -> set[str]:
        """Put into a client's prepared model what it trains and keeps; the names of these parameters.

        The server's model has none of it, and no message: as drawn it must not change what the model computes.
        """
        return set()

    def prepare(self, model: nn.Module, seed: int = 0) -> nn.Module:
        """The model, in which the recipe's parameters alone are trained; those that were frozen stay frozen."""
        trained = self.part(model)  # before anything is put in: a part's name is that of the bare model
        trained |= self.insert(model, seed)
        for name, parameter in model.named_parameters():
            if name not in trained:
                parameter.requires_grad_(False)
        return model

    def hosts(self, model: nn.Module) -> dict[str, nn.Module]:
        """Modules whose forward pass reads what was put in, by name."""
        return {}

    def check(self, model: nn.Module, image_shape: Sequence[int], share: str = "weights") -> None:
        """Refuse a prepared model that goes past what was put in, and clients that would train nothing of their own.

        Args:
            share: what clients share: `gradient`, `delta` or `weights`.

        Raises:
            ConfigError: naming a module that the model reads in another way than by calling it.
        """
        if self.keeps and share == "gradient":
            expected = f"delta or weights: without a step nothing changes that finetune={self.NAME} keeps on the client"
            raise ConfigError("client.share", share, expected)
        hosts = self.hosts(model)
        called = _called(self.NAME, model, hosts, image_shape) if hosts else set()
        if missed := [name for name in hosts if name not in called]:
            expected = f"a model that calls its modules: {type(model).__name__} goes past {missed[0]}"
            raise ConfigError("finetune", self.NAME, expected)

    def resting(self, model: nn.Module) -> dict[str, Tensor]:
        """The frozen parameters of a prepared model: everybody has them, no message carries them."""
        return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}

    def to_record(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {"_target_": _target(type(self)), **asdict(self)}


@dataclass(frozen=True)
class Full(Finetune):
    """Everything is trained."""

    NAME = "full"

    @property
    def whole(self) -> bool:
        return True

    def prepare(self, model: nn.Module, seed: int = 0) -> nn.Module:
        return model

    def resting(self, model: nn.Module) -> dict[str, Tensor]:
        return {}


FULL = Full()


def head_names(model: nn.Module) -> set[str]:
    """The parameters of the classifier; none where it is no linear layer that is known."""
    roles = find_roles(model)
    return {*roles.head_weights, *roles.head_biases}


def known_head(model: nn.Module, key: str, value: object) -> set[str]:
    """The classifier's parameters; raises ConfigError where they are not known."""
    names = head_names(model)
    if not names:
        raise ConfigError(key, value, f"a model whose classifier is a linear layer, {type(model).__name__} has none")
    return names


def recorded_finetune(record: Mapping[str, Any] | None) -> Finetune:
    """The recipe that `Finetune.to_record` wrote; files of before there were any have none.

    A name from disk imports nothing: it finds subclasses of Finetune that are loaded.

    Raises:
        ConfigError: the record names something else.
    """
    if record is None:
        return FULL
    known = {_target(kind): kind for kind in _descendants(Finetune)}
    kind = known.get(str(record.get("_target_")))
    if kind is None:
        expected = "a recorded recipe must be a loaded subclass of Finetune; import yours first"
        raise ConfigError("observation", record.get("_target_"), expected)
    return kind(**{key: value for key, value in record.items() if key != "_target_"})


def _called(named: str, model: nn.Module, hosts: Mapping[str, nn.Module], image_shape: Sequence[int]) -> set[str]:
    """Those that a forward pass calls; modes and buffers stay as they are.

    Raises:
        ConfigError: it cannot be computed with what was put in.
    """
    called: set[str] = set()

    def note(name: str, *_: object) -> None:
        called.add(name)

    hooks = [one.register_forward_pre_hook(partial(note, name)) for name, one in hosts.items()]
    modes = {one: one.training for one in model.modules()}
    buffers, like = Buffers(model), next(model.parameters())
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *image_shape, dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError, TypeError) as error:
        expected = f"what fits the modules of {type(model).__name__} ({' '.join(str(error).split())[:200]})"
        raise ConfigError("finetune", named, expected) from error
    finally:
        for one, mode in modes.items():
            one.training = mode
        buffers.restore()
        for hook in hooks:
            hook.remove()
    return called


def _target(kind: type[Finetune]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _descendants(kind: type[Finetune]) -> list[type[Finetune]]:
    children = kind.__subclasses__()
    return children + [one for child in children for one in _descendants(child)]
