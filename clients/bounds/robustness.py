"""Reconstruction robustness of a run, from what its defenses prove: the only bound that makes a defense *proven*."""

import math
from collections import defaultdict
from collections.abc import Sequence

from clients.bounds.base import Bound, Party
from clients.bounds.settings import numbers, wholes
from defenses.base import Defense
from defenses.privacy.accounting import gaussian_epsilon
from fedsim.bounds.robustness import KAPPAS, PROVEN_KAPPA, GaussianDP, blow_up, of_epsilon, together
from fedsim.bounds.robustness_wording import lasting, probability, rounded_up, theorem_sentence
from fedsim.bounds.statement import Proof, Statement
from fedsim.data.copies import contents
from fedsim.effects import Unpublished
from fedsim.errors import NotApplicable


class ReconstructionRobustness(Bound):
    """γ = Φ(Φ⁻¹(κ) + μ) of a run's defenses, beside the weaker e^ε·κ + δ.

    Args:
        kappas: probabilities of success before anything is shared, at which γ is printed. Which of them is true of
            images is the reader's assumption.
        times: multiples of the releases that were made, for which γ is printed too.
    """

    kind = "theorem"

    def __init__(self, kappas: Sequence[float] = KAPPAS, times: Sequence[int] = (10, 100)) -> None:
        key, words = "bound.reconstruction_robustness", "probabilities between 0 and 1"
        self.kappas = numbers(f"{key}.kappas", kappas, words, lambda one: 0 < one < 1)
        self.times = wholes(f"{key}.times", times, "multiples of the releases, 1 or more", lambda one: one >= 1)

    def __call__(self, parties: Sequence[Party]) -> Statement:
        """Of the one that its releases tell most of.

        Raises:
            NotApplicable: no defense proves Gaussian differential privacy, or one beside it does not say how it acts.
        """
        holders: defaultdict[str, list[GaussianDP]] = defaultdict(list)
        for party in parties:
            proven = _proven(party)
            for content in set(contents(party.pictures)):
                holders[content].append(proven)
        most = max((together(several) for several in holders.values()), key=lambda one: one.mu)
        return state(most, self.kappas, self.times)


def _proven(party: Party) -> GaussianDP:
    if all(type(one).gaussian_dp is Defense.gaussian_dp for one in party.defenses.wrappers):
        raise NotApplicable("no defense is differentially private: dp_sgd and local_dp are")
    silent = [effect.defense for effect in party.effects if isinstance(effect, Unpublished)]
    if silent:
        raise NotApplicable(f"{silent[0]} does not say how it acts: it may tell what the noise hides")
    party.share(party.train())
    proven = party.defenses.gaussian_dp()
    if proven is None:
        raise NotApplicable("no private defense says by its own `gaussian_dp` what it proves")
    if proven.mu == math.inf:
        raise NotApplicable("the private defense adds no noise: it proves nothing")
    return proven


def state(proven: GaussianDP, kappas: Sequence[float], times: Sequence[int] = ()) -> Statement:
    """The theorem with its numbers, and how it grows with further releases."""
    epsilon = gaussian_epsilon(proven.delta, proven.mu)
    header = ("κ, before", "γ, after", f"e^ε·κ + δ, ε = {rounded_up(epsilon):.3g} at δ = {proven.delta:g}")
    rows = [
        (
            f"{kappa:g}",
            probability(blow_up(kappa, proven.mu)),
            probability(of_epsilon(kappa, epsilon, proven.delta)),
            *(probability(blow_up(kappa, math.sqrt(more) * proven.mu)) for more in times),
        )
        for kappa in kappas
    ]
    values = {"mu": proven.mu, "releases": proven.releases, "epsilon": epsilon, "delta": proven.delta}
    values |= {f"gamma_{kappa:g}": blow_up(kappa, proven.mu) for kappa in kappas}
    more_often = tuple(f"γ, {more * proven.releases:,} releases" for more in times)
    proof = Proof(PROVEN_KAPPA, blow_up(PROVEN_KAPPA, proven.mu), proven.mu, proven.releases, proven.unit)
    sentence, note = theorem_sentence(proven), lasting(proven)
    return Statement("theorem", sentence, values, header + more_often, tuple(rows), proof=proof, note=note)
