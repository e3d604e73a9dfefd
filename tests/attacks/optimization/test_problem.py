from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.optimization.matching.objectives import Clipped, Cosine, SquaredL2
from attacks.optimization.problem import (
    blind,
    known_labels,
    local_updates,
    make_update_map,
    random_target,
    shared_update,
    with_clip,
)
from defenses import FixedPositionEmbedding, GradientClip, Withhold
from fedsim.effects import Sparsifies
from fedsim.errors import NotApplicable
from fedsim.settings.local.decay import groups
from fedsim.update import Update

CLIP = ({"_target_": "defenses.GradientClip", "max_norm": 0.5},)


def test_a_public_clip_is_part_of_the_distance(small, victim_of):
    clipped, pictures = small(defenses={"clip": GradientClip(0.5)})
    clipped = replace(clipped, defenses=CLIP)
    victim, target = victim_of(clipped)
    seen = ((pictures - 0.5) / 0.5).float()
    found = victim.gradient(victim.params, seen, torch.tensor([3]))
    objective = with_clip(SquaredL2(relative=True), clipped, "gradient")
    assert isinstance(objective, Clipped)
    assert float(objective(found, target)) < 1e-9
    assert float(SquaredL2(relative=True)(found, target)) > 1
    value, direction = objective.direction({n: 1.1 * t for n, t in found.items()}, target)
    assert float(value) < 1e-9
    assert set(direction) == set(target)


@pytest.mark.parametrize(
    "order",
    [
        ("clip", "withhold"),
        ("withhold", "clip"),
        ("fixed_pe", "clip", "withhold"),
        ("withhold", "clip", "fixed_pe"),
        ("frozen", "clip", "withhold"),
    ],
)
def test_what_is_withheld_behind_a_clip_is_in_its_norm_and_before_it_is_not(small, victim_of, order):
    each = {"clip": GradientClip(0.01), "withhold": Withhold(["head.*"])}
    each |= {"fixed_pe": FixedPositionEmbedding("frozen"), "frozen": Withhold(["pos_embed"], mode="frozen")}
    clipped, pictures = small(defenses={name: each[name] for name in order})
    victim, target = victim_of(clipped)
    update = make_update_map("gradient", victim, clipped)
    found = update({"images": ((pictures - 0.5) / 0.5).float(), "labels": torch.tensor([3])})
    assert "head.weight" not in target
    objective = with_clip(SquaredL2(relative=True), clipped, "gradient")
    assert float(objective(found, target)) < 1e-6


def test_a_cosine_and_an_undefended_client_need_no_clip(small):
    observation, _ = small()
    assert isinstance(with_clip(SquaredL2(), observation, "gradient"), SquaredL2)
    assert isinstance(with_clip(Cosine(), replace(observation, defenses=CLIP), "gradient"), Cosine)


def test_several_steps_are_simulated_by_default(small):
    one, _ = small(lr=0.1)
    several, _ = small(lr=0.1, steps=2)
    gradient, _ = small()
    assert [local_updates("auto", o) for o in (gradient, one, several)] == ["gradient", "gradient", "unroll"]
    assert local_updates("surrogate", one) == "surrogate"


def test_labels_come_from_a_rule_or_from_the_search(small, rng):
    observation, _ = small(count=2)
    assert known_labels("bias_corrected", observation, rng).tolist() == [3, 5]
    assert known_labels("joint", observation, rng) is None
    repeated, _ = small(count=2, labels=(3, 3))
    with pytest.raises(NotApplicable, match="names 1 labels for 2 pictures"):
        known_labels("bias_sign", repeated, rng)


def test_a_random_target_has_the_same_norms(small, rng):
    observation, _ = small()
    found = random_target(observation.gradient, rng)
    for name, tensor in observation.gradient.items():
        torch.testing.assert_close(found[name].norm(), tensor.norm())
        assert not torch.equal(found[name], tensor)


@pytest.mark.parametrize("settings", [{}, {"lr": 0.1}, {"lr": 0.1, "kind": "weights"}])
def test_a_blind_observation_has_the_same_norms_and_nothing_else(small, settings):
    observation, _ = small(**settings)
    observation.update.tensors["pos_embed"][0, 3:5] = observation.global_state["pos_embed"][0, 3:5] * (
        settings.get("kind") == "weights"
    )
    rng, untouched = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    buffered = replace(observation, update=replace(observation.update, buffers={"mean": torch.ones(3)}))
    found = blind(buffered, rng)
    assert torch.equal(rng.get_state(), untouched.get_state())
    assert found.update.buffers == {}
    assert list(found.update.tensors) == list(observation.update.tensors)
    for name, gradient in observation.gradient.items():
        other = found.gradient[name]
        assert found.update.tensors[name].dtype == observation.update.tensors[name].dtype
        torch.testing.assert_close(other.norm(), gradient.norm(), rtol=1e-3, atol=1e-6)
        assert abs(float((other * gradient).sum())) < 0.6 * float(gradient.norm() ** 2)
    assert bool(found.gradient["pos_embed"].any(dim=-1).all())


def stepped(observation, images, labels, make, steps=1, mu=0.0, limit=None, apart=False, **settings):
    """The observation after local steps of torch's own optimiser on one batch, with FedProx's pull."""
    model = observation.build_model()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = tuple(name for name, p in model.named_parameters() if apart and p.ndim == 1)
    optimiser = make(groups(dict(model.named_parameters()), flat), **settings)
    for _ in range(steps):
        optimiser.zero_grad()
        pull = sum((p - start[name]).square().sum() for name, p in model.named_parameters())
        (F.cross_entropy(model(images), labels) + mu / 2 * pull).backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimiser.step()
    change = {name: p.detach() - start[name] for name, p in model.named_parameters()}
    protocol = replace(
        observation.protocol,
        optimizer=make.__name__.lower(),
        steps=steps,
        lrs=(settings["lr"],) * steps,
        weight_decay=settings.get("weight_decay", 0.0),
        eps=settings.get("eps", 1e-8),
        proximal_mu=mu,
        max_grad_norm=limit,
        undecayed=flat,
    )
    return replace(observation, update=Update(change, "delta", len(images)), protocol=protocol)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_weight_decay_is_no_part_of_adams_first_gradient(small, candidates, cpu, make, limit, apart):
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([3])
    plain = stepped(observation, images, labels, torch.optim.SGD, limit=limit, lr=1.0)
    decayed = stepped(observation, images, labels, make, limit=limit, apart=apart, lr=0.01, eps=1e-2, weight_decay=0.01)
    found = shared_update(decayed, "gradient", cpu)
    for name, gradient in shared_update(plain, "gradient", cpu).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_surrogate_is_pulled_and_decays_as_the_client_does(small, victim_of, candidates, cpu, alpha):
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([3])
    client = stepped(observation, images, labels, torch.optim.SGD, steps=3, mu=0.5, lr=0.1, weight_decay=0.1)
    victim, _ = victim_of(observation)
    variables = {"images": images, "labels": labels, "alpha": torch.tensor(alpha, dtype=torch.float64)}
    found = make_update_map("surrogate", victim, client)(variables)
    model = observation.build_model()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += alpha * client.update.tensors[name]
    decay = sum(p.square().sum() for p in model.parameters())
    pull = sum((p - victim.params[name]).square().sum() for name, p in model.named_parameters())
    (F.cross_entropy(model(images), labels) + 0.05 * decay + 0.25 * pull).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("limit", "apart"), [(None, False), (0.5, True)])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_surrogate_matches_the_true_pictures(small, victim_of, candidates, cpu, mu, limit, apart):
    """One step is matched exactly at α = 0; of several the mean gradient lies near the middle of the way."""
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([3])
    victim, _ = victim_of(observation)
    for steps, alpha, most in ((1, 0.0, 1e-20), (3, 1 / 3, 1e-4)):
        client = stepped(
            observation, images, labels, torch.optim.SGD, steps, mu, limit, apart, lr=1e-4, weight_decay=0.2
        )
        target = shared_update(client, "surrogate", cpu)
        variables = {"images": images, "labels": labels, "alpha": torch.tensor(alpha, dtype=torch.float64)}
        found = make_update_map("surrogate", victim, client)(variables)
        assert float(SquaredL2(relative=True)(found, {name: target[name] for name in found})) < most


@pytest.mark.parametrize("apart", [False, True])
def test_decoupled_decay_is_no_part_of_a_surrogates_target(small, candidates, cpu, apart):
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([3])
    plain, decayed = (
        shared_update(
            stepped(observation, images, labels, torch.optim.AdamW, 2, apart=apart, lr=1e-6, weight_decay=wd),
            "surrogate",
            cpu,
        )
        for wd in (0.0, 0.1)
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(decayed[name], tensor, rtol=0, atol=1e-4)


def test_decay_is_not_taken_off_what_was_pruned(small, candidates, cpu):
    observation, _ = small(dtype="float64")
    images, labels = candidates(1, dtype=torch.float64)[0], torch.tensor([3])
    seen = stepped(observation, images, labels, torch.optim.AdamW, 2, lr=1e-3, weight_decay=0.1)
    tensors = {name: tensor * (tensor.abs() >= tensor.abs().mean()) for name, tensor in seen.update.tensors.items()}
    pruned = replace(seen, update=replace(seen.update, tensors=tensors))
    pruned = replace(pruned, defenses=({"name": "topk"},), recorded_effects=(Sparsifies(0.5),))
    found = shared_update(pruned, "surrogate", cpu)
    assert all(bool((found[name][tensor == 0] == 0).all()) for name, tensor in tensors.items())
    assert any(bool((found[name] != 0).any()) for name in found)
