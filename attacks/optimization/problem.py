"""One victim's problem: what was shared, what is known of the labels, where to search."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import getLogger

import torch
from torch import Tensor

from attacks.label import RecoverLabels
from attacks.label.head.gradient import NO_HEAD, NoHead
from attacks.noise import std_before_clip
from attacks.optimization.matching.adam import ADAM, read_adam
from attacks.optimization.matching.local_steps import (
    ClippedExamples,
    ClippedGradient,
    GradientMap,
    SurrogateWeights,
    UnrolledSteps,
    UpdateMap,
    unit_scale,
    update_scale,
    weight_change,
)
from attacks.optimization.matching.objectives import Clipped, Objective
from attacks.optimization.parametrisation import Parametrisation, Space
from attacks.optimization.priors.base import Prior, PriorTerm
from attacks.victim import Victim
from fedsim.effects import Clips, Effect, Quantises, SharesSigns, Sparsifies, Withholds
from fedsim.errors import ConfigError, NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

logger = getLogger(__name__)

LOCAL_UPDATES = ("auto", "gradient", "unroll", "surrogate")


@dataclass(frozen=True)
class Problem:
    """What the search needs to know of one observation.

    Attributes:
        observation: `blind`, where the target is random.
        target: u', the shared update in units of a gradient, by name.
        labels: [B] classes, logits of soft labels that stay as they are, or None where they are searched for together
            with the pictures.
        terms: the priors' terms by name, with the prior that weighs each.
        ordered: whether the labels can stay as they are given. Where several local batches are simulated, which label
            was in which is not known, and each restart but the first draws an order of its own; those of
            L-BFGS and GGL keep the first's, and second order searches with some orders one after the other.
        later: of the same images, from other rounds.
        start: [B,C,H,W] in [0, 1] where a search starts, in place of its own starts.
        alpha: where the place between two weights starts (`SurrogateWeights`).
        stated: the labels are known, not read off the update: no others are tried.
    """

    observation: Observation
    target: State
    labels: Tensor | None
    count: int
    space: Space
    terms: dict[str, tuple[Prior, PriorTerm]]
    ordered: bool = True
    later: tuple["Problem", ...] = ()
    start: Tensor | None = None
    alpha: float = 0.5
    stated: bool = False

    @property
    def rounds(self) -> tuple["Problem", ...]:
        return (self, *self.later)


def local_updates(choice: str, observation: Observation) -> str:
    """`auto` resolved: one step is its gradient, several are simulated.

    One with weight decay too, behind what acts on the change as it was: without the decay it no longer shows.
    """
    if choice != "auto":
        return choice
    protocol, moved = observation.protocol, observation.update.kind != "gradient"
    decayed = protocol.optimizer == "sgd" and protocol.weight_decay and any(map(_acts_on_change, observation.effects))
    return "unroll" if moved and (protocol.steps > 1 or decayed) else "gradient"


def _acts_on_change(effect: Effect) -> bool:
    clips = isinstance(effect, Clips) and effect.per == "update"
    return clips or isinstance(effect, Sparsifies | Quantises | SharesSigns)


def shared_update(observation: Observation, choice: str, device: torch.device) -> State:
    """u' in units of a gradient, in the model's dtype.

    Raises:
        NotApplicable: an adaptive optimiser whose steps say nothing about the gradient's size.
    """
    protocol = observation.protocol
    if choice in ("unroll", "surrogate"):
        scale = -update_scale(protocol)
        raw = {name: change / scale for name, change in weight_change(observation).items()}
        if choice == "surrogate" and protocol.optimizer == "adamw":
            raw = _less_decay(raw, observation)  # decoupled: no part of any gradient
    elif observation.update.kind != "gradient" and protocol.optimizer in ADAM:
        raw = read_adam(observation).gradient
    else:
        raw = observation.gradient
    result = {}
    for name, tensor in raw.items():
        value = tensor.to(device=device, dtype=observation.global_state[name].dtype)
        if not bool(value.isfinite().all()):
            raise NotApplicable(f"{name}'s gradient is not finite")
        result[name] = value
    return result


def _less_decay(gradient: State, observation: Observation) -> State:
    """Less the weight decay at the weights that the server sent."""
    protocol, start = observation.protocol, observation.global_state
    if not protocol.weight_decay:
        return gradient
    found = {name: g - protocol.decay_of(name) * start[name].to(g) for name, g in gradient.items()}
    if observation.effect(Sparsifies) is None:
        return found
    return {
        name: tensor.where(gradient[name] != 0, 0.0) for name, tensor in found.items()
    }  # what was pruned tells none


def with_clip(objective: Objective, observation: Observation, choice: str) -> Objective:
    """The distance with a defense's clipping, whose bound is public, built in; a cosine does not see it."""
    bound = None if objective.scale_invariant else clip_norm(observation, choice)
    if bound is None:
        return objective
    noise, relative = std_before_clip(observation, unit_scale(observation), bound)
    return Clipped(objective, bound, noise, pruned_before_clip(observation), relative)


def clip_norm(observation: Observation, choice: str) -> float | None:
    """The norm that the client scales all that it shares down to, in units of a gradient; None where it does not."""
    return None if _clips_unshared(observation, choice) else _clip_norm(observation, choice)


def gradient_norm(observation: Observation, choice: str) -> float | None:
    """The norm that a whole gradient was scaled down to, with what was withheld of it later; None where it was not."""
    by_defenses = _clip_norm(observation, choice) if _clips_unshared(observation, choice) else None
    limits = [one for one in (observation.protocol.max_grad_norm, by_defenses) if one is not None]
    return min(limits, default=None)


def _clips_unshared(observation: Observation, choice: str) -> bool:
    """Whether a defense clips one gradient, or a change that is simulated, before another withholds tensors of it."""
    effects = observation.effects
    places = [place for place, one in enumerate(effects) if isinstance(one, Withholds) and not one.frozen]
    if choice == "surrogate" or not places:
        return False
    before = effects[: places[0]]
    clips = [effect for effect in effects if isinstance(effect, Clips) and clips_whole(effect, observation)]
    return any(clip.per == "example" or clip in before for clip in clips)


def _clip_norm(observation: Observation, choice: str) -> float | None:
    found = _tightest(observation, choice)
    return None if found is None else found[0]


def _tightest(observation: Observation, choice: str) -> tuple[float, Clips] | None:
    """The norm of `_clip_norm`, and whose it is."""
    clips = [effect for effect in observation.effects if isinstance(effect, Clips) and clips_whole(effect, observation)]
    clips = [clip for clip in clips if math.isfinite(clip.max_norm)]
    if choice == "unroll":  # an example's clip is within its step
        clips = [clip for clip in clips if clip.per == "update"]
    if not clips:
        return None
    scale = unit_scale(observation)
    norms = [(clip.max_norm / (scale if clip.per == "update" else 1.0), clip) for clip in clips]
    return min(norms, key=lambda found: found[0])


def _of_examples(observation: Observation) -> Clips | None:
    """How a defense clips the gradients of a step's single images; None where it does not."""
    clips = [one for one in observation.effects if isinstance(one, Clips) and one.per.startswith("example")]
    clips = [one for one in clips if math.isfinite(one.max_norm)]
    return min(clips, key=lambda one: one.max_norm, default=None) if observation.summed == 1 else None


def clips_examples(observation: Observation) -> bool:
    """Whether a defense clips single images' gradients, each by another factor or tensor by tensor."""
    clip = _of_examples(observation)
    return clip is not None and not clips_whole(clip, observation)


def pruned_before_clip(observation: Observation) -> bool:
    """Whether the norm of a clip is of the coordinates alone that were left: it stands behind what prunes them."""
    changes = [one for one in observation.defense_effects if not (isinstance(one, Clips) and "example" in one.per)]
    kinds = [type(effect) for effect in changes if isinstance(effect, Clips | Sparsifies)]
    return kinds[:1] == [Sparsifies] and Clips in kinds


def clips_whole(clip: Clips, observation: Observation) -> bool:
    """Whether it scales the whole update by one factor: one image's gradient has the norm of its example."""
    alone = observation.num_images == 1 and observation.protocol.steps == 1
    return clip.per == "update" or (clip.per == "example" and alone)


def make_update_map(choice: str, victim: Victim, observation: Observation, sized: bool = True) -> UpdateMap:
    """What is matched with the target.

    Args:
        sized: its size counts; else one gradient is not clipped, which changes nothing else of it.
    """
    clip = _of_examples(observation)
    whole = _clip_norm(observation, choice) if sized and _clips_unshared(observation, choice) else None
    if choice == "unroll":
        return UnrolledSteps(victim, observation.protocol, whole, clip)
    if choice == "surrogate":
        start = observation.global_state
        change = weight_change(observation)
        end = {name: (start[name].double() + change[name]).to(param) for name, param in victim.params.items()}
        return SurrogateWeights(victim, end, observation.protocol)
    if clip is not None and clips_examples(observation):
        return ClippedExamples(victim, clip, whole)
    limit = gradient_norm(observation, choice)
    if not sized or limit is None:
        return GradientMap(victim)
    tightest = _tightest(observation, choice)
    if tightest is None or limit == observation.protocol.max_grad_norm:
        return ClippedGradient(victim, limit)
    return ClippedGradient(victim, limit, added=0.0, own=tightest[1].per == "example")


def check_labels(labels: Sequence[int], observation: Observation) -> None:
    """Raises ConfigError: classes that this update cannot have, or another number of them."""
    if len(labels) != (count := observation.num_images):
        raise ConfigError("labels", list(labels), f"one class for each image of the update, which has {count}")
    if max(labels) >= (classes := observation.num_classes):
        raise ConfigError("labels", list(labels), f"classes of the model, 0 … {classes - 1}")


def known_labels(
    choice: str | Sequence[int], observation: Observation, rng: torch.Generator, joint: bool = True
) -> Tensor | None:
    """[B] classes, by a label rule or as they are given; None for `joint`.

    Args:
        joint: that would do too, which is said where no rule can.

    Raises:
        NotApplicable: the rule does not apply, or the update has other images than classes are given for.
    """
    if not isinstance(choice, str):
        try:
            check_labels(choice, observation)
        except ConfigError as error:
            raise NotApplicable(str(error)) from error
        return torch.tensor(choice)
    if choice == "joint":
        return None
    try:
        labels = RecoverLabels(choice).run(observation, rng, torch.device("cpu")).labels
    except NoHead as refusal:
        ways = ["labels=[…] states them", *(["labels=joint searches for them too"] if joint else [])]
        raise NotApplicable(f"{NO_HEAD}: {', '.join(ways)}, with_public_images may tell them") from refusal
    count = observation.num_images
    assert labels is not None
    if len(labels) != count:
        raise NotApplicable(f"labels={choice} names {len(labels)} labels for {count} pictures")
    return labels


def make_problem(
    observation: Observation,
    target: State,
    labels: Tensor | None,
    parametrisation: Parametrisation,
    priors: Mapping[str, Prior],
    device: torch.device,
    blind_of: Observation | None = None,
) -> Problem:
    """What one victim's search minimises, with the priors that apply to it.

    Args:
        blind_of: the true observation, where `observation` is noise. A prior that finds nothing in the noise, such as
            features of certified labels, is left out then; one that does not apply to the true one either refuses.

    Raises:
        NotApplicable: the observation lacks what the search space or a prior needs.
    """
    count = observation.num_images
    terms: dict[str, tuple[Prior, PriorTerm]] = {}
    for name, prior in priors.items():
        try:
            terms[name] = (prior, prior.prepare(observation, labels, device))
        except NotApplicable as refusal:
            if blind_of is None:
                raise
            prior.prepare(blind_of, labels, device)
            logger.info("target=random goes on without priors.%s, which finds nothing in noise: %s", name, refusal)
    space = parametrisation.prepare(observation, count, device, labels)
    return Problem(observation, target, labels, count, space, terms)


def blind(observation: Observation, rng: torch.Generator) -> Observation:
    """The observation with noise of the same norms in place of all that was shared; `rng` stays as it is.

    Zeros, by which masks and pruning show, are gone, and so are buffers, which tell of the batch.
    """
    update, state = observation.update, observation.global_state
    floating = {name: tensor for name, tensor in update.tensors.items() if tensor.is_floating_point()}
    start = {name: state[name] if update.kind == "weights" else torch.zeros_like(t) for name, t in floating.items()}
    # A copy: the search goes on to draw what it always drew.
    copy = torch.Generator().set_state(rng.get_state())
    noise = random_target({name: tensor - start[name] for name, tensor in floating.items()}, copy)
    tensors = {**update.tensors, **{name: start[name] + noise[name] for name in floating}}
    return replace(observation, update=replace(update, tensors=tensors, buffers={}))


def random_target(target: State, rng: torch.Generator) -> State:
    """A gradient of the same norms that knows nothing."""
    result = {}
    for name, tensor in sorted(target.items()):
        drawn = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
        result[name] = (drawn * (tensor.double().norm().cpu() / drawn.norm().clamp(min=1e-30))).to(tensor)
    return result
