"""Secure aggregation as far as leakage goes: the server sees sums over clients (Bonawitz et al. 2017)."""

from defenses.base import Defense, Plan
from defenses.settings import whole
from fedsim.effects import Effect, SumsClients
from fedsim.errors import ConfigError
from fedsim.settings.components import layers

SINGLE = ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg", "QFedAvg")
"""Flower's strategies that weigh or sort single updates."""
SERVER_SIDE = "DifferentialPrivacyServerSide"
"""How Flower's strategies are called whose server clips each update."""


class SecureAggregation(Defense):
    """The curious server observes only the mean over a group of clients, weighted by examples, never one update.

    It changes nothing on a client, and no bit of the aggregation where every group has clients to sum:
    `server.sums.summing` forms the sums where observations are made, one a group, and the whole group's images are
    what there is to rebuild. The ideal protocol is simulated, with no masks, no key exchange and no dropout recovery; a
    client that shares nothing is left out of the sum, and a group of which fewer than two clients share anything
    aborts: it shows nothing, and is no part of the global model, whose step would show it (`server.aggregation`). The
    real protocol also rounds updates to integers, which makes its sums a little harder to attack than these. It is in
    Flower as `secaggplus_mod` (of `flwr.client.mod`) on clients with `SecAggPlusWorkflow` (of `flwr.server.workflow`)
    on the server.

    Args:
        clients: in one sum, at least: large federations sum within groups and only then over all (Bonawitz et al.
            2019, section 6). Groups are formed in the order of the clients' numbers. None: one sum over all clients
            of a round, or over all pictures of an audit. Where clients fail or are silent a sum is over fewer, never
            below two.
    """

    repeatable = True  # on the client; a sum is another matter

    def __init__(self, clients: int | None = None) -> None:
        self.clients = clients
        if clients is not None:
            expected = "2 or more, or null for all of a round: a sum over one client is its update"
            whole("defense.secure_aggregation.clients", clients, expected, lambda v: v >= 2)

    def effects(self) -> tuple[Effect, ...]:
        return (SumsClients(self.clients),)

    def check(self, plan: Plan) -> None:
        """Refuses strategies that need single updates, and a second secure aggregation."""
        from hydra.utils import get_class

        from fedsim.wire.records import NUM_EXAMPLES

        if sum(isinstance(other, SecureAggregation) for other in plan.defenses.values()) > 1:
            raise ConfigError("defense", f"[{', '.join(plan.defenses)}]", "one secure aggregation")
        for key, layer in layers(plan.strategy):
            if (by := layer.get("weighted_by_key", NUM_EXAMPLES)) != NUM_EXAMPLES:
                raise ConfigError(f"{key}.weighted_by_key", by, f"{NUM_EXAMPLES}: by them secure_aggregation sums")
            target = layer.get("_target_")
            for cls in get_class(target).__mro__ if target else ():
                if cls.__name__ in SINGLE or cls.__name__.startswith(SERVER_SIDE):
                    raise ConfigError(
                        key,
                        target,
                        f"a strategy that needs no more than the mean, such as fedavg: {cls.__name__} compares or "
                        "changes single updates, and secure_aggregation shows the server only sums",
                    )
