"""Results as they arrive: one JSON line an attack, one CSV line a picture, PNG files."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from attacks.running import BROKEN
from attacks.session import file_name
from fedsim.ground_truth import GroundTruth, content_of
from fedsim.metrics.image import psnr
from fedsim.metrics.records import TABLE, ImageScore
from fedsim.report.draw.pictures import path_inside, save_png
from fedsim.report.run.summary import mean_psnr
from fedsim.result import AttackResult, Frame
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.failures import AttackFailures

COLUMNS = (
    "observation",
    "round",
    "client",
    "attack",
    "status",
    "defense",
    "model",
    "image",
    "batch_size",
    *TABLE,
    "guess_psnr",
    "label",
    "label_recovered",
    "certified",
    "refused",
    "seconds",
)

BEFORE = ("guess_psnr", "seen_guess_psnr", "content", "grey_psnr", "seen_grey_psnr")
"""What is known of an image without any attack on it."""
FRAMES_KEPT = 12
"""Pictures in a strip of frames: the first, the last, and evenly spaced ones between; their PSNR is kept of all."""


def _grey_psnr(image: Tensor) -> float:
    """In dB, what mid-grey reaches: it reads nothing, and no public image."""
    return float(psnr(torch.full_like(image, 0.5)[None], image[None]))


class ResultWriter:
    """Writes each result once, when it is there; `done` names what an earlier run had finished.

    Args:
        guess: what one would answer without any gradient, [channels, height, width]; asked for once, with the first
            truth. Beside each picture stands how close it comes.

    Attributes:
        failures: of this call.
        broke: attacks that broke CUDA in an earlier call.
    """

    def __init__(
        self,
        folder: RunFolder,
        trackers: Trackers,
        model: str,
        defenses: Sequence[str],
        guess: Callable[[], Tensor] | None = None,
    ) -> None:
        self.failures = AttackFailures()
        self._make_guess = guess
        self._folder = folder
        self._trackers = trackers
        self._model = model
        self._defenses = "+".join(defenses) or "none"
        folder.mend("attacks")
        rows = list(folder.rows("attacks"))
        self.written = len(rows)
        self.done = {(row["observation"], row["attack"]) for row in rows if row["status"] != "failed"}
        failed = [row for row in rows if row["status"] == "failed"]
        self.broke = frozenset(row["attack"] for row in failed if BROKEN in row["reason"])
        self._ended: dict[str, set[str]] = {}
        self._known: tuple[object, list[dict[str, Any]]] = None, []
        for row in rows:
            self._ended.setdefault(row["observation"], set()).add(row["attack"])
        self._write_csv(rows)

    def write(self, result: AttackResult, truth: GroundTruth | None) -> None:
        """Pictures first, then the lines that name them."""
        images = self._images(result, truth)
        row = result.to_json() | {"images": images}
        self._folder.append("attacks", row)
        self._append_csv(row)
        self.done.add((result.observation, result.attack))
        self._ended.setdefault(result.observation, set()).add(result.attack)
        # An audit has no rounds: there the number of the update is the step.
        self._track(result.server_round or result.client, row)
        self.failures.note(result)
        self.written += 1

    def ended(self, observation: str) -> frozenset[str]:
        """The attacks on it that came to an end, failures included."""
        return frozenset(self._ended.get(observation, ()))

    def track_again(self, server_round: int, tracked: int) -> None:
        """Give the trackers what they have lost and a resumed run does not find a second time.

        Args:
            server_round: results of later rounds do not count for them.
            tracked: how many they had for good.
        """
        for number, row in enumerate(self._folder.rows("attacks")):
            if number >= tracked or row["round"] > server_round:
                self._track(row["round"], row)

    def flush(self) -> None:
        """What trackers have so far a call that goes on finds."""
        self._trackers.flush()

    def finish(self) -> None:
        """Leave in scores.csv the latest result of each attack alone: one tried again after a fault counts once."""
        self._write_csv(list(self._folder.rows("attacks")))

    def _track(self, step: int, row: dict[str, Any]) -> None:
        psnrs = [image["psnr"] for image in row["images"] if image.get("psnr") is not None]
        if (value := mean_psnr(psnrs)) is not None:
            self._trackers.log(step, {f"leakage/{row['attack']}/psnr": value})
        if row["label_share"] is not None:
            self._trackers.log(step, {f"leakage/{row['attack']}/label_share": row["label_share"]})

    def _images(self, result: AttackResult, truth: GroundTruth | None) -> list[dict[str, Any]]:
        rebuilt, frames, scores = result.images, result.frames, result.scores
        stem = f"{result.observation}-{file_name(result.attack)}"
        if scores is not None:
            per_image: list[ImageScore] = scores.images
        elif truth is not None:
            per_image = [ImageScore(n, label=int(y)) for n, y in zip(truth.ids, truth.labels, strict=True)]
        else:  # as many as the update holds, as `held_against` counts them
            held = 0 if rebuilt is None else len(rebuilt[: result.batch_size or None])
            per_image = [ImageScore(f"{result.observation}/{i}", i) for i in range(held)]
        known = [] if truth is None else self._before_any_attack(result.observation, truth)
        rows = []
        for index, image in enumerate(per_image):
            row: dict[str, Any] = {**image.to_dict(), "original": None, "reconstruction": None, "frames": None}
            row |= known[index] if index < len(known) else dict.fromkeys(BEFORE)
            if rebuilt is not None and image.reconstruction is not None:
                row["reconstruction"] = self._save(rebuilt[image.reconstruction], f"{stem}-{index:04d}.png")
                if frames:
                    curve = [] if scores is None else scores.frames[index]
                    row["frames"] = self._save_frames(frames, image.reconstruction, curve, f"{stem}-{index:04d}")
                if truth is not None:
                    row["original"] = self._save(truth.images[index], f"{result.observation}-{index:04d}-original.png")
            rows.append(row)
        return rows

    def _before_any_attack(self, observation: str, truth: GroundTruth) -> list[dict[str, Any]]:
        """`BEFORE` of each original, none where the images are not at hand; computed once for results that follow each
        other.
        """
        key = observation, truth.ids, len(truth.images)  # what was lost comes in the order of the data, without images
        if self._known[0] != key:
            rows = []
            for own, seen in zip(truth.originals, truth.shown, strict=False):
                guesses, greys = (self._guess_psnr(own), self._guess_psnr(seen)), (_grey_psnr(own), _grey_psnr(seen))
                rows.append(dict(zip(BEFORE, (*guesses, content_of(own), *greys), strict=True)))
            self._known = key, rows
        return self._known[1]

    @cached_property
    def _guess(self) -> Tensor | None:
        return None if self._make_guess is None else self._make_guess()

    def _guess_psnr(self, image: Tensor) -> float | None:
        """In dB, against the client's own picture or what the model saw of it."""
        guess = self._guess
        if guess is None or guess.shape != image.shape:
            return None
        value = float(psnr(guess[None].to(image), image[None]))
        return value if isfinite(value) else None

    def _save_frames(
        self, frames: Sequence[Frame], candidate: int, curve: list[float | None], stem: str
    ) -> dict[str, Any]:
        """One PNG with the frames side by side."""
        last = len(frames) - 1
        kept = sorted({round(place * last / max(1, FRAMES_KEPT - 1)) for place in range(FRAMES_KEPT)})
        strip = torch.cat([frames[index].images[candidate].clamp(0, 1).float() for index in kept], dim=-1)
        return {
            "strip": self._save(strip, f"{stem}-frames.png"),
            "strip_steps": [frames[index].step for index in kept],
            "steps": [frame.step for frame in frames],
            "psnr": curve,
        }

    def _save(self, image: Any, name: str) -> str:
        path = self._folder.reconstructions / name
        if not path.exists() or path.stat().st_size == 0:
            save_png(image.clamp(0, 1).float(), path)
        return path.relative_to(self._folder.root).as_posix()

    def _write_csv(self, rows: list[dict[str, Any]]) -> None:
        """scores.csv anew from attacks.jsonl, which is what counts after a crash."""
        latest = {(row["observation"], row["attack"]): row for row in rows}
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        for row in latest.values():
            writer.writerows(self._csv_lines(row))
        self._folder.write_text("scores.csv", text.getvalue())

    def _append_csv(self, row: dict[str, Any]) -> None:
        with (self._folder.root / "scores.csv").open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writerows(self._csv_lines(row))

    def _csv_lines(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """One line a picture; one for the update where no picture is known."""
        common = {key: row.get(key) for key in ("observation", "round", "client", "attack", "status", "batch_size")}
        common |= {
            "defense": self._defenses,
            "model": self._model,
            "certified": _certified(row),
            "refused": row["reason"] if row["status"] == "refused" else "",
            "seconds": f"{row['seconds']:.6f}",
        }
        images = row["images"] or [
            {"image": row["observation"], "label_recovered": " ".join(map(str, row["labels"] or []))}
        ]
        lines = []
        for image in images:
            line = {column: image.get(column) for column in COLUMNS} | common
            lines.append({column: "" if value is None else value for column, value in line.items()})
        return lines


def has_images(folder: RunFolder, row: dict[str, Any]) -> bool:
    """Whether every picture that a line of attacks.jsonl names is there; loss of power may have taken one."""
    strips = [image["frames"]["strip"] for image in row["images"] if image.get("frames")]
    names = [image.get(key) for image in row["images"] for key in ("original", "reconstruction")]
    paths = [path_inside(folder.root, name) for name in [*strips, *names] if name]
    return all(path is not None and path.stat().st_size > 0 for path in paths)


def _certified(row: dict[str, Any]) -> str:
    """What the certificate is of, as a report counts it; `false` where it was refused, empty without a test."""
    status = (row["certificate"] or {"status": "none"})["status"]
    if status != "certified":
        return "" if status == "none" else "false"
    if any(image.get("reconstruction") for image in row["images"]):
        return "images"
    target: str = row.get("target") or "images"
    return "labels" if target == "images" else target
