import pytest

from experiments.python.load_config import load_config
from fedsim.settings.commands import MeasureConfig
from fedsim.settings.schema import parse


@pytest.fixture
def settings():
    """What `load_subjects` reads; change what a test is about."""

    def make(runs=(), **values):
        given = load_config("measure")
        given["measure"] |= {"num_images": 40, **values.pop("measure", {})}
        return parse(MeasureConfig, {**given, "device": "cpu", "runs": [str(run) for run in runs], **values})

    return make
