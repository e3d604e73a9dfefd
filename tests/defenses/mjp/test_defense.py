import inspect
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from defenses import (
    Batch,
    ClientRound,
    Defense,
    DefenseChain,
    FixedPositionEmbedding,
    MaskedJigsawPuzzle,
    NoPositionEmbedding,
    Plan,
    Withhold,
    WithholdPositionEmbedding,
)
from defenses.mjp import UNKNOWN
from defenses.mjp.defense import _warn_of_identity
from defenses.mjp.mask import CHUNK
from fedsim.effects import AddsRegression, Clips, MasksPositions, TransformsImages, effects_in
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec
from tests.defenses.mjp import slow

SPEC = ModelSpec("vit_tiny_patch16_224", 5, 32, 4, kwargs={"depth": 1})


def batch_of(count=3, side=32):
    rng = torch.Generator().manual_seed(1)
    return Batch(torch.randn(count, 3, side, side, generator=rng), torch.arange(count))


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


def masked(mjp, **batch):
    """The batch as the model sees it, and its mask."""
    return mjp.transform_batch(batch_of(**batch), generator()).images, mjp._pending


@pytest.mark.parametrize("per", ["image", "batch"])
def test_a_batch_is_the_papers_from_the_same_draws(per):
    mjp = MaskedJigsawPuzzle(0.3, per, min_block=4)
    mjp.wrap_model(SPEC.build(0))
    found, mask = masked(mjp)
    count, rng = (3 if per == "image" else 1), generator()
    counted = slow.Counted(rng)
    flat = [[cell for row in slow.mask_of(8, 8, 0.3, 4, counted) for cell in row] for _ in range(count)]
    slow.skip_to_multiple(counted, CHUNK)
    draws = torch.rand(sum(map(sum, flat)), generator=rng, dtype=torch.float64).tolist()
    orders = []
    for one in flat:
        orders.append(slow.permuted(one, draws[: sum(one)]))
        draws = draws[sum(one) :]
    for b, image in enumerate(batch_of().images):
        which = b if per == "image" else 0
        assert mask[b].tolist() == flat[which]
        assert torch.equal(found[b], slow.rearranged(image, orders[which], (4, 4)))


def test_nothing_masked_is_the_identity_and_draws_nothing():
    mjp = MaskedJigsawPuzzle(ratio=0.0)
    stock, model = SPEC.build(0), mjp.wrap_model(SPEC.build(0))
    rng = generator()
    batch = mjp.transform_batch(batch_of(), rng)
    assert torch.equal(batch.images, batch_of().images)
    assert torch.equal(rng.get_state(), generator().get_state())
    for one in (stock, model):
        one(batch.images).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert gradients.pop(UNKNOWN) is None
    assert all(torch.equal(gradients[name], p.grad) for name, p in stock.named_parameters())


def test_a_batch_without_any_masked_position_is_the_stock_one():
    mjp = MaskedJigsawPuzzle(0.03, min_block=60)
    mjp.wrap_model(SPEC.build(0))
    images, mask = masked(mjp)
    assert mask is None
    assert torch.equal(images, batch_of().images)
    assert mjp.measurements() == {"mask_ratio": 0.0, "empty_masks": 1.0, "masked_batches": 1.0}


@pytest.mark.parametrize("shuffle", ["patches", "patches_and_pixels"])
def test_replay(shuffle):
    mjp = MaskedJigsawPuzzle(0.3, shuffle=shuffle)
    mjp.wrap_model(SPEC.build(0))
    torch.manual_seed(torch.seed() % 1000)
    first, other = (mjp.transform_batch(batch_of(), generator(seed)).images for seed in (5, 6))
    assert torch.equal(first, mjp.transform_batch(batch_of(), generator()).images)
    assert not torch.equal(first, other)


def test_masks_alone_leave_the_pictures():
    mjp = MaskedJigsawPuzzle(0.3, shuffle="none")
    mjp.wrap_model(SPEC.build(0))
    images, mask = masked(mjp)
    assert torch.equal(images, batch_of().images)
    assert mask.any(dim=1).all()


def test_all_patches_and_pixels():
    mjp = MaskedJigsawPuzzle(1.0, shuffle="patches_and_pixels", embedding="own")
    mjp.wrap_model(SPEC.build(0))
    images, _ = masked(mjp)
    assert torch.equal(images.flatten(2).sort(dim=2).values, batch_of().images.flatten(2).sort(dim=2).values)
    kept = (images == batch_of().images).double().mean()
    assert float(kept) < 0.01


def test_from_a_round_on_and_with_a_probability():
    mjp = MaskedJigsawPuzzle(0.3, probability=0.5, start_round=20)
    mjp.wrap_model(SPEC.build(0))
    rng = generator()
    mjp.begin(ClientRound(19, 3))
    for _ in range(20):
        assert torch.equal(mjp.transform_batch(batch_of(), rng).images, batch_of().images)
    assert mjp.measurements()["masked_batches"] == 0.0
    assert torch.equal(rng.get_state(), generator().get_state())
    mjp.begin(ClientRound(20, 3))
    changed = [not torch.equal(mjp.transform_batch(batch_of(), rng).images, batch_of().images) for _ in range(200)]
    assert mjp.measurements()["masked_batches"] == pytest.approx(sum(changed) / 200)
    assert 70 < sum(changed) < 130


@pytest.mark.parametrize(
    ("settings", "key"), [({"start_round": 2}, "start_round=2"), ({"dal": "linear", "lambda_warmup_rounds": 2}, "")]
)
def test_an_update_of_a_round_before_it_begins_is_none_behind_it(settings, key):
    """Such an audit measured clients without the defense, under its name."""
    mjp = MaskedJigsawPuzzle(0.3, **settings)
    model = mjp.wrap_model(SPEC.build(0))
    plan = Plan(model, {}, {}, {"mjp": mjp})
    mjp.check(plan)
    mjp.check(replace(plan, server_round=1))
    key = key or "lambda_warmup_rounds=2"
    words = rf"defense.mjp.{key}: must be 0 for an update of round 0, as those of audits are"
    with pytest.raises(ConfigError, match=words):
        mjp.check(replace(plan, server_round=0))


def test_effects_are_of_rounds_with_masks():
    mjp = MaskedJigsawPuzzle(0.3, start_round=2)
    kinds = [{type(one) for one in effects_in(number, mjp.effects())} for number in (1, 2)]
    assert kinds[1] - kinds[0] == {TransformsImages, MasksPositions}


def test_measurements_are_the_turns():
    mjp = MaskedJigsawPuzzle(0.04, min_block=8)
    mjp.wrap_model(SPEC.build(0))
    for _ in range(2):
        mjp.begin(ClientRound(1, 3))
        assert mjp.measurements() == {"mask_ratio": 0.0, "empty_masks": 0.0, "masked_batches": 0.0}
        masks = []
        rng = generator()
        for _ in range(30):
            mjp.transform_batch(batch_of(), rng)
            masks.append(torch.zeros(3, 64) if mjp._pending is None else mjp._pending.double())
        seen = torch.cat(masks)
        found = mjp.measurements()
        assert found["mask_ratio"] == pytest.approx(float(seen.mean()))
        assert found["empty_masks"] == pytest.approx(float((seen.sum(dim=1) == 0).double().mean()))
        assert 0.0 < found["empty_masks"] < 1.0


class Scores:
    """In place of a gradient."""

    def __init__(self, model):
        self.model = model

    def __call__(self, batch):
        return {"scores": self.model(batch.images)}

    def per_example(self, batch):
        raise NotImplementedError


class Nothing(Scores):
    def __call__(self, batch):
        return {}


def test_every_gradient_of_a_batch_is_masked_and_no_evaluation():
    """Another defense may ask for the gradient twice, or never."""
    mjp = MaskedJigsawPuzzle(0.3)
    model = mjp.wrap_model(SPEC.build(0)).eval()
    stock = SPEC.build(0).eval()
    batch = mjp.transform_batch(batch_of(), generator())

    first, second = (mjp.gradient(model, batch, Scores(model), generator())["scores"] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, stock(batch.images))
    mjp.transform_batch(batch_of(), generator())
    mjp.gradient(model, batch, Nothing(model), generator())
    assert torch.equal(model(batch.images), stock(batch.images))


class Twice(Defense):
    """Asks for the gradient two times and adds the two."""

    def gradient(self, model, batch, compute, rng):
        first, second = ({name: g.clone() for name, g in compute(batch).items()} for _ in range(2))
        assert first.keys() == second.keys()
        return {name: first[name] + second[name] for name in first}


class LossGradient(Scores):
    def __call__(self, batch):
        self.model.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(batch.images), batch.labels).backward()
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("names", [("twice", "mjp"), ("mjp", "twice")])
def test_a_defense_that_asks_twice_sees_the_mask_twice(names):
    def gradient(chosen):
        chain = DefenseChain({name: MaskedJigsawPuzzle(0.3) if name == "mjp" else Twice() for name in chosen})
        model = chain.wrap_model(SPEC.build(0)).eval()
        batch = chain.transform_batch(batch_of(), generator())
        return chain.gradient(model, batch, LossGradient(model), generator())

    once, both = gradient(["mjp"]), gradient(names)
    assert UNKNOWN in both
    assert all(torch.equal(both[name], 2 * once[name]) for name in once)


def test_jigsawed_pictures_for_evaluation():
    """x̃ at any ratio, for a defended model and, as pixels alone, for an undefended one."""
    mjp, stock = MaskedJigsawPuzzle(0.03, start_round=99), MaskedJigsawPuzzle(0.03, embedding="own")
    defended, undefended = mjp.wrap_model(SPEC.build(0)).eval(), stock.wrap_model(SPEC.build(0)).eval()
    assert undefended.state_dict().keys() == SPEC.build(0).state_dict().keys()
    images = batch_of().images
    jigsawed, mask = mjp.jigsaw(images, generator(), 0.5)
    same, same_mask = stock.jigsaw(images, generator(), 0.5)
    assert torch.equal(jigsawed, same)
    assert torch.equal(mask, same_mask)
    assert 0.4 < float(mask.double().mean()) <= 0.5
    with stock.masking(mask):
        assert torch.equal(undefended(jigsawed), SPEC.build(0).eval()(jigsawed))
    with mjp.masking(mask):
        assert torch.equal(defended(jigsawed), defended(jigsawed))
        assert not torch.allclose(defended(jigsawed), undefended(jigsawed), rtol=1e-3)
    assert torch.equal(defended(images), undefended(images))


def test_convolutions_have_shuffled_patches_only():
    model = ModelSpec("resnet18_cifar_32", 5).build(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mjp = MaskedJigsawPuzzle(0.3, embedding="own", patch=8)
    assert all(torch.equal(before[name], tensor) for name, tensor in mjp.wrap_model(model).state_dict().items())
    images, mask = masked(mjp)
    assert mask.shape == (3, 16)
    changed = (images != batch_of().images).any(dim=1).unfold(1, 8, 8).unfold(2, 8, 8).flatten(3).any(dim=3).flatten(1)
    assert not changed[~mask].any()
    assert changed.any()
    with pytest.raises(ConfigError, match=r"defense\.mjp\.patch=7: must be a divisor of the pictures' 32x32"):
        MaskedJigsawPuzzle(embedding="own", patch=7).wrap_model(model)
    with pytest.raises(ConfigError, match=r"defense\.mjp\.patch=None: must be pixels: ResNet has no patches"):
        MaskedJigsawPuzzle(embedding="own").wrap_model(ModelSpec("resnet18", 5).build(0))


def test_released_initialisation():
    mjp = MaskedJigsawPuzzle(init_std=1.0)
    first, second = (mjp.wrap_model(SPEC.build(0)) for _ in range(2))
    for name in ("pos_embed", UNKNOWN):
        drawn = first.get_parameter(name)
        assert torch.equal(drawn, second.get_parameter(name))
        assert drawn.std().item() == pytest.approx(1.0, abs=0.1)
    own = MaskedJigsawPuzzle().wrap_model(SPEC.build(0))
    assert torch.equal(own.pos_embed, SPEC.build(0).pos_embed)
    assert own.get_parameter(UNKNOWN).std().item() == pytest.approx(0.02, abs=0.002)


@pytest.mark.parametrize("name", ["resnet18", "vit_small_patch16_rope_224", "vit_tiny_patch16_224"])
def test_refuses_models_without_a_single_embedding(name):
    kwargs = {"resnet18": {}, "vit_tiny_patch16_224": {"depth": 1, "dynamic_img_size": True}}
    model = ModelSpec(name, 5, kwargs=kwargs.get(name, {"depth": 1})).build(0)
    with pytest.raises(ConfigError, match=r"defense=mjp: .*(embedding=own|resampled)"):
        MaskedJigsawPuzzle().wrap_model(model)


class Mixing(Defense):
    def transform_batch(self, batch, rng):
        return batch


class OneByOne(Defense):
    """DP-SGD by what it says of itself alone."""

    def effects(self):
        return (Clips(1.0, "example"),)


def check(**defenses):
    chain = DefenseChain(defenses)
    client = {"training_mode": True, "share": "delta"}
    chain.check(Plan(chain.wrap_model(SPEC.build(0)), client, {}, defenses))


def test_checks_what_it_works_with():
    for defenses in (
        {"mixup": Mixing(), "mjp": MaskedJigsawPuzzle()},
        {"mjp": MaskedJigsawPuzzle(), "withhold_pe": WithholdPositionEmbedding()},
        {"mjp_jp": MaskedJigsawPuzzle(embedding="own"), "no_pe": NoPositionEmbedding(), "dp_sgd": OneByOne()},
        {"fixed_pe": FixedPositionEmbedding(), "mjp_jp": MaskedJigsawPuzzle(embedding="own")},
        {"mjp_jp_unk": MaskedJigsawPuzzle(), "withhold": Withhold(["pos_embed"])},
        {"mjp": MaskedJigsawPuzzle(dal="linear"), "withhold": Withhold(["patch_weight", "dal.*", "unknown_embed"])},
        {"mjp": MaskedJigsawPuzzle(dal="linear"), "withhold": Withhold(["pos_embed"], "local")},
        {"mjp_jp_idx": MaskedJigsawPuzzle(embedding="indexed"), "withhold": Withhold(["*_embed"])},
        {"mjp_dal": MaskedJigsawPuzzle(0.0, embedding="own", dal="nonlinear")},
        {"mjp": MaskedJigsawPuzzle(embedding="indexed", dal="linear", probability=0.0)},
    ):
        check(**defenses)


@pytest.mark.parametrize(
    ("defenses", "words"),
    [
        ({"mjp": MaskedJigsawPuzzle(), "no_pe": NoPositionEmbedding()}, "position embedding.*embedding=own"),
        ({"no_pe": NoPositionEmbedding(), "mjp": MaskedJigsawPuzzle()}, "position embedding.*embedding=own"),
        ({"mjp": MaskedJigsawPuzzle(), "fixed_pe": FixedPositionEmbedding()}, "position embedding.*embedding=own"),
        ({"fixed_pe": FixedPositionEmbedding(), "mjp": MaskedJigsawPuzzle()}, "position embedding.*embedding=own"),
        ({"mjp": MaskedJigsawPuzzle(), "dp_sgd": OneByOne()}, "beside dp_sgd: gradients of single pictures"),
        ({"dp_sgd": OneByOne(), "mjp": MaskedJigsawPuzzle(embedding="own", dal="linear")}, "beside dp_sgd"),
        ({"mjp": MaskedJigsawPuzzle(), "mixup": Mixing()}, r"\[mjp, mixup\]: must be mixup first"),
        (
            {"mjp": MaskedJigsawPuzzle(), "mjp_jp": MaskedJigsawPuzzle(embedding="own")},
            r"\[mjp, mjp_jp\]: must be one of them",
        ),
        (
            {"mjp_jp_idx": MaskedJigsawPuzzle(embedding="indexed"), "pe": WithholdPositionEmbedding()},
            "embedding=indexed: must be own or unknown beside pe: the index embedding's gradient is the one that pe",
        ),
        (
            {"withhold": Withhold(["pos_embed"], "local"), "mjp_jp_idx": MaskedJigsawPuzzle(embedding="indexed")},
            "own or unknown beside withhold",
        ),
        (
            {"mjp": MaskedJigsawPuzzle(dal="pca"), "pe": WithholdPositionEmbedding()},
            r"dal=pca: must be none beside pe: the embeddings that it trains are never shared$",
        ),
        (
            {"mjp": MaskedJigsawPuzzle(dal="linear"), "hide": Withhold(["pos_*"])},
            r"dal=linear: must be none beside hide: .* never shared \(or defense\.hide\.mode=local: each client goes",
        ),
        (
            {"withhold": Withhold(["pos_embed", "patch_weight"]), "mjp": MaskedJigsawPuzzle(dal="nonlinear")},
            "none beside withhold",
        ),
        (
            {"mjp": MaskedJigsawPuzzle(dal="linear"), "withhold": Withhold(["pos_embed"], "frozen")},
            "position embedding.*embedding=own dal=none",
        ),
        (
            {"mjp": MaskedJigsawPuzzle(embedding="own", dal="linear")},
            r"embedding=own: must be unknown beside dal and a mask \(no row of Table 4\), or ratio=0",
        ),
        ({"mjp": MaskedJigsawPuzzle(embedding="indexed", dal="pca")}, "embedding=indexed: must be unknown beside dal"),
    ],
)
def test_refuses_what_makes_no_sense(defenses, words):
    with pytest.raises(ConfigError, match=words):
        check(**defenses)


@pytest.mark.parametrize("identity", [{"ratio": 0.0}, {"probability": 0.0}, {"shuffle": "none"}])
def test_what_changes_no_image_says_so(identity):
    settings = {"embedding": "own", "dal": "nonlinear"}
    effects = MaskedJigsawPuzzle(**settings, **identity).effects()
    assert [type(effect) for effect in effects] == [AddsRegression]
    assert all(effect.keeps("images") for effect in effects)
    assert not all(effect.keeps("images") for effect in MaskedJigsawPuzzle(**settings).effects())


def test_who_shares_a_gradient_is_not_told_to_keep_embeddings():
    chain = DefenseChain({"mjp": MaskedJigsawPuzzle(dal="linear"), "withhold": Withhold(["pos_embed"])})
    model = chain.wrap_model(SPEC.build(0))
    with pytest.raises(ConfigError, match=r"beside withhold: the embeddings that it trains are never shared$"):
        chain.check(Plan(model, {"training_mode": True, "share": "gradient"}, {}, chain.defenses))


@pytest.mark.parametrize(
    ("key", "value", "beside"),
    [
        ("ratio", 1.5, {}),
        ("ratio", "ten", {}),
        ("ratio", math.nan, {}),
        ("ratio", True, {}),
        ("per", "client", {}),
        ("per", None, {}),
        ("min_block", 0, {}),
        ("min_block", 2.5, {}),
        ("probability", -0.1, {}),
        ("start_round", -1, {}),
        ("class_token", "none", {}),
        ("class_token", "unknown", {"embedding": "own"}),
        ("shuffle", "pixels", {}),
        ("shuffle", "none", {"embedding": "own"}),
        ("embedding", ["own"], {}),
        ("dal", "quadratic", {}),
        ("dal_coordinates", "raw", {}),
        ("lambda_dal", math.inf, {}),
        ("lambda_warmup_rounds", 1.0, {}),
        ("lambda_decay_rounds", 0, {}),
        ("lambda_final", None, {}),
        ("init_std", -1.0, {}),
        ("init_std", 1.0, {"embedding": "own"}),
        ("patch", 0, {"embedding": "own"}),
        ("patch", 4, {}),
    ],
)
def test_settings_that_make_no_sense(key, value, beside):
    made = MaskedJigsawPuzzle.__new__(MaskedJigsawPuzzle)
    with pytest.raises(ConfigError, match=rf"defense\.mjp\.{key}="):
        inspect.unwrap(MaskedJigsawPuzzle.__init__)(made, **{key: value}, **beside)  # a user's values have any type


def test_before_wrap_model_and_with_other_pictures(rng):
    mjp = MaskedJigsawPuzzle()
    with pytest.raises(RuntimeError, match="wrap_model"):
        mjp.transform_batch(batch_of(), rng)
    mjp.wrap_model(SPEC.build(0))
    with pytest.raises(RuntimeError, match=r"pictures of \(32, 32\) pixels, and saw \(64, 64\)"):
        mjp.transform_batch(batch_of(side=64), rng)


def test_a_mask_of_one_patch_that_moves_nothing_is_warned_of_once(caplog):
    _warn_of_identity.cache_clear()
    for ratio, loud in ((0.3, False), (0.0, False), (0.1, True), (0.1, False)):
        caplog.clear()
        mjp = MaskedJigsawPuzzle(ratio, embedding="own", dal="none")
        model = mjp.wrap_model(ModelSpec("vit_tiny_patch16_224", 5, 16, 4, kwargs={"depth": 1}).build(0))
        mjp.check(Plan(model, {"share": "gradient"}, {}, {"mjp_jp": mjp}))
        told = [record.getMessage() for record in caplog.records]
        start = "mjp_jp changes nothing: ratio=0.1 of 16 patches is fewer than two"
        assert [one.startswith(start) for one in told] == [True] * loud
