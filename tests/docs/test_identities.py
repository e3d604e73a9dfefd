"""What a page calls a defense's identity can be typed: Hydra reads `inf` as a number, and YAML's `.inf` as a word."""

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedsim.settings.components import check_settings

PAGES = Path(__file__).parents[2] / "docs" / "defenses"
LINE = re.compile(r"^identity: (\w+=[\w.+-]+.*)", re.MULTILINE)
LINES = {page.stem: found.group(1) for page in PAGES.glob("*.md") if (found := LINE.search(page.read_text()))}
IDENTITIES = {name: re.findall(r"\w+=[\w.+-]+", line) for name, line in LINES.items()}


@pytest.mark.parametrize("name", sorted(IDENTITIES))
def test_the_identity_of_a_page_is_taken_on_the_command_line(name):
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base=None):
        config = compose("audit", [f"defense=[{name}]", *(f"defense.{name}.{one}" for one in IDENTITIES[name])])
    settings = OmegaConf.to_container(config.defense, resolve=True)
    check_settings(f"defense.{name}", settings[name])


def test_there_are_pages_with_such_a_setting():
    assert len(IDENTITIES) > 5
