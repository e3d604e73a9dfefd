import pytest

from experiments.measure.settings import check_measure as check
from experiments.measure.settings import check_reference
from experiments.python.load_config import load_config
from fedsim.data.corruptions import NAMES
from fedsim.errors import ConfigError
from fedsim.settings.commands import MeasureConfig
from fedsim.settings.schema import parse


def check_measure(given):
    return check(parse(MeasureConfig, given))


def configured(**settings):
    """conf/measure.yaml with some keys changed; `a__b` is the key a.b."""
    config = load_config("measure")
    for key, value in settings.items():
        *path, last = key.split("__")
        place = config
        for name in path:
            place = place[name]
        assert last in place, key
        place[last] = value
    return config


def test_what_is_configured_is_valid():
    assert check_measure(configured()) is None
    plan = check_measure(configured(measure__corruptions__names="all", seed=4))
    assert (plan.names, plan.severities, plan.seed) == (NAMES, (1, 2, 3, 4, 5), 4)
    assert (plan.table_of(32), plan.table_of(224)) == ("cifar", "imagenet")
    check_reference(None, [], {"cifar"})
    check_reference("alexnet", [], {"imagenet"})
    plan = check_measure(configured(measure__corruptions__names="all", measure__corruptions__reference="alexnet"))
    assert plan is not None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("runs", "here", "runs=here: must be a list of folders"),
        ("names", "a", "names=a: must be a list"),
        ("seed", "x", "seed=x: must be a whole number"),
        ("threads", 0, "threads=0"),
        ("device", "gpu", "device=gpu: must be one of auto, cpu, cuda"),
        ("measure__ratios", [2], r"measure.ratios=\[2\]: must be numbers from 0 to 1"),
        ("measure__ratios", "ten", "measure.ratios=ten: must be numbers from 0 to 1"),
        ("measure__ratios", [True], "measure.ratios"),
        ("measure__attention_ratio", None, "measure.attention_ratio=None"),
        ("measure__draws", 0, "measure.draws=0: must be a whole number of at least 1"),
        ("measure__folds", 1, "measure.folds=1"),
        ("measure__num_images", "few", "measure.num_images=few"),
        ("measure__dimensions", [0], "measure.dimensions"),
        ("measure__projections", ["lda"], "measure.projections=lda: must be one of pca"),
        ("measure__projections", "pca", "measure.projections=pca: must be names"),
        ("measure__corruptions__names", ["rain"], "names=rain: must be one of gaussian_noise"),
        ("measure__corruptions__names", "foggy", "names=foggy: must be a list, all"),
        ("measure__hard", "no", "measure.hard=no: .* there is none"),
    ],
)
def test_refuses(key, value, words):
    with pytest.raises(ConfigError, match=words):
        check_measure(configured(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("severities", [6]), ("severities", []), ("num_images", 0), ("table", "mnist"), ("frost", "nowhere")],
)
def test_refuses_corruptions(key, value):
    settings = {"measure__corruptions__names": ["fog"], f"measure__corruptions__{key}": value}
    with pytest.raises(ConfigError, match=f"measure.corruptions.{key}"):
        check_measure(configured(**settings))


def test_refuses_a_reference_that_is_no_run():
    with pytest.raises(ConfigError, match="reference=vgg: must be null or one of alexnet, base"):
        check_reference("vgg", ["base", "base"], {"cifar"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"names": ["fog"]}, r"names=\[fog\]: must be all, beside reference=alexnet: .* fifteen corruptions"),
        ({"names": "all", "severities": [5]}, r"severities=\[5\]: must be \[1,2,3,4,5\], beside reference=alexnet"),
        ({"names": "all", "severities": [1, 2, 3, 4, 5, 5]}, "severities="),
    ],
)
def test_alexnets_errors_are_of_the_whole_benchmark(settings, words):
    changes = {f"measure__corruptions__{key}": value for key, value in {"reference": "alexnet", **settings}.items()}
    with pytest.raises(ConfigError, match=words):
        check_measure(configured(**changes))
    changes["measure__corruptions__reference"] = "base"
    assert check_measure(configured(**changes)) is not None


@pytest.mark.parametrize("tables", [{"cifar"}, {"cifar", "imagenet"}])
def test_alexnets_errors_are_of_imagenet(tables):
    with pytest.raises(ConfigError, match=r"corruptions\.table=cifar: must be imagenet, beside reference=alexnet"):
        check_reference("alexnet", ["base"], tables)


def test_errors_are_divided_by_those_of_the_same_table_alone():
    check_reference("base", ["base"], {"cifar"})
    check_reference(None, ["base"], {"cifar", "imagenet"})
    with pytest.raises(ConfigError, match=r"table=cifar, imagenet: must be one of .* beside reference=base"):
        check_reference("base", ["base"], {"cifar", "imagenet"})
