"""What an exchange of messages costs beside the clients' own work."""

from dataclasses import dataclass, field

from fedsim.memory.peak import Memory


@dataclass
class Traffic:
    """One exchange as the server's process saw it.

    Attributes:
        send: seconds in which it serialised instructions and handed them over.
        receive: seconds in which it took and decoded replies and added sums up.
        workers: the most memory that any process of clients has needed so far; nothing where they run in the server's.
    """

    send: float = 0.0
    receive: float = 0.0
    workers: Memory = field(default_factory=Memory)
