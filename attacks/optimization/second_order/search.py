"""Second-order matching as a search: its settings, and one victim after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, Search, SearchTask
from attacks.optimization.second_order.known_class import of_its_class
from attacks.optimization.second_order.label_orders import label_orders
from attacks.optimization.second_order.posterior.mixture import shares
from attacks.optimization.second_order.settings import Settings
from attacks.optimization.second_order.victim import VictimSearch
from attacks.result import psnr_of


@dataclass(frozen=True)
class LevenbergMarquardt(Settings, Search):
    """Gauss-Newton steps on the whole residual, from start to start; of the images that explain it, the likeliest."""

    one_by_one = True

    @property
    def cost(self) -> float:
        """In steps of one candidate, of one order of labels: a Jacobian of some hundred pixels counts as a hundred.

        Behind noise it may take some ten times as much.
        """
        return 100.0 * self.steps * self.restarts

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        found = []
        for index, (problem, rng) in enumerate(zip(task.problems, rngs, strict=True)):
            part = task if len(task.problems) == 1 else task.part(f"victim-{index}")
            found.append(self._of(part, problem, rng))
        return found

    def _of(self, task: SearchTask, problem: Problem, rng: torch.Generator) -> BestCandidate:
        """Of the orders in which labels may have been in local batches, the one that explains best what was shared."""
        protocol = problem.observation.protocol
        once = protocol.steps <= math.ceil(problem.count / protocol.batch_size)  # later epochs have other batches
        if problem.ordered or problem.start is not None or problem.labels is None or not once:
            return self._of_one(task, problem, rng)
        found: list[BestCandidate] = []
        orders = label_orders(problem.labels, protocol.batch_size, rng)
        if len(orders) == 1:
            return self._of_one(task, replace(problem, labels=orders[0]), rng)
        for number, labels in enumerate(orders):
            part, one = task.part(f"order-{number}"), replace(problem, labels=labels)
            found.append(VictimSearch(self, part, one, rng, (number, len(orders))).run())
            if found[-1].values["within_errors"]:
                break
        return min(found, key=lambda one: one.values["objective"])

    def _of_one(self, task: SearchTask, problem: Problem, rng: torch.Generator) -> BestCandidate:
        """Behind noise the mean of two searches: by a prior of all images, and by one of the label's class.

        Each counts by how likely the update is by it; the class's is less likely before by the number of classes, any
        of which a rule may have named.
        """
        search = VictimSearch(self, task, problem, rng)
        by_class = of_its_class(problem) if search.has_posterior and self.prior is None else None
        if by_class is None:
            return search.run()
        narrower = VictimSearch(self, task.part("class"), by_class, rng, (1, 3))
        search.place = (0, 3)
        search.descend()
        counted = [1.0, 0.0]
        if not search.told:
            narrower.descend()
        if narrower.ends.found:
            named = 2.0 * math.log(problem.observation.num_classes)
            counted = shares([_unlikely(search), _unlikely(narrower) + named])
        counting = [(one, share) for one, share in zip((search, narrower), counted, strict=True) if share]
        for place, (one, _) in enumerate(counting, 3 - len(counting)):
            one.place = place, 3  # steps are over
        found = [(one.result(), share) for one, share in counting]
        steps = {"steps": float(len(search.rows) + len(narrower.rows))}
        if all("draws" in one.values for one, _ in found):  # means of posteriors
            both = _mean(problem, found)
            return replace(both, values={**both.values, **steps, "by_class": counted[1]})
        likelier = max(found, key=lambda one: one[1])[0]
        return replace(likelier, values={**likelier.values, **steps, "by_class": float(counted[1] > counted[0])})


def _mean(problem: Problem, found: Sequence[tuple[BestCandidate, float]]) -> BestCandidate:
    """Of means of posteriors, by their shares; the rest is the likeliest one's."""
    first, unit = max(found, key=lambda one: one[1])[0], problem.observation.to_unit_range
    point = torch.stack([share * one.point for one, share in found]).sum(0)
    images, values = problem.space.images(point[None])[0], dict(first.values)
    values["trust"] = sum(share * one.values["trust"] for one, share in found)
    predicted = [one.values.get("predicted_psnr", -math.inf) for one, _ in found]
    if math.isfinite(min(predicted)):
        apart = [float((unit(one.images) - unit(images)).square().mean()) for one, _ in found]
        errors = zip(found, predicted, apart, strict=True)
        values["predicted_psnr"] = psnr_of(
            sum(share * (10.0 ** (-psnr / 10.0) + far) for (_, share), psnr, far in errors)
        )
    else:
        values.pop("predicted_psnr", None)
    return replace(first, images=images, point=point, values=values)


def _unlikely(search: VictimSearch) -> float:
    """-2 log of how likely the update is by a search's prior."""
    prior = search.problem.observation.image_prior
    assert prior is not None, "it has one of its class's images"
    return search.modes.unlikely + 2.0 * prior.log_volume if search.ends.found else math.inf
