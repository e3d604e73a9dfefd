"""What a folder's results are of is noted once, and another such is refused."""

import json

import pytest

from experiments.engine.content import FILE, keep_content
from fedsim.errors import ConfigError, RunError
from fedsim.storage.run_folder import RunFolder

CONTENT = {"weights": "a", "model code": [100.0, -1.0], "images": "b"}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    keep_content(folder, CONTENT)
    folder.append("attacks", {"attack": "labels"})
    return folder


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"images": "c"}, "images"),
        ({"weights": "c", "images": "c"}, "weights"),
        ({"model code": [100.0, -1.1]}, "model code"),
        ({"model code": [100.0]}, "model code"),
    ],
)
def test_another_content_is_refused(folder, other, named):
    with pytest.raises(ConfigError, match=rf"^resume={folder.root}: choose a new folder.* results of other {named}$"):
        keep_content(folder, CONTENT | other, "resume")
    assert json.loads((folder.root / FILE).read_text()) == CONTENT


def test_rounding_and_what_was_not_noted_are_no_other_content(folder):
    keep_content(folder, {"model code": [100.0, -1.001], "public images": "d"})
    assert json.loads((folder.root / FILE).read_text()) == CONTENT | {
        "model code": [100.0, -1.001],
        "public images": "d",
    }
    with pytest.raises(ConfigError, match="other public images"):
        keep_content(folder, {"public images": "e"})


def test_what_was_noted_may_be_damaged(folder):
    (folder.root / FILE).write_text('{"weights"')
    with pytest.raises(RunError, match=r"content\.json: damaged"):
        keep_content(folder, CONTENT)


def test_without_results_there_is_nothing_to_mix(tmp_path):
    for content in (CONTENT, CONTENT | {"images": "c"}):
        keep_content(RunFolder(tmp_path), content)
    assert json.loads((tmp_path / FILE).read_text())["images"] == "c"
