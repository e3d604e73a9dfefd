"""Second-order matching as a search: its settings, and one victim after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, Search, SearchTask
from attacks.optimization.second_order.known_class import of_its_class
from attacks.optimization.second_order.label_orders import label_orders
from attacks.optimization.second_order.settings import Settings
from attacks.optimization.second_order.victim import VictimSearch


@dataclass(frozen=True)
class LevenbergMarquardt(Settings, Search):
    """Gauss-Newton steps on the whole residual, from start to start; of the images that explain it, the likeliest."""

    one_by_one = True

    @property
    def cost(self) -> float:
        """In steps of one candidate, of one order of labels: a Jacobian of some hundred pixels counts as a hundred.

        Behind noise it may take twice as much.
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
        """The better of two searches behind noise: by a prior of all images, and by one of the label's class.

        The class's has to be likelier by a factor of the number of classes, any of which a rule may have named.
        """
        search = VictimSearch(self, task, problem, rng)
        by_class = of_its_class(problem) if search.has_posterior and self.prior is None else None
        if by_class is None:
            return search.run()
        narrower = VictimSearch(self, task.part("class"), by_class, rng, (1, 2))
        search.place = (0, 2)
        search.descend()
        if not search.told:
            narrower.descend()
            classes = problem.observation.num_classes
            if _unlikely(narrower) + 2.0 * math.log(classes) < _unlikely(search):
                found = narrower.result()
                return _after(search, replace(found, values={**found.values, "by_class": 1.0}))
        search.place = (1, 2)
        return _after(narrower, search.result())


def _after(other: VictimSearch, found: BestCandidate) -> BestCandidate:
    """With the steps of the search that was not taken."""
    return replace(found, values={**found.values, "steps": found.values["steps"] + len(other.rows)})


def _unlikely(search: VictimSearch) -> float:
    """-2 log of how likely the update is by a search's prior."""
    prior = search.problem.observation.image_prior
    assert prior is not None, "it has one of its class's images"
    return search.unlikely() + 2.0 * prior.log_volume
