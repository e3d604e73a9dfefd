"""Headings under which attacks and defenses stand, in help texts and in the documentation."""

from collections.abc import Iterable, Iterator

FAMILIES = (
    ("Closed forms", ("attacks.analytic",)),
    ("Searches", ("attacks.optimization",)),
    ("With prior knowledge", ("attacks.generative", "attacks.learned")),
    ("Labels", ("attacks.label",)),
    ("Baselines", ("generator_samples", "lti_mean")),
    ("Masked Jigsaw Puzzle", ("defenses.MaskedJigsawPuzzle",)),
    ("Positions and parts", ("defenses.FixedPosition", "defenses.Withhold", "defenses.NoPosition")),
    ("Noise and privacy", ("defenses.Gradient", "defenses.DPSGD", "defenses.LocalDP", "defenses.Outpost")),
    ("Compression", ("defenses.TopK", "defenses.Sign", "defenses.QSGD", "defenses.Half")),
    ("Features", ("defenses.Soteria", "defenses.Precode")),
    ("Images", ("defenses.Automatic", "defenses.MixUp", "defenses.CutMix", "defenses.InstaHide")),
    ("Protocol", ("defenses.Secure", "defenses.LeakageGate")),
)
"""By the name of an option, else by the beginning of its `_target_`."""


def in_families(targets: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Names and targets under their headings; what has none comes last, under `Others`."""
    found: dict[str, list[str]] = {heading: [] for heading, _ in FAMILIES}
    found["Others"] = []
    for name, target in targets:
        named = next((heading for heading, marks in FAMILIES if name in marks), None)
        found[named or next((h for h, marks in FAMILIES if target.startswith(marks)), "Others")].append(name)
    return ((heading, names) for heading, names in found.items() if names)
