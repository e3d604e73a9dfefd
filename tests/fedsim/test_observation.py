"""Observations on disk: the same after a year, refused when damaged."""

import inspect
import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file

import fedsim
from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import Clips, SharesSigns, Sparsifies, Unpublished
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.models.finetune import FULL
from fedsim.observation import Observation
from fedsim.public_images import PublicImages
from fedsim.result import AttackResult
from fedsim.storage.observation_files import load_observation, save_observation
from fedsim.update import LocalProtocol, Update


@pytest.fixture
def observation(rng):
    architecture = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), seed=3)
    model = architecture.build()
    gradient = {n: torch.randn(p.shape, generator=rng) for n, p in model.named_parameters() if n != "head.bias"}
    return Observation(
        server_round=4,
        client=2,
        global_state=dict(model.state_dict()),
        update=Update(gradient, "gradient", 1, {"head.bias": "secrecy"}),
        protocol=LocalProtocol(batch_size=1),
        architecture=architecture,
        roles=find_roles(model),
        image_shape=(3, 8, 8),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        num_classes=10,
        defenses=({"name": "secrecy", "_target_": "a.B"},),
        auxiliary_probs=torch.full((10,), 0.1, dtype=torch.float64),
        image_prior=PublicPrior.of(torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)),
        public_images=PublicImages.of(torch.rand(4, 3, 8, 8), torch.tensor([0, 3, 3, 9])),
    )


@pytest.mark.parametrize(
    ("batch_size", "steps", "held", "behind"),
    [(1, 1, 1, 1), (4, 1, 4, 4), (1, 8, 8, 8), (4, 3, 12, 12), (4, 3, 6, 6), (1, 8, 1, 1), (8, 1, 5, 5), (0, 0, 0, 1)],
)
def test_images_behind_an_update_are_those_of_all_steps_that_the_client_holds(
    observation, batch_size, steps, held, behind
):
    update = replace(observation.update, num_examples=held)
    protocol = LocalProtocol(batch_size=batch_size, steps=steps)
    found = replace(observation, update=update, protocol=protocol)
    assert found.num_images == AttackResult.of(found, "labels", "done").batch_size == behind


def test_disk_round_trip(observation, tmp_path):
    save_observation(observation, tmp_path / "observations" / "o1")
    save_observation(observation, tmp_path / "observations" / "o2")
    assert len(list((tmp_path / "observations").glob("global-*.safetensors"))) == 1, "one global state a round"
    assert len(list((tmp_path / "observations").glob("public-*.safetensors"))) == 1, "public images once"
    back = load_observation(tmp_path / "observations" / "o1")
    for name, tensor in observation.public_images.tensors().items():
        assert torch.equal(getattr(back.public_images, name), tensor)
    for name, tensor in observation.global_state.items():
        assert torch.equal(back.global_state[name], tensor)
    for name, tensor in observation.gradient.items():
        assert torch.equal(back.gradient[name], tensor)
    assert torch.equal(back.auxiliary_probs, observation.auxiliary_probs)
    for name, tensor in observation.image_prior.tensors().items():
        assert torch.equal(getattr(back.image_prior, name), tensor)
    same = ("server_round", "client", "protocol", "roles", "image_shape", "mean", "std", "num_classes", "defenses")
    assert all(getattr(back, field) == getattr(observation, field) for field in same)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(back.build_model()(x), observation.build_model()(x))


@pytest.mark.parametrize("begun", [{"checkpoint": "gone.pt", "checkpoint_head": False}, {"pretrained": True}])
def test_its_model_needs_nothing_that_the_run_began_with(observation, tmp_path, begun):
    spec = replace(observation.architecture.spec, **begun)
    save_observation(replace(observation, architecture=replace(observation.architecture, spec=spec)), tmp_path / "o")
    found = load_observation(tmp_path / "o")
    assert found.architecture.spec == spec
    for name, tensor in found.build_model().state_dict().items():
        assert torch.equal(tensor, observation.global_state[name])


def test_withheld_and_missing_parts_say_why(observation):
    with pytest.raises(NotApplicable, match=r"the model has no pos_embed"):
        Observation(**{**observation.__dict__, "roles": type(observation.roles)()}).gradient_of("pos_embed")
    del observation.update.tensors["pos_embed"]
    with pytest.raises(NotApplicable, match="pos_embed's gradient is withheld by the client"):
        observation.gradient_of("pos_embed")


def test_an_unfinished_or_damaged_folder_is_one_clear_line(observation, tmp_path):
    with pytest.raises(ConfigError, match="no complete observation"):
        load_observation(tmp_path)
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    (folder / "observation.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="damaged"):
        load_observation(folder)
    (folder / "observation.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="damaged"):
        load_observation(folder)
    (folder / "observation.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 1, not 99"):
        load_observation(folder)


def test_a_truncated_tensor_file_is_one_clear_line(observation, tmp_path):
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    path = folder / "update.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="damaged"):
        load_observation(folder)


@pytest.mark.parametrize("which", ["o/update", "global-*", "public-*"])
def test_one_flipped_bit_of_a_tensor_is_one_clear_line(observation, tmp_path, which):
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    load_observation(folder)
    (path,) = folder.parent.glob(f"{which}.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"damaged: {path.name} does not hold what was written"):
        load_observation(folder)


def test_names_in_the_record_never_become_paths(observation, tmp_path):
    folder = tmp_path / "observations" / "o"
    save_observation(observation, folder)
    record = json.loads((folder / "observation.json").read_text())
    (tmp_path / "secret.safetensors").write_bytes((folder / "update.safetensors").read_bytes())
    record["global_state"] = "../secret.safetensors"
    (folder / "observation.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="missing"):
        load_observation(folder)


def test_an_observation_as_the_first_version_wrote_it_is_read_and_attacked(tmp_path):
    """Its record knew no buffers, effects, recipes of fine-tuning, sums, public images, betas, precision or EVA02."""
    spec = {"name": "vit_nano_patch2_8", "num_classes": 10, "img_size": None, "patch_size": None, "pretrained": False}
    spec |= {"checkpoint": None, "variant": "stock", "dtype": "float32", "kwargs": {}}
    model = Architecture(ModelSpec(**spec), seed=3).build()
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    loss = torch.nn.functional.cross_entropy(model(2 * image - 1), torch.tensor([3]))
    names = [name for name, _ in model.named_parameters()]
    shared = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    withheld = {"head.bias": "withhold"}
    tensors = {f"update/{name}": gradient.clone() for name, gradient in shared.items() if name not in withheld}
    protocol = {"batch_size": 1, "steps": 1, "optimizer": "none", "lrs": [], "momentum": 0.0, "dampening": 0.0}
    protocol |= {"nesterov": False, "weight_decay": 0.0, "proximal_mu": 0.0, "label_smoothing": 0.0}
    roles = {"patch_weight": "patch_embed.proj.weight", "patch_bias": "patch_embed.proj.bias", "pos_embed": "pos_embed"}
    roles |= {
        "class_token": "cls_token",
        "prefix_names": ["cls_token"],
        "prefix_tokens": 1,
        "embedded_prefix_tokens": 1,
    }
    roles |= {"qkv_weight": "blocks.0.attn.qkv.weight", "qkv_bias": "blocks.0.attn.qkv.bias", "patch": [2, 2]}
    roles |= {"head_weights": ["head.weight"], "head_biases": ["head.bias"], "direct_attention": False, "grid": [4, 4]}
    record = {
        "format": 1,
        "server_round": 4,
        "client": 2,
        "global_state": "global-0123456789abcdef.safetensors",
        "kind": "gradient",
        "num_examples": 1,
        "withheld": withheld,
        "protocol": protocol | {"training_mode": True},
        "model": spec,
        "model_seed": 3,
        "roles": roles | {"rotary": False, "obstacles": []},
        "image_shape": [3, 8, 8],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "num_classes": 10,
        "defenses": [{"name": "withhold", "_target_": "defenses.Withhold", "names": ["head.bias"]}],
    }
    folder = tmp_path / "round-00004-client-00002"
    folder.mkdir()
    save_file(dict(model.state_dict()), tmp_path / record["global_state"])
    save_file({**tensors, "auxiliary_probs": torch.full((10,), 0.1)}, folder / "update.safetensors")
    (folder / "observation.json").write_text(json.dumps(record, indent=1))
    seen = Observation.load(folder)
    assert (seen.name, seen.protocol, seen.summed, seen.update.buffers) == (folder.name, LocalProtocol(1), 1, {})
    assert seen.roles == find_roles(model)
    assert seen.effects == (Unpublished("withhold"),)
    assert (seen.image_prior, seen.public_images, seen.finetune) == (None, None, FULL)
    with pytest.raises(NotApplicable, match=r"head\.bias's gradient is withheld by withhold"):
        seen.gradient_named("head.bias")
    for attack in ("patch_gradient", "row_space"):
        assert fedsim.score(fedsim.attack(attack, seen), image).psnr[0] > 80
    seen.save(tmp_path / "again")
    assert Observation.load(tmp_path / "again").gradient.keys() == seen.gradient.keys()


def test_an_effect_may_be_the_trainings_or_a_defenses(observation):
    clipped = LocalProtocol(batch_size=1, max_grad_norm=2.0)
    trained = replace(observation, protocol=clipped, recorded_effects=(Clips(1.0, "update"),))
    assert trained.effect(Clips) == Clips(2.0, "step")
    assert replace(trained, protocol=LocalProtocol(batch_size=1)).effect(Clips) == Clips(1.0, "update")
    assert trained.effect(SharesSigns) is None


def test_every_argument_of_an_own_observation_is_described():
    described = inspect.getdoc(Observation.of).partition("Args:")[2].partition("Raises:")[0]
    names = {name for line in described.splitlines() for name in line.partition(":")[0].replace(",", " ").split()}
    assert set(inspect.signature(Observation.of).parameters) <= names


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_images_are_normalised_channel_by_channel_in_their_own_precision(observation, rng, dtype):
    """To the bit what the client's own normaliser makes of them, and back."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    seen = replace(observation, mean=mean, std=std)
    images = torch.rand(2, 3, 8, 8, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    channels = [
        (images[:, c] - torch.tensor(m, dtype=torch.float64).to(dtype)) / torch.tensor(s, dtype=torch.float64).to(dtype)
        for c, (m, s) in enumerate(zip(mean, std, strict=True))
    ]
    read = seen.from_unit_range(images)
    assert read.dtype == dtype
    assert torch.equal(read, torch.stack(channels, dim=1))
    read.sum().backward()
    assert torch.allclose(images.grad[0, 0].double(), torch.tensor(1 / 0.229, dtype=torch.float64), rtol=1e-2)
    assert torch.allclose(seen.to_unit_range(read), images, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(seen.normalised(images), seen.from_unit_range(images.detach().double()))
    assert not seen.normalised(images).requires_grad


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"steps": 5}, r"protocol=lrs=\(0.1,\): must be a rate for each of steps=5 beside weights: lrs=\(0.1,\) \* st"),
        ({"lrs": ()}, r"protocol=lrs=\(\): must be a rate for each of steps=1"),
        ({"optimizer": "SGD"}, "protocol=optimizer=SGD: .* Did you mean 'sgd'"),
        ({"optimizer": "none"}, "protocol=optimizer=none: must be a name of torch.optim in lower case beside weights"),
        ({"batch_size": 0}, "protocol=batch_size=0: must be of 1 or more"),
        ({"steps": 0, "lrs": ()}, "protocol=steps=0: must be of 1 or more"),
    ],
)
def test_a_protocol_by_which_no_client_trains_is_refused_at_both_doors(stated, words):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    protocol = LocalProtocol(**{"batch_size": 4, "optimizer": "sgd", "lrs": (0.1,), **stated})
    weights = model.state_dict()
    with pytest.raises(ConfigError, match=words):
        Observation.of(model, weights=weights, protocol=protocol, image_shape=(3, 2, 2))
    with pytest.raises(ConfigError, match=words):
        fedsim.HonestButCurious(FedAvg(), model, protocol, (3, 2, 2))


def test_a_batch_size_beside_a_protocol_is_the_protocols():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    shared, about = list(model.parameters()), {"protocol": LocalProtocol(2), "image_shape": (3, 2, 2)}
    with pytest.raises(ConfigError, match="batch_size=4: must be 2 as in protocol"):
        Observation.of(model, shared, batch_size=4, **about)
    assert Observation.of(model, shared, batch_size=2, **about).protocol == LocalProtocol(2)
    with pytest.raises(ConfigError, match="batch_size=0"):
        Observation.of(model, shared, batch_size=0, image_shape=(3, 2, 2))


@pytest.mark.parametrize("key", ["gradients", "delta", "weights"])
def test_what_moved_is_no_parameter_that_the_model_given_has_frozen(key):
    """It would be nowhere among what was shared, and said to be withheld."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4), torch.nn.Linear(4, 2))
    model[1].requires_grad_(False)
    zero = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    still = dict(model.state_dict()) if key == "weights" else zero
    about = {"protocol": LocalProtocol(4, 1, "sgd", (0.1,)), "image_shape": (3, 2, 2)} if key != "gradients" else {}
    seen = Observation.of(model, **{key: still}, **{"image_shape": (3, 2, 2), **about})
    assert (set(seen.update.tensors), seen.update.buffers) == ({"2.weight", "2.bias"}, {})
    if key != "gradients":
        mean = {name: (tensor / 3) + (tensor / 3) + (tensor / 3) for name, tensor in model.state_dict().items()}
        before = zero if key == "weights" else model.state_dict()
        rounded = {name: tensor - before[name] for name, tensor in mean.items()}
        Observation.of(model, **{key: rounded}, **{"image_shape": (3, 2, 2), **about})
    with pytest.raises(ConfigError, match=rf"{key}=1\.weight: must be .*: in the model given it is frozen"):
        Observation.of(model, **{key: {**still, "1.weight": torch.ones(4, 12)}}, **{"image_shape": (3, 2, 2), **about})
    with pytest.raises(ConfigError, match=rf"{key}=1\.bias: must be"):
        Observation.of(
            model, **{key: {**still, "1.bias": torch.full((4,), torch.nan)}}, **{"image_shape": (3, 2, 2), **about}
        )


def test_what_the_server_holds_besides_is_checked_and_copied():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    observe = partial(Observation.of, model, list(model.parameters()), image_shape=(3, 2, 2))
    with pytest.raises(ConfigError, match=r"auxiliary_probs=\(5, 2\): must be the mean softmax, of shape \(2,\)"):
        observe(auxiliary_probs=torch.full((5, 2), 0.5))
    with pytest.raises(ConfigError, match=r"public_labels=2: must be left out where there are no public_images"):
        observe(public_labels=[0, 1])
    with torch.inference_mode():
        probs = torch.tensor([0.25, 0.75])
    seen = observe(auxiliary_probs=probs)
    assert fedsim.attack("labels_bias_prior", seen).status == "done"
    assert seen.auxiliary_probs.data_ptr() != probs.data_ptr()


def test_a_protocol_takes_lists():
    protocol = LocalProtocol(4, 2, "sgd", lrs=[0.1, 0.1], betas=[0.9, 0.99], undecayed=["b"])
    assert protocol == LocalProtocol(4, 2, "sgd", (0.1, 0.1), betas=(0.9, 0.99), undecayed=("b",))
    assert hash(protocol) == hash(LocalProtocol(4, 2, "sgd", (0.1, 0.1), betas=(0.9, 0.99), undecayed=("b",)))


def test_what_an_object_did_to_an_update_is_read_back_as_it_was(tmp_path):
    """No record holds its settings: those that its class has by default are others."""
    from defenses import TopK
    from experiments.engine.setup import load_recorded

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    seen = fedsim.observe(model, torch.rand(1, 3, 2, 2), [1], defense=TopK(ratio=0.5, error_feedback=False))
    seen.save(tmp_path / "seen")
    back = load_recorded(tmp_path / "seen")
    assert back.effects == seen.effects == (Sparsifies(0.5, "update"),)
    assert (back.repeatable, seen.repeatable) == (False, True), "nobody can compute it again"
