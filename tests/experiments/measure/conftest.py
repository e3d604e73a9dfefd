import pytest


@pytest.fixture
def settings():
    """What `load_subjects` reads; change what a test is about."""

    def make(runs=(), **values):
        measure = {"round": None, "num_images": 40, **values.pop("measure", {})}
        empty = {"names": None, "device": "cpu", "seed": 0, "model": {}, "data": {}, "defense": {}}
        return {**empty, "runs": [str(run) for run in runs], "measure": measure, **values}

    return make
