"""What figures and position measures are made of."""

from types import SimpleNamespace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from experiments.measure.drawing import draw_all, embedding_view
from experiments.measure.subjects import load_subjects
from fedsim.metrics.position import position_errors
from fedsim.models import find_roles
from tests.experiments.measure.recorded import MJP, NO_PE

IDX = {"mjp_jp_idx": {"_target_": "defenses.MaskedJigsawPuzzle", "ratio": 0.3, "embedding": "indexed"}}


@pytest.fixture
def subject(write_run, settings):
    def load(defense=None):
        return load_subjects(settings([write_run("run", defense)]))[0]

    return load


def test_the_parts_of_a_table(subject):
    found = subject(MJP)
    view = embedding_view(found)
    parameters = dict(found.model.named_parameters())
    table = parameters["pos_embed"].detach().double()[0]
    assert view.patches.equal(table[-16:])
    assert view.prefix.equal(table[:-16])
    assert view.unknown.equal(parameters["unknown_embed"].detach().double())


@pytest.mark.parametrize("has", [True, False])
def test_a_view_says_whether_there_is_a_class_token(has):
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1}
    model = VisionTransformer(**size, class_token=has, reg_tokens=4, global_pool="avg")
    view = embedding_view(SimpleNamespace(name="m", model=model, roles=find_roles(model)))
    assert (len(view.prefix), view.class_token) == (4 + has, has)


def test_attention_is_drawn_by_the_models_patches_whatever_the_puzzles_are(write_run, settings, tmp_path):
    puzzle = {"mjp_jp": {**MJP["mjp"], "patch": 4, "embedding": "own", "min_block": 1}}
    given = settings([write_run("run", puzzle)], measure={"attention": 2, "projections": []})
    draw_all(load_subjects(given), [], given, tmp_path)
    assert (tmp_path / "figures" / "attention-0.png").exists()
    both = settings([write_run("other", puzzle), write_run("own", MJP)], measure={"attention": 2, "projections": []})
    draw_all(load_subjects(both), [], both, tmp_path / "both")
    assert len(list((tmp_path / "both" / "figures").glob("attention-*.png"))) == 2, "masks of other squares"


def test_without_position_embeddings_there_is_nothing_to_show(subject):
    assert embedding_view(subject(NO_PE)) is None


def test_index_embeddings_tell_positions_too(subject):
    """Tokens get the sum of both tables: one that is all in the second must not look like chance."""
    found = subject(IDX)
    rows = torch.arange(17, dtype=torch.float32)[:, None] * torch.ones(found.model.pos_embed.shape[-1])
    with torch.no_grad():
        found.model.pos_embed.normal_(std=1e-3, generator=torch.Generator().manual_seed(0))
        found.model.index_embed.copy_(rows[None])
    view = embedding_view(found)
    whole = (found.model.pos_embed + found.model.index_embed).detach().double()[0]
    torch.testing.assert_close(view.patches, whole[-16:], rtol=0, atol=1e-5)
    assert view.unknown is None
    errors = position_errors(view.patches, view.grid, 4, 2, 0)
    assert max(errors.index) < 0.1, "the index can be read off the second table"
