"""Gauss-Newton matching: second order as an attack on any protocol, which names no part of the model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacks.base import Certificate, Frame, Reconstruction
from attacks.optimization.engine import GradientMatching
from attacks.optimization.parametrisation import Parametrisation, Pixels
from attacks.optimization.problem import Problem, local_updates
from attacks.optimization.search.base import BestCandidate
from attacks.optimization.second_order.known_class import of_its_class
from attacks.optimization.second_order.search import LevenbergMarquardt
from attacks.optimization.settings import Budget, Matching
from attacks.patch_order import expected_image
from fedsim.effects import (
    AddsErrors,
    AddsNoise,
    ForgetsPositions,
    PrunesFeatures,
    SamplesFeatures,
    Unpublished,
    Withholds,
)
from fedsim.errors import NotApplicable, require
from fedsim.history import History
from fedsim.models.roles import find_roles
from fedsim.observation import Observation
from fedsim.settings.grouped import grouped

GROWTH = 5
"""Rounds that are read at once from the start on, and by how many times more each time after."""


class GaussNewton(GradientMatching):
    """Solve f(x) = f* for the images by Levenberg-Marquardt, f being all that the client shares of them.

    Each tensor counts by its own norm, and behind noise each number by its standard deviation, with a Gaussian prior
    of images. What explains the shared update up to its rounding is claimed as exact; the certificate decides.
    """

    joint = False

    @grouped
    def __init__(
        self,
        search: LevenbergMarquardt | None = None,
        problem: Matching | None = None,
        budget: Budget | None = None,
        parametrisation: Parametrisation | None = None,
    ) -> None:
        super().__init__(problem, search or LevenbergMarquardt(), budget or Budget(save_every=5), parametrisation)
        labels, objective, updates = self.problem.labels, self.problem.objective, self.problem.local_updates
        require("labels", labels, labels != "joint", "a rule, or classes: they are no unknowns of the residual")
        name = type(objective).__name__
        require("objective", name, objective is None, "left out: it is the residual's squared norm")
        require("local_updates", updates, updates != "surrogate", "auto, gradient or unroll")
        terms = sorted(self.problem.terms)
        require("priors", terms, not terms, "left out: `prior` is its own (image_mean, image_std, decay, colour)")

    def check(self, observation: Observation) -> None:
        super().check(observation)
        if observation.effect(SamplesFeatures) is not None:
            raise NotApplicable("the client's model draws numbers of its own: its image alone does not give the update")

    def _problem(
        self, observation: Observation, rng: torch.Generator, device: torch.device, labels: Tensor | None = None
    ) -> Problem:
        """Without weights whose gradient is of pruned features: no image gives it (Balunović et al. 2022)."""
        problem = super()._problem(observation, rng, device, labels)
        if observation.effect(PrunesFeatures) is None:
            return problem
        pruned = find_roles(observation.build_model()).head_weights
        return replace(problem, target={name: one for name, one in problem.target.items() if name not in pruned})

    def polish(
        self, observation: Observation, result: Reconstruction, rng: torch.Generator, device: torch.device
    ) -> Reconstruction:
        """Second order from the result's images on, with its labels where it has them all."""
        if result.images is None or not bool(result.images.isfinite().all()):
            return result
        if not isinstance(self.parametrisation, Pixels):
            raise NotApplicable("it goes on from images in the space of pixels alone: leave parametrisation out")
        own, given = result.labels, not isinstance(self.problem.labels, str)
        if own is not None and not own.is_floating_point() and len(own) == observation.num_images:
            own, given = own.to(device), result.labels_given
        else:
            own = None
        problem = replace(self._problem(observation, rng, device, own), start=result.images.to(device))
        (found,) = self.search.run(self._task([problem], device, self.session), [rng])
        polished = self._reconstruction(problem, found)
        done, trace = _steps(result.trace), _joined(result.trace, found.trace)
        frames = (*result.frames, *_later(polished.frames, done))
        return replace(polished, trace=trace, frames=frames, labels_given=given)

    def run_history(self, history: History, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """One residual of all rounds, each number in units of its own round's error.

        Many rounds go on from the image of the first few where that explains them: it is near and cost little. Labels
        are those that most rounds name. Certified is what the first round alone certifies. What leaves more of the
        rounds than their errors do says so: rounds of different images have no image in common. Rounds that tell
        nothing are left out; where there are others, those too of a model that the client has trained on for itself,
        and without noise those that carry errors of earlier ones.

        Raises:
            NotApplicable: the model saw other images in each round.
        """
        changes = [effect for one in history.observations for effect in one.effects if not effect.keeps("images")]
        if len(history.observations) > 1 and not all(isinstance(effect, Unpublished) for effect in changes):
            raise NotApplicable(
                "rounds are solved together where the model sees the same images in each: here it does not"
            )
        each = history.each(lambda observation: self._problem(observation, rng, device))
        problems = [one for one in each if one is not None]
        problems = [one for one in problems if any(bool(t.any()) for t in one.target.values())] or problems
        problems = [one for one in problems if not _of_own_model(one.observation)] or problems
        if not any(one.observation.effect(AddsNoise) for one in problems):  # else the rounds say more than they mislead
            problems = [one for one in problems if one.observation.effect(AddsErrors) is None] or problems
        ways = {local_updates(self.problem.local_updates, one.observation) for one in problems}
        if len(ways) > 1:
            raise NotApplicable(f"rounds are solved together in one way: here by {' and '.join(sorted(ways))}")
        labels = _named_most(problems)
        first, *later = [replace(one, labels=labels, ordered=one.ordered or len(problems) > 1) for one in problems]
        assert isinstance(self.search, LevenbergMarquardt)
        start, trace, done = None, Trace(), 0.0
        for few in _parts(len(problems)):
            problem = replace(first, later=tuple(later[: few - 1]), start=start)
            whole = few == len(problems)
            session = self.session if whole else self.session.part(f"rounds-{few}")
            search = self.search if whole else replace(self.search, draws=0)
            (found,) = search.run(self._task([problem], device, session), [rng])
            near = found.values["trust"] > 0  # more than the mean of images
            start = problem.observation.to_unit_range(found.images) if near else None
            done, trace = _steps(trace), _joined(trace, found.trace)
            if found.values["kept"]:  # a closed form's, which no search of more rounds would better
                break
        result, count = self._reconstruction(problem, found), len(problems)
        result = replace(result, trace=trace, frames=_later(result.frames, done))
        if count == 1 or found.values["within_errors"] or found.values["kept"]:
            return result
        said = (
            f"what was found does not explain all {count} rounds up to their errors: they may hold different images, "
            "or the search ended early"
        )
        return replace(result, note="; ".join(filter(None, [result.note, said])))

    def _reconstruction(self, problem: Problem, found: BestCandidate) -> Reconstruction:
        result = super()._reconstruction(problem, found)
        if (
            problem.observation.effect(ForgetsPositions) is not None
            and result.images is not None
            and problem.count == 1
        ):
            return replace(result, images=expected_image(problem.observation, result.images))
        if found.values["kept"]:
            reason = (
                "of equations that hold: autocast's errors would mislead a search from there"
                if problem.observation.protocol.rounding
                else "of equations that no dropped unit changes: a search would need the client's draws"
            )
            return replace(result, certificate=Certificate("uncertified", reason, found.values))
        if (trust := found.values["trust"]) < 1.0:
            by_class = of_its_class(problem) if found.values.get("by_class", 0.0) > 0.5 else None
            return self._toward_mean(by_class or problem, result, trust)
        if not found.values["explained"]:
            return result
        reason = "it explains what was shared up to the errors of what was shared"
        return replace(result, certificate=Certificate("certified", reason, found.values))

    def _toward_mean(self, problem: Problem, result: Reconstruction, trust: float) -> Reconstruction:
        """Drawn to the mean of public images."""
        prior, images = problem.observation.image_prior, result.images
        if images is None or prior is None:
            return result
        mean = prior.centre(tuple(images.shape)).to(images)
        return replace(result, images=mean + trust * (images - mean))


Trace = tuple[dict[str, float], ...]


def _steps(trace: Trace) -> float:
    return 1.0 + max([row["step"] for row in trace if "step" in row], default=-1.0)


def _joined(trace: Trace, later: Sequence[dict[str, float]]) -> Trace:
    """One search's steps after another's."""
    done = _steps(trace)
    return (*trace, *({**row, "step": row["step"] + done} for row in later))


def _later(frames: Sequence[Frame], steps: float) -> tuple[Frame, ...]:
    return tuple(replace(frame, step=frame.step + int(steps)) for frame in frames)


def _of_own_model(observation: Observation) -> bool:
    """Whether the client's model has tensors of its own, which the server does not know."""
    if observation.finetune.keeps and observation.server_round > 1:  # as drawn they change nothing
        return True
    return any(isinstance(effect, Withholds) and effect.kept for effect in observation.effects)


def _parts(rounds: int) -> list[int]:
    """How many rounds are read together, one number after the other: each about `GROWTH` times the one before."""
    parts = [rounds]
    while parts[-1] > GROWTH:
        parts.append(-(-parts[-1] // GROWTH))
    return parts[::-1]


def _named_most(problems: Sequence[Problem]) -> Tensor:
    """The labels that most rounds name, those of the earliest among equals."""
    each = [problem.labels for problem in problems]
    if any(labels is None or labels.is_floating_point() for labels in each):
        raise NotApplicable("second-order matching needs classes by a label rule: labels=auto")
    named = [labels for labels in each if labels is not None]
    most = Counter(tuple(labels.sort().values.tolist()) for labels in named).most_common(1)[0][0]
    return next(labels for labels in named if tuple(labels.sort().values.tolist()) == most)
