"""One strip a rung: the client's picture, what the model saw, the best attack's, the guess."""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw

from experiments.studies.realism.work import picture_folder
from fedsim.storage.durable import replacing

SIDE, GAP, NAME = 48, 4, 260
COLUMNS = ("private", "seen", "best", "guess")


def draw_strips(out: Path, best: Mapping[str, str | None]) -> None:
    """`realism.png`: a line for each rung; a grey cell where there is no picture."""
    head = SIDE // 2
    sheet = Image.new("RGB", (NAME + len(COLUMNS) * (SIDE + GAP), head + len(best) * (SIDE + GAP)), "white")
    pen = ImageDraw.Draw(sheet)
    for column, title in enumerate(COLUMNS):
        pen.text((NAME + column * (SIDE + GAP), GAP), title, fill="black")
    for row, (rung, attack) in enumerate(best.items()):
        top = head + row * (SIDE + GAP)
        pen.text((GAP, top + SIDE // 3), rung, fill="black")
        for column, name in enumerate(COLUMNS):
            path = picture_folder(out, rung) / f"{attack if name == 'best' else name}.png"
            cell = Image.new("RGB", (SIDE, SIDE), "lightgrey")
            if path.exists():
                with Image.open(path) as image:
                    cell = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)
            sheet.paste(cell, (NAME + column * (SIDE + GAP), top))
    with replacing(out / "realism.png", durable=False) as partial:
        sheet.save(partial, format="PNG")
