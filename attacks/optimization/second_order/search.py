"""Second-order matching as a search: its settings, and one victim after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, Search, SearchTask
from attacks.optimization.second_order.label_orders import label_orders
from attacks.optimization.second_order.settings import Settings
from attacks.optimization.second_order.victim import VictimSearch


@dataclass(frozen=True)
class LevenbergMarquardt(Settings, Search):
    """Gauss-Newton steps on the whole residual, from start to start; of the images that explain it, the likeliest."""

    one_by_one = True

    @property
    def cost(self) -> float:
        """In steps of one candidate, of one order of labels: a Jacobian of some hundred pixels counts as a hundred."""
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
            return VictimSearch(self, task, problem, rng).run()
        found: list[BestCandidate] = []
        orders = label_orders(problem.labels, protocol.batch_size, rng)
        for number, labels in enumerate(orders):
            part, one = task.part(f"order-{number}"), replace(problem, labels=labels)
            found.append(VictimSearch(self, part, one, rng, (number, len(orders))).run())
            if found[-1].values["within_errors"]:
                break
        return min(found, key=lambda one: one.values["objective"])
