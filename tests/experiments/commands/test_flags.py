"""Flags among settings."""

import pytest

from experiments.commands.flags import flags_last


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("seed=1 -m defense=[],[half]", "seed=1 defense=[],[half] -m"),
        ("--config-dir conf seed=1 --cfg job data=digits", "seed=1 data=digits --config-dir conf --cfg job"),
        ("--config-d conf seed=1", "seed=1 --config-d conf"),
        ("seed=1 --info", "seed=1 --info"),
        ("--cfg=job seed=1", "seed=1 --cfg=job"),
    ],
)
def test_settings_stand_together(given, taken):
    assert flags_last(given.split()) == taken.split()
