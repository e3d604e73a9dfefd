"""`make demo`: a training and four audits of photographs, on one page."""

from experiments.demo import command as demo
from experiments.python.load_config import load_config
from tests.experiments.run_files import rows

TRAINING = ["num_clients=3", "num_rounds=2", "evaluate_every=1", "observe.every=1"]
PHOTOS = [*demo.PHOTOS[1:], "data.size=16", "model=vit_tiny_4_32", "model.img_size=16", "+model.kwargs.depth=2"]
PHOTOS += ["attack.row_space.later=0"]  # later projections take seconds behind sin-cos


def test_one_page_has_the_training_and_the_photographs_of_every_audit(tmp_path, capsys):
    page = demo.run_demo(tmp_path / "demo", TRAINING, PHOTOS)
    text, out = page.read_text(), capsys.readouterr().out
    assert page == tmp_path / "demo" / "report.html"
    for name in (demo.TRAINING, *demo.AUDITS):
        assert f'href="{name}/report.html"' in text
        assert f"/5 {name} · " in out.partition(f"{name} begins\n")[2]
        assert (tmp_path / "demo" / name / "report.html").is_file()
    assert rows(tmp_path / "demo" / demo.TRAINING, "metrics")[-1]["accuracy"] > 0
    found = {(name, row["attack"]): row for name in demo.AUDITS for row in rows(tmp_path / "demo" / name, "attacks")}
    status = {name: found[name, "patch_gradient"]["status"] for name in demo.AUDITS}
    assert status == {name: "done" if name == "photos-undefended" else "refused" for name in demo.AUDITS}
    psnr = {name: found[name, "row_space"]["images"][0]["psnr"] for name in demo.AUDITS}
    assert min(psnr["photos-undefended"], psnr["photos-withhold_pe"], psnr["photos-frozen_pe"]) > 40
    assert psnr["photos-sincos_pe"] < 30
    assert found["photos-sincos_pe", "first_block"]["images"][0]["psnr"] > 40
    assert len({found[name, "row_space"]["images"][0]["image"] for name in demo.AUDITS}) == 1  # side by side
    assert "The same images" in text


def test_the_photographs_of_the_demo_fill_the_model():
    config = load_config("audit", *demo.PHOTOS, *demo.AUDITS["photos-sincos_pe"])
    assert config["model"]["name"] == "vit_small_patch32_224"
    assert config["data"]["size"] == 224
