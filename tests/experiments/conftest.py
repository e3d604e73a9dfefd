"""Both commands as a user calls them, in this process, and folders of runs that nobody ran."""

import pytest

from tests.experiments.run_files import SMALL_AUDIT

SMALL = ["num_clients=4", "num_rounds=3", "evaluate_every=1", "observe.every=2"]


@pytest.fixture(scope="session")
def mortal(warm):
    """One server of processes that may die, for the whole test run."""
    from tests.experiments.mortal_runs import MortalRuns

    with MortalRuns(warm) as runs:
        yield runs


@pytest.fixture
def fedsim(command, tmp_path):
    """A small federated run; gives its folder."""
    runs = iter(range(100))

    def call(*arguments):
        folder = tmp_path / f"run-{next(runs)}"
        code, out, err = command("fedsim", *SMALL, f"run_dir={folder}", *arguments)
        assert code == 0, err
        assert out.strip().splitlines()[-1] == str(folder)
        return folder

    return call


@pytest.fixture
def audit(command, tmp_path):
    """A small audit in the process; gives its folder."""
    runs = iter(range(100))

    def call(*arguments, folder=None):
        folder = folder or tmp_path / f"audit-{next(runs)}"
        code, out, err = command("fedsim-audit", f"run_dir={folder}", *SMALL_AUDIT, *arguments)
        assert code == 0, err
        assert out.strip().splitlines()[-1] == str(folder)
        return folder

    return call


@pytest.fixture
def copies(tmp_path):
    """Settings of a folder that holds every image twice, so that the server's own are copies of clients' images."""
    from PIL import Image

    for index in range(20):
        image = Image.effect_noise((8, 8), 10.0 + 10 * index).convert("RGB")
        for copy in "ab":
            path = tmp_path / "copies" / ("cat", "dog")[index % 2] / f"{index}-{copy}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
    return "data=imagefolder", f"data.path={tmp_path / 'copies'}", "data.auxiliary_fraction=0.4"


@pytest.fixture
def write_run(tmp_path):
    """`write_run(name, defense, seed=…)`: config.yaml and a checkpoint of round 3; gives the folder.

    As a finished run leaves it, with a model that never trained: small, and ready at once.
    """
    import yaml
    from safetensors.torch import save_file

    from defenses.compose import build_chain
    from fedsim.models import Architecture, ModelSpec, architecture_seed
    from tests.experiments.measure.recorded import DATA, MODEL

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
