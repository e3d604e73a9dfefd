"""Hooks in a chain, and how local training calls them."""

from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clients.app import MEMORY, ClientRuntime, build_client_app
from clients.training import LossGradient, mean_loss
from defenses import Batch, ClientRound, Defense, DefenseChain, LocalDP
from defenses.compose import build_chain
from fedsim.errors import ConfigError
from fedsim.settings.composition import build_data
from fedsim.update import Update
from fedsim.wire.records import ARRAYS, CONFIG, METRICS, from_arrays, to_arrays
from tests.support.federation import settings


class Scaled(Defense):
    """Multiplies the gradient, and remembers how often a client came."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def begin(self, turn: ClientRound) -> None:
        self.turns = turn.memory.get("turns", torch.zeros(())) + 1
        turn.memory["turns"] = self.turns

    def gradient(self, model, batch, compute, rng):
        return {name: self.factor * tensor for name, tensor in compute(batch).items()}

    def measurements(self):
        return {"turns": float(self.turns)}


class Shifted(Scaled):
    def gradient(self, model, batch, compute, rng):
        return {name: self.factor + tensor for name, tensor in compute(batch).items()}


class Darker(Defense):
    def transform_batch(self, batch, rng):
        return replace(batch, images=batch.images - 0.5)


@pytest.fixture
def runtime():
    def make(chain, *overrides):
        config = settings("audit", "data=digits", "model=vit_nano", *overrides)
        client = ClientRuntime(config, build_data(config))
        client.__dict__["defenses"] = chain
        client.load({name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()})
        return client

    return make


def gradient_under(make, chain):
    client = make(chain, "audit.batch_size=2")
    return client.train(client.data.train.subset([3, 4]), 0, 0).tensors


def test_gradients_pass_through_the_chain_in_its_order(runtime):
    plain = gradient_under(runtime, DefenseChain())
    changed = gradient_under(runtime, DefenseChain({"scaled": Scaled(2.0), "shifted": Shifted(1.0)}))
    other = gradient_under(runtime, DefenseChain({"shifted": Shifted(1.0), "scaled": Scaled(2.0)}))
    for name, tensor in plain.items():
        torch.testing.assert_close(changed[name], 2 * tensor + 1)
        torch.testing.assert_close(other[name], 2 * (tensor + 1))


class InPlace(Defense):
    """Writes into the dictionary that it was given."""

    def gradient(self, model, batch, compute, rng):
        gradients = compute(batch)
        gradients["head.bias"] = torch.zeros_like(gradients["head.bias"])
        return gradients


def test_a_gradient_that_a_defense_replaced_is_shared_as_it_left_it(runtime):
    shared = gradient_under(runtime, DefenseChain({"in_place": InPlace()}))
    assert not shared["head.bias"].any()
    assert shared["head.weight"].any()


def test_gradients_of_single_examples_are_those_of_a_loop(runtime):
    client = runtime(DefenseChain())
    pictures = client.data.train.subset([0, 1, 2])
    batch = Batch(client.normaliser(pictures.images(range(3))), pictures.labels)
    compute = LossGradient(client.model, DefenseChain(), label_smoothing=0.1)
    stacked = compute.per_example(batch)
    together = mean_loss(compute.take_losses())
    losses = []
    for index in range(3):
        alone = compute(Batch(batch.images[index : index + 1], batch.labels[index : index + 1]))
        losses.append(mean_loss(compute.take_losses()))
        assert stacked.keys() == alone.keys()
        for name, tensor in alone.items():
            torch.testing.assert_close(stacked[name][index], tensor, rtol=1e-4, atol=1e-6)
    assert together == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_labels_may_be_shares_of_classes(runtime):
    client = runtime(DefenseChain())
    pictures = client.data.train.subset([0, 1])
    images = client.normaliser(pictures.images(range(2)))
    compute = LossGradient(client.model, DefenseChain(), 0.0)
    hard = {name: tensor.clone() for name, tensor in compute(Batch(images, pictures.labels)).items()}
    classes = client.data.num_classes
    soft = compute(Batch(images, torch.nn.functional.one_hot(pictures.labels, classes).float()))
    for name, tensor in hard.items():
        torch.testing.assert_close(soft[name], tensor)


def test_the_truth_holds_what_the_model_saw_and_what_the_client_has(runtime):
    client = runtime(DefenseChain({"darker": Darker()}))
    pictures = client.data.train.subset([7])
    truth = client.train(pictures, 0, 0, audit=True).truth
    assert torch.equal(truth.originals, pictures.images([0]))
    darker = client.normaliser(truth.originals) - 0.5
    torch.testing.assert_close(truth.images, client.normaliser.inverse(darker))


def test_a_client_remembers_by_its_context_and_not_by_its_worker(runtime):
    config = settings("config", "data=digits", "model=vit_nano", "num_clients=3")
    data = build_data(config)
    client = ClientRuntime(config, data)
    state = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    chain = DefenseChain({"a": Scaled(1.0), "b": Scaled(1.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clients.app.build_chain", lambda config: chain)
        app = build_client_app(config, data)
        for identity in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, identity, 1)
        contexts = [Context(1, node, {"partition-id": node}, RecordDict(), {}) for node in range(2)]
        seen = []
        for node in (0, 1, 0, 0):
            content = RecordDict({ARRAYS: to_arrays(state), CONFIG: ConfigRecord({"server-round": 1})})
            reply = app(Message(content, dst_node_id=node, message_type=MessageType.TRAIN), contexts[node])
            seen.append(reply.content.metric_records[METRICS]["a_turns"])
    assert seen == [1.0, 1.0, 2.0, 3.0]
    kept = from_arrays(contexts[0].state.array_records[MEMORY])
    assert {name: float(tensor) for name, tensor in kept.items()} == {"a/turns": 3.0, "b/turns": 3.0}


class Forgetful(Defense):
    def transform_update(self, update, rng):
        return update.tensors


def test_a_defense_that_shares_no_update_is_named():
    chain = DefenseChain({"forgetful": Forgetful()})
    update = Update({"w": torch.ones(2)}, "gradient", 1)
    with pytest.raises(TypeError, match=r"forgetful\.transform_update gave a dict, no Update: return "):
        chain.transform_update(update, torch.Generator())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_what_the_next_defense_would_pass_over_is_refused(dtype):
    class Spectrum(Defense):
        def transform_update(self, update, rng):
            return replace(update, tensors={name: tensor.to(dtype) for name, tensor in update.tensors.items()})

    update = Update({"w": torch.ones(2)}, "gradient", 1)
    chain = DefenseChain({"spectrum": Spectrum(), "local_dp": LocalDP()})
    with pytest.raises(ConfigError, match=f"^defense=spectrum: must be .* the others pass over w of {dtype}$"):
        chain.transform_update(update, torch.Generator())


def test_a_setting_called_name_is_refused():
    """Records of observations keep the defense's own name there."""
    with pytest.raises(ConfigError, match=r"defense\.mine\.name=x: must be another word"):
        build_chain({"mine": {"_target_": "defenses.GradientNoise", "name": "x"}})


class Misnamed(Defense):
    def transform_updates(self, update, rng):
        return replace(update, tensors={})


class OnlyImages(Defense):
    def transform_batch(self, batch, rng):
        return batch.images


def test_a_class_without_a_hook_is_refused_as_it_would_change_nothing():
    with pytest.raises(ConfigError, match=r"Misnamed has none of the hooks .*'transform_update' by transform_updates"):
        DefenseChain({"misnamed": Misnamed()})


def test_a_batch_must_come_back_as_one():
    batch = Batch(torch.rand(1, 3, 8, 8), torch.tensor([1]))
    with pytest.raises(TypeError, match=r"only\.transform_batch gave a Tensor, no Batch: return dataclasses\.replace"):
        DefenseChain({"only": OnlyImages()}).transform_batch(batch, torch.Generator())
