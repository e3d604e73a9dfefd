"""The page holds everything itself, escapes what it was told, and exists whatever the run left."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from PIL import Image

from fedsim.report.compare.same_pictures import SamePicture, same_pictures
from fedsim.report.draw.pictures import embed_strip
from fedsim.report.render import build_comparison, build_report, build_sweep_report
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import summarise_attacks
from fedsim.report.run.verdict import verdict
from fedsim.report.wording import PRIVATE, SEEN

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Tags with their attributes, and whether every one was closed."""

    VOID = ("meta", "img", "br", "wbr", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check_page(path: Path) -> Page:
    """Self-contained, well-formed, no script but the one that the policy names, unique ids, names for pictures."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    policy = next(meta["content"] or "" for meta in page.all("meta") if "http-equiv" in meta)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{digest}'" for digest in hashes]
    assert page.all("script") == [{}]
    assert text.count("<script") == 1
    assert page.all("link") == []
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name, value in attributes.items():
            if name in ("src", "srcset", "data", "action", "poster"):
                assert (value or "").startswith("data:image/"), (tag, name)
            if name in ("href", "xlink:href"):
                assert not re.match(r"[a-z]+:|//", value or ""), (tag, value)
            assert not re.search(r"url\((?!#)", value or ""), (tag, name)
            assert "http:" not in (value or ""), (tag, name)
    assert "@import" not in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(attributes.get("alt") for attributes in page.all("img"))
    assert all(attributes.get("aria-label") for attributes in page.all("svg") if "class" in attributes)
    return page


@pytest.fixture
def full_run(write_run: Any, records: Any, picture: Any) -> Path:
    shown = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
    folder: Path = write_run(
        [
            *[records.attack(k, 0, records.image(60.0 + k, EVIL, label_recovered=4, **shown)) for k in (1, 2, 3)],
            *[records.attack(k, 0, records.image(12.0), attack=f"${EVIL}_$", attempts=3) for k in (1, 2)],
            records.refusal(1, 5, f"withheld by {EVIL}"),
            records.attack(1, 6, status="failed", reason=f"RuntimeError: {EVIL}"),
        ],
        rounds=[
            {"round": 0, "accuracy": 0.1},
            {"round": 1, "accuracy": 0.6, "failures": [{"client": EVIL, "error": EVIL}]},
        ],
        config=f'seed: 1\nmodel: {{name: "{EVIL.replace(chr(34), "")}"}}\n',
        summary={"kind": "federated", "finished": True, "seconds": 5.0, "lpips": f"LPIPS {EVIL}", "device": EVIL},
        name="a <b> run",
    )
    picture(folder, "reconstructions/a.png")
    picture(folder, "reconstructions/o.png")
    return folder


def test_the_page_of_a_full_run(full_run: Path) -> None:
    path = build_report(full_run)
    assert path == full_run / "report.html"
    page = check_page(path)
    assert len(page.all("img")) == 6
    assert all(image.get("class") == "tiny" for image in page.all("img"))
    assert len(page.all("figure")) == 4 + 3
    text = path.read_text(encoding="utf-8")
    for heading in ("Attacks", "Rebuilt images", "Refusals", "Failures", "Timings", "Configuration"):
        assert f"<h2>{heading}</h2>" in text
    assert "The server rebuilt 1 of 1 image recognisably" in text
    assert "label 3 → 4" in text
    assert "Whole run" in text


def test_untrusted_words_are_escaped_everywhere(full_run: Path) -> None:
    text = build_report(full_run).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "onerror=alert(1)>" not in text
    assert "&lt;script&gt;" in text
    assert "a &lt;b&gt; run" in text


def test_scores_against_private_pictures_stand_beside_the_others(write_run: Any, records: Any, picture: Any) -> None:
    shown = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
    jigsawed = records.image(60.0, "changed", private_psnr=11.0, private_ssim=0.21, **shown)
    folder = write_run(
        [
            records.attack(1, 0, jigsawed, attack="strong_attack"),
            records.attack(1, 0, records.image(None, ssim=None), attack="labels"),
        ]
    )
    picture(folder, "reconstructions/a.png")
    picture(folder, "reconstructions/o.png")
    page = check_page(build_report(folder))
    text = (folder / "report.html").read_text(encoding="utf-8")
    told = [(span["class"], span.get("title")) for span in page.all("span") if span.get("class") == "private"]
    assert [title for _, title in told if title] == [PRIVATE] * 7
    cell = f'<span title="{SEEN}">60.0 dB</span><br><span class="private" title="{escape(PRIVATE)}">11.0 dB</span>'
    assert cell in text
    assert f'<strong title="{SEEN}">60.0 dB</strong> · SSIM 0.500' in text
    assert f'title="{escape(PRIVATE)}">private 11.0 dB · SSIM 0.210</span>' in text
    assert text.count('as seen<br><span class="private">private</span></th>') == 6
    assert f"every column of scores is {SEEN} first" in text
    shares = [f'<span title="{SEEN}">{seen}</span><br>' for seen in ("100 %", "60.0 dB")]
    assert all(share in text for share in shares)
    assert page.all("img")[0]["alt"] == "What the model saw of changed, 8×8 pixels"
    assert "strong_<wbr>attack</th>" in text
    assert '<span class="badge indistinguishable">as the model saw it</span>' in text
    assert 'data-level="as the model saw it"' in text
    assert '<section class="verdict broken" aria-label="Verdict">' in text
    assert "How close to the clients’ own they came; closer to what the model saw" in text


@pytest.mark.parametrize("history", [False, True])
def test_a_page_says_where_results_are_of_earlier_rounds_too(history: bool, write_run: Any, records: Any) -> None:
    folder = write_run([records.attack(number, 0, records.image(20.0)) for number in (1, 2)])
    with (folder / "config.yaml").open("a") as config:
        config.write(f"observe: {{every: 1, history: {str(history).lower()}}}\n")
    check_page(build_report(folder))
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert ("of its own round and of those before it" in text) == history


@pytest.mark.parametrize(("seen", "own"), [(60.0, 60.0), (160.0, 160.4)])  # the latter differ by rounding alone
def test_scores_that_do_not_differ_are_shown_once(
    seen: float, own: float, write_run: Any, records: Any, picture: Any
) -> None:
    same = records.image(seen, private_psnr=own, private_ssim=0.5, reconstruction="reconstructions/a.png")
    folder = write_run([records.attack(1, 0, same)])
    picture(folder)
    page = check_page(build_report(folder))
    assert not [span for span in page.all("span") if span.get("class") == "private"]
    assert not [tag for _, tag in page.tags if tag.get("title") == SEEN]
    assert "private" not in re.sub(r"<style>.*?</style>", "", (folder / "report.html").read_text(), flags=re.DOTALL)


def test_building_twice_gives_the_same_page(full_run: Path) -> None:
    first = build_report(full_run).read_bytes()
    assert build_report(full_run).read_bytes() == first
    assert list(full_run.glob("*.partial")) == []


def test_pictures_outside_the_run_are_not_embedded(write_run: Any, records: Any, picture: Any, tmp_path: Path) -> None:
    picture(tmp_path, "secret.png")
    names = ["../secret.png", str(tmp_path / "secret.png")]
    rows = [
        records.attack(1, k, records.image(60.0, reconstruction=name, original=name)) for k, name in enumerate(names)
    ]
    page = check_page(build_report(write_run(rows)))
    assert page.all("img") == []


@pytest.mark.parametrize("missing", ["config.yaml", "metrics.jsonl", "timings.jsonl", "attacks.jsonl", "summary.json"])
def test_any_file_may_be_missing(full_run: Path, missing: str) -> None:
    (full_run / missing).unlink()
    check_page(build_report(full_run))


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    path = build_report(tmp_path)
    check_page(path)
    assert "No attack has run" in path.read_text(encoding="utf-8")


def test_an_audit_shows_no_rounds(write_run: Any, records: Any) -> None:
    folder = write_run(
        [records.attack(k, k, records.image(50.0 + k)) for k in range(300)],
        rounds=[],
        summary={"kind": "audit", "finished": True},
    )
    (folder / "timings.jsonl").unlink()
    page = check_page(build_report(folder))
    assert len(page.all("svg")) == 1
    assert "An audit trains nothing" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_model_is_named_with_what_was_set_of_it(write_run: Any, records: Any) -> None:
    config = "model: {name: vit_x, num_classes: 3, img_size: 24, pretrained: false, dtype: float64, kwargs: {k: 2}}\n"
    page = build_report(write_run([], config=config)).read_text(encoding="utf-8")
    assert "vit_x (img_size=24, dtype=float64, k=2)<" in page
    settings = {
        "b": "variant: stock, checkpoint_head: true",
        "c": "checkpoint: w, checkpoint_head: false",
        "d": "pretrained: false, kwargs: {bias: false, depth: 0}",
    }
    usual, headless, unbiased = (
        build_report(write_run([], config=f"model: {{name: vit_x, {words}}}\n", name=name)).read_text()
        for name, words in settings.items()
    )
    assert "vit_x<" in usual
    assert "vit_x (checkpoint=w, checkpoint_head=false)<" in headless
    assert "vit_x (bias=False, depth=0)<" in unbiased


def test_of_a_fine_tuned_model_the_trained_tensors_alone_are_said_to_be_sent(write_run: Any, records: Any) -> None:
    config = "client: {share: weights}\nfinetune: {_target_: fedsim.models.finetune.LoRA, rank: 4}\n"
    page = build_report(write_run([], config=config)).read_text(encoding="utf-8")
    assert "its weights after local training, of the tensors alone that it trains (LoRA (rank=4))" in page


def test_nothing_is_said_of_scores_where_nothing_was_scored(write_run: Any, records: Any) -> None:
    said = "which the model saw as they are"
    scored = write_run([records.attack(1, 0, records.image(30.0))], name="scored")
    labels = write_run([records.attack(1, 0, records.image(None), scored=False)], name="labels")
    assert [said in build_report(run).read_text(encoding="utf-8") for run in (scored, labels)] == [True, False]


def test_a_page_of_more_attacks_than_colours(write_run: Any, records: Any) -> None:
    rows = [records.attack(r, 0, records.image(30.0), attack=f"_attack_{k}_名") for k in range(11) for r in (1, 2)]
    page = build_report(write_run(rows))
    check_page(page)
    captions = re.findall(r"[^>]*(?:8|7) of 11 attacks", page.read_text(encoding="utf-8"))
    assert len(captions) >= 3, "leakage by round, its histogram and labels leave some out"


@pytest.mark.parametrize(("updates", "said"), [(8, False), (9, True)])
def test_a_search_of_more_updates_than_colours_says_how_many_are_drawn(
    write_run: Any, records: Any, picture: Any, updates: int, said: bool
) -> None:
    folder: Path = write_run()
    image = records.image(30.0, reconstruction=picture(folder))
    trace = [{"step": float(step), "objective": 1.0 / (1 + step)} for step in range(3)]
    rows = [records.attack(1, client, image, trace=trace) for client in range(updates)]
    (folder / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = build_report(folder).read_text(encoding="utf-8")
    assert "The search, step by step" in page
    assert ("; 8 of 9 updates" in page) is said


def test_pictures_of_one_name_and_other_numbers_are_not_the_same(write_run: Any, records: Any) -> None:
    """Other data sets use the same names."""

    def shown(*digests: str) -> list[SamePicture]:
        runs = {}
        for place, digest in enumerate(digests):
            image = records.image(30.0, "image-00000", content=digest, reconstruction="reconstructions/a.png")
            runs[f"run {place}"] = read_run(
                write_run([records.attack(1, 0, image)], name=f"{digest}-{len(digests)}-{place}-{digests[-1]}")
            )
        return same_pictures(runs)

    assert len(shown("aa", "aa")) == 1
    assert shown("aa", "bb") == []


def test_images_that_only_attacks_numbered_are_not_the_same(write_run: Any, records: Any) -> None:
    """Without the truth a name is a place in what an attack returned."""
    image = records.image(None, "round-00001-client-00000/0", label=None, reconstruction="reconstructions/a.png")
    runs = {name: read_run(write_run([records.attack(1, 0, image, scored=False)], name=name)) for name in "ab"}
    assert same_pictures(runs) == []


@pytest.mark.parametrize(("other", "images", "same"), [("r", 1, 1), ("s", 1, 0), ("r", 2, 0)])
def test_the_image_of_a_recorded_update_is_the_same_under_every_attack(
    write_run: Any, records: Any, other: str, images: int, same: int
) -> None:
    made = {"label": None, "reconstruction": "reconstructions/a.png"}
    shown = [records.image(None, f"round-00001-client-00000/{k}", **made) for k in range(images)]
    config = "data: {{_target_: recorded}}\nobservation: {}/observations\n"
    runs = {
        name: read_run(write_run([records.attack(1, 0, *shown, scored=False)], config=config.format(of), name=name))
        for name, of in (("a", "r"), ("b", other))
    }
    assert len(same_pictures(runs)) == same


def test_the_sweep_page_compares_finished_runs(write_run: Any, records: Any) -> None:
    for number, (defense, psnr) in enumerate([("{}", 80.0), ("{mjp: {}}", 25.0), ("{mjp: {}, fixed_pe: {}}", None)]):
        rows = [records.refusal(1, 0, "withheld")] if psnr is None else [records.attack(1, 0, records.image(psnr))]
        config = f"seed: {number % 2}\ndefense: {defense}\nattack: {{patch_gradient: {{}}}}\n"
        build_report(write_run(rows, config=config, name=f"sweep/{number} #x"))
    (write_run(name="sweep/deep/er", config="seed: 0\n") / "attacks.jsonl").unlink()
    stopped = write_run(name="sweep/<i>stopped", summary={})
    sweep = stopped.parent
    path = build_sweep_report(sweep)
    page = check_page(path)
    text = path.read_text(encoding="utf-8")
    assert path == sweep / "report.html"
    assert {link["href"] for link in page.all("a")} == {
        "#main",
        "0%20%23x/report.html",
        "1%20%23x/report.html",
        "2%20%23x/report.html",
    }
    assert "from the files of its runs alone." in text
    assert "4 finished runs; 1 left out because unfinished: &lt;i&gt;stopped" in text
    for words in (
        "mjp + fixed_pe",
        "80.0 dB",
        "25.0 dB",
        "1 of 1",
        "75.0 %",
        "deep/er",
        '<th scope="col" class="text">seed',
    ):
        assert words in text
    assert len(page.all("figure")) == 2


def test_a_sweep_without_runs_says_so(tmp_path: Path) -> None:
    assert "No finished run" in build_sweep_report(tmp_path).read_text(encoding="utf-8")
    with pytest.raises(FileNotFoundError, match="no sweep folder"):
        build_sweep_report(tmp_path / "nowhere")


@pytest.fixture
def moving_run(write_run: Any, records: Any, picture: Any, strip: Any) -> Path:
    """Two updates of a search, and one of an attack without frames."""
    folder: Path = write_run(rounds=[], summary={"kind": "audit", "finished": True})
    shown = {"original": picture(folder, "reconstructions/o.png"), "reconstruction": picture(folder)}
    trace = [{"step": step, "objective": 1.0 / step} for step in (1, 50, 100)]
    search = {"attack": f"search {EVIL}", "trace": trace}
    rows = [
        records.attack(0, 0, records.image(12.0, EVIL, frames=strip(folder), **shown), **search),
        records.attack(0, 1, records.image(15.0, frames=strip(folder), **shown), **search),
        records.attack(0, 0, records.image(60.0, **shown)),
    ]
    (folder / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_search_can_be_played(moving_run: Path) -> None:
    page = check_page(build_report(moving_run))
    films = [tag for tag in page.all("div") if tag.get("class") == "film"]
    captions = [json.loads(film["data-captions"] or "") for film in films]
    steps = ["step 1 · 10.0 dB", "step 50 · 11.0 dB", "step 100 · 12.0 dB"]
    assert captions == [[*steps, "result · 15.0 dB"], [*steps, "result · 12.0 dB"]]
    assert {(film["data-width"], film["data-height"]) for film in films} == {("8", "8")}
    assert len(page.all("img")) == 6 + 2
    text = (moving_run / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in text
    assert "update 0" in text
    assert "Mean PSNR (dB)" in text
    first = (moving_run / "report.html").read_bytes()
    assert build_report(moving_run).read_bytes() == first


@pytest.mark.parametrize(
    "frames",
    [
        {"strip": "../f.png"},
        {"strip": "reconstructions/none.png"},
        {"strip": 3},
        {"strip_steps": []},
        {"strip_steps": ["x"]},
        {"strip_steps": [1, 2, 3, 4, 5]},
        {"psnr": None, "steps": None, "strip": "config.yaml"},
    ],
)
def test_damaged_frames_are_left_out(moving_run: Path, frames: dict[str, Any]) -> None:
    path = moving_run / "attacks.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[:2]:
        row["images"][0]["frames"] |= frames
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = check_page(build_report(moving_run))
    assert len(page.all("img")) == 6
    assert not [tag for tag in page.all("div") if tag.get("class") == "film"]


def test_large_frames_are_shown_small_and_unmixed(tmp_path: Path, strip: Any) -> None:
    frames = strip(tmp_path, side=224)
    shown = embed_strip(tmp_path, frames["strip"], 3)
    assert shown is not None
    assert (shown.width, shown.height) == (96, 96)
    picture = Image.open(io.BytesIO(base64.b64decode(shown.uri.split(",")[1])))
    assert picture.size == (288, 96)
    assert [picture.getpixel((x, 50))[0] for x in (0, 95, 96, 191, 192, 287)] == [0, 0, 85, 85, 170, 170]


def test_trace_without_steps_draws_nothing(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, 0, records.image(30.0), trace=[{"loss": 1.0}, {"step": 2, "loss": 2.0}, "x"])]
    text = build_report(write_run(rows)).read_text(encoding="utf-8")
    assert "The search, step by step" not in text


def test_the_button_for_more_pictures_is_hidden_until_there_are_more(write_run: Any, records: Any) -> None:
    script = build_report(write_run([records.attack(1, 0, records.image(25.0))])).read_text(encoding="utf-8")
    made = script.index('more.className = "more"')
    assert "more.hidden = true;" in script[made : script.index("list.after(more)")]


def test_what_an_attack_needs_to_know_stands_in_its_row(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, 0, records.image(25.0), attack=name) for name in ("open_book", "old")]
    config = f"attack: {{open_book: {{knows: [weights, '{EVIL.replace(chr(39), '')}']}}, old: {{steps: 3}}}}\n"
    folder = write_run(rows, config=config)
    check_page(build_report(folder))
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert text.count('<span class="needs">') == 1
    assert '<br><span class="needs">knows weights, &lt;script&gt;' in text


def test_labels_of_several_rounds_are_drawn_beside_a_guess(write_run: Any, records: Any) -> None:
    image = records.image(None, "i/0", label=0)
    rows = [records.attack(k, 0, image, attack="labels", label_share=k / 4) for k in (1, 2)]
    folder = write_run(rows)
    (folder / "classes.json").write_text(json.dumps(["cat", "dog"]))
    text = build_report(folder).read_text(encoding="utf-8")
    numbers = text[text.index("Labels that the server recovered") :]
    for cells in ("each class equally often", "25.0 %", "50.0 %"):
        assert cells in numbers[: numbers.index("</table>")]
    (folder / "attacks.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert "Labels that the server recovered" not in build_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("held", "told"), [((1, 1), None), ((32, 32), "32"), ((1, 1200), "1 to 1,200")], ids=["batch", "one", "several"]
)
def test_the_header_says_how_many_images_an_update_holds(
    held: tuple[int, int], told: str | None, write_run: Any, records: Any
) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}"), batch_size=size) for k, size in enumerate(held)]
    text = build_report(write_run(rows)).read_text(encoding="utf-8")
    assert ("Images in an update" in text) == (told is not None)
    assert told is None or f"<dt>Images in an update</dt><dd>{told}</dd>" in text


def test_few_images_are_said_to_be_few_in_the_tiles(write_run: Any, records: Any) -> None:
    rows = [records.attack(1, k, records.image(25.0, f"i/{k}", guess_psnr=9.0), certificate={}) for k in range(2)]
    folder = write_run(rows, summary={"kind": "federated", "finished": True, "test_pictures": 4})
    text = build_report(folder).read_text(encoding="utf-8")
    few = "2 different images observed: without a certificate it takes at least 4, all recognisable, to say broken."
    assert f'<div class="note">2 of 2 images; without the update: 0 of 2. {few}</div>' in text
    assert '<div class="note">4 test images: ± 34 points</div>' in text
    assert f'<li class="caution">{few}</li>' in text


def test_the_badges_follow_the_guess(write_run: Any, records: Any, picture: Any) -> None:
    shown = {"reconstruction": "reconstructions/a.png"}
    images = [records.image(24.2, f"i/{guess}", guess_psnr=guess, **shown) for guess in (24.2, 9.0)]
    wrong = {"status": "certified", "reason": "", "values": {"expected_psnr": 85.0}}
    folder = write_run([records.attack(1, k, image, certificate=wrong) for k, image in enumerate(images)])
    picture(folder)
    text = build_report(folder).read_text(encoding="utf-8")
    assert text.count('<span class="badge no-better-than-a-guess">no better than a guess</span>') == 1
    assert text.count('<span class="badge recognisable">recognisable</span>') == 1 + 1  # and how to read PSNR
    assert text.count('<span class="badge plain">certified, wrongly</span>') == 2
    assert '<td data-value="2">2<br>2 wrong</td>' in text


def test_labels_are_called_as_the_data_call_them(write_run: Any, records: Any, picture: Any) -> None:
    image = records.image(25.0, label=1, label_recovered=7, reconstruction="reconstructions/a.png")
    folder = write_run([records.attack(1, 0, image)])
    picture(folder)
    (folder / "classes.json").write_text(json.dumps(["shirt", EVIL]))
    check_page(build_report(folder))
    assert "label &lt;script&gt;" in (folder / "report.html").read_text(encoding="utf-8")
    for damaged in ("{}", "not json", "3"):
        (folder / "classes.json").write_text(damaged)
        text = build_report(folder).read_text(encoding="utf-8")
        assert "label 1 → 7 ✗" in text
        assert "left out: classes.json" in text


def test_a_picture_that_the_model_saw_changed_is_not_called_the_original(
    write_run: Any, records: Any, picture: Any
) -> None:
    """Mirrored, and un-mirrored rightly by the server: both scores are the same."""
    shown = {"original": "reconstructions/o.png", "reconstruction": "reconstructions/a.png"}
    image = records.image(157.7, private_psnr=157.7, private_ssim=0.5, changed=True, **shown)
    folder = write_run([records.attack(1, 0, image)])
    for file in shown.values():
        picture(folder, file)
    page = check_page(build_report(folder))
    assert page.all("img")[0]["alt"].startswith("What the model saw of")
    assert "which the model saw as they are" not in (folder / "report.html").read_text(encoding="utf-8")


def test_most_labels_are_those_of_all_observed_updates(write_run: Any, records: Any, tmp_path: Path) -> None:
    """One rightly named label of twenty, the others refused, is not all of them."""
    rows = [records.refusal(1, k, "withheld", attack="once") for k in range(1, 20)]
    rows += [records.attack(1, 0, records.image(None), attack="once")]
    rows += [records.attack(1, k, records.image(None), attack="labels", label_share=float(k > 0)) for k in range(20)]
    folder = write_run(rows)
    details = verdict(read_run(folder)).details
    assert "95.0 % of the labels were recovered, by labels." in details
    text = build_report(folder).read_text(encoding="utf-8")
    assert '<div class="value">95.0 %</div><div class="note">by labels</div>' in text
    some = '100 %<br><span class="hint">1 of 20</span>'
    assert text.count(some) == 1
    assert build_comparison([folder], tmp_path / "out.html").read_text(encoding="utf-8").count(some) == 1
    alone = read_run(write_run(rows[:20], name="alone"))
    assert "100 % of the labels in 1 of 20 observed updates were recovered, by once." in verdict(alone).details


def test_the_accuracy_of_a_run_that_did_not_finish_is_not_called_final(write_run: Any) -> None:
    for finished, name in ((True, "Final accuracy"), (False, "Accuracy after round 0")):
        summary = {"kind": "federated", "finished": finished}
        folder = write_run(rounds=[{"round": 0, "accuracy": 0.1}], summary=summary, name=name)
        assert f">{name}<" in build_report(folder).read_text(encoding="utf-8")


def test_pictures_without_originals_are_judged_by_eye(write_run: Any, records: Any, picture: Any) -> None:
    image = records.image(None, ssim=None, reconstruction="reconstructions/a.png")
    folder = write_run([records.attack(1, 0, image, scored=False, certificate={})])
    picture(folder)
    text = build_report(folder).read_text(encoding="utf-8")
    assert '<p class="tag">Judge by eye</p>' in text
    found = verdict(read_run(folder))
    assert found.level == "not tested"
    assert found.line.startswith("judge by eye: The attacks returned 1 image for 1 observed image; there are no")


@pytest.mark.parametrize("changed", [False, True])
def test_a_mean_is_never_below_the_least(write_run: Any, records: Any, changed: bool) -> None:
    """In either line of the attack table, over forms of one picture too."""
    own = [{"private_psnr": value, "private_ssim": 0.5} if changed else {} for value in (30.0, 8.0, 19.0, 11.0)]
    images = [records.image(psnr, "same", **one) for psnr, one in zip((12.0, 60.0, 25.0, 40.0), own, strict=True)]
    rows = [records.attack(1, 0, *images[:2], batch_size=1), records.attack(2, 0, *images[2:], batch_size=1)]
    rows.append(records.attack(3, 0, records.image(None, ssim=None, **({"private_psnr": 50.0} if changed else {}))))
    (row,) = summarise_attacks(read_run(write_run(rows)))
    assert row.min_seen_psnr <= row.mean_psnr
    assert row.min_psnr <= row.mean_leaked <= row.max_psnr


def test_many_reasons_are_cut(write_run: Any, records: Any) -> None:
    words = [f"{one}{other}" for one in "abcdefgh" for other in "abcdefgh"]
    rows = [records.refusal(1, k, f"{word} is withheld") for k, word in enumerate(words)]
    rows += [records.attack(2, k, attack="b", status="failed", reason=f"{word} raised") for k, word in enumerate(words)]
    rows += [records.refusal(3, k, f"aa, residual {k}.5", attack="c") for k in range(1000)]
    text = build_report(write_run(rows)).read_text(encoding="utf-8")
    assert text.count(" is withheld</td>") == 49
    assert text.count(" raised</td>") == 50
    assert "15 more in attacks.jsonl." in text
    assert "14 more in attacks.jsonl." in text
    assert 'residual 0.5 <span class="hint">one of 1,000 sets of numbers</span></td><td>1000</td>' in text


def test_each_chart_has_its_numbers_below_it(full_run: Path, moving_run: Path) -> None:
    for folder in (full_run, moving_run):
        page = check_page(build_report(folder))
        charts = [tag for tag in page.all("svg") if tag.get("class") == "chart"]
        labels = [tag["aria-label"] for tag in page.all("div") if "numbers" in (tag.get("class") or "").split()]
        assert len(labels) == len(charts) > 0
        assert len(set(labels)) == len(labels)
        assert [tag for tag in page.all("details") if "open" in tag] == []
    text = (moving_run / "report.html").read_text(encoding="utf-8")
    assert '<th scope="row" class="text">50</th><td>0.02</td><td>0.02</td><td>11.0 dB</td><td>11.0 dB</td>' in text
