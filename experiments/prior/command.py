"""`fedsim-prior`: train what attacks bring along, a generator or LTI's network, on pictures that no client holds."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from torch import Tensor

from attacks.learned.checkpoint import save_trained
from clients.app import resolve_device
from experiments.cli.call import console, say_doing
from experiments.cli.logs import log_to
from experiments.cli.progress import Bars
from experiments.engine.choice import on_engine
from experiments.engine.content import content_of, keep_content
from experiments.engine.folders import as_began, open_or_resume
from experiments.engine.setup import Setup, prepare
from experiments.prior.autoencoder import drawn, rebuilt, train_generator
from experiments.prior.inversion import inverted, train_inversion
from experiments.prior.settings import (
    SHOWN,
    PriorImages,
    chosen_network,
    prior_images,
)
from experiments.prior.sheet import write_sheet
from fedsim.data.copies import contents
from fedsim.determinism import torch_threads
from fedsim.errors import ConfigError
from fedsim.float32 import full_float32
from fedsim.metrics.image import psnr
from fedsim.models.generator import save_generator
from fedsim.settings.commands import PriorConfig
from fedsim.settings.composition import image_side
from fedsim.settings.schema import parse
from fedsim.settings.trained import GeneratorSettings, InversionSettings
from fedsim.storage.run_folder import RunFolder

Figures = dict[str, float | int]

NAMES = {"generator": "generator.safetensors", "lti": "inversion.safetensors"}


def run_prior(given: PriorConfig | Mapping[str, Any], root: Path) -> None:
    """Train, or go on with a training that was killed; raises ConfigError before anything is started."""
    config = parse(PriorConfig, given)
    settings = chosen_network(config)
    config = on_engine(as_began(config, root), "inline")
    say_doing("reading the data, building the model")
    setup = prepare(config)
    if setup.sums is not None and config.kind == "lti":
        raise ConfigError("defense", setup.sums.by, "one under which the server sees single clients: LTI undoes those")
    say_doing("looking for copies of clients' images among the public ones")
    images = prior_images(setup)
    result = root / NAMES[config.kind]
    with RunFolder(root).locked():
        folder = open_or_resume(config, root)
        held = [images.train, images.validation, images.excluded]
        trained = result.is_file() or any(folder.checkpoints.glob("*"))
        keep_content(folder, content_of(setup, [one for one in held if len(one)]), trained=trained)
        if (root / "summary.json").is_file() and result.is_file():
            console.print("finished by an earlier call", markup=False)
        else:
            start = time.perf_counter()
            with torch_threads(config.threads), log_to(folder.log), Bars(console) as bars:
                figures = _train(setup, settings, images, folder, bars)
            seconds = None if trained else time.perf_counter() - start  # of an earlier call they are unknown
            folder.write_json("summary.json", {"kind": config.kind, **figures, "seconds": seconds})
            _say(figures)
    _tell_use(config, result)
    console.print(str(root), markup=False)


@full_float32()
def _train(
    setup: Setup,
    settings: GeneratorSettings | InversionSettings,
    images: PriorImages,
    folder: RunFolder,
    bars: Bars,
) -> Figures:
    config = setup.config
    device = resolve_device(config.client.device)
    total = settings.steps

    def progress(step: int, loss: float) -> None:
        bars.set("training", step, total, f"loss {loss:.4f}")
        if step % max(1, total // 10) == 0:
            bars.say(f"training {step}/{total}, loss {loss:.4f}")

    known: list[Tensor] = [images.validation.images(range(len(images.validation)))]
    if isinstance(settings, GeneratorSettings):
        side = image_side(config.model)
        model = train_generator(
            images, settings, config.seed, side, setup.data.num_classes, folder.checkpoints, progress, device
        )
        save_generator(
            model.generator, folder.root / NAMES["generator"], set(contents(images.train)), setup.data.class_names
        )
        other = images.excluded.images(range(len(images.excluded)))
        made = [rebuilt(model, part, device) if len(part) else other for part in (images.validation, images.excluded)]
        samples = drawn(model.generator, 2 * SHOWN, config.seed)
        originals = [*known, other]
        rows = [originals[0], made[0], originals[1], made[1], samples[:SHOWN], samples[SHOWN:]]
    else:

        def simulated(done: int) -> None:
            bars.set("updates", done, settings.updates)
            if done % max(1, settings.updates // 4) == 0:
                bars.say(f"updates {done}/{settings.updates}")

        trained = train_inversion(setup, images, settings, folder.checkpoints, simulated, progress, device)
        save_trained(trained, folder.root / NAMES["lti"])
        pairs = [inverted(setup, trained, part, device) for part in (images.validation, images.excluded)]
        originals, made = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        rows = [originals[0], made[0], originals[1], made[1]]
    if any(len(row) for row in rows):  # a defense may withhold every update
        write_sheet(rows, folder.root / "samples.png", SHOWN)
    return _figures(images, originals, made)


def _figures(images: PriorImages, originals: list[Tensor], made: list[Tensor]) -> Figures:
    """Mean PSNR in dB beside that of the mean picture, on held-back pictures of known and of left-out classes."""
    figures: Figures = {"learned_from": len(images.train), "classes": len(images.classes)}
    for name, truth, found in zip(("validation", "excluded"), originals, made, strict=True):
        if len(truth):
            figures[f"{name}_pictures"] = len(truth)
            figures[f"{name}_psnr"] = float(psnr(found, truth).mean())
            figures[f"{name}_psnr_of_mean_picture"] = float(psnr(images.mean.expand_as(truth), truth).mean())
    return figures


def _say(figures: Figures) -> None:
    for name, title in (("validation", "held-back pictures"), ("excluded", "classes left out")):
        if f"{name}_psnr" in figures:
            found, mean = figures[f"{name}_psnr"], figures[f"{name}_psnr_of_mean_picture"]
            console.print(f"{title}: {found:.2f} dB, the mean picture {mean:.2f} dB", markup=False)


def _tell_use(config: PriorConfig, result: Path) -> None:
    """The audit in which the result is of use: on the same pictures, of the same model."""
    if not HydraConfig.initialized():  # called from Python, not by the command
        return
    hydra = HydraConfig.get()
    used = use(config.kind, result, config.client.batch_size, hydra.runtime.choices, hydra.overrides.task)
    console.print(used, markup=False)
    if config.kind == "generator":
        console.print("gifd, ggl and generator_samples take the same file", markup=False)


def use(kind: str, result: Path, batch_size: int, choices: Mapping[str, str | None], overrides: Sequence[str]) -> str:
    """A command for the shell.

    Args:
        choices: the option of each group, those by default too.
        overrides: of the call that trained it.
    """
    words = [f"{group}={choices[group]}" for group in ("data", "model")]
    same: tuple[str, ...] = ("data.", "model.", "seed=")
    same += ("defense", "client.", "finetune") if kind == "lti" else ()
    words += [word for word in overrides if word.lstrip("+~").startswith(same) and "batch_size=" not in word]
    attack, setting = ("gias", "generator.checkpoint") if kind == "generator" else ("lti", "checkpoint")
    if kind == "lti":
        words += [f"audit.batch_size={batch_size}"]
        words += [f"audit.num_images={-(-16 // batch_size) * batch_size}"] if 16 % batch_size else []
    words += [f"attack=[{attack}]", f"attack.{attack}.{setting}={result.resolve()}"]
    return f"fedsim-audit {shlex.join(words)}"
