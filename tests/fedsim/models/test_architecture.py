from collections import OrderedDict
from dataclasses import replace

import httpx
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import nn

import fedsim
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, input_size, normalisation, parameter_count
from fedsim.models.checkpoint import load_checkpoint
from fedsim.models.finetune import FULL, LoRA

SMALL = ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 1})


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_weights_come_from_the_seed_alone():
    first = SMALL.build(3)
    torch.manual_seed(99)
    assert same(first, SMALL.build(3))
    assert not same(first, SMALL.build(4))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    SMALL.build(1)
    assert torch.equal(torch.rand(3), expected)


def test_spec_survives_a_dict():
    assert ModelSpec.from_dict(SMALL.to_dict()) == SMALL


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("float64", torch.float64)])
def test_dtype(dtype, expected):
    model = ModelSpec("vit_tiny_patch16_224", 5, 32, 8, dtype=dtype, kwargs={"depth": 1}).build(0)
    assert {p.dtype for p in model.parameters()} == {expected}


def test_wrappers_run_in_order():
    class Mark:
        def __init__(self, mark):
            self.mark = mark

        def wrap_model(self, model):
            model.marks = [*getattr(model, "marks", []), self.mark]
            return model

    assert Architecture(SMALL, (Mark("a"), Mark("b"))).build().marks == ["a", "b"]


def test_what_wrappers_draw_is_drawn_alike_in_every_process():
    class Draws:
        def wrap_model(self, model):
            model.drawn = [*getattr(model, "drawn", []), torch.rand(3)]
            return model

    class Another(Draws):
        pass

    first = Architecture(SMALL, (Draws(), Another())).build().drawn
    torch.rand(5)
    second = Architecture(SMALL, (Draws(), Another()), 1).build().drawn
    assert all(map(torch.equal, first, second))
    assert not torch.equal(*first)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "vit_tiny_patch16_244"}, "Did you mean 'vit_tiny_patch16_224'"),
        (
            {"name": "vit_tiny_patch16_224.augreg_in1k"},
            r"^model\.name=.*: Invalid pretrained tag \(augreg_in1k\) for .* Did you mean '.*\.augreg_in21k'\?$",
        ),
        ({"variant": "apri"}, "one of stock, april"),
        ({"dtype": "float16"}, "one of float32, float64"),
        ({"checkpoint": "nowhere.safetensors"}, "there is no such file"),
        ({"img_size": 33, "patch_size": 8}, r"a multiple of model\.patch_size=8"),
        ({"img_size": 0}, "a positive number"),
        ({"kwargs": {"depht": 1}}, "timm refuses"),
        ({"kwargs": {"num_heads": 0}}, "timm refuses.*ZeroDivisionError"),
        ({"kwargs": {"norm_layer": "foo"}}, "timm refuses.*foo"),
        (
            {"name": "vit_nano_patch2_8", "pretrained": True},
            r"^model\.pretrained=true: there are no pretrained weights of vit_nano_patch2_8: model\.pretrained=false$",
        ),
        ({"kwargs": {"in_chans": 1}}, r"model\.kwargs\.in_chans=1: must be 3"),
        ({"kwargs": {"checkpoint_path": "w.pth"}}, r"model\.kwargs\.checkpoint_path=w\.pth: must be left out: weights"),
        ({"kwargs": {"pretrained_cfg": {"url": "http://x"}}}, r"model\.kwargs\.pretrained_cfg=.* must be left out"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises(ConfigError, match=words):
        ModelSpec(**{"name": "vit_tiny_patch16_224", "num_classes": 5, **settings}).build(0)


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no\nnetwork"), httpx.ConnectError("no network")])
def test_weights_that_cannot_be_fetched_are_one_line(error, monkeypatch):
    def fetch(*_, **__):
        raise error

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fetch)
    words = r"^model\.pretrained=true: the weights of vit_tiny_patch16_224 cannot be fetched: no network; model\.check"
    with pytest.raises(ConfigError, match=words):
        ModelSpec("vit_tiny_patch16_224", 5, pretrained=True).build(0)


def test_checkpoints(tmp_path):
    model = SMALL.build(7)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.save({"model": model.state_dict()}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        spec = ModelSpec(SMALL.name, 5, 32, 8, checkpoint=str(tmp_path / name), kwargs={"depth": 1})
        assert same(spec.build(0), model)
    with pytest.raises(ConfigError, match=r"model\.checkpoint=.*fit"):
        ModelSpec(SMALL.name, 5, 32, 8, checkpoint=str(tmp_path / "w.pt"), kwargs={"depth": 2}).build(0)
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "short.pt").write_bytes(whole[:20])
    torch.save({3: "no tensor"}, tmp_path / "other.pt")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name in ("empty.pt", "cut.pt", "short.pt", "other.pt", "empty.safetensors"):
        with pytest.raises(
            ConfigError, match=rf"model\.checkpoint=.*{name}: must be a state dict that fits the model: \S"
        ):
            ModelSpec(SMALL.name, 5, 32, 8, checkpoint=str(tmp_path / name), kwargs={"depth": 1}).build(0)


@pytest.mark.parametrize("variant", ["stock", "april"])
def test_a_float64_checkpoint_keeps_its_bits(variant, tmp_path):
    spec = replace(SMALL, variant=variant, dtype="float64")
    fine = {name: tensor + 1e-12 for name, tensor in replace(spec, variant="stock").build(7).state_dict().items()}
    torch.save(fine, tmp_path / "w.pt")
    built = replace(spec, checkpoint=str(tmp_path / "w.pt")).build(0).state_dict()
    assert {tensor.dtype for tensor in built.values()} == {torch.float64}
    assert all(torch.equal(tensor, fine[name]) for name, tensor in built.items())
    assert same(spec.build(7), replace(spec, dtype="float32").build(7).double())


def test_names_that_wrappers_of_a_model_lengthened(tmp_path):
    model = SMALL.build(7)
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
        torch.save(state, tmp_path / "w.pt")
        save_file(state, tmp_path / "w.safetensors")
        for name in ("w.pt", "w.safetensors"):
            assert same(replace(SMALL, checkpoint=str(tmp_path / name)).build(0), model)


def test_a_checkpoint_of_other_classes(tmp_path):
    torch.save(replace(SMALL, num_classes=7).build(7).state_dict(), tmp_path / "w.pt")
    ours = replace(SMALL, checkpoint=str(tmp_path / "w.pt"))
    wanted = (
        r"^model\.checkpoint=.*head\.weight is of shape \[7, 192\], not of shape \[5, 192\]; only the head differs: "
    )
    with pytest.raises(ConfigError, match=wanted + r"model\.checkpoint_head=false loads all but it$"):
        ours.build(0)
    for finetune in (FULL, LoRA()):
        built = Architecture(replace(ours, checkpoint_head=False), (), 3, finetune).build().state_dict()
        drawn = SMALL.build(3).state_dict()
        for name, tensor in torch.load(tmp_path / "w.pt").items():
            assert torch.equal(built[name], drawn[name] if name.startswith("head.") else tensor), name


def test_the_head_is_drawn_though_the_file_has_one_that_fits(tmp_path):
    trained = Architecture(SMALL, (), 1, LoRA()).build()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    spec = replace(SMALL, checkpoint=str(tmp_path / "w.pt"), checkpoint_head=False)
    built = Architecture(spec, (), 2, LoRA()).build().state_dict()
    assert torch.equal(built["head.weight"], SMALL.build(2).state_dict()["head.weight"])
    assert torch.equal(built["norm.weight"], trained.state_dict()["norm.weight"])
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert "checkpoint_head" not in SMALL.to_dict(), "as in records of before"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello world", "it is no file that torch.save or safetensors wrote, or not a whole one"),
        (bytes(range(46, 256)) * 5, "it is no file that torch.save or safetensors wrote, or not a whole one"),
        (
            torch.nn.Linear(2, 2),
            "it holds torch.nn.modules.linear.Linear, and only tensors are read; save model.state_d",
        ),
        ([1], "it holds no dictionary of tensors by name"),
        ({"head.weight": torch.ones(1)}, "it lacks cls_token, pos_embed, patch_embed.proj.weight and "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_in_our_words(tmp_path, content, words):
    path = tmp_path / "w.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ConfigError) as refused:
        replace(SMALL, checkpoint=str(path)).build(0)
    assert str(refused.value).startswith(f"model.checkpoint={path}: must be a state dict that fits the model: {words}")
    assert str(refused.value).isprintable()


def test_what_the_model_reads():
    model = SMALL.build(0)
    assert input_size(model) == 32
    assert normalisation(model) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert parameter_count(model) == sum(p.numel() for p in model.parameters())
    assert input_size(ModelSpec("resnet18", 5).build(0)) == 224


def test_a_kept_model_is_copied_each_time():
    architecture = Architecture(SMALL, seed=3)
    fresh, first = architecture.build(), architecture.build(keep=True)
    for parameter in first.parameters():
        parameter.data.zero_()
    second = architecture.build(keep=True)
    assert fresh.state_dict().keys() == second.state_dict().keys()
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in fresh.state_dict().items())


class Complex(nn.Module):
    """The gradient of its weight is the image times that of its bias: no noise may be missing there."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((48, 4), 0.1 + 0.1j))
        self.head = nn.Linear(4, 5)

    def forward(self, images):
        return self.head((images.flatten(1).to(self.weight.dtype) @ self.weight).abs())


WHOLLY_COMPLEX = nn.Sequential(nn.Flatten(), nn.Linear(48, 5, dtype=torch.complex64))
IMAGES, LABELS = torch.rand(2, 3, 4, 4), torch.tensor([1, 3])


@pytest.mark.parametrize(
    "use",
    [
        lambda model: fedsim.observe(model, IMAGES, LABELS),
        lambda model: fedsim.observe(model, IMAGES, LABELS, defense=["local_dp"]),
        lambda model: fedsim.audit(model, (IMAGES, LABELS), ["labels"], [["local_dp"]], num_images=2, bounds=["pairs"]),
        lambda model: fedsim.Observation.of(model, list(model.parameters()), image_shape=(3, 4, 4)),
    ],
    ids=["observe", "defended", "audit", "of"],
)
def test_complex_parameters_are_refused_before_anything_is_shared(use):
    with pytest.raises(ConfigError, match=r"^model=Complex: must be .* parameters are real: weight is complex64$"):
        use(Complex())
    with pytest.raises(ConfigError, match="real parameters"):
        use(WHOLLY_COMPLEX)


def test_complex_parameters_that_are_not_trained_do_no_harm():
    seen = fedsim.observe(Complex(), IMAGES, LABELS, defense=["local_dp"], finetune="head")
    assert sorted(seen.update.tensors) == ["head.bias", "head.weight"]


class Lookup(nn.Module):
    """Each pixel's value is a row of a table."""

    def __init__(self, sparse=True):
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=sparse)
        self.bag = nn.EmbeddingBag(8, 4, mode="sum", sparse=sparse)
        self.head = nn.Linear(49 * 4, 5)

    def forward(self, images):
        pixels = (images.flatten(1) * 7).long().clamp(0, 7)
        return self.head(torch.cat([self.table(pixels).flatten(1), self.bag(pixels)], dim=1))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("defense", [[], ["local_dp"], ["gradient_noise"], ["topk"], ["dp_sgd"]], ids=str)
def test_a_sparse_gradient_is_shared_and_defended_as_the_dense_one_that_it_is(defense):
    model, dense = Lookup(), Lookup(sparse=False)
    dense.load_state_dict(model.state_dict())
    ours, expected = (fedsim.observe(one, IMAGES, LABELS, defense=defense).update.tensors for one in (model, dense))
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    assert model.table.sparse


def test_a_sparse_gradient_from_elsewhere_is_observed_as_a_dense_one():
    model = Lookup()
    nn.functional.cross_entropy(model(IMAGES[:1]), LABELS[:1]).backward()
    given = {name: parameter.grad for name, parameter in model.named_parameters()}
    seen = fedsim.Observation.of(model, given, image_shape=(3, 4, 4))
    assert torch.equal(seen.update.tensors["table.weight"], given["table.weight"].to_dense())


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_names_that_a_model_has_itself_are_no_wrapper_s(suffix, tmp_path):
    model, other = (nn.Sequential(OrderedDict(module=nn.Linear(2, 2))) for _ in range(2))
    path = tmp_path / f"w.{suffix}"
    (torch.save if suffix == "pt" else save_file)(model.state_dict(), path)
    load_checkpoint(other, path)
    assert same(other, model)
