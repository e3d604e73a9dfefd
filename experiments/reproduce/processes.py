"""Work that is spread over processes, whose results come as they are ready."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from fedsim.errors import RunError

Key = TypeVar("Key")
Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(
    work: Callable[[Task], Result], todo: Iterable[tuple[Key, Task]], workers: int
) -> Iterator[tuple[Key, Result]]:
    """Each task's key with its result; `todo` is read no further ahead than the workers need.

    Args:
        work: a function of a module, when there are several workers.
        workers: processes; 1 works in this one.

    Raises:
        RunError: a worker was killed.
    """
    if workers == 1:
        for key, task in todo:
            yield key, work(task)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running: dict[Future[Result], Key] = {}
        for key, task in todo:
            running[pool.submit(work, task)] = key
            if len(running) > workers:
                yield from _ready(running)
        while running:
            yield from _ready(running)


def _ready(running: dict[Future[Result], Key]) -> Iterator[tuple[Key, Result]]:
    """Wait for one at least."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        key = running.pop(future)
        try:
            result = future.result()
        except BrokenProcessPool as error:
            raise RunError("a worker was killed, for its memory perhaps; the same command goes on from here") from error
        yield key, result
