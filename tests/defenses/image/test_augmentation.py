"""Transforms of torchvision before every defense: what they leave, draw, refuse and let be recorded."""

import pytest
import torch
from torchvision.transforms.v2 import functional as transform

import fedsim
from clients.app import ClientRuntime
from defenses import Augmentation, Batch, DefenseChain, Plan
from experiments.engine.setup import prepare
from fedsim.determinism import torch_generator
from fedsim.effects import TransformsImages
from fedsim.errors import ConfigError
from fedsim.models import ModelSpec, Normaliser
from fedsim.settings.commands import config_of
from fedsim.settings.composition import build_data
from fedsim.settings.local.augment import TRANSFORMS
from tests.support.federation import settings

FLIP = "client.augment=[{RandomHorizontalFlip: {p: 1.0}}]"
USUAL = "client.augment=[{RandomCrop: {size: 8, padding: 1}}, RandomHorizontalFlip]"
SPEC = ModelSpec("resnet18_cifar_32", 5)  # its normalisation differs by channel
SETTINGS = {
    "RandomCrop": {"size": 32, "padding": 4},
    "RandomResizedCrop": {"size": 32},
    "RandomRotation": {"degrees": 15, "interpolation": "bilinear"},
    "RandomAffine": {"degrees": 10, "translate": [0.1, 0.1]},
    "ColorJitter": {"brightness": 0.4, "hue": 0.1},
    "GaussianBlur": {"kernel_size": 3},
    "RandomAdjustSharpness": {"sharpness_factor": 2},
    "RandomPosterize": {"bits": 4},
    "RandomSolarize": {"threshold": 128},
    "AutoAugment": {"policy": "cifar10"},
}


@pytest.fixture(scope="module")
def model():
    return SPEC.build(0)


@pytest.fixture
def images():
    return torch.randint(20, 236, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0)) / 255


def augmented(model, images, *transforms, rng):
    own, normaliser = Augmentation(transforms), Normaliser(model)
    own.wrap_model(model)
    return normaliser.inverse(own.transform_batch(Batch(normaliser(images), torch.arange(len(images))), rng).images)


def client_of(*overrides):
    config = settings("audit", "data=digits", "model=vit_nano", *overrides)
    return ClientRuntime(config, build_data(config))


def trained(client, positions=(0,), number=0, server_round=0):
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    result = client.train(client.data.train.subset(positions), number, server_round, audit=True)
    client.load(state)
    return result


@pytest.mark.parametrize("none", ["client.augment=[]", "client.augment=[{RandomHorizontalFlip: {p: 0.0}}]"])
def test_without_a_transform_that_acts_the_bits_are_the_same(none):
    plain, same = trained(client_of()), trained(client_of(none))
    assert all(torch.equal(plain.tensors[name], same.tensors[name]) for name in plain.tensors)
    assert torch.equal(plain.truth.images, same.truth.images)


def test_no_transforms_are_no_part_of_the_chain():
    assert list(client_of("defense=[ats]", "client.augment=[]").defenses.defenses) == ["ats"]
    assert list(client_of("defense=[ats]", FLIP).defenses.defenses) == ["augmentation", "ats"]
    assert Augmentation([]).effects() == ()


def test_a_flip_is_the_gradient_of_the_flipped_image():
    shared = trained(client_of(FLIP))
    client = client_of()
    own = client.data.train.images([0])
    assert torch.equal(shared.truth.private, own)
    torch.testing.assert_close(shared.truth.images, own.flip(-1).double(), rtol=0, atol=1e-7)
    loss = torch.nn.functional.cross_entropy(client.model((own.flip(-1) - 0.5) / 0.5), client.data.train.labels[:1])
    loss.backward()
    for name, parameter in client.model.named_parameters():
        assert torch.equal(shared.tensors[name], parameter.grad), name


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_transform_keeps_the_size_draws_anew_and_replays(name, model, images):
    chosen = {name: SETTINGS.get(name, {})}
    before = torch.get_rng_state()
    found = [augmented(model, images, chosen, rng=torch.Generator().manual_seed(seed)) for seed in (*range(6), 0)]
    assert torch.equal(before, torch.get_rng_state())
    assert all(one.shape == images.shape and one.min() > -1e-6 and one.max() < 1.0 + 1e-6 for one in found)
    assert torch.equal(found[0], found[-1])
    assert len({one.numpy().tobytes() for one in found}) > 1
    assert any(not torch.allclose(one, images.double(), atol=1e-6) for one in found)


def test_each_image_has_a_crop_of_its_own_that_torchvision_could_have_drawn(model, images):
    found = augmented(model, images, {"RandomCrop": {"size": 32, "padding": 4}}, rng=torch.Generator().manual_seed(0))
    padded = transform.pad(images, [4])
    drawn = []
    for place, image in enumerate(found):
        crops = {(y, x): padded[place, :, y : y + 32, x : x + 32] for y in range(9) for x in range(9)}
        drawn += [at for at, crop in crops.items() if torch.allclose(image, crop.double(), atol=1e-6)]
    assert len(drawn) == len(images)
    assert len(set(drawn)) > 1


def test_draws_come_from_seed_round_client_and_step_alone():
    def seen(seed=0, number=0, server_round=0):
        client = client_of(USUAL, f"seed={seed}", "client.share=delta", "client.local_steps=6")
        return trained(client, (3,), number, server_round).truth.images

    first = seen()
    assert torch.equal(first, seen())
    assert len(first) > 1, "a step draws anew"
    for other in (seen(number=1), seen(server_round=1), seen(seed=1)):
        assert first.shape != other.shape or not torch.equal(first, other)


def test_a_defense_draws_the_same_whatever_the_transforms_draw(model, images):
    after = []
    for transforms in (["RandomHorizontalFlip"], ["RandAugment", "RandomErasing"]):
        rng = torch_generator(0, "client")
        augmented(model, images, *transforms, rng=rng)
        after.append(float(torch.rand((), generator=rng)))
    assert after[0] == after[1]


def test_an_attack_rebuilds_the_flipped_image_and_knows_that_images_are_transformed(tmp_path, images):
    import timm

    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, num_classes=5, embed_dim=48, depth=1, num_heads=3
    )
    own = images[:1, :, :16, :16]
    seen = fedsim.observe(vit, own, [2], augment=[{"RandomHorizontalFlip": {"p": 1.0}}])
    assert [one["name"] for one in seen.defenses] == ["augmentation"]
    assert seen.effects == (TransformsImages(),)
    result = fedsim.attack("patch_gradient", seen)
    torch.testing.assert_close(result.images, own.flip(-1), rtol=0, atol=1e-5, check_dtype=False)
    assert result.certificate.status == "certified"
    assert all(
        torch.equal(again, seen.update.tensors[name])
        for name, again in seen.replay(own.flip(-1), torch.tensor([2])).tensors.items()
    )
    several = fedsim.observe(vit, own, [2], augment=["RandomHorizontalFlip"], share="delta", local_steps=2)
    assert several.replay(own, torch.tensor([2])) is None, "each step may have seen another"


def test_files_keep_it_and_old_settings_have_none(tmp_path):
    from experiments.engine.setup import load_recorded

    setup = prepare(settings("audit", "data=digits", "model=vit_nano", "attack=[patch_gradient]", USUAL))
    client = setup.runtime()
    result = trained(client)
    state = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    setup.factory().make(client.share(result, state, 1, 0, 0), state).save(tmp_path / "seen")
    loaded = load_recorded(tmp_path / "seen")
    (chain,) = loaded.architecture.wrappers[:1]
    assert isinstance(chain, Augmentation | DefenseChain)
    assert loaded.effects == (TransformsImages(),)
    assert loaded.repeatable


def test_the_clients_own_image_is_guessed_from_what_was_seen():
    setup = prepare(settings("audit", "data=digits", "model=vit_nano", "attack=[patch_gradient]", USUAL))
    prior = setup.factory().make(*_made(setup)).image_prior
    train = setup.data.train
    order = range(64)
    own = train.images(order).double()
    batch = setup.defenses.transform_batch(
        Batch(setup.normaliser(train.images(order)), train.labels[order]), torch.Generator().manual_seed(1)
    )
    seen = setup.normaliser.inverse(batch.images)
    guess = setup.guess().double()

    def error(images):
        return float((images - own).square().mean())

    assert error(prior.own_images(seen)) <= error(guess)
    assert error(seen) > error(prior.own_images(seen))


def _made(setup):
    client = setup.runtime()
    result = trained(client)
    state = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    return client.share(result, state, 1, 0, 0), state


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ("RandomFlip", "client.augment=RandomFlip: must be a list of transforms"),
        ("[RandomHorizontalFlp]", r"client.augment=RandomHorizontalFlp: must be one of .*mean 'RandomHorizontalFlip'"),
        ("[Lambda]", "client.augment=Lambda: must be one of AugMix"),
        ("[{RandomCrop: 32}]", "client.augment.RandomCrop=32: must be its settings by name"),
        ("[3]", "client.augment=3: must be a list of transforms"),
    ],
)
def test_a_wrong_name_is_told_at_once(augment, words):
    with pytest.raises(ConfigError, match=words):
        config_of(settings("audit", f"client.augment={augment}"))


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (
            "[{RandomCrop: {sise: 8}}]",
            r"^client.augment.RandomCrop.sise=8: there is no such setting. Did you mean 'size'",
        ),
        ("[RandomCrop]", "client.augment.RandomCrop.size=: missing"),
        ("[{RandomHorizontalFlip: {p: 2.0}}]", r"client.augment.RandomHorizontalFlip=.*must be settings that"),
        ("[{RandomRotation: {degrees: 5, interpolation: linear}}]", "interpolation=linear: must be one of nearest"),
        ("[{RandomErasing: {value: random}}]", "client.augment.RandomErasing.value=random: must be levels"),
        ("[{RandomCrop: {size: 6}}]", "client.augment=RandomCrop: must be one that leaves images of 8x8 as large"),
        ("[{RandomCrop: {size: 32, padding: 4}}]", "client.augment=RandomCrop: must be one for images of 8x8"),
    ],
)
def test_wrong_settings_are_told_before_anything_starts(augment, words):
    with pytest.raises(ConfigError, match=words):
        prepare(settings("audit", "data=digits", "model=vit_nano", f"client.augment={augment}"))


def test_a_defense_of_its_name_is_refused_beside_it():
    config = config_of(settings("audit", FLIP, "defense=[ats]"))
    config.defense["augmentation"] = config.defense["ats"]
    with pytest.raises(ConfigError, match="defense=augmentation: must be another name"):
        _ = config.hooks


def test_each_image_stands_alone_beside_dp_sgd():
    client = client_of(USUAL, "defense=[dp_sgd]")
    chain = client.defenses
    chain.check(Plan(client.model, {"training_mode": True}, {}, chain.defenses))
    assert chain.defenses["augmentation"].per_picture is True
