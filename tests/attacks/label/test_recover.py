from collections import Counter
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedsim
from attacks.label import RecoverLabels
from defenses import GradientClip, GradientNoise
from fedsim.effects import Sparsifies
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec
from fedsim.public_images import PublicImages

SMALL = {"depth": 2}


def auxiliary(observation, pictures: Tensor) -> Tensor:
    """The mean softmax of the global model over pictures that no client holds."""
    model = observation.build_model()
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (observation.mean, observation.std))
    with torch.no_grad():
        return model(((pictures - mean) / std).float()).softmax(1).mean(0)


def test_one_example_is_always_right_and_certified(tools, rng, cpu):
    for label in range(10):
        result = RecoverLabels()(tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [label]), rng, cpu)
        assert result.labels.tolist() == [label]
        assert result.labels.dtype == torch.int64
        assert result.images is None
        assert result.certificate.certified, result.certificate.reason


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"lr": 0.01, "kind": "weights"}, {"label_smoothing": 0.1}])
def test_one_example_through_deltas_and_smoothing(options, tools, rng, cpu):
    for label in (0, 4, 9):
        observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [label], **options)
        result = RecoverLabels()(observation, rng, cpu)
        assert result.labels.tolist() == [label]
        assert result.certificate.certified, result.certificate.reason


def test_clipping_leaves_one_label_certified_and_noise_does_not(tools, rng, cpu):
    spec = tools.tiny(kwargs=SMALL)
    clipped = tools.observe(spec, tools.detailed(), [7], defenses={"clip": GradientClip(0.5)})
    clipped = replace(clipped, defenses=({"name": "clip"},))
    assert RecoverLabels()(clipped, rng, cpu).certificate.certified
    noisy = tools.observe(spec, tools.detailed(), [7], defenses={"noise": GradientNoise(relative_norm=0.5)})
    result = RecoverLabels()(noisy, rng, cpu)
    assert result.certificate.status == "uncertified"
    assert "not to zero" in result.certificate.reason


def test_smoothed_labels_that_look_like_two_are_not_certified(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [7])
    bias_grad = torch.tensor([-0.45, -0.45, 0.9] + [0.0] * 7)
    update = replace(observation.update, tensors={**observation.update.tensors, "head.bias": bias_grad})
    result = RecoverLabels()(replace(observation, update=update), rng, cpu)
    assert not result.certificate.certified
    assert "2 classes" in result.certificate.reason


def test_a_claim_of_more_labels_than_anybody_reads_is_refused(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [7])
    claim = replace(observation.protocol, batch_size=10**9), replace(observation.update, num_examples=10**9)
    with pytest.raises(NotApplicable, match="1000000000 labels: more than"):
        RecoverLabels().run(replace(observation, protocol=claim[0], update=claim[1]), rng, cpu)


def test_batches_of_32_with_repeats_at_initialisation(tools, cifar10_sample, rng, cpu):
    pictures = tools.pictures_in(cifar10_sample / "train", 200, 32)
    others = tools.pictures_in(cifar10_sample / "val", 64, 32)
    spec = tools.tiny(patch_size=8, kwargs=SMALL)
    right, probs = 0, None
    for number in range(20):
        draw = torch.Generator().manual_seed(number)
        chosen = torch.randint(len(pictures), (32,), generator=draw)
        labels = torch.randint(10, (32,), generator=draw).tolist()
        observation = tools.observe(spec, pictures[chosen], labels)
        probs = auxiliary(observation, others) if probs is None else probs
        result = RecoverLabels()(replace(observation, auxiliary_probs=probs), rng, cpu)
        assert result.certificate.status == "uncertified"
        right += result.labels.tolist() == sorted(labels)
    assert right >= 19


def test_smaller_and_smoothed_batches_and_deltas(tools, rng, cpu):
    pictures, others = tools.detailed(8), torch.cat([tools.photographs(32), tools.detailed(12)[8:]])
    labels = [1, 1, 1, 4, 4, 6, 9, 9]
    for options in ({}, {"label_smoothing": 0.1}, {"lr": 0.01}, {"lr": 0.01, "kind": "weights"}):
        observation = tools.observe(tools.tiny(kwargs=SMALL), pictures, labels, **options)
        observation = replace(observation, auxiliary_probs=auxiliary(observation, others))
        for rule in ("auto", "bias_prior", "bias_corrected"):
            assert RecoverLabels(rule)(observation, rng, cpu).labels.tolist() == labels
        assert RecoverLabels("bias_sign")(observation, rng, cpu).labels.tolist() == [1, 4, 6, 9]


def test_several_batches_are_said_to_be_taken_to_weigh_alike(tools, rng, cpu):
    spec = ModelSpec("vit_nano_patch2_8", 10)
    for steps, said in ((1, False), (2, True)):
        seen = tools.observe(spec, tools.detailed(2, 8), [1, 4], lr=0.01, steps=steps)
        found = RecoverLabels("bias_prior")(replace(seen, auxiliary_probs=torch.full((10,), 0.1)), rng, cpu)
        assert ("local step's examples to weigh alike" in found.certificate.reason) == said


def test_pruned_classes_are_not_named_for_their_weight_decay(tools, rng, cpu):
    spec = ModelSpec("vit_nano_patch2_8", 10)
    model = spec.build(0)
    torch.nn.init.constant_(model.head.bias, 1.0)
    seen = tools.observe(spec, tools.detailed(2, 8), [1, 4], lr=0.01, model=model)
    delta = seen.update.tensors["head.bias"] - 0.01 * 0.05 * seen.global_state["head.bias"]
    delta[[0, 2, 7]] = 0.0
    update = replace(seen.update, tensors={**seen.update.tensors, "head.bias": delta})
    protocol = replace(seen.protocol, weight_decay=0.05)
    pruned = replace(seen, update=update, protocol=protocol, defenses=({"name": "topk"},))
    pruned = replace(pruned, recorded_effects=(Sparsifies(0.7),))
    assert RecoverLabels("bias_sign")(pruned, rng, cpu).labels.tolist() == [1, 4]


def test_distilled_heads(tools, rng, cpu):
    spec = ModelSpec("deit_tiny_distilled_patch16_224", 10, 32, 4, kwargs=SMALL)
    labels = [1, 1, 1, 4, 4, 6, 9, 9]
    observation = tools.observe(spec, tools.detailed(8), labels)
    assert len(observation.roles.head_biases) == 2
    observation = replace(observation, auxiliary_probs=auxiliary(observation, tools.photographs(32)))
    assert RecoverLabels("bias_prior")(observation, rng, cpu).labels.tolist() == labels


def test_gradinversion_on_a_resnet(tools, rng, cpu):
    observation = tools.observe(ModelSpec("resnet18", 10), tools.detailed(4, 64), [0, 2, 5, 8])
    assert RecoverLabels("gradinversion")(observation, rng, cpu).labels.tolist() == [0, 2, 5, 8]
    single = tools.observe(ModelSpec("resnet18", 10), tools.detailed(2, 64)[:1].repeat(2, 1, 1, 1), [5, 5])
    single = replace(single, protocol=replace(single.protocol, batch_size=1))
    assert RecoverLabels("idlg")(single, rng, cpu).labels.tolist() == [5]


def test_asks_for_auxiliary_pictures_only_where_they_help():
    assert RecoverLabels().needs.auxiliary
    assert RecoverLabels("bias_prior").needs.auxiliary
    assert not RecoverLabels("bias_sign").needs.auxiliary


def test_unknown_rule_names_the_nearest():
    with pytest.raises(
        ConfigError, match=r"attack\.labels\.rule=bias_piror: must be one of .* Did you mean 'bias_prior'"
    ):
        RecoverLabels("bias_piror")


def without_bias(observation, how):
    """The same, of a client whose head's bias is not shared, or gets a gradient of zero."""
    tensors = {name: tensor for name, tensor in observation.update.tensors.items() if name != "head.bias"}
    if how == "zero":
        tensors["head.bias"] = torch.zeros_like(observation.update.tensors["head.bias"])
    return replace(observation, update=replace(observation.update, tensors=tensors))


@pytest.mark.parametrize("how", ["absent", "zero"])
def test_without_the_bias_the_weight_is_read(how, tools, cpu):
    """Of several examples as `llg` does when it is asked by name."""
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(3), [3, 3, 7])
    found, named = (
        RecoverLabels(rule)(given, torch.Generator().manual_seed(0), cpu)
        for rule, given in (("auto", without_bias(observation, how)), ("llg", observation))
    )
    assert len(found.labels) == 3
    assert torch.equal(found.labels, named.labels)
    assert not found.certificate.certified


@pytest.mark.parametrize("how", ["absent", "zero"])
def test_the_weight_alone_names_the_label_of_one_example(how, tools, rng, cpu):
    for label in range(10):
        observation = without_bias(tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [label]), how)
        found = RecoverLabels()(observation, rng, cpu)
        assert found.labels.tolist() == [label]
        assert not found.certificate.certified


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("zlg", "features' mean sum comes from random pictures, the softmax from auxiliary pictures"),
        ("llg", "a label's weight and the rest come from random pictures, the softmax from auxiliary ones"),
        ("llg_bias", "a label's weight and the rest come from auxiliary pictures"),
    ],
)
def test_only_the_softmax_is_of_auxiliary_pictures(rule, reason, tools, rng, cpu):
    pair = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(2), [3, 4])
    seen = replace(pair, auxiliary_probs=torch.full((10,), 0.1))
    assert RecoverLabels(rule)(seen, rng, cpu).certificate.reason == reason


def test_refusals(tools, rng, cpu):
    pair = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(2), [3, 4])
    with pytest.raises(NotApplicable, match="needs auxiliary pictures"):
        RecoverLabels("bias_prior")(pair, rng, cpu)
    with pytest.raises(NotApplicable, match="from 2 examples"):
        RecoverLabels("idlg")(pair, rng, cpu)
    many = replace(pair, protocol=replace(pair.protocol, batch_size=16), update=replace(pair.update, num_examples=16))
    with pytest.raises(NotApplicable, match="names no class twice"):
        RecoverLabels("gradinversion")(many, rng, cpu)
    without = {name: t for name, t in pair.update.tensors.items() if name != "head.bias"}
    kept = replace(pair, update=replace(pair.update, tensors=without, withheld={"head.bias": "mine"}))
    with pytest.raises(NotApplicable, match=r"head\.bias's gradient is withheld by mine"):
        RecoverLabels("bias_sign")(kept, rng, cpu)
    biasless = replace(pair, roles=replace(pair.roles, head_biases=()))
    with pytest.raises(NotApplicable, match="the head has no bias"):
        RecoverLabels("bias_sign")(biasless, rng, cpu)
    neither = {name: t for name, t in without.items() if name != "head.weight"}
    nothing = replace(pair, update=replace(pair.update, tensors=neither, withheld={"head.weight": "mine"}))
    with pytest.raises(NotApplicable, match=r"head\.weight's gradient is withheld by mine"):
        RecoverLabels()(nothing, rng, cpu)
    headless = replace(pair, roles=replace(pair.roles, head_biases=(), head_weights=()))
    with pytest.raises(NotApplicable, match="no linear head"):
        RecoverLabels("idlg")(headless, rng, cpu)
    smoothed = replace(pair, protocol=replace(pair.protocol, label_smoothing=1.0))
    with pytest.raises(NotApplicable, match="leaves nothing"):
        RecoverLabels()(smoothed, rng, cpu)


@pytest.fixture
def sure_batch(tools):
    """A batch of digits as a trained model shares it, and labelled digits that no client holds."""
    from fedsim.data import Digits, FederatedData

    data = FederatedData(Digits(test_fraction=0.1, auxiliary_fraction=0.3), None, 8)
    public = PublicImages.of(data.auxiliary.images(range(500)), data.auxiliary.labels[:500])
    spec = ModelSpec("vit_nano_patch2_8", 10)
    model = spec.build(0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for start in range(0, 40 * 32, 32):
        chosen = torch.arange(start, start + 32) % len(data.train)
        seen = (data.train.images(chosen) - 0.5) / 0.5
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(seen), torch.as_tensor(data.train.labels)[chosen]).backward()
        optimizer.step()

    def batch(number: int, count: int, **options):
        chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(number))[:count]
        labels = torch.as_tensor(data.train.labels)[chosen].tolist()
        seen = tools.observe(spec, data.train.images(chosen), labels, model=model, **options)
        probs = auxiliary(seen, data.auxiliary.images(range(200)))
        return replace(seen, public_images=public, auxiliary_probs=probs), sorted(labels)

    return batch


def test_public_images_tell_more_than_their_mean_softmax(sure_batch, rng, cpu):
    right = {"auto": 0, "bias_prior": 0, "class_moments": 0}
    for number in range(8):
        observation, labels = sure_batch(number, 16)
        for rule in right:
            found = RecoverLabels(rule)(observation, rng, cpu)
            assert found.certificate.status == "uncertified"
            right[rule] += found.labels.tolist() == labels
    assert right["auto"] == right["class_moments"] >= right["bias_prior"] + 3, right


def test_unlabelled_public_images_are_said_to_be(sure_batch, rng, cpu):
    observation, _ = sure_batch(0, 16)
    given = RecoverLabels("class_moments")(observation, rng, cpu)
    assert "with their labels" in given.certificate.reason
    bare = replace(observation, public_images=replace(observation.public_images, labels=None))
    assert "the model's own predictions" in RecoverLabels("class_moments")(bare, rng, cpu).certificate.reason


def test_class_moments_says_what_it_lacks(sure_batch, rng, cpu):
    observation, _ = sure_batch(0, 16)
    few = PublicImages(observation.public_images.pixels[:79], observation.public_images.labels[:79])
    for public, reason in ((None, "needs public images"), (few, "79 public images of 10 classes")):
        with pytest.raises(NotApplicable, match=reason):
            RecoverLabels("class_moments")(replace(observation, public_images=public), rng, cpu)
    steps, _ = sure_batch(0, 16, lr=0.01, steps=3)
    with pytest.raises(NotApplicable, match="cannot be simulated"):
        RecoverLabels("class_moments")(replace(steps, replayer=None), rng, cpu)
    assert len(RecoverLabels()(steps, rng, cpu).labels) == 16


def test_local_steps_on_one_batch_are_simulated(sure_batch, rng, cpu):
    observation, labels = sure_batch(1, 16, lr=0.02, steps=5)
    found = RecoverLabels("class_moments")(observation, rng, cpu).labels.tolist()
    wrong = 16 - sum((Counter(found) & Counter(labels)).values())
    assert wrong <= 1


def test_batchnorm_in_training_mode_leaves_auto_with_the_mean_softmax(tools, rng, cpu):
    pictures = tools.detailed(12, 64)
    observation = tools.observe(ModelSpec("resnet10t", 4), pictures, [0, 0, 1, 2, 2, 2, 3, 3, 1, 0, 0, 1])
    public = PublicImages.of(pictures.repeat(4, 1, 1, 1), torch.arange(48) % 4)
    seen = replace(observation, public_images=public, auxiliary_probs=torch.full((4,), 0.25))
    assert "public images" in RecoverLabels("class_moments")(seen, rng, cpu).certificate.reason
    assert "auxiliary pictures" in RecoverLabels()(seen, rng, cpu).certificate.reason


def test_public_images_without_labels_after_several_steps_leave_it_to_the_next_rule():
    """A model that is not trained calls all of them one class: no client with other labels can be simulated."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    seen = fedsim.observe(model, images[:16], digits.target[:16].tolist(), share="delta", local_steps=3)
    seen = seen.with_public_images(images[500:700])
    result = fedsim.attack("labels", seen)
    assert result.status == "done", result.reason
    assert len(result.labels) == 16
    refused = fedsim.attack("labels_class_moments", seen)
    assert refused.status == "refused"
    assert "no public image is of class" in refused.reason


def test_rounds_whose_certificates_contradict_each_other_are_of_other_images(tools, rng, cpu):
    rounds = [tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(), [label]) for label in (3, 3, 7)]
    rounds = [replace(one, server_round=number) for number, one in enumerate(rounds)]
    assert RecoverLabels()(fedsim.History(rounds[:2]), rng, cpu).certificate.status == "certified"
    with pytest.raises(NotApplicable, match="rounds certify different labels"):
        RecoverLabels()(fedsim.History(rounds), rng, cpu)


@pytest.mark.parametrize("rule", ["labels", "labels_certified", "labels_zlg", "labels_class_moments"])
def test_features_that_are_all_zero_fail_nothing(rule):
    """The head's weights do not move, and what they are rounded to is no number: the bias may tell the labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 12), nn.ReLU(), nn.Linear(12, 5))
    with torch.no_grad():
        model[1].bias.fill_(-100.0)
    images, labels = torch.rand(10, 3, 4, 4), torch.arange(10) % 5
    seen = fedsim.observe(model, images[:2], [1, 3], share="delta", local_steps=1, lr=0.1)
    result = fedsim.attack(rule, seen.with_public_images(images, labels))
    assert result.status in ("done", "refused"), result.reason
    if rule in ("labels", "labels_certified"):
        assert sorted(result.labels.tolist()) == [1, 3]
