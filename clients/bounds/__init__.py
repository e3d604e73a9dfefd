"""Bounds that a client can compute of what it shares, before it shares it; each an option of `conf/bound`."""

from clients.bounds.base import Bound as Bound
from clients.bounds.base import Party as Party
from clients.bounds.canaries import Canaries as Canaries
from clients.bounds.canaries import EmpiricalEpsilon as EmpiricalEpsilon
from clients.bounds.canaries import empirical_epsilon as empirical_epsilon
from clients.bounds.determined import Determinedness as Determinedness
from clients.bounds.gaussian import GaussianReference as GaussianReference
from clients.bounds.pairs import IndistinguishablePairs as IndistinguishablePairs
from clients.bounds.robustness import ReconstructionRobustness as ReconstructionRobustness
