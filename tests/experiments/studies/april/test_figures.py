"""What stands below a picture that there is none of."""

from experiments.studies.april.figures import _block


def test_what_was_not_run_is_not_called_refused(tmp_path):
    own = {"part": "fixed", "kind": "learned", "seed": 0, "number": 0}
    entries = [
        {**own, "attack": "row_space", "status": "done", "psnr": 30.0},
        {**own, "attack": "april", "status": "refused"},
    ]
    block = _block("", entries, "attack", ["row_space", "april", "mean"], tmp_path, lambda entry: "more")
    assert [line[0].text for line in block.lines] == ["30.0 dB\nmore", "refused", "not run"]
