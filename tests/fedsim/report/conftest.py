"""Run folders as a run would leave them, small."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

CONFIG = """
seed: 3
num_clients: 4
num_rounds: 2
model: {name: vit_tiny_patch16_224, img_size: 8, patch_size: 2}
data: {_target_: fedsim.data.digits.Digits}
client: {share: gradient, batch_size: 1}
strategy: {_target_: flwr.serverapp.strategy.FedAvg}
defense: {}
attack: {patch_gradient: {}}
"""

Record = dict[str, Any]
DRAWN: dict[tuple[str, str], Any] = {}


class Records:
    """Lines of `attacks.jsonl`."""

    @staticmethod
    def image(psnr: float | None, name: str = "digits/1", **values: Any) -> Record:
        """To the last bit no two images have the same guess: it is less by what the name gives, below 1e-6 dB."""
        if isinstance(values.get("guess_psnr"), float):
            values["guess_psnr"] -= 1e-6 * crc32(name.encode()) / 2**32
        scores = {"mse": None if psnr is None else 10 ** (-psnr / 10), "psnr": psnr, "ssim": 0.5, "lpips": None}
        return (
            {"image": name, "label": 3, "label_recovered": 3, "original": None, "reconstruction": None}
            | scores
            | values
        )

    @staticmethod
    def attack(number: int = 1, client: int = 0, *images: Record, **values: Any) -> Record:
        return {
            "observation": f"round-{number:04d}-client-{client:04d}",
            "round": number,
            "client": client,
            "attack": "patch_gradient",
            "status": "done",
            "certificate": {"status": "certified", "reason": "residual 1e-9", "values": {"residual": 1e-9}},
            "seconds": 0.5,
            "batch_size": max(1, len(images)),
            "attempts": 1,
            "label_exact": True,
            "label_share": 1.0,
            "scored": True,
            "images": list(images),
        } | values

    @staticmethod
    def refusal(number: int, client: int, reason: str, **values: Any) -> Record:
        empty = {"certificate": {"status": "none"}, "label_exact": None, "label_share": None, "scored": False}
        return Records.attack(number, client, status="refused", reason=reason, **empty) | values


JUDGED = "seed: {seed}\nnum_rounds: 2\ndefense: {defense}\nattack: {attack}\n"

WriteRun = Callable[..., Path]


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of a matrix are drawn for the first test that has it."""
    from fedsim.report.matrix import files as matrix

    def kept(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*arguments: Any) -> Any:
            key = name, repr(arguments)
            if key not in DRAWN:
                DRAWN[key] = draw(*arguments)
            return DRAWN[key]

        return drawn

    for name in ("heat_map_png", "privacy_utility_png", "privacy_utility_svg"):
        monkeypatch.setattr(matrix, name, kept(name, getattr(matrix, name)))


@pytest.fixture
def records() -> type[Records]:
    return Records


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    def write(
        attacks: Iterable[Record] = (),
        rounds: Iterable[Record] = ({"round": 0, "accuracy": 0.1}, {"round": 2, "accuracy": 0.75, "clients": 4}),
        config: str = CONFIG,
        summary: Record | None = None,
        name: str = "run",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config)
        (folder / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in attacks))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))
        (folder / "timings.jsonl").write_text('{"round": 1, "seconds": 2.0}\n{"round": 2, "seconds": 4.0}\n')
        facts = {"kind": "federated", "finished": True, "seconds": 9.0, "test_pictures": 1400}
        stated = facts if summary is None else summary
        (folder / "summary.json").write_text(json.dumps(stated))
        return folder

    return write


@pytest.fixture
def strip() -> Callable[..., Record]:
    """Write a strip of frames into a run folder and return the `frames` of an image's record."""

    def write(
        folder: Path, steps: tuple[int, ...] = (1, 50, 100), name: str = "reconstructions/f.png", side: int = 8
    ) -> Record:
        import torch

        from fedsim.report.draw.pictures import save_png

        frames = [torch.full((3, side, side), index / len(steps)) for index in range(len(steps))]
        save_png(torch.cat(frames, dim=-1), folder / name)
        psnr = [10.0 + index for index in range(len(steps))]
        return {"strip": name, "strip_steps": list(steps), "steps": list(steps), "psnr": psnr}

    return write


@pytest.fixture
def picture() -> Callable[[Path], str]:
    """Write a picture into a run folder and return the name that a record gives it."""

    def write(folder: Path, name: str = "reconstructions/a.png", side: int = 8) -> str:
        import torch

        from fedsim.report.draw.pictures import save_png

        save_png(torch.rand(3, side, side, generator=torch.Generator().manual_seed(side)), folder / name)
        return name

    return write


@pytest.fixture
def run(write_run: Any, records: Any) -> Any:
    """`run(defense, {attack: PSNRs, None for a failure, or a reason to refuse}, …)`.

    `attack` holds the settings of all attacks, or of each by its name.
    """
    from fedsim.report.run.read import read_run

    count = iter(range(100))

    def make(defense: str, results: dict[str, Any], guess: float | None = 10.0, seed: int = 0, **values: Any) -> Any:
        rows = []
        for attack, found in results.items():
            if isinstance(found, str):
                rows += [records.refusal(1, k, found, attack=attack) for k in range(2)]
            else:
                for k, psnr in enumerate(found):
                    image = records.image(psnr, f"digits/{k}", guess_psnr=guess, **values.get("files", {}))
                    ended = {} if psnr is not None else {"status": "failed", "scored": False, "images": []}
                    rows.append(records.attack(1, k, image, attack=attack, **ended))
        given = values.get("attack", "{}")
        by_name = given if isinstance(given, dict) else dict.fromkeys(results, given)
        settings = "{" + ", ".join(f"{name}: {by_name.get(name, '{}')}" for name in {**results, **by_name}) + "}"
        config = JUDGED.format(seed=seed, defense=defense, attack=settings) + values.get("more", "")
        rounds = [{"round": 2, "accuracy": values.get("accuracy", 0.75)}]
        summary = {"kind": "federated", "finished": True, "test_pictures": values.get("test_pictures")}
        summary["commonest_class"] = values.get("commonest_class")
        return read_run(write_run(rows, config=config, name=f"run-{next(count)}", rounds=rounds, summary=summary))

    return make
