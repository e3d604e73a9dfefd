"""A bar while a search runs, on standard error, for who looks at a terminal; nothing changes by it."""

import io
import sys

import pytest
import torch

import fedsim


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seen() -> fedsim.Observation:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    return fedsim.observe(model, torch.rand(1, 3, 4, 4), [3])


def searched(seen: fedsim.Observation, **how: bool) -> fedsim.AttackResult:
    return fedsim.attack("inverting_gradients", seen, steps=20, **how)


def test_a_terminal_shows_the_attack_the_step_and_the_time_and_the_bits_stay(seen, monkeypatch, capsys):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    silent = searched(seen)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal := Terminal())
        shown = searched(seen)
        asked_for_none = Terminal()
        patch.setattr(sys, "stderr", asked_for_none)
        searched(seen, progress=False)
    told = terminal.getvalue()
    for words in ("inverting_gradients", "20/20", "0:00:0", "objective="):
        assert words in told
    assert asked_for_none.getvalue() == ""
    assert torch.equal(silent.images, shown.images)
    assert capsys.readouterr() == ("", "")


def test_into_a_file_nothing_is_told_unless_asked_for(seen, capsys):
    searched(seen)
    assert capsys.readouterr() == ("", "")
    searched(seen, progress=True)
    out, err = capsys.readouterr()
    assert (out, "inverting_gradients" in err) == ("", True)
