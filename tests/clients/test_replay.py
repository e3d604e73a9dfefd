"""What a client computed comes out once more to the bit, wherever its defenses say that it can."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import fedsim
from clients.replay import replay
from defenses.base import Defense
from fedsim.effects import Unpublished
from fedsim.ground_truth import GroundTruth
from tests.support.clients import observe_client

CONF = Path(__file__).resolve().parents[2] / "conf" / "defense"
DEFENSES = sorted(path.stem for path in CONF.glob("*.yaml"))
MASKED = {name for name in DEFENSES if name.startswith("mjp")}
REPEATABLE = MASKED | {
    "ats",
    "fixed_pe",
    "gradient_clip",
    "half",
    "no_pe",
    "secure_aggregation",
    "soteria",
    "withhold",
    "withhold_pe",
}
"""As they are configured."""
TINY = ("data=digits", "model=vit_nano", "+model.kwargs.depth=1")


def observe(*overrides, positions=(0,)):
    return observe_client(*TINY, *overrides, positions=positions)


def same(observation, truth):
    again = observation.replay(truth.images, truth.labels)
    assert again is not None
    shared = observation.update.tensors
    if observation.update.kind == "weights":
        shared = {name: tensor - observation.global_state[name] for name, tensor in shared.items()}
    return all(torch.equal(again.tensors[name], tensor) for name, tensor in shared.items())


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_that_says_so_is_repeated_to_the_bit(name):
    observation, truth = observe(f"defense={name}")
    assert observation.repeatable == (name in REPEATABLE)
    if name in MASKED:  # a mask is not drawn again: what comes out is the update of these images without one
        assert observation.replay(truth.images, truth.labels) is not None, "something was drawn"
    elif name in REPEATABLE:
        assert same(observation, truth)
    else:
        assert observation.replay(truth.images, truth.labels) is None


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("client.share=delta",),
        ("client.share=weights",),
        ("client.share=delta", "client.local_steps=3"),
        ("client.share=delta", "client.local_steps=2", "+client.optimizer.momentum=0.9"),
        ("client.share=delta", "client.local_steps=3", "client.schedule.shape=cosine", "client.schedule.warmup=0.5"),
        ("client.share=delta", "+client.optimizer.weight_decay=1e-3"),
        ("client.max_grad_norm=0.1",),
        ("client.share=delta", "client.local_steps=3", "client.max_grad_norm=0.1", "+client.optimizer.momentum=0.9"),
        (
            "client.share=delta",
            "client.local_steps=2",
            "+client.optimizer.weight_decay=0.1",
            "client.no_decay=true",
            "client.schedule.shape=linear",
        ),
        ("client.label_smoothing=0.1",),
        ("defense=gradient_clip", "defense.gradient_clip.max_norm=0.1"),
        ("defense=dp_sgd", "defense.dp_sgd.noise_multiplier=0.0", "defense.dp_sgd.max_grad_norm=0.1"),
        (
            "defense=dp_sgd",
            "defense.dp_sgd.noise_multiplier=0.0",
            "defense.dp_sgd.max_grad_norm=0.1",
            "defense.dp_sgd.per_layer=true",
        ),
        ("defense=topk", "defense.topk.error_feedback=false", "defense.topk.ratio=0.5"),
        ("defense=[ats,half]", "defense.ats.flip=true"),
    ],
)
def test_the_truth_gives_the_shared_bits(overrides):
    observation, truth = observe(*overrides)
    assert observation.repeatable
    assert same(observation, truth)
    other = truth.images.flip(-1)
    again = observation.replay(other, truth.labels)
    assert again is not None
    weight = next(name for name in observation.update.tensors if name.endswith("proj.weight"))
    assert not torch.equal(again.tensors[weight], observation.update.tensors[weight]), "another image, another update"


def test_a_batch_is_repeated_whatever_its_order():
    observation, truth = observe("audit.batch_size=3", "client.batch_size=3", positions=(0, 1, 2))
    order = torch.tensor([2, 0, 1])
    again = observation.replay(truth.images[order], truth.labels[order])
    assert again is not None
    for name, tensor in observation.update.tensors.items():
        torch.testing.assert_close(again.tensors[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [(), ("client.share=delta",)])
def test_a_batch_in_parts_is_repeated_in_the_same_parts(steps):
    words = ("client.batch_size=3", "client.micro_batch_size=2", *steps)
    observation, truth = observe("audit.batch_size=3", *words, positions=(0, 1, 2))
    orders = [torch.tensor(order) for order in itertools.permutations(range(3))]
    again = [observation.replay(truth.images[order], truth.labels[order]) for order in orders]
    assert any(
        all(torch.equal(one.tensors[name], tensor) for name, tensor in observation.update.tensors.items())
        for one in again
    )


def test_what_cannot_be_known_is_not_repeated():
    several, truth = observe(
        "client.batch_size=2", "client.share=delta", "client.local_epochs=1", positions=(0, 1, 2, 3)
    )
    assert several.repeatable
    assert several.replay(truth.images[:2], truth.labels[:2]) is None, "the order of its batches is unknown"
    adaptive, truth = observe("client.share=delta", "client.optimizer._target_=torch.optim.Adam")
    assert adaptive.replay(truth.images, truth.labels) is None
    dropout, truth = observe("+model.kwargs.drop_rate=0.5")
    before = torch.get_rng_state()
    assert dropout.replay(truth.images, truth.labels) is None
    assert torch.equal(before, torch.get_rng_state()), "whoever asks has the same draws afterwards"


class Remembering(nn.Module):
    """What it has seen moves its output, and no state holds it."""

    def __init__(self):
        super().__init__()
        self.proj, self.head = nn.Linear(48, 8), nn.Linear(8, 5)
        self.register_buffer("seen", torch.zeros(48), persistent=False)

    def forward(self, x):
        self.seen = self.seen + 1 + x.flatten(1).mean(0)
        return self.head(self.proj(x.flatten(1) + self.seen))


def test_a_client_begins_with_the_model_as_it_was_built():
    image = torch.rand(1, 3, 4, 4)
    seen = fedsim.observe(Remembering(), image, [1], finetune={"lora": {"targets": ["proj"]}}, share="delta")
    assert same(seen, GroundTruth(image, torch.tensor([1]), ("a",), image))


def test_a_model_that_draws_from_python_is_not_repeated():
    class Mirrors(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(48, 5)

        def forward(self, x):
            return self.layer((x.flip(-1) if random.random() < 0.5 else x).flatten(1))

    image = torch.rand(1, 3, 4, 4)
    seen = fedsim.observe(Mirrors(), image, [3])
    assert seen.replay(image, torch.tensor([3])) is None


def test_a_defense_says_nothing_unless_it_does():
    assert not Defense().repeatable
    assert Defense().effects() == (Unpublished("Defense"),)


def test_an_observation_without_a_replayer_is_not_repeatable():
    observation, truth = observe()
    bare = type(observation)(**{**vars(observation), "replayer": None})
    assert not bare.repeatable
    assert bare.replay(truth.images, truth.labels) is None
    summed = type(observation)(**{**vars(observation), "summed": 2})
    assert not summed.repeatable
    assert observation.replayer is replay
