"""A cluster that cannot be used is an error in one line, at once."""

import os
import signal
import socket
import time

import pytest
import ray

from fedsim.errors import ConfigError, RunError
from fedsim.simulation.ray_cluster import check_address, ray_cluster


@pytest.fixture
def without_ray(monkeypatch):
    """As if this process had no Ray yet; nothing is started."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("fedsim.simulation.ray_cluster._bind_to_loopback", lambda: None)


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def open_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("address", [None, "auto", "10.0.0.1:6379", "ray://head:10001", "ray://[::1]:10001"])
def test_addresses(address):
    check_address(address)


@pytest.mark.parametrize("address", ["", "head", "ray://head", "head:0", "head:70000", "http://a:1", "local", 6379])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_answers(without_ray, closed_port, scheme):
    start = time.monotonic()
    nobody = pytest.raises(ConfigError, match=r"ray\.address=.*no Ray cluster answers there")
    with nobody, ray_cluster(f"{scheme}127.0.0.1:{closed_port}", 1, 0):
        pass
    assert time.monotonic() - start < 10


def test_auto_goes_where_the_environment_points(without_ray, closed_port, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(ConfigError, match=f"answers at 127.0.0.1:{closed_port}"), ray_cluster("auto", 1, 0):
        pass


def test_auto_without_any_cluster(without_ray, monkeypatch):
    def none_runs(_):
        raise ConnectionError("could not find any running Ray instance")

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", none_runs)
    with (
        pytest.raises(ConfigError, match=r"ray\.address=auto: no Ray cluster runs on this machine"),
        ray_cluster("auto", 1, 0),
    ):
        pass


def test_other_versions_are_named(without_ray, open_port, monkeypatch):
    from ray._private.utils import check_version_info

    def init(**_):
        check_version_info({"ray_version": "2.1.0", "python_version": "3.9.1"}, "process on 10.0.0.2")

    monkeypatch.setattr(ray, "init", init)
    named = r"with the Ray and the Python of this environment .*Ray: 2\.1\.0 Python: 3\.9\.1"
    with pytest.raises(ConfigError, match=named), ray_cluster(f"127.0.0.1:{open_port}", 1, 0):
        pass


@pytest.mark.parametrize("mode", [None, "token"])
def test_one_that_may_ask_for_a_token_is_told_so(without_ray, open_port, monkeypatch, mode):
    def init(**_):
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr("fedsim.simulation.ray_cluster._send_token", lambda: False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(ConfigError, match="connection timeout") as raised, ray_cluster(f"127.0.0.1:{open_port}", 1, 0):
        pass
    assert ("set RAY_AUTH_MODE=token" in str(raised.value)) == (mode is None)


def test_what_travels_is_handed_to_ray(without_ray, open_port, monkeypatch):
    seen = {}
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options))
    with ray_cluster(f"127.0.0.1:{open_port}", 1, 0, runtime_env={"working_dir": "/code"}):
        pass
    assert seen["runtime_env"] == {"working_dir": "/code"}
    assert "num_cpus" not in seen


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_ray_that_nobody_watches_reports_nothing_and_one_with_a_dashboard_all(without_ray, monkeypatch, dashboard):
    seen, reports = {}, "RAY_enable_metrics_collection"
    monkeypatch.setenv("RAY_event_stats", "1")
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options, **os.environ))
    with ray_cluster(None, 1, 0, dashboard=dashboard):
        assert reports not in os.environ, "for those that start alone"
    assert seen["include_dashboard"] is dashboard
    assert seen.get(reports) == (None if dashboard else "0")
    assert seen["RAY_event_stats"] == "1", "the user's own"


@pytest.mark.parametrize("own", [True, False])
def test_a_handler_of_sigterm_stays_the_commands_own(without_ray, monkeypatch, own):
    def of_ray(number, frame):
        raise SystemExit(number)

    def of_the_command(number, frame):
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, of_ray))
    try:
        signal.signal(signal.SIGTERM, of_the_command if own else signal.SIG_DFL)
        with ray_cluster(None, 1, 0):
            assert signal.getsignal(signal.SIGTERM) is (of_the_command if own else of_ray)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("slow", [1, 3])
def test_a_ray_that_is_slow_to_start_is_tried_again(without_ray, monkeypatch, slow):
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) <= slow:
            raise Exception("The current node timed out during startup. This could happen")

    monkeypatch.setattr(ray, "init", init)
    if slow == 1:
        with ray_cluster(None, 1, 0):
            assert len(calls) == 2
    else:
        with pytest.raises(RunError, match="did not start in 3 attempts"), ray_cluster(None, 1, 0):
            pass
        assert len(calls) == 3


def test_a_limit_on_the_size_of_files_is_named_where_ray_does_not_start(without_ray, monkeypatch):
    """Its shared memory is a file: on a busy machine another try helps, here none does."""

    def init(**_):
        raise Exception("The current node timed out during startup. This could happen")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr("resource.getrlimit", lambda _: (60 * 1024, -1))
    limit = r"files are limited to 61440 bytes here \(ulimit -f\)"
    with pytest.raises(RunError, match=limit), ray_cluster(None, 1, 0):
        pass
