"""Real audits of small models on handwritten digits, by plain settings."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from experiments.audit.command import run_audit
from experiments.cli.call import console, errors
from experiments.python.load_config import load_config
from fedsim.errors import RunError
from fedsim.report.draw.pictures import save_png
from fedsim.report.render import build_comparison
from tests.verdicts.case import Case, read_run_page, shown
from tests.verdicts.cases import plug_ins
from tests.verdicts.expectations import card, counts, level, level_of, never, says
from tests.verdicts.pages import Said, read_matrix_page, read_page

GREY = f"+attack.grey._target_={plug_ins.__name__}.Grey"
SIDE = 8


def of_audit(
    *settings: str, data: Callable[[Path], Sequence[str]] = lambda _: ["data=digits"]
) -> Callable[[Path], Said]:
    """An audit as `fedsim-audit` makes it, in this process."""

    def make(folder: Path) -> Said:
        root = folder / "run"
        terminal = _audit([*data(folder), *settings], root)
        return read_run_page(root, shown(terminal, root))

    return make


def of_audits(**runs: Sequence[str]) -> Callable[[Path], Said]:
    """The page that compares several."""

    def make(folder: Path) -> Said:
        for name, settings in runs.items():
            _audit(["data=digits", *settings], folder / name)
        page = build_comparison([folder / name for name in runs], folder / "comparison.html")
        return read_page("comparison", page.read_text(encoding="utf-8"), "", {})

    return make


def of_matrix(*settings: str) -> Callable[[Path], Said]:
    """A matrix as `fedsim-matrix` makes it, in a process of its own."""

    def make(folder: Path) -> Said:
        root = folder / "matrix"
        common = ["data=digits", "model=vit_nano", "simulation=inline", "simulation.threads=1"]
        command = [sys.executable, "-m", "experiments.matrix", f"run_dir={root}", *common, *settings]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        summary = json.loads((root / "matrix.json").read_text(encoding="utf-8"))
        html = (root / "matrix.html").read_text(encoding="utf-8")
        return read_matrix_page(html, shown(ended.stdout, root), summary, {})

    return make


def _audit(settings: Sequence[str], root: Path) -> str:
    common = ["model=vit_nano", "simulation=inline", "simulation.threads=1"]
    config = {**load_config("audit", *common, *settings), "run_dir": str(root)}
    with console.capture() as printed, errors.capture() as failed:
        try:
            run_audit(config, root)
        except RunError as error:
            errors.print(f"error: {error}", markup=False)
    return printed.get() + failed.get()


def low_contrast(folder: Path) -> Sequence[str]:
    """A folder of images that hardly differ from grey, in two classes."""
    rng = torch.Generator().manual_seed(0)
    for name in ("light", "dark"):
        for number in range(60):
            pixels = 0.5 + 0.06 * torch.randn(3, SIDE, SIDE, generator=rng)
            path = folder / "data" / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_png(pixels.clamp(0, 1), path)
    return ["data=imagefolder", f"data.path={folder / 'data'}"]


JIGSAW = ["defense=[mjp_jp,half]", "defense.mjp_jp.ratio=0.9"]
MIRROR = ["defense=[ats,half]", "defense.ats.policies=[]", "defense.ats.flip=true"]
PATCHES = "attack=[patch_gradient]"
EIGHT = "audit.num_images=8"

CASES = (
    Case(
        "audit: jigsaw and half precision",
        "the jigsaw protects: 8 images at 40 dB and more as the model saw them",
        of_audit(*JIGSAW, PATCHES, EIGHT),
        (level("broken"), says("as the model saw"), says("as the model saw", "terminal")),
    ),
    Case(
        "audit: mirrored and half precision",
        "half of 8 images stay private: they came out mirrored",
        of_audit(*MIRROR, PATCHES, EIGHT),
        (level("broken"), says("as the model saw"), says("as the model saw", "terminal")),
    ),
    Case(
        "audit: mirrored, against none",
        "leaks less: 4 of 8",
        of_audits(none=[PATCHES, EIGHT], mirrored=[*MIRROR, PATCHES, EIGHT]),
        (level("broken"), says("as the model saw")),
    ),
    Case(
        "audit: half precision, against none",
        "half precision leaks less: by dB that no eye sees",
        of_audits(none=[PATCHES, EIGHT], half=["defense=[half]", PATCHES, EIGHT]),
        (level("broken"), counts(8, 8)),
    ),
    Case(
        "audit: grey from low-contrast images",
        "20 images were rebuilt recognisably: grey came out, whatever was shared",
        of_audit(GREY, "attack=[]", "audit.num_images=20", data=low_contrast),
        (level("open"), counts(0, 20), card("Recognisable", r"\b0 of 20")),
    ),
    Case(
        "audit: grey that calls itself certified",
        "an attack's own claim is a certificate: it is confirmed or taken back",
        of_audit(GREY, "attack=[]", "+attack.grey.claim=true", "audit.num_images=20", data=low_contrast),
        (level("open"), card("Certified", r"\b0 of 20"), says("computed once more, its update is off", "text")),
    ),
    Case(
        "audit: noise, two of two",
        "the noise helps: 2 of 2 images are beyond 20 dB",
        of_audits(
            none=[PATCHES, "audit.num_images=2"],
            noise=[
                "defense=[gradient_noise]",
                "defense.gradient_noise.relative_norm=2e-5",
                PATCHES,
                "audit.num_images=2",
            ],
        ),
        (level("open"), counts(2, 2)),
    ),
    Case(
        "audit: refused",
        "no image of 8 was rebuilt: the attack does not apply",
        of_audit("attack=[april]", EIGHT),
        (level("not tested"), says("refused")),
    ),
    Case(
        "audit: labels alone",
        "no image of 8 was rebuilt: none was attacked",
        of_audit("attack=[labels]", EIGHT),
        (level("not tested"), says("label")),
    ),
    Case(
        "audit: malformed updates",
        "no image of 8 was rebuilt: the update holds no number",
        of_audit(f"+defense.divided._target_={plug_ins.__name__}.Divided", "defense=[]", PATCHES, EIGHT),
        (level("not tested"), says("did not finish|unfinished"), says("error", "terminal")),
    ),
    Case(
        "audit: one image",
        "one image at 160 dB without a certificate is more than chance, or nothing",
        of_audit(PATCHES, "audit.num_images=1"),
        (
            says(r"\b1 of 1\b|the one (observed )?image|1 observed image|the (observed )?image"),
            never("exact copy of each"),
        ),
    ),
    Case(
        "matrix: jigsaw, half precision and withheld patches",
        "half precision and the jigsaw leave nothing recognisable, and so does what no attack could read",
        of_matrix(
            "num_clients=2",
            "num_rounds=1",
            "matrix.state=initial",
            "matrix.rows=[none,half,jigsaw,withhold]",
            "+matrix.defenses.jigsaw=[mjp_jp,half,'mjp_jp.ratio=0.9']",
            "matrix.columns=[patch_gradient]",
            EIGHT,
        ),
        (
            level_of("half", "broken"),
            level_of("jigsaw", "broken"),
            level_of("withhold", "not tested"),
            says(r"\b8 of 8\b", "terminal"),
            says("not tested: 1 of 3", "terminal"),
        ),
    ),
)
