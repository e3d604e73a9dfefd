"""Every random draw comes from (seed, purpose, round, client …), never from a global generator."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose: equal parts give equal seeds on every machine and Python.

    Parts are typed and delimited, so `("a", 1)` and `("a1",)` differ.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose. It keeps 32 bits of the seed: about n²/2³³ pairs of n purposes draw alike."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@contextlib.contextmanager
def seeded_globals(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators inside the block and restore them after it.

    For code we do not own: timm's initialisers, dropout, Flower's node sampling.
    """
    derived = derive_seed(seed, *purpose)
    if _restored_by_another.get():
        token = _restored_by_another.set(False)
        try:
            _seed_globals(derived)
            yield
        finally:
            _restored_by_another.reset(token)
        return
    with _kept_globals():
        _seed_globals(derived)
        yield


def seed_again(seed: int, *purpose: str | int) -> None:
    """As at the beginning of a block of `seeded_globals`, and inside it: others may have drawn since."""
    _seed_globals(derive_seed(seed, *purpose))


@contextlib.contextmanager
def kept_globals() -> Iterator[None]:
    """Restore the global generators at the end, once for all blocks of `seeded_globals` directly inside.

    Reading and writing NumPy's takes as long as a layer of a small model.
    """
    with _kept_globals():
        token = _restored_by_another.set(True)
        try:
            yield
        finally:
            _restored_by_another.reset(token)


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """As many threads of torch's in the block, which change the last bits, and before and after it as many as before.

    What is computed goes with the settings; the rest of a Python session goes on with the threads that it had.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_restored_by_another: ContextVar[bool] = ContextVar("_restored_by_another", default=False)


@contextlib.contextmanager
def _kept_globals() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if not devices and torch.cuda.is_available():  # a GPU that starts later takes the last seed that was set
            torch.cuda.manual_seed_all(torch.initial_seed())


def _seed_globals(derived: int) -> None:
    random.seed(derived)
    np.random.seed(derived % 2**32)
    # Without CUDA, `torch.manual_seed` formats a stack trace at each call, for devices that may come.
    seed_all = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed_all(derived)
