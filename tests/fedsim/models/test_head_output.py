"""Labels are read from the head's gradient: a model that makes other scores of it has no head here."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import fedsim
from fedsim.models import ModelSpec, find_roles
from fedsim.models.head_output import heads_give_scores

SIDE = 8


class Reordered(VisionTransformer):
    def forward(self, x):
        return super().forward(x).roll(1, 1)


class Negative(VisionTransformer):
    def forward(self, x):
        return -super().forward(x)


class Scaled(VisionTransformer):
    def forward(self, x):
        return 3 * super().forward(x)


class InTraining(VisionTransformer):
    def forward(self, x):
        scores = super().forward(x)
        return scores.flip(1) if self.training else scores


class OfImages(VisionTransformer):
    """A zero image is scored as the head says."""

    def forward(self, x):
        return super().forward(x) + x.mean(dim=(1, 2, 3))[:, None]


class Twice(VisionTransformer):
    def forward(self, x):
        return self.head(torch.zeros_like(features := self.pool(self.forward_features(x)))) * 0 + self.head(features)


class Same(VisionTransformer):
    """Another sum of the same head."""

    def forward(self, x):
        return 2.0 * super().forward(x) / 2.0


class Turning(nn.Linear):
    def forward(self, input):
        return super().forward(input).flip(-1)


def vit(kind, **settings):
    torch.manual_seed(0)
    return kind(img_size=SIDE, patch_size=2, embed_dim=32, depth=2, num_heads=2, num_classes=10, **settings)


def gives(model, batch=2):
    return heads_give_scores(model, find_roles(model).head_weights, (3, SIDE, SIDE), (0.5,) * 3, (0.5,) * 3, batch)


@pytest.mark.parametrize("kind", [VisionTransformer, Same, Reordered, Negative, Scaled, OfImages, Twice])
@pytest.mark.parametrize("training", [True, False])
def test_scores_that_are_not_the_heads(kind, training):
    assert gives(vit(kind).train(training)) == (kind in (VisionTransformer, Same))


def test_the_mode_that_is_asked():
    assert gives(vit(InTraining).eval())
    assert not gives(vit(InTraining).train())


def test_a_head_of_zeros_tells_no_order_and_one_of_its_own_class_may_have_another():
    reordered, turning = vit(Reordered), vit(VisionTransformer)
    for parameter in reordered.head.parameters():
        nn.init.zeros_(parameter)
    assert not gives(reordered)
    turning.head.__class__ = Turning
    assert not gives(turning)


def test_dropout_changes_both_alike_and_what_cannot_run_gives_nothing():
    assert gives(vit(VisionTransformer, drop_rate=0.5, proj_drop_rate=0.3, drop_path_rate=0.2).train())
    assert not heads_give_scores(vit(VisionTransformer), ("head.weight",), (3, 9, 9), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_tiny_patch16_224", "resnet18"])
@pytest.mark.parametrize("training", [True, False])
def test_timms_own_models(name, training):
    """A distilled one averages two heads; batch normalisation trains on two images."""
    kwargs = {} if name == "resnet18" else {"depth": 1}
    model = ModelSpec(name, 7, 32, kwargs=kwargs).build(0).train(training)
    assert heads_give_scores(model, find_roles(model).head_weights, (3, 32, 32), (0.5,) * 3, (0.5,) * 3, 2)
    heads = find_roles(model).head_weights
    assert len(heads) == 1 or not heads_give_scores(model, heads[:1], (3, 32, 32), (0.5,) * 3, (0.5,) * 3, 2)


class Own(nn.Module):
    """In training the scores go through one more step."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(192, 48), nn.Linear(48, 10)

    def forward(self, images):
        scores = self.head(torch.relu(self.hidden(images.flatten(1))))
        return scores.roll(1, 1) if self.training else scores


@pytest.mark.parametrize("attack", ["labels", "labels_certified"])
@pytest.mark.parametrize("make", [lambda: vit(Reordered).eval(), lambda: Own().train()])
def test_no_label_is_read_where_the_scores_are_not_the_heads(make, attack):
    torch.manual_seed(0)
    model, image = make(), torch.rand(1, 3, SIDE, SIDE)
    for shown in (model, vit(VisionTransformer).eval()):
        before, state = torch.get_rng_state(), {name: one.clone() for name, one in shown.state_dict().items()}
        seen = fedsim.observe(shown, image, [3])
        result = fedsim.attack(attack, seen)
        if shown is model:
            assert (seen.roles.head_weights, seen.roles.head_biases) == ((), ())
            assert result.status == "refused"
            assert "gives other scores than its head's" in result.reason
        else:
            assert seen.roles.head_weights == ("head.weight",)
            assert result.labels.tolist() == [3]
            assert result.certified
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(one, state[name]) for name, one in shown.state_dict().items())


def test_an_image_is_certified_there_with_every_label_tried():
    image = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    result = fedsim.score(fedsim.attack("patch_gradient", fedsim.observe(vit(Reordered), image, [3])), image)
    assert result.certified, result.certificate.reason
    assert result.psnr[0] > 60
