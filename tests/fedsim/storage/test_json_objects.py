"""A damaged file is one line that names it."""

import pytest

from fedsim.errors import RunError
from fedsim.report.matrix.files import build_matrix_report
from fedsim.report.measures.page import build_measures_page
from fedsim.storage import json_lines
from fedsim.storage.json_objects import DamagedFileError, read_object
from fedsim.storage.run_folder import RunFolder

DAMAGED = {
    "empty": b"",
    "cut": b'{"seconds": 1',
    "list": b"[1]",
    "bytes": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "long": b"1" * 5_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_object_is_damaged(content, tmp_path):
    path = tmp_path / "content.json"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"content\.json: damaged, it must hold a JSON object") as raised:
        read_object(path)
    assert "\n" not in str(raised.value)


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "attacks.jsonl"
    path.write_bytes(b'{"attack": "a"}\n{"att\n{"torn')
    with pytest.raises(DamagedFileError, match=r"attacks\.jsonl, line 2: damaged"):
        list(json_lines.rows(path))
    with pytest.raises(DamagedFileError, match=r"attacks\.jsonl, line 2: damaged"):
        RunFolder(tmp_path).keep_rows("attacks", bool)
    assert path.read_bytes().endswith(b'{"torn'), "nothing is lost"


@pytest.mark.parametrize(
    ("name", "build", "lacks"),
    [
        ("matrix", build_matrix_report, "a matrix's numbers"),
        ("measures", build_measures_page, "measures, with figures, runs, seed, settings"),
    ],
)
def test_numbers_without_what_a_page_is_of_are_damaged(name, build, lacks, tmp_path):
    (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=rf"{name}\.json: damaged, it must hold {lacks}$"):
        build(tmp_path)
