"""Pictures of the attack and defense pages, made by the product itself on scikit-learn's photographs and digits.

python docs/make_pictures.py                 all of them, in docs/images; minutes on two cores
python docs/make_pictures.py row_space mjp   some of them

First what the client's model saw, then what came out, with its PSNR; of label rules how many labels they name. The
photographs (china.jpg, flower.jpg) are CC BY 2.0, see README.md.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt
import PIL.Image
from label_figures import SETTINGS as OF_RULES
from label_figures import draw_rule, shares

from experiments.audit.command import run_audit
from experiments.prior.command import NAMES, run_prior
from experiments.python.load_config import load_config

IMAGES = Path(__file__).parent / "images"
SMALL = "model=vit_tiny_4_32 data.size=32 +model.kwargs.depth=2"  # the model of the searches in docs/figures.md
LENET = "model=lenet_dlg data.size=32"
MLP = "model=mlp model.kwargs.hidden=[512,256,128] data.size=32"
REFUSED = (225, 225, 225)
"""The colour of a picture that there is not."""

DIGITS = "model=lenet_dlg"
GENERATOR = "kind=generator prior.generator.steps=1000 prior.generator.channels=[64,48,32] prior.generator.latent=96"
NETWORK = "kind=lti prior.lti.updates=2048 prior.lti.steps=2000"

SEARCH = "attack.{0}.steps={1} attack.{0}.frames=0 attack.{0}.save_every=0"


@dataclass(frozen=True)
class Strip:
    """One figure: the results of `attacks`, or those of one attack in several audits.

    Attributes:
        settings: Hydra overrides of the audit, in words.
        attacks: options of conf/attack; a defense page shows them side by side.
        prior: of `fedsim-prior`, whose generator or network the attacks are given; its settings are `settings` too.
        data: option of conf/data.
        beside: what the settings of a second audit have more, whose results come first, below this name.
    """

    settings: str
    attacks: tuple[str, ...]
    pictures: int = 2
    prior: str = ""
    data: str = "photos"
    beside: tuple[str, str] | None = None


@dataclass(frozen=True)
class Result:
    """What one attack of one audit came to, in rows of its attacks.jsonl, below the run folder `root`."""

    attack: str
    label: str
    rows: list[dict[str, Any]]
    root: Path

    @property
    def title(self) -> str:
        return f"{self.attack}, {self.label}" if self.label else self.attack

    @cached_property
    def images(self) -> dict[str, dict[str, Any]]:
        """Those that were rebuilt, by the file of the original."""
        return {i["original"]: i for row in self.rows for i in row["images"] or () if i["reconstruction"]}


ATTACKS = {
    "patch_gradient": Strip(SMALL, ("patch_gradient",)),
    "april": Strip("model=april_tiny_4_32 data.size=32", ("april",)),
    "row_space": Strip(SMALL + " defense=[withhold_pe]", ("patch_gradient", "row_space")),
    "first_block": Strip(
        "model=vit_tiny_4_32 model.patch_size=8 data.size=32 audit.batch_size=2 model.dtype=float64", ("first_block",)
    ),
    "patch_bag": Strip("model=dinov3_tiny_8_32 data.size=32 model.dtype=float64", ("patch_bag",)),
    "mjp_adaptive": Strip(SMALL + " defense=[mjp] defense.mjp.ratio=0.2 seed=1", ("patch_gradient", "mjp_adaptive")),
    "fc_bias": Strip("model=mlp data.size=32", ("fc_bias",)),
    "rgap": Strip("model=cnn_rgap data.size=32", ("rgap",)),
    "dlg": Strip(f"{LENET} model.num_classes=10 attack.dlg.restarts=6 " + SEARCH.format("dlg", 60), ("dlg",)),
    "idlg": Strip(f"{LENET} model.num_classes=10 attack.idlg.restarts=6 " + SEARCH.format("idlg", 60), ("idlg",)),
    "inverting_gradients": Strip(SMALL + " " + SEARCH.format("inverting_gradients", 200), ("inverting_gradients",)),
    "april_optimization": Strip(SMALL + " " + SEARCH.format("april_optimization", 400), ("april_optimization",)),
    "tag": Strip(MLP + " " + SEARCH.format("tag", 600), ("tag",)),
    "sme": Strip(
        MLP + " client.share=delta client.local_steps=4 client.optimizer.lr=0.01 " + SEARCH.format("sme", 600),
        ("sme",),
    ),
    "gradinversion": Strip(
        "model=resnet18_32 +model.kwargs.channels=[16,32,64,128] +model.kwargs.layers=[1,1,1,1] data.size=32 "
        "client.training_mode=false attack.gradinversion.priors.batch_norm=null attack.gradinversion.restarts=2 "
        "attack.gradinversion.objective._target_=attacks.optimization.Cosine attack.gradinversion.optimiser.langevin=0 "
        f"attack.gradinversion.priors.total_variation.weight=0.1 {SEARCH.format('gradinversion', 600)}",
        ("gradinversion",),
    ),
    "gradvit": Strip(SMALL + " attack.gradvit.priors.image_prior=null " + SEARCH.format("gradvit", 1000), ("gradvit",)),
    "row_space_batch": Strip(
        SMALL + " model.patch_size=8 audit.batch_size=2 " + SEARCH.format("row_space_batch", 1000), ("row_space_batch",)
    ),
    "feature_target": Strip(
        MLP + " model.num_classes=10 audit.batch_size=2 " + SEARCH.format("feature_target", 1000), ("feature_target",)
    ),
    "gias": Strip(
        f"{DIGITS} attack.gias.restarts=2 attack.gias.steps=200 attack.gias.weight_steps=150",
        ("generator_samples", "gias"),
        prior=GENERATOR,
        data="digits",
    ),
    "gifd": Strip(
        f"{DIGITS} attack.gifd.restarts=2 attack.gifd.steps=200 attack.gifd.layer_steps=[100,100]",
        ("generator_samples", "gifd"),
        prior=GENERATOR,
        data="digits",
    ),
    "ggl": Strip(
        f"{DIGITS} attack.ggl.generations=120 attack.ggl.population=24",
        ("generator_samples", "ggl"),
        prior=GENERATOR,
        data="digits",
    ),
    "generator_samples": Strip(DIGITS, ("generator_samples",), prior=GENERATOR, data="digits"),
    "lti": Strip("model=mlp model.img_size=8", ("lti_mean", "lti"), prior=NETWORK, data="digits"),
    "lti_mean": Strip("model=mlp model.img_size=8", ("lti_mean",), prior=NETWORK, data="digits"),
}

LABELS = {
    f"labels_{rule}": rule
    for rule in (
        "idlg",
        "gradinversion",
        "gradinversion_sum",
        "rlg",
        "bias_sign",
        "llg",
        "llg_bias",
        "zlg",
        "ilrg",
        "bias_corrected",
        "bias_prior",
        "certified",
    )
}
"""Options of conf/attack whose figure tells how many labels they name, and the rule of each."""

BOTH = ("patch_gradient", "row_space")
DEFENSES = {
    name: Strip(f"{SMALL} defense=[{name}] {more}", attacks)
    for name, more, attacks in (
        ("fixed_pe", "", BOTH),
        ("withhold_pe", "", BOTH),
        ("no_pe", SEARCH.format("inverting_gradients", 200), ("patch_gradient", "inverting_gradients")),
        ("withhold", SEARCH.format("april_optimization", 400), ("patch_gradient", "april_optimization")),
        ("gradient_noise", "defense.gradient_noise.relative_norm=1e-2", BOTH),
        ("gradient_clip", "", BOTH),
        ("dp_sgd", "", BOTH),
        ("local_dp", "defense.local_dp.epsilon=0.9", BOTH),
        ("topk", "", BOTH),
        ("sign", "", BOTH),
        ("qsgd", "", BOTH),
        ("half", "", BOTH),
        ("soteria", "", BOTH),
        ("precode", "", BOTH),
        ("outpost", "", BOTH),
        ("ats", "", ("patch_gradient",)),
        ("mixup", "audit.batch_size=2", ("patch_gradient",)),
        ("cutmix", "audit.batch_size=2", ("patch_gradient",)),
        ("instahide", "audit.batch_size=2 defense.instahide.k=2", ("patch_gradient",)),
        ("secure_aggregation", "", ("patch_gradient",)),
        ("mjp", "defense.mjp.ratio=0.2 seed=1", ("patch_gradient", "mjp_adaptive")),
        ("mjp_jp", "defense.mjp_jp.ratio=0.5", ("patch_gradient",)),
        ("mjp_jp_idx", "defense.mjp_jp_idx.ratio=0.5", ("patch_gradient",)),
        ("mjp_jp_unk", "defense.mjp_jp_unk.ratio=0.2 seed=1", ("patch_gradient", "mjp_adaptive")),
        ("mjp_spp", "", ("patch_gradient",)),
        ("mjp_dal", "", ("patch_gradient",)),
        ("mjp_linear", "defense.mjp_linear.ratio=0.2 seed=1", ("patch_gradient", "mjp_adaptive")),
        ("mjp_pca", "defense.mjp_pca.ratio=0.2 seed=1", ("patch_gradient", "mjp_adaptive")),
    )
}
DEFENSES["leakage_gate"] = Strip(
    f"{SMALL} defense=[gradient_noise,leakage_gate] defense.gradient_noise.relative_norm=1e-2",
    ("patch_gradient",),
    beside=("no gate", "defense.leakage_gate.threshold=inf"),
)


def main() -> None:
    """Makes the figures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="options of conf/attack and conf/defense; none: all")
    torch.set_num_threads(1)
    names = parser.parse_args().names or (*ATTACKS, *LABELS, *DEFENSES)
    measured = shares(composed("audit", OF_RULES)) if {*names} & {*LABELS} else {}
    for name in names:
        if name in LABELS:
            print(name, *draw_rule(LABELS[name], measured, IMAGES / "attacks" / f"{name}.png"), flush=True)
            continue
        folder, strip = ("attacks", ATTACKS[name]) if name in ATTACKS else ("defenses", DEFENSES[name])
        print(name, *draw(strip, IMAGES / folder / f"{name}.png"), flush=True)


def draw(strip: Strip, target: Path) -> list[str]:
    """Run the audits, write the figure, and say what each attack came to."""
    audits = [("", strip.settings)]
    if strip.beside:
        audits.insert(0, (strip.beside[0], f"{strip.settings} {strip.beside[1]}"))
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for number, (label, settings) in enumerate(audits):
            results += run(strip, settings, Path(folder) / f"run{number}", label)
        return plot(results, strip.pictures, target)


def run(strip: Strip, settings: str, root: Path, label: str) -> list[Result]:
    """One audit, its attacks in the order of the strip's."""
    words = [
        "simulation=inline",
        f"audit.num_images={strip.pictures}",
        "audit.victims=2",
        f"data={strip.data}",
        *settings.split(),
        f"attack=[{','.join(strip.attacks)}]",
    ]
    config = composed("audit", [*words, f"run_dir={root}"])
    if strip.prior:
        give_prior(config, strip, root.with_name("prior"))
    root.mkdir()
    run_audit(config, root)
    rows = [json.loads(line) for line in (root / "attacks.jsonl").read_text().splitlines()]
    return [Result(attack, label, [row for row in rows if row["attack"] == attack], root) for attack in strip.attacks]


def composed(name: str, words: list[str]) -> Any:
    return load_config(name, *words)


def give_prior(config: Any, strip: Strip, folder: Path) -> None:
    """Train it, on pictures that no client holds, and name its file to the attacks."""
    of_model = [word for word in strip.settings.split() if not word.startswith("attack.")]
    prior = composed("prior", [f"data={strip.data}", *of_model, *strip.prior.split(), f"run_dir={folder}"])
    run_prior(prior, folder)
    for settings in config["attack"].values():
        settings.get("generator", settings)["checkpoint"] = str(folder / NAMES[prior["kind"]])


def plot(results: list[Result], pictures: int, target: Path) -> list[str]:
    """Columns of pictures: the client's, then each attack's."""
    said = [f"{r.title}: {row['status']} {row['reason']}" for r in results for row in r.rows if row["status"] != "done"]
    panels: list[tuple[str, Path | None]] = []
    for original in sorted({name for result in results for name in result.images})[:pictures]:
        panels.append(("model's input", next(r.root / original for r in results if original in r.images)))
        for result in results:
            image = result.images.get(original)
            if image is None:
                panels.append((f"{result.title}\nrefused", None))
                continue
            said.append(f"{result.title}: {image['psnr']:.1f}/{image['private_psnr']:.1f} dB")
            panels.append((f"{result.title}\n{image['psnr']:.0f} dB", result.root / image["reconstruction"]))
    if panels:
        figure, axes = plt.subplots(1, len(panels), figsize=(1.3 * len(panels), 1.75), dpi=100, squeeze=False)
        for axis, (title, path) in zip(axes[0], panels, strict=True):
            axis.set_axis_off()
            axis.set_title(title, fontsize=7)
            picture = PIL.Image.new("RGB", (32, 32), REFUSED) if path is None else PIL.Image.open(path).convert("RGB")
            axis.imshow(picture, interpolation="nearest")
        figure.savefig(target, bbox_inches="tight", pad_inches=0.05)
        plt.close(figure)
    return said


if __name__ == "__main__":
    main()
