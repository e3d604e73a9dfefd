"""A small picture is decoded once a process.

Under the type checker each run would spend a tenth of a second on its digits, which are the same in all of them.
"""

import sys
from typing import Any

READER = "fedsim.data.image_set"
SMALL = 2048
"""Bytes of a file at most."""
pictures: dict[tuple[bytes, int], Any] = {}
done: set[str] = set()


def remember() -> None:
    """Where pictures can be read already; called before each test, it imports nothing."""
    if READER not in sys.modules or done:
        return
    done.add(READER)
    module = sys.modules[READER]
    real = module.decode

    def remembered(content: str | bytes, size: int) -> Any:
        if isinstance(content, str) or len(content) > SMALL:
            return real(content, size)
        if (content, size) not in pictures:
            pictures[content, size] = real(content, size)
        return pictures[content, size]

    module.decode = remembered  # type: ignore[attr-defined]
