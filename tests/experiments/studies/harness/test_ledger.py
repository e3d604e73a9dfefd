"""Results that a kill leaves behind."""

import pytest

from experiments.studies.harness.ledger import Ledger, kept, settle
from fedsim.errors import ConfigError
from fedsim.storage.json_objects import DamagedFileError


def test_the_line_of_the_kill_is_cut_off(tmp_path):
    path = tmp_path / "out" / "results.jsonl"
    ledger = Ledger(path)
    ledger.add({"a": 1})
    ledger.add({"a": "é"})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"a": "é')
    again = Ledger(path)
    assert again.entries == [{"a": 1}, {"a": "é"}]
    again.add({"a": 3})
    assert Ledger(path).entries == [{"a": 1}, {"a": "é"}, {"a": 3}]


def test_numbers_that_json_has_not_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Ledger(tmp_path / "results.jsonl").add({"a": float("nan")})


def test_other_settings_are_refused(tmp_path):
    settle(tmp_path / "out" / "settings.json", {"seed": 0, "models": ("a", "b")})
    settle(tmp_path / "out" / "settings.json", {"seed": 0, "models": ["a", "b"]})
    with pytest.raises(ConfigError, match="seed=0 there, 1 now"):
        settle(tmp_path / "out" / "settings.json", {"seed": 1, "models": ("a", "b")})


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n{"a": "x\n{"a": 3}\n')
    with pytest.raises(DamagedFileError, match=r"results.jsonl, line 2"):
        Ledger(tmp_path / "results.jsonl")


def test_damaged_settings_are_named(tmp_path):
    (tmp_path / "settings.json").write_text('{"seed": ')
    with pytest.raises(DamagedFileError, match=r"settings.json"):
        settle(tmp_path / "settings.json", {"seed": 0})


def test_one_call_at_a_time_in_a_folder(tmp_path):
    with (
        kept(tmp_path / "out", {}),
        pytest.raises(ConfigError, match=r"--out=.*another process is at work"),
        kept(tmp_path / "out", {}),
    ):
        pass
    with kept(tmp_path / "out", {}):
        assert (tmp_path / "out").is_dir()


def test_a_setting_that_is_new_and_says_nothing_is_no_other(tmp_path):
    settle(tmp_path / "settings.json", {"attacks": {"rgap": {"bits": 1}}})
    settle(tmp_path / "settings.json", {"attacks": {"rgap": {"bits": 1, "then": None}}})
    with pytest.raises(ConfigError, match=r"attacks\.rgap\.bits=1 there, 2 now"):
        settle(tmp_path / "settings.json", {"attacks": {"rgap": {"bits": 2}}})
