"""From a resolved configuration to objects."""

import pytest

from fedsim.errors import ConfigError
from fedsim.settings.composition import build_data
from tests.support.federation import settings


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("partition.alpha=0", r"^partition\.alpha=0: must be a positive number$"),
        ("partition.alpha=[]", r"^partition=DirichletPartitioner: .*"),
    ],
)
def test_a_partition_that_cannot_be_is_one_line(override, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_data(settings("config", "partition=dirichlet", override))
    assert "\n" not in str(caught.value)
