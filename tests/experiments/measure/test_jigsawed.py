import pytest
import torch

from defenses.compose import build_chain
from experiments.measure.jigsawed import answer, classifier_input, draw_jigsaw, layout, mask_embedding, measure_jigsaw
from experiments.measure.subjects import load_subjects
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from tests.experiments.measure.recorded import MJP, NO_PE


@pytest.fixture
def subject(write_run, settings):
    def load(defense=None, **values):
        return load_subjects(settings([write_run("run", defense, **values)]))[0]

    return load


def measured(subject, ratios=(0.0, 0.3), draws=2, batch_size=16, passes=None):
    clean = answer(subject, batch_size)
    size = layout(subject, None)
    done = (lambda: None) if passes is None else (lambda: passes.append(1))
    return measure_jigsaw(
        subject, clean, ratios, draws, size=size, min_block=2, seed=0, batch_size=batch_size, done=done
    )


def slow_measures(subject, jigsaw):
    """Picture by picture: patches moved one by one, embeddings put in by hand, the blocks called one after another."""
    model, normalise = subject.model, subject.normalise
    unknown = dict(model.named_parameters()).get("unknown_embed")
    norms, same, right = [], [], []
    for number in range(len(subject.pictures)):
        x = subject.pictures.images.images([number])
        moved = x.clone()
        for position, source in enumerate(jigsaw.orders[number].tolist()):
            (to_row, to_column), (row, column) = divmod(position, 4), divmod(source, 4)
            moved[0, :, 2 * to_row : 2 * to_row + 2, 2 * to_column : 2 * to_column + 2] = x[
                0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2
            ]
        outputs = []
        for images, mask in ((x, None), (moved, jigsaw.masks[number])):
            embedding = model.pos_embed[0].clone()
            if mask is not None and unknown is not None:
                embedding[1:][mask] = unknown
            tokens = torch.cat([model.cls_token[0], model.patch_embed(normalise(images))[0]]) + embedding
            outputs.append(model.norm(model.blocks(tokens[None]))[0, 0])
        norms.append(float((outputs[0] - outputs[1]).norm()))
        logits = [model.head(output) for output in outputs]
        same.append(int(logits[0].argmax()) == int(logits[1].argmax()))
        right.append(int(logits[1].argmax()) == int(subject.pictures.labels[number]))
    return sum(norms) / len(norms), sum(same) / len(same), sum(right) / len(right)


@pytest.mark.parametrize("defense", [None, MJP], ids=["own", "unknown"])
def test_against_the_paper_picture_by_picture(subject, defense):
    loaded = subject(defense)
    assert mask_embedding(loaded) == ("own" if defense is None else "unknown")
    (point,) = measured(loaded, ratios=[0.5], draws=1)
    jigsaw = draw_jigsaw(40, (4, 4), (2, 2), 0.5, 2, 0, 0)
    norm, consistency, top1 = slow_measures(loaded, jigsaw)
    assert norm > 0
    assert point.diff_norm.mean == pytest.approx(norm, rel=1e-4)
    assert point.consistency.mean == pytest.approx(consistency, abs=1e-9)
    assert point.top1.mean == pytest.approx(top1, abs=1e-9)
    assert point.masked.mean == pytest.approx(float(jigsaw.masks.float().mean()))


def test_nothing_masked_changes_nothing(subject):
    passes = []
    point, other = measured(subject(MJP), passes=passes)
    assert (point.diff_norm.mean, point.consistency.mean, point.masked.mean) == (0.0, 1.0, 0.0)
    assert other.diff_norm.mean > 0
    assert 0.1 < other.masked.mean <= 0.3
    assert len(passes) == 4


def test_without_position_embeddings_the_order_of_the_patches_does_not_matter(subject):
    """Table 4, B: consistency 100."""
    (point,) = measured(subject(NO_PE), ratios=[0.9])
    assert point.consistency.mean == 1.0
    assert point.diff_norm.mean < 1e-4


def test_neither_the_batch_size_nor_another_call_matters(subject):
    loaded = subject(MJP)
    first, second = measured(loaded, batch_size=7), measured(loaded, batch_size=40)
    for a, b in zip(first, second, strict=True):
        assert a.masked == b.masked
        assert a.diff_norm.mean == pytest.approx(b.diff_norm.mean, rel=1e-5)
        assert a.consistency == b.consistency
    assert measured(loaded) == measured(loaded)


def test_draws_differ_and_every_model_sees_the_same_ones():
    one, same, other = (draw_jigsaw(5, (8, 8), (4, 4), 0.3, None, 0, draw) for draw in (0, 0, 1))
    assert torch.equal(one.masks, same.masks)
    assert torch.equal(one.orders, same.orders)
    assert not torch.equal(one.masks, other.masks)


def test_what_the_classifier_reads():
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name in ("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"):
        model = ModelSpec(name, 5, 32, 8, kwargs={"depth": 1}).build(0).eval()
        with torch.no_grad(), classifier_input(model) as taken:
            model(images)
            expected = model.forward_features(images)[:, 0]
        torch.testing.assert_close(taken[0], expected)
    assert not model.head._forward_pre_hooks


def test_models_without_patches_need_a_size(subject):
    mlp = subject(model={"name": "mlp_32", "kwargs": {"hidden": [8]}})
    with pytest.raises(ConfigError, match="patch_size"):
        layout(mlp, None)
    assert layout(mlp, 8) == ((4, 4), (8, 8))
    puzzle = {"mjp": {**MJP["mjp"], "embedding": "own", "patch": 16}}
    mlp.defenses.defenses.update(build_chain(puzzle).defenses)
    assert layout(mlp, None) == ((2, 2), (16, 16))
    assert layout(mlp, 8) == ((4, 4), (8, 8))
    with pytest.raises(ConfigError, match="a divisor of the pictures' 32 pixels"):
        layout(mlp, 5)


def test_masked_embeddings_have_the_size_of_the_patches(subject):
    with pytest.raises(ConfigError, match="patch_size=4: must be null"):
        layout(subject(MJP), 4)
