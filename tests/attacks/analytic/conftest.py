import pytest


@pytest.fixture
def indexed():
    """MJP's IDX after some training, as `defenses` of an observation."""
    from tests.support.indexed import Indexed

    return {"mjp_jp_idx": Indexed()}
