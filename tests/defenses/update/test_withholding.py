import pytest
import torch

import fedsim
from defenses import ClientRound, DefenseChain, MaskedJigsawPuzzle, NoPositionEmbedding, Plan, Precode, Withhold
from defenses.update.withholding import matching, parameters_by_role
from fedsim.effects import Withholds
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec, find_roles
from fedsim.update import Update
from tests.defenses.as_configured import configured

VIT = ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 2, "embed_dim": 24, "num_heads": 2})


def wrapped(patterns, mode="private", spec=VIT):
    chain = DefenseChain({"withhold": Withhold(patterns, mode)})
    return chain, chain.wrap_model(spec.build(0))


def gradients(model):
    torch.manual_seed(0)
    model.train()(torch.randn(2, 3, 32, 32)).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["patch_weight"], {"patch_embed.proj.weight"}),
        ("patch_*", {"patch_embed.proj.weight", "patch_embed.proj.bias"}),
        (["pos_embed"], {"pos_embed"}),
        (["qkv_weight", "qkv_bias"], {"blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias"}),
        (["head_*"], {"head.weight", "head.bias"}),
        (["class_token"], {"cls_token"}),
        (["blocks.[01].attn.proj.weight"], {"blocks.0.attn.proj.weight", "blocks.1.attn.proj.weight"}),
        (["*.bias", "pos_embed"], None),
    ],
)
def test_patterns_name_parameters_and_roles(patterns, names):
    chain, model = wrapped(patterns)
    shared = gradients(model)
    if names is None:
        names = {name for name in shared if name.endswith(".bias")} | {"pos_embed"}
    sent = chain.transform_update(Update(shared, "gradient", 2), torch.Generator())
    assert set(shared) - set(sent.tensors) == names
    assert sent.withheld == dict.fromkeys(names, "withhold")
    assert all(sent.tensors[name] is shared[name] for name in sent.tensors)


def test_roles_of_other_models():
    distilled = ModelSpec("deit_tiny_distilled_patch16_224", 5, 32, 8, kwargs={"depth": 1}).build(0)
    roles = parameters_by_role(find_roles(distilled))
    assert roles["prefix_names"] == ("cls_token", "dist_token")
    assert roles["head_weights"] == ("head.weight", "head_dist.weight")
    assert "grid" not in roles
    assert "obstacles" not in roles


def test_private_parameters_are_trained_and_frozen_ones_are_not():
    _, private = wrapped(["patch_weight"])
    assert "patch_embed.proj.weight" in gradients(private)
    chain, frozen = wrapped(["patch_weight", "blocks.0.*"], "frozen")
    kept = {name for name, p in frozen.named_parameters() if not p.requires_grad}
    assert kept == {"patch_embed.proj.weight", *(n for n, _ in frozen.named_parameters() if n.startswith("blocks.0."))}
    shared = gradients(frozen)
    assert not kept & set(shared)
    # A delta of a frozen parameter is zero, and must be absent all the same.
    deltas = {name: torch.zeros_like(p) for name, p in frozen.named_parameters()}
    sent = chain.transform_update(Update(deltas, "delta", 2), torch.Generator())
    assert set(deltas) - set(sent.tensors) == kept
    assert set(sent.withheld.values()) == {"withhold"}


def test_local_parameters_stay_with_their_client():
    """Two clients in turn on one model: each goes on from its own head, and from the same global rest."""
    chain, model = wrapped(["head_*"], "local")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    memories = {"a": {}, "b": {}}
    heads = {"a": [], "b": []}
    for server_round in range(2):
        for client, step in (("a", 1.0), ("b", 10.0)):
            model.load_state_dict(start)
            chain.begin(ClientRound(server_round, 10, memories[client], model))
            heads[client].append(model.head.bias.detach().clone())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += step
            deltas = {name: tensor - start[name] for name, tensor in model.state_dict().items()}
            sent = chain.transform_update(Update(deltas, "delta", 2), torch.Generator())
            assert not {"head.weight", "head.bias"} & set(sent.tensors)
            memories[client] = chain.memory()
    for client, step in (("a", 1.0), ("b", 10.0)):
        first, second = heads[client]
        assert torch.equal(first, start["head.bias"])
        torch.testing.assert_close(second, start["head.bias"] + step)
        assert set(memories[client]) == {"withhold/head.weight", "withhold/head.bias"}


def test_local_needs_local_training():
    defense, model = Withhold(["head_*"], "local"), VIT.build(0)
    with pytest.raises(ConfigError, match=r"withhold\.mode=local: must be private or frozen"):
        defense.check(Plan(model, {"share": "gradient"}, {}, {"withhold": defense}))
    defense.check(Plan(model, {"share": "delta"}, {}, {"withhold": defense}))


def test_values_are_untouched():
    stock = VIT.build(0).state_dict()
    for mode in ("private", "frozen"):
        _, model = wrapped(["patch_weight"], mode)
        assert all(torch.equal(tensor, stock[name]) for name, tensor in model.state_dict().items())


def test_whole_weights_may_be_withheld():
    chain, model = wrapped(["patch_weight"])
    sent = chain.transform_update(Update(dict(model.state_dict()), "weights", 2), torch.Generator())
    assert "patch_embed.proj.weight" not in sent.tensors
    assert "pos_embed" in sent.tensors


def test_nothing_withheld_is_the_identity():
    chain, model = wrapped([])
    shared = gradients(model)
    sent = chain.transform_update(Update(shared, "gradient", 2), torch.Generator())
    assert all(sent.tensors[name] is tensor for name, tensor in shared.items())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (
            "patch_wieght",
            r"patterns=patch_wieght: it matches no .*Did you mean 'patch_weight'\?.*Roles of this model: .*qkv_",
        ),
        ("blocks.0.attn.qvk.weight", r"Did you mean 'blocks\.0\.attn\.qkv\.weight'\?"),
        ("blocks.7.*", "it matches no parameter, buffer or role"),
    ],
)
def test_patterns_that_match_nothing(pattern, words):
    with pytest.raises(ConfigError, match=words):
        wrapped(["pos_embed", pattern])


def test_roles_that_a_model_lacks():
    resnet = ModelSpec("resnet10t", 5)
    with pytest.raises(ConfigError, match="pos_embed: it matches no parameter, buffer or role"):
        wrapped(["pos_embed"], spec=resnet)
    _, model = wrapped(["head_weights"], "frozen", resnet)
    assert not model.fc.weight.requires_grad
    chain = DefenseChain({"no_pe": NoPositionEmbedding(), "withhold": Withhold(["pos_embed"])})
    with pytest.raises(ConfigError, match="pos_embed: it matches no"):
        chain.wrap_model(VIT.build(0))


@pytest.mark.parametrize(
    ("patterns", "later", "changed"),
    [
        (["head*"], {"precode": Precode(k=4)}, r"head\.bottleneck\.decoder\.bias is added later"),
        (["*_embed"], {"mjp": MaskedJigsawPuzzle()}, "unknown_embed is added later"),
        (["pos_embed"], {"no_pe": NoPositionEmbedding()}, "pos_embed is removed later"),
    ],
)
def test_what_a_later_defense_adds_or_removes_is_named_before_anything_starts(patterns, later, changed):
    (name,) = later
    settings = {"share": "delta", "training_mode": False}
    chain = DefenseChain({"withhold": Withhold(patterns, "local"), **later})
    plan = Plan(chain.wrap_model(VIT.build(0)), settings, {}, chain.defenses)
    with pytest.raises(
        ConfigError, match=rf"^defense=\[withhold, {name}\]: must be withhold behind {name}: .*{changed}$"
    ):
        chain.check(plan)
    untouched = DefenseChain({"withhold": Withhold(["patch_weight"], "local"), **later})
    untouched.check(Plan(untouched.wrap_model(VIT.build(0)), settings, {}, untouched.defenses))


def test_behind_what_adds_parameters_it_withholds_them():
    chain = DefenseChain({"precode": Precode(k=4), "withhold": Withhold(["head*"])})
    model = chain.wrap_model(VIT.build(0))
    chain.check(Plan(model, {"share": "gradient"}, {}, chain.defenses))
    sent = chain.transform_update(Update(dict(model.named_parameters()), "gradient", 2), torch.Generator())
    assert not [name for name in sent.tensors if name.startswith("head.")]


def test_everything_withheld_is_refused():
    for mode in ("private", "frozen"):
        with pytest.raises(ConfigError, match="no parameter is left to share"):
            wrapped("*", mode)


def test_matching_is_case_sensitive_and_without_substrings():
    assert matching(["a*"], ["abc", "Abc"], {"alpha": ("x", "y")}) == {"abc", "x", "y"}
    with pytest.raises(ConfigError, match="matches no"):
        matching(["b"], ["abc"], {})


def test_before_wrap_model():
    with pytest.raises(RuntimeError, match="wrap_model"):
        Withhold().transform_update(Update({"pos_embed": torch.ones(1)}, "gradient", 1), torch.Generator())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Withhold(mode="shy"), r"withhold\.mode=shy: must be one of private, local, frozen"),
        (lambda: configured(Withhold, patterns=3), r"withhold\.patterns=3: must be a list of globs"),
        (lambda: configured(Withhold, patterns=[1]), r"withhold\.patterns=\[1\]"),
        (lambda: configured(Withhold, patterns={"pos_embed": True}), "a list of globs"),
    ],
)
def test_settings_that_make_no_sense(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def kept_rounds(*rounds):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
    kept, images = Withhold(["1.*"], mode="local"), torch.rand(1, 3, 4, 4)
    about = {"share": "delta", "local_steps": 1, "defense": [kept]}
    return [fedsim.observe(model, images, [3], server_round=one, **about) for one in rounds]


def test_what_a_client_keeps_is_the_servers_in_its_first_round_alone():
    seen = kept_rounds(0, 1, 2)
    assert [one.keeps("gradient") for one in seen] == [True, True, False]
    assert [one.effect(Withholds).kept for one in seen] == [False, False, True]
    assert Withhold().effects() == (Withholds(),)
    assert Withhold(mode="frozen").effects() == (Withholds(frozen=True),)


def test_rounds_of_a_model_that_the_server_does_not_know_stay_beside_its_own():
    first, second = kept_rounds(1, 2)
    settings = {"steps": 2, "starts": ["mean"], "draws": 0, "frames": 0}
    alone = fedsim.attack("gauss_newton", fedsim.History([first]), **settings)
    both = fedsim.attack("gauss_newton", fedsim.History([first, second]), **settings)
    assert torch.equal(alone.images, both.images)
