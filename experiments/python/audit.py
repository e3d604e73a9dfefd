"""`fedsim.audit`: what each update would give away, of any model and data set, behind any defenses."""

import copy
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from torch import nn

from attacks.base import Attack
from attacks.building import build_attack, check_fit
from defenses.base import Defense
from defenses.named import Named, chain_of
from experiments.audit.command import audit_prepared
from experiments.cli.call import console, errors, on_stderr
from experiments.cli.validation import check_gpus
from experiments.engine.setup import Setup, assemble
from experiments.python.load_config import load_config
from experiments.python.results import attack_table, read_results
from fedsim.data.own import Own, OwnData, check_own, own_data
from fedsim.errors import ConfigError
from fedsim.models import OwnArchitecture, architecture_seed, own_architecture, training_mode_of
from fedsim.models.own import stated_shape
from fedsim.report.render import build_comparison, build_report
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict
from fedsim.result import AttackResult
from fedsim.settings.commands import AuditConfig
from fedsim.settings.components import TARGET
from fedsim.settings.composition import NamedFinetune, finetune_of
from fedsim.settings.options import option
from fedsim.settings.schema import parse
from fedsim.storage.digests import absorb, described
from fedsim.storage.json_lines import rows

if TYPE_CHECKING:
    import pandas as pd

Options = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
"""Names of `conf`, with settings as `{name: settings}`."""
Attacks = Options | Attack | Sequence[str | Mapping[str, Any] | Attack]
"""The same, and objects, under names of their own as `{name: object}`."""


@dataclass(frozen=True)
class Audit:
    """What `fedsim.audit` found: a run folder for each set of defenses.

    Attributes:
        folders: absolute run folders by the names of the defenses, `none` without any.
    """

    folders: dict[str, Path]

    @property
    def results(self) -> dict[str, list[AttackResult]]:
        """Each attack's result on each update, with its scores, by the names of the defenses."""
        return {name: read_results(folder) for name, folder in self.folders.items()}

    @property
    def bounds(self) -> dict[str, list[dict[str, Any]]]:
        """What stands beside the attacks, as `bounds.jsonl` has it, by the names of the defenses."""
        found = {
            name: {row["bound"]: row for row in rows(folder / "bounds.jsonl")} for name, folder in self.folders.items()
        }
        return {name: list(latest.values()) for name, latest in found.items()}

    @property
    def table(self) -> "pd.DataFrame":
        """One row a defense and an attack: updates, refusals, certified, PSNR in dB (mean, least), labels, seconds.

        Means count an image above 60 dB as 60 beside others below, as the report does.
        `seen_guess_psnr` and `guess_psnr` are what a guess without any gradient reaches of the same images: beside
        `psnr` (what the model saw) and `private_psnr` (the client's own image).
        """
        return attack_table(self.folders)

    @property
    def verdicts(self) -> dict[str, str]:
        """The level of each set of defenses and the sentence that goes with it."""
        return {name: verdict(read_run(folder)).line for name, folder in self.folders.items()}

    def report(self, path: Path | str) -> Path:
        """Write the page that the command writes: of one run, or the comparison of several; one file."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(self.folders) == 1:
            (folder,) = self.folders.values()
            page = build_report(folder)
            same = target.exists() and target.samefile(page)
            return target if same else Path(shutil.copyfile(page, target))
        return build_comparison(list(self.folders.values()), target)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {line}" for name, line in self.verdicts.items())

    def _repr_html_(self) -> str:
        return str(self.table.to_html())


def audit(
    model: nn.Module,
    dataset: Own,
    attacks: Attacks = ("patch_gradient", "labels"),
    defenses: Named | Sequence[Named | Sequence[Named]] = ((),),
    *,
    bounds: Options = (),
    finetune: NamedFinetune = "full",
    num_images: int = 16,
    batch_size: int = 1,
    select: Literal["random", "first"] = "random",
    seed: int = 0,
    share: Literal["gradient", "delta", "weights"] = "gradient",
    local_steps: int | None = None,
    lr: float | int = 0.1,
    image_shape: Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    roles: Mapping[str, str] | None = None,
    run_dir: Path | str | None = None,
) -> Audit:
    """Attack what clients would share of these images, undefended and behind defenses, and score the results.

    Args:
        model: any module from [n,C,H,W] to [n,classes] logits.
        dataset: a torch data set of (image, label), or a pair of tensors; images in [0, 1] or of PIL.
        attacks: names of `conf/attack`, with settings as `{"dlg": {"steps": 100}}`; objects of your own, which
            `{"short": Mine(10), "long": Mine(100)}` gives names.
        defenses: one run for each entry, which is a name, `{name: settings}`, an object, or several of these;
            `()` is no defense. One name, `{name: settings}` or object alone is one run.
        bounds: names of `conf/bound`, with settings as attacks have them: what stands beside the attacks' results.
        finetune: what clients train and share, as for `fedsim.observe`.
        num_images, batch_size: how many images, and how many in one update, a multiple of which the first is.
        share, local_steps, lr: what clients share, as for `fedsim.observe`.
        image_shape: (channels, height, width); None: the model says it as timm's do, or the first image does.
        roles: of a ViT whose parts have other names than timm's, as for `fedsim.observe`.
        run_dir: a folder that keeps the runs; called again with the same arguments it goes on where it stopped, unless
            the state of a defense or an attack that is an object cannot be read, as with a lambda in it. None: a
            temporary folder.

    Raises:
        ConfigError: an argument cannot work.

    >>> import fedsim, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    >>> found = fedsim.audit(model, (torch.rand(8, 3, 4, 4), torch.arange(8) % 5), ["labels"], num_images=4)
    >>> found.table.loc[0, ["updates", "label_share"]].tolist()
    [4.0, 1.0]
    """
    check_own(dataset)
    shape = image_shape if image_shape is not None else _first_shape(model, dataset)
    own = own_architecture(model, shape, None, mean, std, roles)
    _refuse_unsent(own)
    architecture = replace(own, seed=architecture_seed(seed), finetune=finetune_of(finetune))
    data = own_data(dataset, architecture.image_shape, architecture.spec.num_classes, num_images, select, seed)
    if share == "gradient" and local_steps is not None:
        raise ConfigError(
            "local_steps", local_steps, "share='delta' or 'weights' with it: a gradient is taken of one batch"
        )
    sgd = {"_target_": "torch.optim.SGD", "lr": lr}
    client: dict[str, Any] = {"share": share, "local_steps": local_steps, "batch_size": batch_size, "optimizer": sgd}
    client["training_mode"] = training_mode_of(model)
    audited = {"num_images": num_images, "batch_size": batch_size, "select": "first"}
    fixed = ("simulation=inline", "attack=[]", "data=photos")
    given = load_config("audit", *fixed, seed=seed, client=client, audit=audited)
    own_attacks, settings = _attacks(attacks)
    config = parse(AuditConfig, {**given, "attack": settings, "bound": _options("bound", bounds)})
    config.check_audit()
    setups = {
        name: _setup(config, chosen, architecture, data, own_attacks) for name, chosen in _named(defenses).items()
    }
    root = Path(tempfile.mkdtemp(prefix="fedsim-audit-") if run_dir is None else run_dir).expanduser().resolve()
    safe = {name: re.sub(r"[^A-Za-z0-9_+.=-]+", "_", name)[:80] for name in setups}
    folders = {name: root if len(setups) == 1 else root / f"{place}-{safe[name]}" for place, name in enumerate(setups)}
    try:
        for name, setup in setups.items():
            with _progress_in_terminals():
                audit_prepared(setup, folders[name], time.perf_counter())
    except ConfigError:
        if run_dir is None:
            with suppress(OSError):  # what an earlier one of several left there stays
                root.rmdir()
        raise
    return Audit(folders)


def _refuse_unsent(architecture: OwnArchitecture) -> None:
    """Raises ConfigError: an update of such numbers cannot be sent, as arrays of NumPy have none like them."""
    assert architecture.module is not None
    for name, tensor in architecture.module.state_dict().items():
        try:
            tensor.new_empty(0).numpy(force=True)
        except TypeError as error:
            kind = str(tensor.dtype).removeprefix("torch.")
            expected = "float16, float32 or float64, which clients can send; fedsim.observe takes it as it is"
            raise ConfigError("model", f"{kind} in {name}", expected) from error


def _first_shape(model: nn.Module, dataset: Own) -> Sequence[int] | None:
    """None where the model says itself what it reads."""
    if stated_shape(model) is not None:
        return None
    first = dataset[0][0] if len(dataset) else None
    found = getattr(first, "shape", None)
    return tuple(found) if found is not None and len(found) == 3 else None


def _attacks(attacks: Attacks) -> tuple[dict[str, Attack], dict[str, Any]]:
    """Copies of those that are objects, and of each attack the settings that are recorded, by name."""
    several = list(attacks) if isinstance(attacks, Sequence) and not isinstance(attacks, str) else [attacks]
    objects: dict[str, Attack] = {}
    chosen: dict[str, Any] = {}
    for one in several:
        named = {type(one).__name__: one} if isinstance(one, Attack) else one
        pairs = named if isinstance(named, Mapping) else {}
        own = {name: attack for name, attack in pairs.items() if isinstance(attack, Attack)}
        rest = {name: settings for name, settings in pairs.items() if name not in own} if own else named
        found = _options("attack", [rest]) | {name: _recorded(attack) for name, attack in own.items()}
        if twice := found.keys() & chosen.keys():
            raise ConfigError("attacks", min(twice), "each attack once: {name: object} gives an object another name")
        chosen |= found
        objects |= {name: _copied("attacks", attack) for name, attack in own.items()}
    for name in chosen.keys() - objects.keys():
        build_attack(name, chosen[name])
    return objects, chosen


def _recorded(one: Attack | Defense) -> dict[str, Any]:
    kind = type(one)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", "digest": _digest_of_objects([one])}


def _copied(key: str, one: Any) -> Any:
    try:
        return copy.deepcopy(one)
    except Exception as error:
        raise ConfigError(
            key, one, f"objects that copy.deepcopy can copy, and that so stay as they are ({error})"
        ) from error


def _options(group: str, given: Options) -> dict[str, Any]:
    several = [given] if isinstance(given, str | Mapping) else list(given)
    chosen: dict[str, Any] = {}
    for one in several:
        if not isinstance(one, str | Mapping):
            objects = ", or objects of a subclass of fedsim.Attack" if group == "attack" else ""
            raise ConfigError(f"{group}s", one, f"names of conf/{group}, or {{name: settings}}{objects}")
        for name, changes in ({one: {}} if isinstance(one, str) else one).items():
            if name in chosen:
                raise ConfigError(f"{group}s", name, f"each {group} once")
            chosen[name] = option(group, name, changes)
    return chosen


def _named(defenses: Named | Sequence[Named | Sequence[Named]]) -> dict[str, Named | Sequence[Named]]:
    """Each set of defenses under its names, with the settings that were given; equal names are numbered."""
    sets = [defenses] if isinstance(defenses, str | Mapping | Defense) else list(defenses)
    if not sets:
        raise ConfigError("defenses", defenses, "one entry or more: [[]] is one run without a defense")
    named: dict[str, Named | Sequence[Named]] = {}
    for chosen in sets:
        several = [chosen] if isinstance(chosen, str | Mapping | Defense) else list(chosen)
        name = "+".join(_words(one) for one in several) or "none"
        count = sum(other == name or other.startswith(f"{name} #") for other in named)
        named[f"{name} #{count + 1}" if count else name] = chosen
    return named


def _words(one: Named) -> str:
    if isinstance(one, Mapping):
        # What is no mapping is refused later, by its name.
        given = {name: own if isinstance(own, Mapping) else {} for name, own in one.items()}
        settings = {name: ",".join(f"{key}={value}" for key, value in own.items()) for name, own in given.items()}
        return "+".join(f"{name}({words})" if words else name for name, words in settings.items())
    return type(one).__name__ if isinstance(one, Defense) else str(one)


def _digest(architecture: OwnArchitecture, data: OwnData) -> str:
    """Of what a run folder's results depend on and no setting names: kinds of modules, weights and images."""
    found = hashlib.blake2b(digest_size=16)
    assert architecture.module is not None
    about = getattr(architecture.module, "pretrained_cfg", {})
    kinds = [(name, type(one).__qualname__) for name, one in architecture.module.named_modules()]
    told = [sorted((about.get("roles") or {}).items()), about["mean"], about["std"], kinds]
    found.update(json.dumps(told).encode())
    tensors = dict(architecture.module.state_dict()) | {"labels": data.train.labels}
    tensors["images"] = data.train.images(range(len(data.train)))
    absorb(found, tensors)
    return found.hexdigest()


def _digest_of_objects(objects: Sequence[Attack | Defense]) -> str:
    """Of what came as objects, whose settings nothing else records; a new one where it cannot be told."""
    try:
        words = described(list(objects))
    except Exception:  # noqa: BLE001 - objects are plug-ins: one that tells no state is another at each call
        return f"new-{uuid4().hex[:8]}"
    return hashlib.blake2b(words.encode(), digest_size=4).hexdigest()


def _setup(
    config: AuditConfig,
    chosen: Named | Sequence[Named],
    architecture: OwnArchitecture,
    data: OwnData,
    own_attacks: Mapping[str, Attack],
) -> Setup:
    several = _copied("defense", [chosen] if isinstance(chosen, str | Mapping | Defense) else list(chosen))
    given = [one for one in several if isinstance(one, Defense)]
    objects = {"defense_digest": _digest_of_objects(given)} if given else {}  # before they learn of the model
    chain, settings = chain_of(several, config.client.augment)
    check_gpus(config)
    # What the record and the report name: the module and the data set are nobody's by name.
    named = {**config.model, "name": architecture.spec.name, "num_classes": architecture.spec.num_classes}
    digested = {"_target_": "fedsim.data.own.OwnData", "digest": _digest(architecture, data), **objects}
    recipe = architecture.finetune.to_record()
    own = replace(config, defense=settings, model=named, data=digested, finetune=recipe)
    own.client.check_optimizer()
    defended = replace(architecture, wrappers=(chain,))
    attacks = {name: own_attacks.get(name) or build_attack(name, settings) for name, settings in own.attack.items()}
    setup = assemble(own, data, chain, defended, attacks, defended.image_shape)
    for name, attack in attacks.items():
        check_fit(name, attack, defended.image_shape)
    return replace(setup, own_attacks=own_attacks)


@contextmanager
def _progress_in_terminals() -> Iterator[None]:
    """Bars and closing lines, on standard error where that is a terminal and in a notebook; nothing in a script."""
    before = console.quiet, errors.quiet
    with on_stderr():
        for one in (console, errors):
            one.quiet = not (one.is_terminal or one.is_jupyter)
        try:
            yield
        finally:
            console.quiet, errors.quiet = before
