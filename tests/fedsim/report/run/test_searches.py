"""The lines of a search."""

from typing import Any

from fedsim.report.run.read import read_run
from fedsim.report.run.searches import search_lines


def test_the_mean_of_a_search_counts_an_exact_image_as_the_page_does(write_run: Any, records: Any) -> None:
    def frames(*psnr: float) -> dict[str, Any]:
        return {"strip": "s.png", "strip_steps": [1, 2], "steps": [1, 2], "psnr": [*psnr]}

    images = [records.image(10.0, "a", frames=frames(10.0, 300.0)), records.image(10.0, "b", frames=frames(20.0, 20.0))]
    row = records.attack(0, 0, *images, attack="search", trace=[{"step": step, "loss": 1.0} for step in (1, 2)])
    _, _, psnr, _ = search_lines(read_run(write_run([row])), "search", 8)
    assert list(psnr.values()) == [[(1.0, 15.0), (2.0, 40.0)]]


def test_updates_of_one_client_in_several_recorded_rounds_are_several_lines(write_run: Any, records: Any) -> None:
    trace = [{"step": step, "loss": 1.0} for step in (1, 2)]
    rows = [records.attack(number, 0, records.image(None), attack="search", trace=trace) for number in (1, 2)]
    audit = {"kind": "audit", "finished": True}
    recorded = read_run(write_run(rows, config="data: {_target_: recorded}\n", summary=audit))
    assert list(search_lines(recorded, "search", 8)[1]) == ["round 1, client 0", "round 2, client 0"]
