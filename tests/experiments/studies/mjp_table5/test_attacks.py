"""APRIL told of MJP and not, and what is in the gradient for who is told of MJP and who is not."""

from dataclasses import replace

import pytest
import torch

from attacks.analytic import April, MJPAdaptive, PatchGradient
from attacks.analytic.patch_gradient import embedding_rows, shared_rows
from attacks.base import NotApplicable
from clients.training import LossGradient
from defenses import DefenseChain, MaskedJigsawPuzzle
from defenses.base import Batch, ClientRound, Defense
from experiments.studies.mjp_table5.attacks import PublishedApril, visible_mask
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.observation import Observation
from fedsim.update import LocalProtocol, Update

SPEC = ModelSpec("vit_nano_patch2_8", num_classes=5, dtype="float64")
CPU = torch.device("cpu")


def observe(spec=SPEC, seed=0, **puzzle):
    """The gradient of one picture, with and without the localisation's term, and the picture that the model saw."""
    defense = MaskedJigsawPuzzle(**puzzle) if puzzle else None
    chain = DefenseChain({} if defense is None else {"mjp": defense})
    architecture = Architecture(spec, (chain,), seed)
    model = architecture.build().train()
    rng = torch.Generator().manual_seed(seed)
    picture = torch.randint(256, (1, 3, 8, 8), generator=rng).double() / 255
    chain.begin(ClientRound(0, 1))
    batch = chain.transform_batch(Batch((picture - 0.5) / 0.5, torch.tensor([2])), rng)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    def gradient(defense):
        found = chain.gradient(model, batch, LossGradient(model, defense, label_smoothing=0.0), rng)
        return {name: found.get(name, torch.zeros_like(model.get_parameter(name))).clone() for name in trained}

    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    plain, shared = gradient(Defense()), gradient(chain)
    observation = Observation(
        0,
        0,
        state,
        Update(shared, "gradient", 1),
        LocalProtocol(batch_size=1),
        architecture,
        find_roles(model),
        (3, 8, 8),
        (0.5,) * 3,
        (0.5,) * 3,
        5,
    )
    return observation, plain, batch.images * 0.5 + 0.5


@pytest.mark.parametrize("head", ["none", "linear", "nonlinear"])
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_localisations_term_is_known(head, probability):
    observation, plain, _ = observe(ratio=0.4, dal=head, probability=probability, lambda_dal=0.3)
    assert torch.allclose(embedding_rows(observation), plain["pos_embed"][0], rtol=0, atol=1e-14)
    assert torch.equal(shared_rows(observation), plain["pos_embed"][0]) == (head == "none")


@pytest.mark.parametrize(("attack", "exact"), [("april", False), ("april_told", True), ("keep", False), ("told", True)])
def test_a_clean_picture_of_mjp_is_exact_for_who_is_told(attack, exact):
    """The term is in the gradient of a clean picture too, and only who is told of the defense takes it out."""
    april = attack.startswith("april")
    spec = replace(SPEC, variant="april") if april else SPEC
    observation, _, seen = observe(spec, ratio=0.4, dal="nonlinear", probability=0.0, lambda_dal=0.3)
    attackers = {
        "april": PublishedApril(),
        "april_told": PublishedApril(told=True),
        "keep": PatchGradient(localisation="keep"),
        "told": PatchGradient(localisation="subtract"),
    }
    images = attackers[attack](observation, torch.Generator().manual_seed(0), CPU).images
    assert bool((images - seen).abs().max() < 1e-4) == exact


def test_the_adaptive_attack_takes_the_term_out_by_itself():
    observation, _, seen = observe(ratio=0.4, dal="nonlinear", probability=0.0, lambda_dal=0.3)
    images = MJPAdaptive()(observation, torch.Generator().manual_seed(0), CPU).images
    assert (images - seen).abs().max() < 1e-9


@pytest.mark.parametrize("told", [False, True])
def test_published_april_is_april_on_undefended_pictures(told):
    observation, _, seen = observe(replace(SPEC, variant="april"))
    rng = torch.Generator().manual_seed(0)
    published = PublishedApril(told)(observation, rng, CPU)
    assert torch.equal(published.images, April()(observation, rng, CPU).images)
    assert (published.images - seen).abs().max() < 1e-4
    assert not published.certificate.certified


def test_who_is_told_of_masks_gives_their_tokens_the_unknown_embedding():
    observation, _, _ = observe(replace(SPEC, variant="april"), ratio=0.4, min_block=1)
    rng = torch.Generator().manual_seed(0)
    hidden = visible_mask(observation)
    assert 0 < int(hidden.sum()) <= 6
    pixels = hidden.reshape(4, 4).repeat_interleave(2, 0).repeat_interleave(2, 1)
    untold, told = (PublishedApril(t)(observation, rng, CPU).images[0] for t in (False, True))
    april = April()(observation, rng, CPU)
    assert torch.allclose(told, april.images[0].to(told), atol=1e-6)
    assert not april.certificate.certified
    assert april.certificate.values["identity"] > 0.1  # the masked tokens' gradients are in the bias, not in the rows
    state = observation.global_state
    inverse = torch.linalg.pinv(state["patch_embed.proj.weight"].flatten(1))
    nothing = inverse @ -(state["unknown_embed"] + state["patch_embed.proj.bias"])  # of a token z = 0
    expected = (nothing.reshape(3, 2, 2) * 0.5 + 0.5).clamp(0, 1)
    row, column = divmod(int(hidden.nonzero()[0]), 4)
    assert torch.allclose(told[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2], expected, atol=1e-9)
    assert not torch.allclose(told[:, pixels], untold[:, pixels], atol=1e-3)
    assert torch.allclose(told[:, ~pixels], untold[:, ~pixels], atol=1e-9)


def test_published_april_refuses_other_architectures():
    with pytest.raises(NotApplicable, match="variant=april"):
        PublishedApril()(observe()[0], torch.Generator(), CPU)


def test_no_mask_shows_without_an_unknown_embedding():
    assert visible_mask(observe()[0]) is None
    assert visible_mask(observe(ratio=0.4, dal="none", probability=0.0)[0]).sum() == 0
