"""Work that is spread over processes, whose results come as they are ready."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for_any
from typing import NoReturn, TypeVar

from experiments.cli.errors import ConfigFault, one_line
from fedsim.errors import RunError

Key = TypeVar("Key")
Task = TypeVar("Task")
Result = TypeVar("Result")
Failure = tuple[Key, Exception]


def spread(
    work: Callable[[Task], Result],
    todo: Iterable[tuple[Key, Task]],
    workers: int,
    name: Callable[[Key], str] = str,
) -> Iterator[tuple[Key, Result]]:
    """Each task's key with its result; `todo` is read no further ahead than the workers need.

    Where one fails no other is begun; those that are under way come to their end, and their results too, before the
    first failure is raised.

    Args:
        work: a function of a module, when there are several workers.
        workers: processes; 1 works in this one.
        name: of a task, for the message.

    Raises:
        RunError: a worker was killed, or `work` raised RunError or a fault of the settings; it names the task. Other
            exceptions come as they are, with a note that does.
    """
    if workers == 1:
        for key, task in todo:
            try:
                result = work(task)
            except Exception as error:  # noqa: BLE001 - raised again, with the task's name
                _fail(name(key), error)
            yield key, result
        return
    failures: list[Failure[Key]] = []
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=die_with_parent) as pool:
        running: dict[Future[Result], Key] = {}
        try:
            try:
                for key, task in todo:
                    running[pool.submit(work, task)] = key
                    if len(running) > workers:
                        yield from _ready(running, failures)
                    if failures:
                        break
            except BrokenProcessPool as broken:  # between two tasks
                failures.append((key, broken))
            if failures:
                running = {future: key for future, key in running.items() if not future.cancel()}
            while running:
                yield from _ready(running, failures)
        except KeyboardInterrupt:
            for process in active_children():  # the pool would wait for them, and give them what is still to do
                process.terminate()
            raise
    if failures:
        failed, first = failures[0]
        _fail(name(failed), first)


def die_with_parent() -> None:
    """From now on this process ends when its parent does, however that ended.

    A study that was killed would else leave workers that go on, beside those of the same command called again.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True, name="die with parent").start()


def _exit_after(sentinel: int) -> NoReturn:
    """Once the parent is gone. What a worker writes is written whole or not at all, so it may stop anywhere."""
    wait_for_any([sentinel])
    os._exit(1)


def _ready(running: dict[Future[Result], Key], failures: list[Failure[Key]]) -> Iterator[tuple[Key, Result]]:
    """Wait for one at least."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        key = running.pop(future)
        error = future.exception()
        if error is None:
            yield key, future.result()
        elif isinstance(error, Exception):
            failures.append((key, error))
        else:
            raise error


def _fail(name: str, error: Exception) -> NoReturn:
    """Raise the failure with the task's name."""
    if isinstance(error, BrokenProcessPool):
        killed = "a worker was killed, for its memory perhaps; the same command goes on from here"
        raise RunError(f"{name}, or a task beside it: {killed}") from error
    if isinstance(error, RunError):
        raise RunError(f"{name}: {error}") from error
    if isinstance(error, ConfigFault):
        raise RunError(f"{name}: {one_line(error, 'audit', [])}") from error
    error.add_note(f"in {name}")
    raise error
