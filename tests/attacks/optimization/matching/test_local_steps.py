"""Simulated local steps against torch's own optimisers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedsim
from attacks.optimization.matching.local_steps import (
    GradientMap,
    SurrogateWeights,
    UnrolledSteps,
    clipped,
    update_scale,
)
from attacks.optimization.problem import clip_norm, local_updates, make_update_map, shared_update
from attacks.victim import make_victim
from fedsim.determinism import seeded_globals
from fedsim.effects import Clips
from fedsim.errors import NotApplicable
from fedsim.models import Architecture, ModelSpec

CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "clipped": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, 0.5),
    "clipped_adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1}, 0.5),
    "adam": (torch.optim.Adam, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.1, "eps": 1e-4, "betas": (0.5, 0.3), "amsgrad": True}),
}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_unrolled_steps_are_the_optimisers(small, victim_of, candidates, name, apart):
    make, settings, *limit = CASES[name]
    observation, _ = small(dtype="float64")
    victim, _ = victim_of(observation)
    protocol = replace(
        observation.protocol,
        batch_size=2,
        steps=3,
        lrs=(settings["lr"],) * 3,
        optimizer="sgd" if make is torch.optim.SGD else make.__name__.lower(),
        momentum=settings.get("momentum", 0.0),
        dampening=settings.get("dampening", 0.0),
        nesterov=settings.get("nesterov", False),
        weight_decay=settings.get("weight_decay", 0.0),
        betas=settings.get("betas", (0.9, 0.999)),
        eps=settings.get("eps", 1e-8),
        amsgrad=settings.get("amsgrad", False),
        max_grad_norm=limit[0] if limit else None,
        undecayed=tuple(name for name, tensor in victim.params.items() if apart and tensor.ndim == 1),
    )
    images, labels = candidates(1, batch=4, dtype=torch.float64)[0], torch.tensor([1, 2, 3, 4])
    found = UnrolledSteps(victim, protocol)({"images": images, "labels": labels})
    model = observation.build_model()
    parameters = list(model.parameters())
    if apart:
        decayed, kept = ([p for p in parameters if (p.ndim == 1) == one] for one in (False, True))
        parameters = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
    optimiser = make(parameters, **settings)
    for part in (slice(0, 2), slice(2, 4), slice(0, 2)):
        optimiser.zero_grad()
        F.cross_entropy(model(images[part]), labels[part]).backward()
        if limit:
            assert float(torch.nn.utils.clip_grad_norm_(model.parameters(), *limit)) > limit[0]
        optimiser.step()
    for key, parameter in model.named_parameters():
        expected = (victim.params[key] - parameter.detach()) / update_scale(protocol)
        torch.testing.assert_close(found[key], expected, rtol=1e-6, atol=1e-9)


KIN = {
    "adam": {},
    "amsgrad": {"amsgrad": True, "betas": [0.5, 0.3]},
    "decoupled": {"weight_decay": 0.5, "decoupled_weight_decay": True},
    "adamw": {"_target_": "torch.optim.AdamW", "weight_decay": 0.5, "amsgrad": True, "betas": [0.5, 0.3]},
}


@pytest.mark.parametrize("name", KIN)
def test_a_clients_own_adam_is_the_one_that_is_simulated(name, cpu):
    with seeded_globals(0, "weights"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5))
    images, labels = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 3])
    optimizer = {"_target_": "torch.optim.Adam", "lr": 0.05, "eps": 1e-4, **KIN[name]}
    seen = fedsim.observe(model, images, labels, share="delta", optimizer=optimizer, local_steps=6)
    victim = make_victim(seen, seen.update.tensors, cpu, fused_attention=False)
    simulated = UnrolledSteps(victim, seen.protocol)({"images": seen.normalised(images).float(), "labels": labels})
    for key, change in seen.update.tensors.items():
        off = -update_scale(seen.protocol) * simulated[key] - change
        assert float(off.norm() / change.norm()) < 1e-4, key


@pytest.mark.parametrize("choice", ["gradient", "unroll"])
def test_what_was_withheld_counts_in_the_norm(small, victim_of, candidates, cpu, choice):
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([1])
    model = observation.build_model()
    F.cross_entropy(model(images), labels).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    shared = {name: p.grad for name, p in model.named_parameters() if name != "head.weight"}
    victim = make_victim(observation, shared, cpu, fused_attention=False)
    assert list(victim.unshared) == ["head.weight"]
    protocol = replace(observation.protocol, optimizer="sgd", lrs=(0.1,), max_grad_norm=0.5)
    seen = replace(observation, protocol=protocol)
    found = make_update_map(choice, victim, seen)({"images": images, "labels": labels})
    assert found.keys() == shared.keys()
    for name, tensor in shared.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-9)
    assert make_update_map("gradient", victim, seen, sized=False).plain


@pytest.mark.parametrize(("pictures", "size", "steps"), [(12, 8, 2), (5, 2, 4), (3, 4, 2)])
def test_the_last_batch_of_an_epoch_may_be_short(small, victim_of, candidates, pictures, size, steps):
    """Batches as `clients.training.batches` makes them, in order; every picture has a derivative, mapped ones too."""
    observation, _ = small(dtype="float64")
    victim, _ = victim_of(observation)
    protocol = replace(observation.protocol, batch_size=size, steps=steps, lrs=(0.1,) * steps, optimizer="sgd")
    unrolled = UnrolledSteps(victim, protocol)
    images, labels = candidates(2, batch=pictures, dtype=torch.float64), torch.arange(pictures) % 10
    found = unrolled({"images": images[0], "labels": labels})
    model = observation.build_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = torch.arange(pictures).split(size)
    for step in range(steps):
        part = parts[step % len(parts)]
        optimiser.zero_grad()
        F.cross_entropy(model(images[0][part]), labels[part]).backward()
        optimiser.step()
    for key, parameter in model.named_parameters():
        expected = (victim.params[key] - parameter.detach()) / update_scale(protocol)
        torch.testing.assert_close(found[key], expected, rtol=1e-6, atol=1e-9)

    def size_of(pixels):
        return torch.stack([t.square().sum() for t in unrolled({"images": pixels, "labels": labels}).values()]).sum()

    derivative = torch.func.vmap(torch.func.grad(size_of))(images)
    assert bool((derivative.flatten(2).norm(dim=2) > 0).all())


def test_unrolling_refuses_other_optimisers(small, victim_of):
    observation, _ = small()
    victim, _ = victim_of(observation)
    with pytest.raises(NotApplicable, match="rmsprop"):
        UnrolledSteps(victim, replace(observation.protocol, optimizer="rmsprop", lrs=(0.1,)))


def test_the_surrogate_lies_between_the_weights(small, victim_of, candidates):
    observation, _ = small()
    victim, _ = victim_of(observation)
    end = {n: t + 0.01 for n, t in victim.params.items()}
    surrogate = SurrogateWeights(victim, end, observation.protocol)
    variables = {"images": candidates(1)[0], "labels": torch.tensor([3])}
    for alpha, params in ((0.0, victim.params), (1.0, end)):
        found = surrogate({**variables, "alpha": torch.tensor(alpha)})
        expected = victim.gradient(params, variables["images"], variables["labels"])
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("defenses", [["withhold"], ["gradient_clip", "withhold"]])
def test_what_is_withheld_and_trained_moves_in_the_steps_too(defenses, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    images, labels = torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.tensor([1, 3])
    named = {"withhold": {"patterns": ["3.weight", "3.bias"]}, "gradient_clip": {"max_norm": 0.05}}
    chosen = [{name: named[name]} for name in defenses]
    seen = fedsim.observe(model, images, labels, share="delta", local_steps=8, lr=0.5, defense=chosen)
    assert set(seen.update.tensors) == {"1.weight", "1.bias"}
    victim = make_victim(seen, seen.update.tensors, cpu, fused_attention=False)
    simulated = make_update_map("unroll", victim, seen)({"images": seen.normalised(images), "labels": labels})
    bound = clip_norm(seen, "unroll")
    assert bound is None
    for key, change in seen.update.tensors.items():
        torch.testing.assert_close(-update_scale(seen.protocol) * simulated[key], change, rtol=1e-6, atol=1e-12)


DP, WIDE = ({"dp_sgd": {"max_grad_norm": norm, "noise_multiplier": 0.0}} for norm in (0.1, 10.0))
CLIP = {"gradient_clip": {"max_norm": 0.1}}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clips", [(), (CLIP,), (DP,), (WIDE, CLIP)], ids=["none", "update", "example", "both"])
def test_a_pair_of_the_clients_own_moves_in_its_first_steps_and_no_defense_sees_it(clips, steps, cpu):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10, dtype="float64"), (), 0).build(keep=True)
    image, pair = torch.rand(1, 3, 8, 8, dtype=torch.float64), {"lora": {"aggregate": "local_pair"}}
    defense = [*clips, {"withhold": {"patterns": ["head.*"]}}] if clips else []
    seen = fedsim.observe(vit, image, [3], share="delta", local_steps=steps, lr=0.5, finetune=pair, defense=defense)
    victim = make_victim(seen, seen.update.tensors, cpu, fused_attention=False)
    choice = local_updates("auto", seen)
    simulated = make_update_map(choice, victim, seen)({"images": seen.normalised(image), "labels": torch.tensor([3])})
    for key, change in seen.update.tensors.items():
        torch.testing.assert_close(-update_scale(seen.protocol) * simulated[key], change, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("share", ["gradient", "delta", "weights"])
def test_an_examples_clip_is_that_of_its_one_step_whatever_is_shared(share, cpu):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    image, step = torch.rand(1, 3, 4, 4, dtype=torch.float64), {} if share == "gradient" else {"local_steps": 1}
    private = [{"dp_sgd": {"max_grad_norm": 0.03, "noise_multiplier": 0.0}}]
    seen = fedsim.observe(model, image, [3], share=share, lr=0.1, defense=private, **step)
    assert clip_norm(seen, "gradient") == 0.03
    victim = make_victim(seen, seen.update.tensors, cpu, fused_attention=False)
    found = make_update_map("gradient", victim, seen)({"images": seen.normalised(image), "labels": torch.tensor([3])})
    target, whole = shared_update(seen, "gradient", cpu), torch.cat([one.flatten() for one in found.values()]).norm()
    assert whole > 0.1
    for name, tensor in target.items():
        torch.testing.assert_close(found[name] * 0.03 / whole, tensor, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("step", [{}, {"share": "delta", "local_steps": 1}, {"share": "delta", "local_steps": 3}])
@pytest.mark.parametrize("count", [1, 3])
def test_single_images_are_clipped_as_dp_sgd_clips_them(cpu, count, step, per_layer):
    model = ModelSpec("vit_nano_patch2_8", 10, dtype="float64").build(0)
    images, labels = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1)), [3, 1, 4][:count]
    private = [{"dp_sgd": {"max_grad_norm": 0.3, "noise_multiplier": 0.0, "per_layer": per_layer}}]
    seen = fedsim.observe(model, images.double(), labels, defense=private, lr=0.1, **step)
    choice = local_updates("auto", seen)
    update = make_update_map(choice, make_victim(seen, seen.update.tensors, cpu, fused_attention=False), seen)
    found = update({"images": seen.normalised(images.double()), "labels": torch.tensor(labels)})
    if isinstance(update, GradientMap):  # the objective clips it
        found = clipped(found, 0.3, added=0.0)
    for name, tensor in shared_update(seen, choice, cpu).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("count", "per_layer"), [(2, False), (1, True)])
def test_first_order_searches_see_single_images_clipped_too(count, per_layer):
    """A difference of two gradients takes them for plain: of a ViT in float32 it was the default."""
    model = ModelSpec("vit_nano_patch2_8", 10).build(0)
    images, labels = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1)), [3, 1][:count]
    private = [{"dp_sgd": {"max_grad_norm": 0.3, "noise_multiplier": 0.0, "per_layer": per_layer}}]
    seen = fedsim.observe(model, images, labels, defense=private)
    few = {"steps": 1, "restarts": 1, "frames": 0, "labels": labels}
    found = fedsim.attack("inverting_gradients", seen, **few)
    assert found.status == "done", found.reason
    refused = fedsim.attack("inverting_gradients", seen, derivative="finite_difference", **few)
    assert refused.status == "refused"
    assert "a gradient clipped image by image needs double_backward" in refused.reason


def test_a_clip_of_the_whole_behind_dp_sgd_counts_what_is_withheld_later(cpu):
    model = ModelSpec("vit_nano_patch2_8", 10, dtype="float64").build(0)
    images, labels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double(), [3, 1]
    private = {"dp_sgd": {"max_grad_norm": 0.3, "noise_multiplier": 0.0}}
    private |= {"gradient_clip": {"max_norm": 0.05}, "withhold": {"patterns": ["pos_embed"]}}
    seen = fedsim.observe(model, images, labels, defense=private)
    update = make_update_map("gradient", make_victim(seen, seen.update.tensors, cpu, fused_attention=False), seen)
    found = update({"images": seen.normalised(images), "labels": torch.tensor(labels)})
    for name, tensor in shared_update(seen, "gradient", cpu).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-9)


def test_an_examples_clip_is_there_behind_a_step_of_adam_too(cpu):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5))
    adam = {"_target_": "torch.optim.Adam", "lr": 1e-3, "eps": 1e-3}
    private = [{"dp_sgd": {"max_grad_norm": 0.03, "noise_multiplier": 0.0}}]
    step = {"share": "delta", "local_steps": 1, "optimizer": adam}
    seen = fedsim.observe(model, torch.rand(1, 3, 4, 4), [3], defense=private, **step)
    assert clip_norm(seen, "gradient") == 0.03
    result = fedsim.attack("inverting_gradients", seen, steps=2, restarts=1, frames=0)
    assert result.status == "done"


def test_fedproxs_pull_is_added_to_what_a_defense_clipped(small, victim_of):
    observation, pictures = small(dtype="float64")
    victim, _ = victim_of(observation)
    protocol = replace(observation.protocol, steps=3, lrs=(0.1,) * 3, optimizer="sgd", proximal_mu=0.5)
    seen, labels = observation.normalised(pictures.double()), torch.tensor([3])
    found = UnrolledSteps(victim, protocol, example=Clips(0.03, "example"))({"images": seen, "labels": labels})
    model, start = observation.build_model(), observation.global_state
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(seen), labels).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        assert norm > 0.03
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * (p.grad * 0.03 / norm + 0.5 * (p - start[name]))
    for name, parameter in model.named_parameters():
        expected = (start[name] - parameter.detach()) / update_scale(protocol)
        torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("defense", ["topk", "qsgd", "gradient_clip", "sign"])
def test_a_decayed_step_behind_what_acts_on_it_is_matched_as_it_was(defense):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 5))
    decayed = {"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": 1e-3}

    def resolved(**settings):
        return local_updates("auto", fedsim.observe(model, torch.rand(1, 3, 4, 4), [3], **settings))

    step = {"share": "delta", "local_steps": 1}
    assert resolved(**step, optimizer=decayed, defense=[defense]) == "unroll"
    assert resolved(**step, optimizer=decayed) == resolved(**step, defense=[defense]) == "gradient"
