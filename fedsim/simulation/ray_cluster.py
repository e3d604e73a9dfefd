"""Starting Ray, or joining a cluster: quiet, on the loopback, sized for what was asked."""

import logging
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedsim.errors import ConfigError, RunError
from fedsim.settings.ray_address import ADDRESS, check_address
from fedsim.settings.ray_address import quiet_environment as quiet_environment

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECONDS_TO_ANSWER = 5.0
"""For a TCP connection; Ray itself would try for minutes."""
STARTS = 3
"""Attempts at a Ray of one's own; each waits 30 s, which Ray does not let us choose."""
SLOW_START = "timed out during startup"
UNWATCHED = {
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_max_direct_call_object_size": f"{2**20}",
}
"""The environment of a Ray of one's own that has no dashboard: nobody would look at what its processes report of each
other, and what a worker returns goes straight to who asked up to 1 MiB, not 100 KB: a small model's update, without
Ray's store. Ray passes over names that it does not know."""


@contextmanager
def ray_cluster(
    address: str | None,
    num_cpus: int,
    num_gpus: int,
    dashboard: bool = False,
    runtime_env: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Ray for the block: a local one of this size on the loopback, or the cluster at `address`.

    A Ray that is already running in this process is used as it is and left running.

    Args:
        runtime_env: what the nodes of a cluster are sent; a local Ray has it already.

    Raises:
        ConfigError: no cluster answers at `address`, or one with another version of Ray or Python.
    """
    quiet_environment()
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        _bind_to_loopback()
        options |= {"num_cpus": num_cpus, "num_gpus": num_gpus, "include_dashboard": dashboard}
        options |= {"dashboard_host": "127.0.0.1", "address": "local"}
    else:
        _check_answer(address)
        options |= {"address": address, "runtime_env": dict(runtime_env or {})}
    try:
        may_ask = _may_have_the_token(address)
        with _environment({} if dashboard or address is not None else UNWATCHED):
            try:
                _init(options, tell=not may_ask)
            except ConnectionError:
                if not (may_ask and _send_token()):
                    raise
                _init(options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise ConfigError("ray.address", address, fault=_reason(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _init(options: dict[str, Any], tell: bool = True) -> None:
    """`ray.init`, tried again where a busy machine takes longer than Ray waits for its own processes.

    A handler of SIGTERM that the program has set stays: Ray puts its own in its place.

    Args:
        tell: what Ray's native code wrote is shown where it failed.

    Raises:
        RunError: they did not come in the end.
    """
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    for left in reversed(range(STARTS)):
        try:
            with _quiet_stderr(tell):
                ray.init(**options)
            if callable(handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
            return
        except Exception as error:  # Ray has no class of its own for it
            if SLOW_START not in str(error):
                raise
            ray.shutdown()
            if left == 0:
                raise RunError(
                    f"Ray's own processes did not start in {STARTS} attempts: {_why_slow()}; "
                    "simulation=inline needs no Ray"
                ) from error


def _why_slow() -> str:
    """Under a limit on the size of files Ray's shared memory, a file of its own, cannot be made."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return "is the machine busy? The same command tries it again"
    return f"files are limited to {limit} bytes here (ulimit -f), and Ray's shared memory is a larger one"


def _reason(error: Exception) -> str:
    """In one line; Ray's own words end in advice for other programs."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text or "python versions" in text.lower():
        words = re.sub(r".*?ersion mismatch:? ?", "", text)
        return f"must be a cluster with the Ray and the Python of this environment ({words})"
    if isinstance(error, ConnectionError):
        sent = os.environ.get("RAY_AUTH_MODE") == "token"
        token = "" if sent else "; one that asks for a token: set RAY_AUTH_MODE=token"
        return f"no Ray cluster answers there ({text}){token}"
    return f"the cluster takes no job of this kind ({text})"


def _check_answer(address: str) -> None:
    """Raises ConfigError where nothing listens; a cluster of the loopback is joined there."""
    check_address(address)
    actual = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if actual == "auto":
        from ray._private.services import canonicalize_bootstrap_address

        try:
            actual = canonicalize_bootstrap_address("auto") or ""
        except ConnectionError as error:
            raise ConfigError(
                "ray.address", address, fault="no Ray cluster runs on this machine (ray start --head)"
            ) from error
    found = ADDRESS.fullmatch(actual)
    if found is None:
        return  # an address that only Ray's own plug-ins understand
    host, port = found["host"].strip("[]"), int(found["port"])
    if (fault := _connect(host, port)) is not None:
        where = "there" if actual == address else f"at {actual}"
        raise ConfigError("ray.address", address, fault=f"no Ray cluster answers {where} ({fault})") from fault
    if host in LOOPBACK and not actual.startswith("ray://"):
        from ray._private.services import get_node_ip_address

        # Ray takes the loopback for this machine's name in its network, where such a head does not listen.
        if _connect(get_node_ip_address(), port) is not None:
            _bind_to_loopback()


def _may_have_the_token(address: str | None) -> bool:
    """Whether this is a cluster of this machine, of which the user has said nothing about tokens.

    Ray sends none to an address that is named, lest a foreign host read it; nor do we to `ray://`, the form of tunnels.
    """
    found = ADDRESS.fullmatch(address or "")
    here = found is not None and found["host"].strip("[]") in LOOPBACK and not found[0].startswith("ray://")
    return here and "RAY_AUTH_MODE" not in os.environ


def _send_token() -> bool:
    """Send the user's token from here on; False: there is none.

    `ray start` asks for it as soon as any local Ray has made one. Who sends a token asks for it too, and the workers of
    a cluster without tokens have none: so it is nothing for the first try.
    """
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:  # a version without tokens
        return False
    with _quiet_stderr():  # it greets with a warning
        return bool(maybe_enable_token_auth_if_token_available(warn_if_disabled=False))


def _connect(host: str, port: int) -> OSError | None:
    try:
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        return error
    return None


def _bind_to_loopback() -> None:
    """Ray's servers otherwise listen on every interface; the switch is the one of laptops without clusters."""
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Those set for the block; a user's own setting wins."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


@contextmanager
def _quiet_stderr(tell: bool = True) -> Iterator[None]:
    """Ray's native code greets on file descriptor 2; what it wrote is shown only where it failed."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException as error:
            captured.seek(0)
            if tell and not isinstance(error, KeyboardInterrupt):
                os.write(original, captured.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)
