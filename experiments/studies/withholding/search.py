"""What has to be withheld until no closed form rebuilds a picture: candidates, audits and the search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from attacks.running import run_attack
from defenses.compose import build_chain
from experiments.audit.images import choose_images
from experiments.matrix.units import guess
from experiments.studies.harness.client import Client
from experiments.studies.harness.ledger import Entry, Ledger
from experiments.studies.harness.study import code_and_machine
from experiments.studies.withholding.hitting_set import Names, smallest_hitting_sets
from experiments.studies.withholding.options import LEVELS
from fedsim.errors import RunError
from fedsim.metrics.score import score
from fedsim.models import find_roles
from fedsim.observation import Observation
from fedsim.settings.composition import Config

OWN = {
    "qkv_row_space": {"_target_": "experiments.studies.withholding.attacks.RowSpaces", "search": False},
    "later_row_spaces": {"_target_": "experiments.studies.withholding.attacks.RowSpaces", "search": True},
}


def own_attacks(level: str) -> tuple[str, ...]:
    """The attacks that no level before has."""
    before = [attack for name in tuple(LEVELS)[: tuple(LEVELS).index(level)] for attack in LEVELS[name]]
    return tuple(attack for attack in LEVELS[level] if attack not in before)


def candidates(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The trainable parameters in groups that are withheld together, each in one: by role in a ViT, else by layer."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    roles = find_roles(model)
    if roles.patch_weight is None or roles.qkv_weight is None:
        layers = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
        return {layer: tuple(n for n in names if (n.rpartition(".")[0] or n) == layer) for layer in layers}
    first = roles.qkv_weight.removesuffix("attn.qkv.weight")
    blocks = first.removesuffix("0.")
    tests: dict[str, Callable[[str], bool]] = {
        "pos_embed": lambda name: name == roles.pos_embed,
        "class_token": lambda name: name in roles.prefix_names,
        "patch_weight": lambda name: name == roles.patch_weight,
        "patch_bias": lambda name: name == roles.patch_bias,
        "qkv_weight": lambda name: name == roles.qkv_weight,
        "qkv_bias": lambda name: name == roles.qkv_bias,
        "first_norm": lambda name: name.startswith(f"{first}norm1."),
        "first_proj": lambda name: name.startswith(f"{first}attn."),
        "first_mlp": lambda name: name.startswith(first),
        "later_qkv": lambda name: name.startswith(blocks) and ".attn.qkv." in name,
        "later_mlp": lambda name: name.startswith(blocks) and ".mlp." in name,
        "later_rest": lambda name: name.startswith(blocks),
        "head": lambda name: True,
    }
    groups: dict[str, list[str]] = {group: [] for group in tests}
    for name in names:
        groups[next(group for group, test in tests.items() if test(name))].append(name)
    return {group: tuple(found) for group, found in groups.items() if found}


@dataclass(frozen=True)
class Leak:
    """What one attack gets out of updates from which a set is withheld.

    Attributes:
        psnrs: dB of each picture; None where the attack refused, or returned no picture.
        reason: why it refused, where it rebuilt nothing at all.
    """

    attack: str
    psnrs: Sequence[float | None]
    certified: int
    reason: str

    @property
    def applies(self) -> bool:
        """Whether it rebuilt something, well or badly."""
        return any(psnr is not None for psnr in self.psnrs)

    def succeeds(self, guesses: Sequence[float], margin: float) -> bool:
        """A picture certified, or the mean over what it rebuilt above that of the guesses by more than the margin."""
        pairs = [(psnr, guess) for psnr, guess in zip(self.psnrs, guesses, strict=True) if psnr is not None]
        return self.certified > 0 or (bool(pairs) and fmean(p - g for p, g in pairs) > margin)


class Audits:
    """Audits of one architecture, each set of withheld tensors and attack once for every picture.

    Args:
        config: of the audit without defense, with every attack's settings.

    Attributes:
        groups: what can be withheld, by name.
        sizes: of the groups, in parameters.
        guesses: dB of each picture that one reaches without a gradient, by the mean of public pictures.
    """

    def __init__(self, variant: str, config: Config, ledger: Ledger) -> None:
        self._variant, self._config, self._ledger = variant, config, ledger
        self._by = code_and_machine("cpu")  # the code that runs; what is checked out may change meanwhile
        plain = Client(config)
        self._positions = positions = choose_images(plain.setup)
        self.groups = candidates(plain.setup.model)
        self.sizes = {
            group: sum(plain.setup.model.get_parameter(name).numel() for name in names)
            for group, names in self.groups.items()
        }
        by_id = guess(plain.setup)
        self.images = [plain.setup.data.train.ids[position] for position in positions]
        self.guesses = [by_id[image] for image in self.images]
        shared = (plain.shares([position], number) for number, position in enumerate(positions))
        self._plain = [(observation, truth) for observation, truth, _ in shared]
        self._observed: tuple[Names, list[Observation]] = (frozenset(), [one for one, _ in self._plain])
        self._known: dict[tuple[Names, str, int], Entry] = {}
        for entry in ledger.entries:
            if entry["variant"] == variant:
                self._known[frozenset(entry["withheld"]), entry["attack"], entry["number"]] = entry

    def leak(self, withheld: Names, attack: str) -> Leak:
        """Measured now, or by an earlier call; what failed there is tried again.

        Raises:
            RunError: the attack failed: that it rebuilds nothing would be no result.
        """
        entries = [self._measured(withheld, attack, number) for number in range(len(self._positions))]
        psnrs = [entry["psnr"] for entry in entries]
        reason = entries[0]["reason"] if all(psnr is None for psnr in psnrs) else ""
        return Leak(attack, psnrs, sum(entry["certified"] for entry in entries), reason)

    def config(self, withheld: Names, mode: str = "private") -> dict[str, Config]:
        """`cfg.defense` that withholds these groups."""
        patterns = [name for group, names in self.groups.items() if group in withheld for name in names]
        return {"withhold": {"_target_": "defenses.Withhold", "patterns": patterns, "mode": mode}} if withheld else {}

    def _measured(self, withheld: Names, attack: str, number: int) -> Entry:
        known = self._known.get((withheld, attack, number))
        if known is None or known["status"] == "failed":
            known = self._attack(withheld, attack, number)
            self._ledger.add(known)
            self._known[withheld, attack, number] = known
        if known["status"] == "failed":
            reason = (known["reason"].splitlines() or [""])[0]
            where = f"{self._variant}, {known['image']}, withheld {name_of(withheld)}"
            raise RunError(f"{attack} failed ({where}): {reason}; the same command tries it again")
        return known

    def _attack(self, withheld: Names, attack: str, number: int) -> Entry:
        if self._observed[0] != withheld:
            self._observed = (withheld, [defended(one, self.config(withheld)) for one, _ in self._plain])
        observation, truth = self._observed[1][number], self._plain[number][1]
        settings = self._config["attack"][attack]
        result = run_attack(observation, attack, settings, self._config["seed"], torch.device("cpu"))
        psnr = None
        if result.images is not None:
            psnr = score(truth, result.images, None, eight_bit=True, perceptual=False)[0].psnr
        return {
            "variant": self._variant,
            "withheld": sorted(withheld),
            "attack": attack,
            "number": number,
            "image": self.images[number],
            "status": result.status,
            "reason": result.reason,
            "psnr": psnr,
            "certified": result.certified,
            "seconds": result.seconds,
            "by": self._by,
        }


def defended(observation: Observation, defense: Config) -> Observation:
    """What the server would see of the same gradient, were it shared through defenses that change updates alone."""
    chain = build_chain(defense)
    architecture = replace(observation.architecture, wrappers=(chain,))
    architecture.build(keep=True)  # the defenses learn the names of the parameters
    update = chain.transform_update(observation.update, torch.Generator())
    described = tuple({"name": name, **settings} for name, settings in defense.items())
    return replace(observation, architecture=architecture, update=update, defenses=described)


@dataclass(frozen=True)
class SmallestSets:
    """What a search came to.

    Attributes:
        needs: for each attack the sets of groups that are enough for it, as far as the search met them.
        smallest: all sets of the least size that stop every attack; empty where nothing does.
        tried: every set that was audited with all attacks of the level, in order.
    """

    needs: Mapping[str, Sequence[Names]]
    smallest: Sequence[Names]
    tried: Sequence[Names]


def search(audits: Audits, attacks: Sequence[str], margin: float, note: Callable[[str], None]) -> SmallestSets:
    """All sets of the least size whose withholding stops every attack.

    Each attack that still succeeds is cut down to groups that are enough for it; a set that stops everything must
    meet all of those. So every smallest set that does is tried, until at that size one holds. This is exact where
    withholding more never helps an attack.
    """
    groups = list(audits.groups)
    family: dict[Names, str] = {}
    needs: dict[str, list[Names]] = {}
    tried: list[Names] = []
    while True:
        stopped: list[Names] = []
        proposed = smallest_hitting_sets(groups, family)
        for withheld in proposed:
            if len(withheld) == len(groups):
                return SmallestSets(needs, [], tried)  # nothing would be shared
            if withheld not in tried:
                tried.append(withheld)
            note(f"withheld {name_of(withheld)}")
            leaks = [audits.leak(withheld, attack) for attack in attacks]
            through = [leak.attack for leak in leaks if leak.succeeds(audits.guesses, margin)]
            if not through:
                stopped.append(withheld)
                continue
            enough = _enough(audits, withheld, through[0], margin, note)
            needs.setdefault(through[0], []).append(enough)
            family[enough] = through[0]
            break
        else:
            return SmallestSets(needs, stopped, tried)


def _enough(audits: Audits, withheld: Names, attack: str, margin: float, note: Callable[[str], None]) -> Names:
    """A least set of groups that the attack succeeds with: none of them can be left out."""
    for group in audits.groups:
        more = withheld | {group}
        if group in withheld or len(more) == len(audits.groups):
            continue
        note(f"{attack} without {group}")
        if audits.leak(more, attack).succeeds(audits.guesses, margin):
            withheld = more
    return frozenset(audits.groups) - withheld


def name_of(withheld: Names) -> str:
    return " + ".join(sorted(withheld)) or "nothing"
