"""Whatever the files of a run hold, it has a page and a place among others, and nothing in the page is code."""

import json
import os

from hypothesis import example, given
from hypothesis import strategies as st

from fedsim.report.compare.verdict import judge_defenses
from fedsim.report.level_wording import TAGS
from fedsim.report.render import build_report
from fedsim.report.run.read import read_run
from tests.fuzz.effort import effort
from tests.fuzz.mutations import NASTY, json_values, texts

EXAMPLES = int(os.environ.get("FUZZ_REPORTS", "3"))
"""More: `FUZZ_REPORTS=300 pytest --timeout=0 tests/fuzz/test_reports.py`."""

SCORES = {"psnr": 20.0, "ssim": 0.5, "original": None, "reconstruction": None, "frames": None}
ATTACK = {
    "observation": "round-00001-client-00000",
    "round": 1,
    "client": 0,
    "attack": "dlg",
    "status": "done",
    "reason": "",
    "certificate": {"status": "certified", "reason": "small residual", "values": {}},
    "trace": [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.5}],
    "seconds": 1.0,
    "batch_size": 1,
    "attempts": 2,
    "label_exact": True,
    "label_share": 1.0,
    "scored": True,
    "images": [{"image": "a/1.png", "label": 1, "label_recovered": 1, **SCORES}],
}
ROUND = {
    "round": 1,
    "accuracy": 0.5,
    "train_loss": 1.0,
    "clients": 3,
    "failures": [{"client": 1, "error": "ValueError"}],
}


@st.composite
def spoilt(draw, row):
    """The row with other values in one to three places, on whatever level."""
    row = json.loads(json.dumps(row))
    for _ in range(draw(st.integers(1, 3))):
        place, key = row, draw(st.sampled_from(sorted(row)))
        while isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[key] = draw(json_values)
    return row


def filled(row, text):
    """The row with `text` for each of its texts."""
    if isinstance(row, dict):
        return {key: filled(value, text) for key, value in row.items()}
    if isinstance(row, list):
        return [filled(value, text) for value in row]
    return text if isinstance(row, str) else row


def test_a_page_without_code(tmp_path):
    def write(name, *rows):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    @effort(EXAMPLES)
    @given(st.lists(spoilt(ATTACK), max_size=3), st.lists(spoilt(ROUND), max_size=2), texts)
    @example([filled(ATTACK, text) for text in NASTY], [filled(ROUND, text) for text in NASTY], NASTY[7])
    def run(attacks, rounds, model):
        write("attacks.jsonl", ATTACK, *attacks)
        write("metrics.jsonl", ROUND, *rounds)
        write("config.yaml", {"model": {"name": model}, "defense": {model: {}}})
        write("summary.json", {"kind": "federated", "finished": True, "test_pictures": 10})
        page = build_report(tmp_path).read_text(encoding="utf-8")
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "What the server learned" in page
        write("plain/attacks.jsonl", ATTACK)
        write("plain/metrics.jsonl", ROUND)
        write("plain/config.yaml", {"model": {"name": model}, "defense": {}})
        (verdict,) = judge_defenses([read_run(tmp_path / "plain"), read_run(tmp_path)])
        assert verdict.level in TAGS

    run()
