"""Bounds in a run folder: what may be called proven, what may not, and that kinds are never mixed."""

import json
import re

import pytest

from fedsim.report.compare.verdict import judge_defenses
from fedsim.report.render import build_report
from fedsim.report.run.bounds.records import bound_record, proof_of
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import verdict

CLAIM = (
    "Whoever would rebuild an image with probability 0.001 before does so with at most 0.019 after this one release."
)
PROOF = {"kappa": 1e-3, "gamma": 0.0183, "mu": 1.0, "releases": 1, "unit": "image"}


def line(bound="reconstruction_robustness", kind="theorem", **values):
    return {"bound": bound, "kind": kind, "status": "done", "sentence": CLAIM, "proof": None, **values}


@pytest.fixture
def judged(write_run, records):
    """`judged(lines, certified=False, images=True)`: the run of an audit with these bounds."""
    count = iter(range(100))

    def make(lines, certified=False, attacked=True, **written):
        certificate = {} if not certified else {"status": "certified"}
        image = records.image(90.0 if certified else 9.0, "a", guess_psnr=10.0)
        rows = [records.attack(1, 0, image, certificate=certificate)] if attacked else []
        folder = write_run(rows, name=f"run-{next(count)}", **written)
        (folder / "bounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        return read_run(folder)

    return make


def test_a_theorem_with_its_numbers_makes_it_proven(judged):
    found = verdict(judged([line(proof=PROOF)]))
    assert (found.level, found.tag) == ("proven", "Proven")
    assert found.sentence.startswith(f"{CLAIM} The server rebuilt 0 of 1 image recognisably")
    assert found.line.startswith(f"proven: {CLAIM}")
    assert found.to_dict()["level"] == "proven"


def test_also_where_no_attack_ran(judged):
    found = verdict(judged([line(proof=PROOF)], attacked=False))
    assert found.level == "proven"
    assert found.sentence == f"{CLAIM} No attack has run, so this run says nothing about what the server could learn."


def test_what_an_attack_shows_outweighs_it(judged):
    found = verdict(judged([line(proof=PROOF)], certified=True))
    assert found.level == "broken"
    assert CLAIM not in found.sentence
    assert "so that nothing is proven: the mechanism is not as its settings say" in found.cautions[0]


def test_one_image_that_came_out_is_at_odds_with_it(write_run, records):
    """Too few to be broken beyond chance, and too many for a theorem that says it is improbable."""
    image = records.image(132.0, "a", guess_psnr=10.0)
    config = "seed: 0\ndefense: {dp_sgd: {}}\nattack: {patch_gradient: {}}\n"
    folder = write_run([records.attack(1, 0, image, certificate={})], name="one", config=config)
    (folder / "bounds.jsonl").write_text(json.dumps(line(proof=PROOF)) + "\n")
    found = verdict(read_run(folder))
    assert found.level == "open"
    assert CLAIM not in found.sentence
    assert "A theorem says that this is improbable" in found.cautions[0]
    assert judge_defenses([read_run(folder)])[0].level == "open"


def test_an_image_on_which_no_baseline_ended_is_at_odds_with_it_and_may_be_a_guess(write_run, records):
    """What is not known makes it neither broken nor proven."""
    row = records.attack(1, 0, records.image(132.0, "a", guess_psnr=10.0), certificate={})
    failed = {**row, "attack": "blind", "baseline": True, "status": "failed", "scored": False}
    config = "seed: 0\ndefense: {dp_sgd: {}}\nattack: {patch_gradient: {}, blind: {}}\n"
    folder = write_run([row, failed], name="failed", config=config)
    (folder / "bounds.jsonl").write_text(json.dumps(line(proof=PROOF)) + "\n")
    told = "to guess before (no baseline ended on 1 of those that came out, to tell)."
    for found in (verdict(read_run(folder)), judge_defenses([read_run(folder)])[0]):
        assert found.level == "open"
        assert found.cautions[0].endswith(told)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [line()],
        [line(proof=PROOF | {"mu": 1.5})],
        [line(proof=PROOF | {"mu": 1.5, "gamma": 0.01})],
        [line(kind="reference", proof=PROOF)],
        [line(status="refused", proof=PROOF)],
        [line(proof=PROOF | {"mu": "1"})],
        [line(proof=PROOF | {"mu": float("nan")})],
        [line(proof=PROOF | {"mu": -1})],
        [line(kind="guarantee", proof=PROOF)],
    ],
)
def test_nothing_else_does(judged, lines):
    assert verdict(judged(lines)).level == "open"


def test_the_later_line_counts(judged):
    assert verdict(judged([line(proof=PROOF), line(proof=PROOF | {"mu": 2.0})])).level == "open"


def test_a_run_that_did_not_finish_is_not_proven(judged):
    found = verdict(judged([line(proof=PROOF)], summary={"kind": "audit", "finished": False}))
    assert found.level == "open"


def test_a_mechanism_that_canaries_find_broken_is_not_proven(judged):
    fault = line("canaries", "test", sentence="It shows more than it claims.", values={"broken": 1.0})
    found = verdict(judged([line(proof=PROOF), fault]))
    assert found.level == "open"
    assert found.cautions[0] == "canaries found a fault: It shows more than it claims."


def test_it_says_whether_canaries_tested_the_mechanism(judged):
    untested, tested = "No canary tested the mechanism", "Canaries found no fault in the mechanism"
    canaries = line("canaries", "test", values={"broken": 0.0})
    part = "Canaries found no fault in what they tested; not every private defense was"
    for lines, told in (
        ([line(proof=PROOF)], untested),
        ([line(proof=PROOF), canaries], tested),
        ([line(proof=PROOF), line("canaries", "test", values={"broken": 0.0, "untested": 1.0})], part),
        ([line(proof=PROOF), canaries | {"status": "refused"}], untested),
    ):
        assert verdict(judged(lines)).details[0].startswith(told)
    assert not any("anar" in one for one in verdict(judged([canaries])).details), "where nothing is proven"


def test_lines_that_are_none_are_passed_over(tmp_path, write_run):
    folder = write_run()
    (folder / "bounds.jsonl").write_text(
        '{"bound": 3}\n[1]\n{"bound": "x", "kind": "theorem", "rows": 3, "strips": [1]}\n'
    )
    run = read_run(folder)
    assert run.damaged == ("bounds.jsonl: 2 lines",)
    assert [one.bound for one in run.bounds] == ["x"]
    assert proof_of(run.bounds) is None
    assert bound_record({"bound": "x", "kind": "theorem", "header": None, "values": [1]}).values == {}


def test_the_page_shows_each_kind_by_itself(judged, picture):
    evil = "<script>alert(1)</script>"
    lines = [
        line("pairs", header=["image", "blur"], rows=[["a", "0.53"]]),
        line("gaussian_reference", "reference", sentence=evil),
        line("determined", "local fact", status="refused", reason="3,072 pixels: at most 2,000"),
        line("canaries", "test", seconds=2.34),
    ]
    run = judged(lines)
    name = picture(run.path, "bounds/pairs/000-00.png")
    lines[0]["strips"] = [
        {"name": "a", "panels": [{"image": name, "caption": "blur of 1 px: 53%"}, {"image": "../no"}]}
    ]
    (run.path / "bounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    page = build_report(run.path).read_text()
    headings = re.findall(r"<h3>(Theorems|References|Local facts|Tests of the mechanism)</h3>", page)
    assert headings == ["Theorems", "References", "Local facts", "Tests of the mechanism"]
    assert 'alt="blur of 1 px: 53%"' in page
    assert "refused: 3,072 pixels: at most 2,000" in page
    assert evil not in page
    assert '<span class="hint">2.3 s</span>' in page, "each says what it cost"
    assert page.count('class="strip"') == 1


def test_the_section_is_left_out_without_bounds(judged):
    assert "What stands beside the attacks" not in build_report(judged([]).path).read_text()


def test_of_several_seeds_each_must_be_proven(judged):
    config = "seed: {seed}\ndefense: {{dp_sgd: {{}}}}\nattack: {{patch_gradient: {{}}}}\n"
    both = [judged([line(proof=PROOF)], config=config.format(seed=seed)) for seed in (0, 1)]
    (found,) = judge_defenses(both)
    assert (found.level, found.seeds) == ("proven", 2)
    assert found.sentence.startswith(CLAIM)
    (mixed,) = judge_defenses([both[0], judged([], config=config.format(seed=2))])
    assert (mixed.level, mixed.seeds) == ("open", 2)


def test_runs_with_and_without_bounds_compare(judged):
    defended = "seed: 0\ndefense: {dp_sgd: {}}\nattack: {patch_gradient: {}}\nbound: {pairs: {images: 2}}\n"
    plain = "seed: 0\ndefense: {}\nattack: {patch_gradient: {}}\nbound: {}\n"
    runs = [judged([line(proof=PROOF)], config=defended), judged([], config=plain)]
    (found,) = judge_defenses(runs)
    assert "nothing to hold it against" not in " ".join(found.details)
