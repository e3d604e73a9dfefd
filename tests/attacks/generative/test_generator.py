import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks.building import check_classes, check_fit
from attacks.generative import GGL, GIAS, Generator, GeneratorLatent, GeneratorSamples
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models.generator import UNTOLD, ConvGenerator, doublings_of, load_generator, save_generator


def test_a_checkpoint_of_fedsim_prior_needs_no_module(painter, checkpoint, rng):
    latent = torch.randn(3, 6, generator=rng)
    found = Generator(str(checkpoint))
    assert found.latent == 6
    assert torch.equal(found.pictures(latent, None), painter()(latent))
    by_stages = found.as_images(found.run(found.run(found.embed(latent, None), 0, 2), 2))
    assert torch.equal(by_stages, painter()(latent))
    assert not any(parameter.requires_grad for parameter in found.module.parameters())


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_any_module_takes_a_state_dict(tmp_path, rng, suffix):
    module = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Unflatten(1, (3, 2, 2)))
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pt":
        torch.save({"g_ema": module.state_dict()}, path)
    else:
        save_file(module.state_dict(), path)
    fresh = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Unflatten(1, (3, 2, 2)))
    found = Generator(str(path), fresh, latent=4, symmetric=True)
    latent = torch.randn(2, 4, generator=rng)
    torch.testing.assert_close(found.pictures(latent, None), 0.5 * (module(latent) + 1))
    assert len(found.stages) == 3


def test_a_module_of_ones_own_keeps_what_its_file_says_of_its_training(painter, tmp_path):
    path = tmp_path / "g.safetensors"
    save_generator(painter(), path, {"ab", "cd"})
    assert Generator(str(path), ConvGenerator(6, 16, (16, 8))).learned_from == {"ab", "cd"}


def test_what_cannot_be_loaded_is_named(tmp_path, checkpoint):
    with pytest.raises(ConfigError, match="checkpoint=None"):
        Generator()
    with pytest.raises(ConfigError, match=r"generator\.symmetric=True"):
        Generator(str(checkpoint), symmetric=True)
    with pytest.raises(ConfigError, match="no such file"):
        Generator(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="a state dict that fits"):
        Generator(str(checkpoint), nn.Linear(2, 2), latent=2)
    with pytest.raises(ConfigError, match=r"generator\.latent=None"):
        Generator(module=nn.Linear(2, 2))
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    with pytest.raises(ConfigError, match="name their module"):
        Generator(str(other))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="whole safetensors"):
        Generator(str(broken))
    pickled = tmp_path / "evil.pt"
    torch.save(print, pickled)
    with pytest.raises(ConfigError, match="state dict"):
        Generator(str(pickled), nn.Linear(2, 2), latent=2)


def test_loading_allocates_and_draws_nothing_by_the_header_alone(checkpoint):
    before = torch.get_rng_state()
    loaded = load_generator(checkpoint)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())


def test_pictures_of_another_shape_are_refused(checkpoint):
    with pytest.raises(NotApplicable, match=r"\(3, 16, 16\), the model reads \(3, 8, 8\)"):
        Generator(str(checkpoint)).check((3, 8, 8))


@pytest.mark.parametrize("make", [GIAS, GGL, GeneratorSamples])
def test_an_attack_refuses_a_generator_of_another_size_before_it_runs(checkpoint, make):
    attack = make(generator=Generator(str(checkpoint)))
    attack.check_image_shape((3, 16, 16))
    with pytest.raises(ConfigError, match=r"^attack\.x\.generator\.checkpoint=.*of 3×8×8, .* this one makes 3×16×16"):
        check_fit("x", attack, (3, 8, 8))
    with pytest.raises(ConfigError, match=r"generator\.latent=7: must be the length"):
        make(generator=Generator(module=nn.Linear(4, 2), latent=7)).check_image_shape((3, 8, 8))


def test_classes_that_were_not_learned_are_any_class(painter, rng, tmp_path):
    generator = painter(num_classes=4, trained_on=(1, 2))
    save_generator(generator, tmp_path / "g.safetensors")
    again = load_generator(tmp_path / "g.safetensors")
    latent = torch.randn(4, 6, generator=rng)
    made = again(latent, torch.tensor([1, 2, 3, UNTOLD]))
    assert torch.equal(made, generator(latent, torch.tensor([1, 2, 3, UNTOLD])))
    anything = again(latent)
    torch.testing.assert_close(made[2:], anything[2:])
    assert not torch.allclose(made[:2], anything[:2])


def test_only_a_class_that_is_asked_for_must_have_its_name(painter, tmp_path):
    path = tmp_path / "g.safetensors"

    def check(told, ours, conditional=True):
        save_generator(painter(num_classes=2), path, class_names=told)
        attack = GIAS(latent=GeneratorLatent(Generator(str(path)), conditional=conditional))
        check_classes("gias", attack, ours)

    check(("cat", "dog"), ("cat", "dog", "ship"))
    check((), ("cat", "dog"))
    check(("cat", "dog"), ("0", "1"))
    check(("0", "1"), ("cat", "dog"))
    check(("cat", "dog"), ("dog", "cat"), conditional=False)
    with pytest.raises(ConfigError, match=r"^attack=gias: its generator's class 1 is dog, that of the data ship: give"):
        check(("cat", "dog"), ("cat", "ship"))


@pytest.mark.parametrize(("side", "count"), [(4, 0), (8, 1), (28, 2), (32, 3), (224, 5)])
def test_sides_are_halved_down_to_four_or_odd(side, count):
    assert doublings_of(side) == count


def test_a_side_that_does_not_halve_is_refused_before_it_takes_memory():
    with pytest.raises(ConfigError, match=r"as 288 does: 299 ends at 299, with 1,464,745,984 weights"):
        ConvGenerator(side=299)
    assert ConvGenerator(8, side=25, channels=(8,)).settings["side"] == 25
