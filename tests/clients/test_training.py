"""Local training against plain torch, and what the audit record says of it."""

from functools import partial

import pytest
import torch
from flwr.app import Message, RecordDict
from torch.nn import functional as F

from clients.app import ClientRuntime, build_client_app
from clients.training import batches
from defenses.base import Defense
from fedsim.data.tensors import TensorImages
from fedsim.determinism import torch_generator
from fedsim.metrics import score, score_labels
from fedsim.settings.composition import build_data
from fedsim.simulation import InlineGrid, node_id_of
from fedsim.wire.records import ARRAYS, to_arrays
from tests.support.federation import settings


@pytest.fixture
def runtime():
    def make(*overrides):
        config = settings("audit", "data=digits", "model=vit_nano", *overrides)
        return ClientRuntime(config, build_data(config))

    return make


def reference(runtime, pictures, step):
    """The same local steps, written out."""
    model = runtime.model
    parameters = dict(model.named_parameters())
    images = (pictures.images(range(len(pictures))) - 0.5) / 0.5
    for _ in range(runtime.settings.local_epochs):
        model.zero_grad()
        F.cross_entropy(model(images), pictures.labels).backward()
        with torch.no_grad():
            for parameter in parameters.values():
                step(parameter)
    return parameters


def start_state(runtime):
    return {name: tensor.detach().clone() for name, tensor in runtime.model.state_dict().items()}


def test_the_shared_gradient_is_torchs(runtime):
    client = runtime("audit.batch_size=3")
    pictures = client.data.train.subset([5, 9, 2])
    state = start_state(client)
    client.load(state)
    result = client.train(pictures, 0, 0, audit=True)
    expected = reference(client, pictures, lambda p: None)
    for name, parameter in expected.items():
        torch.testing.assert_close(result.tensors[name], parameter.grad, rtol=1e-5, atol=1e-7)
    assert result.protocol.steps == 1
    assert result.protocol.optimizer == "none"
    assert sorted(result.truth.ids) == sorted(pictures.ids)


@pytest.mark.parametrize("share", ["delta", "weights"])
def test_local_steps_are_torchs_sgd(runtime, share):
    client = runtime(f"client.share={share}", "audit.batch_size=2", "client.local_epochs=3", "client.optimizer.lr=0.2")
    pictures = client.data.train.subset([0, 1])
    state = start_state(client)
    client.load(state)
    result = client.train(pictures, 0, 0, audit=True)
    update = client.share(result, state, 2, 0, 0).update
    client.load(state)
    expected = reference(client, pictures, lambda p: p.sub_(0.2 * p.grad))
    assert update.kind == share
    for name, parameter in expected.items():
        want = parameter.detach() - state[name] if share == "delta" else parameter.detach()
        torch.testing.assert_close(update.tensors[name], want, rtol=1e-4, atol=1e-6)
    assert result.protocol.lrs == (0.2, 0.2, 0.2)
    assert len(result.truth.ids) == 2, "pictures that come again unchanged count once"


def test_fedprox_pulls_towards_the_global_weights(runtime):
    client = runtime("client.share=delta", "client.local_epochs=5", "client.optimizer.lr=0.1")
    pictures = client.data.train.subset([0])
    state = start_state(client)

    def distance(mu):
        client.load(state)
        result = client.train(pictures, 0, 0, proximal_mu=mu)
        return sum(tensor.square().sum() for tensor in result.tensors.values()).sqrt()

    assert distance(5.0) < 0.8 * distance(0.0)


def test_fedprox_changes_no_gradient_of_the_global_weights(runtime):
    client = runtime("client.share=gradient")
    pictures = client.data.train.subset([0, 1])
    client.load(start_state(client))
    plain, proximal = (client.train(pictures, 0, 0, proximal_mu=mu) for mu in (0.0, 5.0))
    assert proximal.protocol == plain.protocol
    assert all(torch.equal(tensor, plain.tensors[name]) for name, tensor in proximal.tensors.items())


def test_schedulers_are_stepped_and_recorded(runtime):
    scheduler = "client.scheduler={_target_:torch.optim.lr_scheduler.StepLR,step_size:1,gamma:0.5}"
    client = runtime("client.share=delta", "client.local_epochs=3", scheduler, "client.optimizer.lr=0.4")
    client.load(start_state(client))
    assert client.train(client.data.train.subset([0]), 0, 0).protocol.lrs == (0.4, 0.2, 0.1)


def test_draws_depend_on_seed_round_and_client_alone(runtime):
    client = runtime("audit.batch_size=1")
    state = start_state(client)
    pictures = client.data.train.subset(range(40))

    def chosen(number, server_round):
        client.load(state)
        return client.train(pictures, number, server_round, audit=True).truth.ids

    first = [chosen(n, r) for n in range(3) for r in range(3)]
    assert first == [chosen(n, r) for n in range(3) for r in range(3)]
    assert len(set(first)) > 5


def test_identity_defenses_share_the_bits_of_the_undefended_run(runtime):
    for share in ("gradient", "delta", "weights"):
        updates = []
        for defense in ("defense=[]", "defense=[gradient_noise,gradient_clip]"):
            identity = ["defense.gradient_noise.std=0.0", "defense.gradient_noise.relative_norm=null"]
            identity += ["defense.gradient_clip.max_norm=inf"]
            client = runtime(f"client.share={share}", defense, *(identity if defense != "defense=[]" else []))
            state = start_state(client)
            client.load(state)
            updates.append(client.share(client.train(client.data.train.subset([3]), 0, 0), state, 1, 0, 0).update)
        plain, identical = updates
        assert all(torch.equal(plain.tensors[name], identical.tensors[name]) for name in plain.tensors)


def test_batches_cover_an_epoch_without_repeats(rng):
    drawn = list(batches(10, 4, 2, None, rng))
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2]
    assert sorted(torch.cat(drawn[:3]).tolist()) == list(range(10))
    assert len(list(batches(10, 4, 1, 7, rng))) == 7


def by_hand(purpose, count, orders):
    """The orders of a client's pictures, and the next number of its generator."""
    rng = torch_generator(0, purpose, 3, 7)
    return [torch.randperm(count, generator=rng).tolist() for _ in range(orders)], float(torch.rand((), generator=rng))


@pytest.mark.parametrize(
    ("sharing", "orders", "own"),
    [
        (["client.share=gradient"], 1, False),
        (["client.share=delta", "client.local_epochs=1"], 1, False),
        (["client.share=delta", "client.local_epochs=3"], 3, True),
        (["client.share=delta", "client.local_steps=4"], 2, True),
    ],
)
def test_what_a_defense_draws_changes_no_batch(sharing, orders, own, runtime, monkeypatch):
    """And where one order is all that is drawn, its draws are those of the generator behind that order."""
    client = runtime(*sharing, "audit.batch_size=2")
    pictures = client.data.train.subset(range(6))
    seen, drawn = [], []

    class Draws(Defense):
        def transform_batch(self, batch, rng):
            drawn.append(float(torch.rand((), generator=rng)))
            return batch

    images = type(pictures).images
    monkeypatch.setattr(type(pictures), "images", lambda self, i: seen.append(torch.as_tensor(i)) or images(self, i))
    expected, behind = by_hand("client", 6, orders)
    for defenses in ({}, {"draws": Draws()}):
        client.defenses.defenses = defenses
        client.load(start_state(client))
        seen.clear()
        client.train(pictures, 7, 3)
        steps = torch.cat(seen).tolist()
        assert steps == [place for order in expected for place in order][: len(steps)]
        assert len(steps) == (2 if orders == 1 and "gradient" in sharing[0] else 8 if orders == 2 else 6 * orders)
    assert (drawn[0] == behind) != own
    if own:
        assert drawn[0] == by_hand("client-defense", 6, 0)[1]


@pytest.mark.parametrize(
    "identity",
    [
        ["defense=[outpost]", "defense.outpost.prune=0.0", "defense.outpost.noise=0.0"],
        ["defense=[outpost]", "defense.outpost.beta=1e9"],
        ["defense=[mjp_jp]", "defense.mjp_jp.ratio=0.0"],
    ],
)
def test_identities_that_draw_hold_over_several_epochs(identity, runtime):
    sharing = ["client.share=delta", "client.local_epochs=3", "audit.batch_size=2"]
    updates = []
    for defense in (["defense=[]"], identity):
        client = runtime(*sharing, *defense)
        client.load(start_state(client))
        updates.append(client.train(client.data.train.subset(range(6)), 0, 0).tensors)
    assert all(torch.equal(updates[0][name], updates[1][name]) for name in updates[0])


@pytest.mark.parametrize(
    "defense", [["defense=[]"], ["defense=[mjp_jp]", "defense.mjp_jp.ratio=0.5"], ["defense=[ats]"]]
)
def test_one_picture_in_several_steps_is_one_to_protect(runtime, defense):
    """A defense that changes it anew in each step must not make a perfect reconstruction look like a quarter of one."""
    client = runtime("client.share=delta", "client.local_steps=4", *defense)
    pictures = client.data.train.subset([5])
    client.load(start_state(client))
    truth = client.train(pictures, 0, 0, audit=True).truth
    assert len(truth.ids) == (1 if defense == ["defense=[]"] else 4)
    rows = score(truth, pictures.images([0]), pictures.labels, perceptual=False)
    assert all(row.private_psnr >= 100 for row in rows)
    assert score_labels(truth, pictures.labels).exact


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_image_is_not_changed_by_the_numbers_that_a_model_computes_in(runtime, dtype, rng):
    client = runtime("audit.batch_size=2")
    client.model.to(dtype)
    pictures = TensorImages(torch.rand(2, 3, 8, 8, generator=rng), torch.tensor([3, 1]))
    truth = client.train(pictures, 0, 0, audit=True).truth
    assert torch.equal(truth.images, truth.originals.double())
    assert [row.changed for row in score(truth, truth.images, None, perceptual=False)] == [False, False]


def shared(client, changes, proximal_mu=0.0):
    state = start_state(client)
    client.load(state)
    pictures = client.data.train.subset([0, 1, 2])
    result = client.train(pictures, 0, 1, proximal_mu, changes=changes)
    update = client.share(result, state, len(pictures), 0, 1).update
    client.load(state)
    return result, update


@pytest.mark.parametrize("proximal_mu", [0.0, 0.5])
def test_whole_weights_need_no_change_of_them(runtime, proximal_mu):
    client = runtime("client.share=weights", "audit.batch_size=2", "client.local_epochs=2")
    whole, with_changes = shared(client, True, proximal_mu)
    lean, without = shared(client, False, proximal_mu)
    assert whole.tensors
    assert not lean.tensors
    assert (without.kind, without.num_examples, without.withheld) == ("weights", 3, {})
    assert without.tensors.keys() == with_changes.tensors.keys()
    for name, tensor in with_changes.tensors.items():
        assert torch.equal(without.tensors[name], tensor), name
        assert without.tensors[name].data_ptr() != client.model.get_parameter(name).data_ptr(), (
            "the next one trains there"
        )


@pytest.mark.parametrize("override", ["client.share=delta", "defense=[topk]"])
def test_a_change_that_is_of_use_is_always_there(runtime, override):
    client = runtime("client.share=weights", "audit.batch_size=2", "client.local_epochs=1", override)
    assert shared(client, False)[0].tensors


def test_frozen_parameters_are_withheld_from_whole_weights(runtime):
    client = runtime("client.share=weights", "audit.batch_size=2", "client.local_epochs=1", "defense=[fixed_pe]")
    _, update = shared(client, False)
    assert update.withheld == {"pos_embed": "fixed_pe"}
    assert "pos_embed" not in update.tensors


@pytest.mark.parametrize("name", ["Adafactor", "Adamax", "RMSprop", "Rprop"])
def test_the_protocol_is_of_any_optimiser_of_torchs(runtime, name):
    client = runtime("client.share=delta", f"client.optimizer={{_target_:torch.optim.{name},lr:0.001}}")
    client.load(start_state(client))
    protocol = client.train(client.data.train.subset([0]), 0, 0).protocol
    assert (protocol.optimizer, protocol.lrs) == (name.lower(), (0.001,))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("client.local_epochs=2", "client.local_epochs=2: must be few enough for 5 local steps a round, not 6"),
        ("client.local_steps=6", "client.local_steps=6: must be few enough for 5 local steps a round, not 6"),
        ("client.local_epochs=1", None),
    ],
)
def test_more_steps_than_a_reply_may_name_are_not_taken(override, words, monkeypatch):
    config = settings("config", "strategy=fedavg", "data=digits", "num_clients=1", "client.batch_size=4", override)
    data, taken = build_data(config), []
    monkeypatch.setattr(data, "client", lambda number: data.train.subset(range(12)))
    monkeypatch.setattr("clients.training.MOST_STEPS", 5)
    train = ClientRuntime.train
    monkeypatch.setattr(ClientRuntime, "train", lambda *given, **more: taken.append(1) or train(*given, **more))
    grid = InlineGrid(1, partial(build_client_app, config, data))
    state = start_state(ClientRuntime(config, data))
    question = Message(RecordDict({ARRAYS: to_arrays(state)}), node_id_of(0), "train")
    (reply,) = grid.send_and_receive([question])
    assert len(taken) == (words is None)
    assert words in reply.error.reason if words else not reply.has_error()
