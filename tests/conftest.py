"""The fixtures of all tests: real servers, names for databases, and the seed of random tests.

The servers are started when the first test asks for one, and shared by all tests of the run, which keep to databases of
their own. A test that kills or reconfigures a server starts its own :class:`cdc.testing.servers.Server`. A server that
cannot be had is an error: no test is skipped for want of one.
"""

from __future__ import annotations

import os
import random
import re
import signal
import zlib
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import structlog  # noqa: F401 - before cdc, which then configures it before capture_logs changes the configuration

from cdc.disk.encryption import keys
from cdc.testing.servers import PASSWORD, Server
from tests.support.kernel_signatures import check_signatures

Database = Callable[[Server], str]

if os.environ.get("TOWPATH_ENCRYPT"):  # every store of the run is encrypted
    keys.register("/", keys.KeySources("tests", lambda: bytes(range(32))))

os.environ["TOWPATH_TEST_PASSWORD"] = PASSWORD  # the configurations of the tests name it
check_signatures()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell begins processes in the background so, and those that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
IN_CI = bool(os.environ.get("CI"))
SEED = int(os.environ.get("TOWPATH_SEED") or (1 if IN_CI else random.SystemRandom().randrange(2**32)))

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


_PAIR = ("mysql9", "mariadb11")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rule", help="run only the tests that show this rule of Canal, Flume or RocketMQ (canal-ring-11)"
    )


def mark_second_servers(items: list[pytest.Item]) -> None:
    """Leaves one of MySQL 9 and MariaDB 11.8 to ``make test`` where a test has both and says nothing else; which one
    depends on the test's name, so that each server has half of them. ``make test-long`` has the others, and the servers
    that ``long_on`` names."""
    pairs: dict[tuple[str, ...], dict[str, pytest.Item]] = {}
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if any(value in mark.args for mark in item.iter_markers("long_on") for value in given.values()):
            item.add_marker(pytest.mark.long)
        kinds = [name for name, value in given.items() if isinstance(value, str) and value in _PAIR]
        if len(kinds) == 1 and item.get_closest_marker("long") is None and item.get_closest_marker("field") is None:
            other_params = sorted(f"{name}={value!r}" for name, value in given.items() if name != kinds[0])
            pairs.setdefault((item.nodeid.partition("[")[0], *other_params), {})[str(given[kinds[0]])] = item
    for key, by_kind in pairs.items():
        if len(by_kind) == len(_PAIR):
            by_kind[_PAIR[zlib.crc32(key[0].encode()) % 2]].add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "TOWPATH_SERVER_STANDINS" not in os.environ:  # `make test-versions` has all of them
        mark_second_servers(items)
    if rule := config.getoption("rule"):
        shown = [item for item in items if any(rule in mark.args for mark in item.iter_markers("rule"))]
        config.hook.pytest_deselected(items=[item for item in items if item not in shown])
        items[:] = shown


def pytest_report_header() -> str:
    return f"seed of random tests: {SEED} (TOWPATH_SEED={SEED} repeats them)"


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run: fixed in CI, printed in the header."""
    return SEED


@pytest.fixture(scope="session")
def mysql9() -> Iterator[Server]:
    """MySQL 9, shared."""
    with Server("mysql9") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb11() -> Iterator[Server]:
    """MariaDB 11.8, shared."""
    with Server("mariadb11") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb10() -> Iterator[Server]:
    """MariaDB 10.11, shared."""
    with Server("mariadb10") as server:
        yield server


@pytest.fixture(scope="session")
def mysql56() -> Iterator[Server]:
    """MySQL 5.6, shared."""
    with Server("mysql56") as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[Server]:
    """ZooKeeper 3.8, shared; tests keep to a node of their own."""
    with Server("zookeeper") as server:
        yield server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Makes a fresh, empty database on a server and returns its name; dropped after the test."""
    made: list[tuple[Server, str]] = []
    stem = re.sub(r"\W+", "_", request.node.name).lower()[:40]

    def make(server: Server) -> str:
        name = f"{stem}_{len(made)}_{random.SystemRandom().randrange(2**32):08x}"
        server.execute(f"CREATE DATABASE `{name}`")
        made.append((server, name))
        return name

    yield make
    for server, name in made:
        if server.alive:
            server.execute(f"DROP DATABASE IF EXISTS `{name}`")
