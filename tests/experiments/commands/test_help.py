"""What `--help` answers: a screen, a group, an option, a setting."""

import sys

import pytest

from experiments.cli.call import run_command
from experiments.commands.catalogue import Catalogue
from experiments.commands.families import FAMILIES
from experiments.commands.help import WIDTH, answer
from experiments.commands.screens import ALL
from experiments.commands.stage import CommandStage
from experiments.commands.table import COMMANDS

LINES = 40
"""Of a screen."""


@pytest.fixture(scope="module")
def catalogues():
    return {name: Catalogue(command.config) for name, command in COMMANDS.items()}


def page(catalogues, name, *words):
    text, fault = answer(name, catalogues[name], words)
    assert fault == ""
    return text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_one_screen(catalogues, name):
    lines = page(catalogues, name).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert all(any(line.split()[:1] == [group] for line in lines) for group in catalogues[name].groups)


def test_the_first_screen_lists_all_commands(catalogues):
    assert set(ALL) == {*COMMANDS, "fedsim-report"}
    for name in ALL:
        assert any(line.split()[:1] == [name] for line in page(catalogues, "fedsim").splitlines())


def test_every_option_of_every_group_has_a_line_that_says_something(catalogues):
    for group, options in catalogues["fedsim"].groups.items():
        lines = page(catalogues, "fedsim", group).splitlines()
        assert max(map(len, lines)) <= WIDTH
        for option in options:
            (line,) = [line for line in lines if line.split()[:1] == [option.name]]
            assert len(line.split(maxsplit=1)[1]) > 15, line


def test_attacks_stand_by_family(catalogues):
    lines = page(catalogues, "fedsim", "attack").splitlines()
    places = [lines.index(heading) for heading, _ in FAMILIES[:5]]
    assert places == sorted(places)
    assert "Others" not in lines

    def heading_of(name):
        place = next(number for number, line in enumerate(lines) if line.split()[:1] == [name])
        return next(line for line in reversed(lines[:place]) if line and not line.startswith(" "))

    assert heading_of("patch_gradient") == "Closed forms"
    assert heading_of("tag") == "Searches"
    assert heading_of("gias") == "With prior knowledge"
    assert heading_of("labels_llg") == "Labels"
    assert heading_of("lti_mean") == "Baselines"


@pytest.mark.parametrize("word", ["patch_gradient", "attack=patch_gradient", "attack=[patch_gradient]"])
def test_an_option_is_shown_as_its_file_is(catalogues, word):
    text = page(catalogues, "fedsim-audit", word)
    assert text.startswith("attack=[patch_gradient] ")
    assert "_target_: attacks.analytic.PatchGradient" in text
    assert "# Closed form from the gradients" in text


def test_a_group_of_another_command_is_named_with_that_command(catalogues):
    text, fault = answer("fedsim", catalogues["fedsim"], ["bound"])
    assert (text, fault) == ("", "--help bound: fedsim has no such group; ask fedsim-audit --help bound")
    assert page(catalogues, "fedsim-audit", "bound").startswith("bound=[OPTION,OPTION]")


@pytest.mark.parametrize("word", ["observe", "observe.every"])
def test_settings_are_shown_with_their_remarks(catalogues, word):
    text = page(catalogues, "fedsim", word)
    assert text.startswith("observe: #")
    assert "every: 20 # in round 1 and each multiple" in text
    assert "evaluate_every" not in text


@pytest.mark.parametrize(
    ("word", "hint"), [("attak", "'attack'"), ("patch_gradiant", "'patch_gradient'"), ("x", "data")]
)
def test_what_is_called_by_no_word_is_said(catalogues, word, hint):
    text, fault = answer("fedsim", catalogues["fedsim"], [word])
    assert text == ""
    assert fault.startswith(f"--help {word}: ")
    assert hint in fault


def test_options_of_ones_own_are_listed(tmp_path, monkeypatch, capsys):
    (tmp_path / "attack").mkdir()
    (tmp_path / "attack" / "mine.yaml").write_text("# My own attack. It is new.\nmine:\n  _target_: mine.Attack\n")
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.argv", ["fedsim", "--config-dir", str(tmp_path), "--help", "attack"])
    run_command(CommandStage("fedsim"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "Others"
    assert lines[-1].split(maxsplit=1) == ["mine", "My own attack. It is new"]


def test_nested_keys(catalogues):
    assert "checkpoint: null" in page(catalogues, "fedsim", "model.checkpoint")
    assert "local_epochs: 1" in page(catalogues, "fedsim", "client.local_epochs")
    _, fault = answer("fedsim", catalogues["fedsim"], ["local_epochs"])
    assert fault.endswith("Did you mean 'client.local_epochs'?")
