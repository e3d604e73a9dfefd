"""Folders as finished runs leave them, with models that never trained: small, and ready at once."""

import pytest
import yaml
from safetensors.torch import save_file

from defenses.compose import build_chain
from fedsim.models import Architecture, ModelSpec, architecture_seed
from tests.experiments.measures.recorded import DATA, MODEL


@pytest.fixture
def write_run(tmp_path):
    """`write_run(name, defense, seed=…)`: config.yaml and a checkpoint of round 3; gives the folder."""

    def write(name, defense=None, *, seed=0, data=None, model=None, **settings):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        model = {**MODEL, **(model or {})}
        config = {"seed": seed, "model": model, "data": data or DATA, "defense": defense or {}, **settings}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        spec = ModelSpec.from_dict({**model, "num_classes": 10})
        built = Architecture(spec, (build_chain(config["defense"]),), architecture_seed(seed)).build()
        save_file(built.state_dict(), folder / "checkpoints" / "round-00003.safetensors")
        return folder

    return write


@pytest.fixture
def settings():
    """What `load_subjects` reads; change what a test is about."""

    def make(runs=(), **values):
        measure = {"round": None, "num_images": 40, **values.pop("measure", {})}
        empty = {"names": None, "device": "cpu", "seed": 0, "model": {}, "data": {}, "defense": {}}
        return {**empty, "runs": [str(run) for run in runs], "measure": measure, **values}

    return make
