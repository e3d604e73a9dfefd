"""Models that clients could not train, or would train to no effect, are refused before any worker starts."""

import pytest

from experiments.engine.setup import prepare
from fedsim.errors import ConfigError
from fedsim.models import Architecture
from tests.support.federation import settings

NANO = ("data=digits", "model=vit_nano")


@pytest.mark.parametrize("trained", [True, False])
def test_a_trained_parameter_of_two_names_is_refused_in_a_federation(trained, monkeypatch):
    build = Architecture.build

    def tied(*given):
        model = build(*given)
        model.blocks[1].norm1 = model.blocks[0].norm1.requires_grad_(trained)
        return model

    monkeypatch.setattr(Architecture, "build", tied)
    prepare(settings("audit", *NANO))
    if not trained:  # nobody's values differ
        prepare(settings("config", *NANO))
        return
    said = r"^model\.name=vit_nano_patch2_8: must be a model whose parameters have one name each: "
    with pytest.raises(ConfigError, match=said + r"blocks\.0\.norm1\.weight and blocks\.1\.norm1\.weight are one"):
        prepare(settings("config", *NANO))
