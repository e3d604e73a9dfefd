"""How a shared gradient changes with each pixel: J, by forward mode through the client's gradient, float64."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from clients.bounds.base import Party, refuse_draws
from defenses.base import Defense
from fedsim.effects import AddsNoise, Clips, Quantises, Withholds, of_training
from fedsim.errors import NotApplicable
from fedsim.models import Normaliser
from fedsim.update import Update

MOST_UNKNOWNS = 2000
"""Numbers of all images of an update together; above, singular values would have to be guessed."""

MOST_BYTES = 4 * 2**30
"""Of J."""

AT_ONCE = 2**22
"""Numbers of the columns that are pushed forward together."""


def check_linear(party: Party, rounds: bool = False) -> None:
    """Raises NotApplicable where J is not computed: too many unknowns, local steps, unknown defenses, statistics.

    Args:
        rounds: a defense may round each shared number by itself.
    """
    unknowns = party.images.numel()
    if unknowns > MOST_UNKNOWNS:
        raise NotApplicable(f"{unknowns:,} unknowns in an update: computed for at most {MOST_UNKNOWNS:,}")
    size = 8 * unknowns * sum(p.numel() for p in party.runtime.model.parameters() if p.requires_grad)
    if size > MOST_BYTES:
        raise NotApplicable(f"J would take {size / 2**30:.0f} GB: computed up to {MOST_BYTES / 2**30:.0f}")
    if party.runtime.settings.share != "gradient":
        raise NotApplicable(f"client.share={party.runtime.settings.share}: computed for the gradient of one batch")
    precision = party.runtime.settings.precision
    if precision != "float32" and not rounds:
        raise NotApplicable(f"client.precision={precision}: computed for float32")
    for effect in party.effects:
        rounding = isinstance(effect, Quantises) and effect.per == "coordinate"
        if not isinstance(effect, Withholds | Clips | AddsNoise) and not (rounds and rounding):
            raise NotApplicable(f"not computed behind what {type(effect).__name__} does")
    for defense in party.defenses.wrappers:
        if type(defense).extra_loss is not Defense.extra_loss:
            raise NotApplicable(f"{type(defense).__name__} changes the loss: not computed")
    refuse_draws(party.runtime.model, party.runtime.settings.training_mode)
    for name, after in party.train().buffers.items():
        if not torch.equal(after, party.state[name].to(after)):
            raise NotApplicable(f"{name} is shared as well, and J is of the gradient: client.training_mode=false")
    _refuse_mixing(party)


def _refuse_mixing(party: Party) -> None:
    """Images are differentiated one by one: refused where the model's outputs for a batch are not those of each."""
    if len(party.images) == 1:
        return
    model, images = _model(party), party.images.double().cpu()
    inputs = Normaliser(model)(images)
    with torch.no_grad():
        together, alone = model(inputs), torch.cat([model(one[None]) for one in inputs])
    if not torch.allclose(together, alone, rtol=1e-6, atol=1e-6 * float(alone.abs().max())):
        raise NotApplicable("what the model makes of an image depends on the others of its batch: one in an update")


def _model(party: Party) -> torch.nn.Module:
    """The client's, with the weights that it was sent, in float64."""
    party.runtime.load(party.state)
    model = copy.deepcopy(party.runtime.model).double().cpu()
    return model.train(party.runtime.settings.training_mode)


def jacobian(party: Party, update: Update) -> tuple[Float[Tensor, "numbers pixels"], Float[Tensor, " numbers"]]:
    """J of the mean gradient by pixels in [0, 1], clipped as the defenses do, and the gradient itself.

    Args:
        update: what the client shares: its tensors are in both, in their order.
    """
    model = _model(party)
    images, labels = party.images.double().cpu(), party.pictures.labels
    whole = _shared(party, model, labels, update)
    size, shape = images.numel(), images.shape
    basis = torch.eye(size, dtype=torch.float64).view(size, *shape)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), warnings.catch_warnings():
        # torch compiles its forward-mode rules with its own deprecated torch.jit.script.
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
        shared = whole(images)
        chunk = max(1, min(64, AT_ONCE // max(1, len(shared))))
        columns = vmap(lambda direction: jvp(whole, (images,), (direction,))[1], chunk_size=chunk)(basis)
        return columns.T.contiguous(), shared


def _shared(party: Party, model: torch.nn.Module, labels: Tensor, update: Update) -> Callable[[Tensor], Tensor]:
    parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    smoothing, normaliser = party.runtime.settings.label_smoothing, Normaliser(model)
    clips, buffers = _clips(party, update), dict(model.named_buffers())

    def loss(given: Mapping[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        written = {name: buffer.clone() for name, buffer in buffers.items()}  # a counter of steps, say
        scores = functional_call(model, {**written, **given}, (normaliser(image[None]),))
        return F.cross_entropy(scores, label[None], label_smoothing=smoothing)

    def whole(images: Tensor) -> Tensor:
        # One image after the other: forward mode through a vmapped LayerNorm's backward is wrong in torch 2.
        parts = [grad(loss)(parameters, image, label) for image, label in zip(images, labels, strict=True)]
        each = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        for clip, _ in clips:
            if clip.per.startswith("example"):
                each = _clipped(each, clip, examples=True)
        mean = {name: tensor.mean(dim=0) for name, tensor in each.items()}
        for clip, before in clips:
            if not clip.per.startswith("example"):
                mean |= _clipped({n: t for n, t in mean.items() if n not in before}, clip, examples=False)
        return torch.cat([mean[name].flatten() for name in update.tensors])

    return whole


def _clips(party: Party, update: Update) -> list[tuple[Clips, set[str]]]:
    """In their order, each with the tensors that defenses before it withheld: they are not in its norm."""
    found = [(clip, set[str]()) for clip in of_training(party.runtime.settings.clip_norm) if isinstance(clip, Clips)]
    before: list[str] = []
    for defense, one in party.defenses.defenses.items():
        gone = {name for name, by in update.withheld.items() if by in before}
        found += [(clip, gone) for clip in one.effects() if isinstance(clip, Clips)]
        before.append(defense)
    return found


def _clipped(found: dict[str, Tensor], clip: Clips, examples: bool) -> dict[str, Tensor]:
    """Each example's, or the whole, scaled down to the norm; smooth but where the norm is exactly that."""
    by_tensor = clip.per.endswith("tensor")
    limit = clip.max_norm / math.sqrt(len(found)) if clip.per == "example_and_tensor" else clip.max_norm
    squares = {n: (t.flatten(1).square().sum(dim=1) if examples else t.square().sum()) for n, t in found.items()}
    whole = torch.stack(list(squares.values())).sum(dim=0)
    factors = {n: (limit / (square if by_tensor else whole).sqrt()).clamp(max=1.0) for n, square in squares.items()}
    if not examples:
        return {n: factors[n] * t for n, t in found.items()}
    return {n: factors[n].view(-1, *(1,) * (t.ndim - 1)) * t for n, t in found.items()}
