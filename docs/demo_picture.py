"""The README's picture from a demo's run folder: each photograph, and what the server made of its gradient.

python -m experiments.demo runs/demo audit.num_images=2
python docs/demo_picture.py runs/demo              docs/images/demo.png

The photographs (china.jpg, flower.jpg) are CC BY 2.0, see README.md.
"""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import PIL.Image

mpl.use("Agg")

import matplotlib.pyplot as plt

TARGET = Path(__file__).parent / "images" / "demo.png"
TITLES = {
    "photos-undefended": "undefended",
    "photos-withhold_pe": "position embedding's\ngradient withheld",
    "photos-frozen_pe": "position embedding\nfrozen",
    "photos-sincos_pe": "position embedding\nfixed to sin-cos",
}
"""Of the columns, by the folder of the audit."""


def main() -> None:
    """Writes the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the demo")
    draw(parser.parse_args().folder, TARGET)


def draw(demo: Path, target: Path) -> None:
    """One row a photograph: the original, then what each audit rebuilt, with its PSNR."""
    audits = {name: read(demo / name) for name in TITLES}
    photographs = list(audits["photos-undefended"])
    figure, axes = plt.subplots(
        len(photographs), 1 + len(audits), figsize=(8.6, 1.9 * len(photographs) + 0.5), dpi=100, squeeze=False
    )
    for row, photograph in zip(axes, photographs, strict=True):
        first = audits["photos-undefended"][photograph]
        show(row[0], demo / "photos-undefended" / first["original"], "")
        for axis, (name, images) in zip(row[1:], audits.items(), strict=True):
            image = images[photograph]
            show(axis, demo / name / image["reconstruction"], verdict(image["psnr"]))
    for axis, title in zip(axes[0], ["what the client\ntrained on", *TITLES.values()], strict=True):
        axis.set_title(title, fontsize=8.5)
    figure.tight_layout(pad=0.4)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    PIL.Image.open(drawn).convert("RGB").quantize(256).save(target, optimize=True)


def read(run: Path) -> dict[str, dict[str, Any]]:
    """What an audit's best attack made of each photograph, by its name."""
    lines = (run / "attacks.jsonl").read_text(encoding="utf-8").splitlines()
    images = [image for line in lines for image in json.loads(line)["images"] or () if image["reconstruction"]]
    return {image["image"]: image for image in sorted(images, key=lambda image: image["psnr"])}


def verdict(psnr: float) -> str:
    """`exact` from where every pixel is the client's, else the PSNR."""
    return "exact" if psnr > 100 else f"{psnr:.0f} dB"


def show(axis: Any, path: Path, below: str) -> None:
    axis.imshow(PIL.Image.open(path).convert("RGB"))
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_xlabel(below, fontsize=8.5)


if __name__ == "__main__":
    main()
