"""Each file of the group builds what its name says."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from defenses import Defense
from defenses.compose import build_chain

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted((CONF / "defense").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_defense(path: Path) -> None:
    loaded = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(loaded, dict)
    assert list(loaded) == [path.stem]
    chain = build_chain({str(name): settings for name, settings in loaded.items()})
    assert isinstance(chain.defenses[path.stem], Defense)


def test_every_file_starts_with_what_the_defense_does() -> None:
    for path in FILES:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# "), path.name
        assert len(first) > 20, path.name
