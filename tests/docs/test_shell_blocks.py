"""Every shell block that readers copy is run, or says why not; then its commands are composed at least."""

import argparse
import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.blocks import NEEDS, Block, blocks

SHELL = tuple(blocks("bash", "sh", "shell", "console"))
COMMANDS = ("fedsim", "fedsim-audit", "fedsim-measure", "fedsim-matrix", "fedsim-prior")
FEWER_STEPS = {
    "prior.generator.steps=20": ("prior.generator.steps=2",),
    "prior.lti.steps=10": ("prior.lti.steps=2",),
    "prior.lti.updates=32": ("prior.lti.updates=8",),
    "prior.validation=16": ("prior.validation=4",),
    "attack=[gauss_newton]": ("attack=[gauss_newton]", "attack.gauss_newton.steps=2"),
    "attack=[first_block]": ("attack=[first_block]", "attack.first_block.starts=2"),
    "attack=[patch_gradient,row_space,first_block]": (
        "attack=[patch_gradient,row_space,first_block]",
        "attack.row_space.later=0",
        "attack.first_block.starts=2",
    ),
    "num_clients=100": ("num_clients=6", "data.auxiliary_fraction=0.7"),
    "num_clients=4": ("num_clients=2", "data.auxiliary_fraction=0.7"),
    "audit.num_images=4": ("audit.num_images=2",),
    "bound=[reconstruction_robustness,pairs,canaries]": (
        "bound=[reconstruction_robustness,pairs,canaries]",
        "bound.canaries.canaries=20",
    ),
}
"""What takes seconds however few its steps would do: that the command works is asked here, not how far it gets."""
RUN, COMPOSED = [b for b in SHELL if not b.needs], [b for b in SHELL if b.needs and "example" not in b.needs]


def named(found):
    return [pytest.param(block, id=block.name) for block in found]


def test_there_are_blocks_of_both_kinds():
    assert len(RUN) > 60
    assert len(COMPOSED) > 15


@pytest.mark.parametrize("block", named(SHELL))
def test_reasons_are_from_the_list(block: Block):
    assert set(block.needs) <= set(NEEDS), f"{block.name} needs {block.needs}; known are {', '.join(NEEDS)}"
    text = block.body
    for word in ("DIR", "RUN"):
        if f"={word}" in text or f"{word}/" in text:
            assert word in block.needs, f"{block.name} has a placeholder {word}"


def test_what_is_shortened_stands_in_a_block():
    assert set(FEWER_STEPS) <= {word for block in RUN for line in block.commands() for word in line}


@pytest.mark.usefixtures("few_last_steps")
@pytest.mark.parametrize("block", named(RUN))
def test_a_block_runs_as_it_stands(block: Block, command, tmp_path, monkeypatch):
    """Commands of the product in this process and on its inline engine; everything else in a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANDFILE", str(tmp_path / ".rnd"))
    lines = block.commands()
    ours = [line for line in lines if line[0] in COMMANDS]
    if not ours:
        done = subprocess.run(["bash", "-euc", block.body], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return
    assert ours == lines, f"{block.name} mixes commands of the product with others: two blocks"
    for number, (name, *given) in enumerate(lines):
        words = [word for one in given for word in FEWER_STEPS.get(one, (one,))]
        # Folders are named by the second in which they start, and two commands in one process may share it.
        folder = [] if any(word.startswith("run_dir=") for word in words) else [f"run_dir=runs/{number}"]
        code, out, err = command(name, *words, *folder, "simulation=inline")
        assert code == 0, err
        assert Path(out.split()[-1]).is_dir(), out


@pytest.mark.parametrize("block", named(COMPOSED))
def test_what_cannot_run_here_composes(block: Block, command, tmp_path, monkeypatch):
    """A documented option with a typo fails, whatever the block needs."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save(_folder(tmp_path / "pictures" / "cat") / "one.png")
    Path("weights.safetensors").touch()
    for words in block.commands():
        words = [_filled(word) for word in words]
        if words[0] in COMMANDS and not any(word.startswith("resume=") for word in words):
            code, _, err = command(words[0], *filter(None, map(_first_choice, words[1:])), "--cfg", "job")
            assert code == 0, err
        elif words[0] == "fedsim-report":
            _parse("experiments.commands.report", words[1:], monkeypatch, "run_report")
        elif words[:2] == ["python", "-m"]:
            _parse(words[2], words[3:], monkeypatch)
        elif words[0] == "python":
            assert os.access(Path(__file__).parents[2] / words[1], os.R_OK), words


def test_a_typo_does_not_compose(command, tmp_path, monkeypatch):
    block = Block("here", 0, "bash", "fedsim-audit data=imagefolder data.path=DIR audit.num_image=3\n", ("DIR",))
    with pytest.raises(AssertionError, match="num_image"):
        test_what_cannot_run_here_composes(block, command, tmp_path, monkeypatch)


def test_an_unknown_option_of_a_script_does_not_parse(command, tmp_path, monkeypatch):
    block = Block(
        "here", 0, "bash", "python -m experiments.studies.withholding --out x --level linear_\n", ("minutes",)
    )
    with pytest.raises(SystemExit):
        test_what_cannot_run_here_composes(block, command, tmp_path, monkeypatch)


class ParsedError(Exception):
    """The arguments are fine; nothing is to be run."""


def _parse(module: str, arguments: list[str], monkeypatch, main: str = "main") -> None:
    """The script's own parser reads the arguments, and the script stops there; Hydra's words are composed."""
    parse = argparse.ArgumentParser.parse_known_args
    rest: list[str] = []

    def stop(self, args=None, namespace=None):
        _, left = parse(self, args, namespace)
        rest.extend(left)
        raise ParsedError

    def stop_strictly(self, args=None, namespace=None):
        _, left = parse(self, args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        raise ParsedError

    def stop_composed(_):
        raise ParsedError

    script = importlib.import_module(module)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        patch.setattr(argparse.ArgumentParser, "parse_args", stop_strictly)
        if hasattr(script, "prepare"):  # the first step of a script that composes a configuration
            patch.setattr(script, "prepare", stop_composed)
        with pytest.raises(ParsedError):
            getattr(script, main)() if hasattr(script, main) else runpy.run_module(module, run_name="__main__")
    if rest:
        from hydra import compose, initialize_config_module

        with initialize_config_module("conf", version_base=None):
            compose("audit", overrides=["run_dir=unused", *rest])


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _filled(word: str) -> str:
    """Placeholders become what they stand for."""
    head, sign, value = word.rpartition("=")
    for placeholder, path in (("DIR", "pictures"), ("RUN", "run"), ("FILE", "weights.safetensors"), ("SWEEP", "sweep")):
        value = path + value.removeprefix(placeholder) if value.split("/")[0] == placeholder else value
        value = value.replace(f"[{placeholder}]", f"[{path}]")
    return f"{head}{sign}{value}"


def _first_choice(word: str) -> str:
    """Of a sweep its first run: `defense=[],[mjp]` is `defense=[]`, `lr=0.1,0.01` is `lr=0.1`."""
    if word in ("-m", "--multirun"):
        return ""
    head, sign, value = word.partition("=")
    if "],[" in value:
        value = value.split("],[")[0] + "]"
    elif "," in value and not set("[{") & set(value):
        value = value.split(",")[0]
    return f"{head}{sign}{value}"
