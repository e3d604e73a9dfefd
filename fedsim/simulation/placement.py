"""Which node a worker is asked for: clients and attacks apart where a cluster has several, but never by waiting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """What Ray sets aside for one worker.

    Attributes:
        resources: Ray's custom resources by name, such as `{"attacks": 1}` or `{"accelerator_type:A100": 0.01}`.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float | int] = field(default_factory=dict, hash=False)

    @property
    def amounts(self) -> dict[str, float | int]:
        return {"CPU": self.cpus, "GPU": self.gpus, **self.resources}

    def options(self) -> dict[str, Any]:
        """Arguments for `ray.remote(…).options(…)`."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": dict(self.resources) or None}

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts.items() if amount)


@dataclass(frozen=True)
class Node:
    """A node of a cluster and all that it has, in use or not."""

    id: str
    has: Mapping[str, float]

    def room(self, request: Request) -> int:
        """How many of these fit beside one another."""
        wanted = {name: amount for name, amount in request.amounts.items() if amount > 0}
        return min((int(self.has.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()), default=1)

    def less(self, request: Request, count: int) -> "Node":
        taken = {name: amount * count for name, amount in request.amounts.items()}
        return Node(self.id, {name: amount - taken.get(name, 0.0) for name, amount in self.has.items()})


def seats(
    nodes: Sequence[Node], clients: Request, attacks: Sequence[tuple[Request, int]]
) -> tuple[list[str], list[str]]:
    """Ids of nodes for client workers, as many as there is room for, and for these attack workers.

    Attack workers are packed on the nodes that hold the fewest clients. Clients are spread over the others in turns,
    and only then take what is left beside attacks.
    """
    order = sorted(nodes, key=lambda node: (node.room(clients), node.id))
    attack_seats: list[str] = []
    for request, count in attacks:
        for index, node in enumerate(order):
            taken = min(count, node.room(request))
            attack_seats += [node.id] * taken
            order[index] = node.less(request, taken)
            count -= taken
    apart = [node for node in order if node.id not in attack_seats]
    beside = [node for node in order if node.id in attack_seats]
    return [seat for group in (apart, beside) for seat in _in_turns(group, clients)], attack_seats


def _in_turns(nodes: Sequence[Node], request: Request) -> list[str]:
    rooms = [(node.id, node.room(request)) for node in nodes]
    most = max((room for _, room in rooms), default=0)
    return [node for number in range(most) for node, room in rooms if number < room]


@dataclass(frozen=True)
class Placement:
    """Suggests a node to Ray for each worker; where it has no room by then, Ray takes any other.

    Args:
        attacks: requests of attack workers, and how many there are of each.
    """

    clients: Request
    attacks: tuple[tuple[Request, int], ...] = ()

    def client(self, number: int) -> Any:
        """Ray's scheduling strategy for this client worker."""
        return _strategy(self._seats()[0], number)

    def attack(self, number: int) -> Any:
        """Ray's scheduling strategy for this attack worker."""
        return _strategy(self._seats()[1], number)

    def room_for_clients(self) -> int:
        """How many client workers the nodes that are there can hold beside the attack workers."""
        return len(self._seats()[0])

    def _seats(self) -> tuple[list[str], list[str]]:
        return seats(living_nodes(), self.clients, self.attacks)


def anywhere(number: int) -> Any:
    """No suggestion: what one machine needs."""
    return "DEFAULT"


def living_nodes() -> list[Node]:
    """The nodes of the cluster that this process is connected to."""
    import ray

    return [Node(node["NodeID"], dict(node["Resources"])) for node in ray.nodes() if node["Alive"]]


def describe_room(request: Request) -> str:
    """Whether waiting for such a worker can end without a new node."""
    nodes = living_nodes()
    fitting = sum(node.room(request) > 0 for node in nodes)
    few = f"{fitting} of the {len(nodes)} nodes could hold one" if fitting else "no node is large enough for one"
    return f"each asks for {request}; {few}"


def _strategy(order: Sequence[str], number: int) -> Any:
    if number >= len(order):
        return "DEFAULT"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Without spilling, a worker would wait for this node while others are free.
    return NodeAffinitySchedulingStrategy(order[number], soft=True, _spill_on_unavailable=True)
