"""Failover of the source with real replicas: the primary is killed under load, and capture goes on with the replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.base.errors import IdentityError, LostTransactionsError, SourceRefusedError, SourceUnavailableError, UsageError
from cdc.binlog.gtids import GtidSet
from cdc.capture.accept_loss import accept_loss, examine_servers
from cdc.cli.check import examine
from cdc.config import DestinationConfig, load
from cdc.meta import open_meta
from cdc.store.formats.prepared import pending
from cdc.testing.servers import HOST, USER, ReplicaPair, Server
from cdc.watch.metrics.capture import CaptureCollector, CaptureMonitor
from cdc.watch.status import collect
from tests.support.binlog_files import purge
from tests.support.capturing import capturing
from tests.support.failovers import (
    capture,
    executed,
    inserting,
    source_of,
    stored_gtids,
    transactions,
    wait_for,
    wait_until_level,
)
from tests.support.proxy import Proxy
from tests.support.xa import end, prepare

Configure = Callable[..., DestinationConfig]
FAMILIES = ("mysql9", "mariadb11")
DATABASES = ("shop", "other")


@pytest.fixture(scope="module")
def pairs() -> Iterator[Callable[[str], ReplicaPair]]:
    """A pair of each family, which the tests share."""
    running: dict[str, ReplicaPair] = {}

    def get(family: str) -> ReplicaPair:
        if family not in running:
            # MariaDB's strict mode keeps errant transactions out of a replica that replicates.
            options = ("--gtid-strict-mode=OFF",) if family.startswith("mariadb") else ()
            running[family] = ReplicaPair(family, options).start()
        return running[family]

    yield get
    for pair in running.values():
        pair.stop()


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, pairs: Callable[[str], ReplicaPair]) -> ReplicaPair:
    """A pair that is level, with empty tables."""
    servers = pairs(request.param)
    if not servers.replica.alive:
        servers.renew_replica()
    for db in DATABASES:
        columns = "id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(1000)"
        servers.primary.execute(
            f"DROP DATABASE IF EXISTS {db}", f"CREATE DATABASE {db}", f"CREATE TABLE {db}.t ({columns})"
        )
    servers.wait_level()
    return servers


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def make(port: int, family: str, *standbys: int, name: str = "shop", start: str = "now") -> DestinationConfig:
        file = tmp_path / name / "shop.yaml"
        file.parent.mkdir(exist_ok=True)
        flavor = "mysql" if family.startswith("mysql") else "mariadb"
        others = ", ".join(f"'{HOST}:{port}'" for port in standbys)
        file.write_text(
            f"source: {{url: '{flavor}://{USER}@{HOST}:{port}', password_env: TOWPATH_TEST_PASSWORD,"
            f" server_id: {abs(hash(str(file))) % 4_000_000_000 + 1}, start: {start}, heartbeat_s: 1,"
            f" standbys: [{others}], standby_after_s: 1}}\n"
            f"tables: {{include: ['shop\\..*']}}\n"
            f"store: {{path: data/store}}\nmeta: {{path: data/meta}}\napply: {{target: ./lake}}\n"
        )
        return load(file)

    return make


def insert(server: Server, rows: int = 1, db: str = "shop") -> None:
    server.execute(*[f"INSERT INTO {db}.t (v) VALUES ('x')"] * rows)


def assert_equal_to(config: DestinationConfig, server: Server, configure: Configure) -> None:
    """Checks that the store has each transaction of the server's binlog once, from its own first one on."""
    fresh = configure(server.port, server.kind.name, name="fresh", start="earliest")
    capture(fresh)
    stored, wanted = transactions(config), transactions(fresh)
    assert len(set(stored)) == len(stored), "a transaction is there twice"
    assert sorted(stored) == sorted(wanted[wanted.index(stored[0]) :])


def freeze(proxy: Proxy, config: DestinationConfig, pair: ReplicaPair) -> None:
    """Stops capture's connection, and waits until the replica has everything that capture has."""
    proxy.freeze()
    wait_for(
        "the replica does not follow",
        lambda: (stored_gtids(config, pair.primary) or GtidSet()) <= executed(pair.replica),
    )


@pytest.mark.rule("canal-server-5")
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_virtual_address_under_load(pair: ReplicaPair, configure: Configure, rounds: int) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name)
        capture(config)
        insert(pair.primary)
        with capturing(config):
            wait_until_level(config, pair.primary)  # a capture that has never been connected ends with an error
            for number in range(1, rounds + 1):
                with inserting(pair.primary) as writer:
                    writer.wait(60)
                    freeze(proxy, config, pair)
                    writer.wait(30)
                    pair.fail_over()
                with inserting(pair.primary) as writer:
                    writer.wait(10)
                    proxy.move(pair.primary.port)
                    writer.wait(40)
                wait_until_level(config, pair.primary)
                assert source_of(config).epoch == number
                if number < rounds:
                    pair.renew_replica()
    assert_equal_to(config, pair.primary, configure)


@pytest.mark.rule("canal-server-8")
def test_standbys_are_tried_when_the_server_is_gone(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name, pair.replica.port)
        capture(config)
        insert(pair.primary, 3)
        assert not [
            finding for finding in examine(config)[0] if finding.subject.startswith("standby") and finding.level != "ok"
        ]
        with capturing(config):
            wait_until_level(config, pair.primary)
            with inserting(pair.primary) as writer:
                writer.wait(60)
                freeze(proxy, config, pair)
                writer.wait(30)
                pair.fail_over()
            proxy.move(1)
            insert(pair.primary, 5)
            wait_until_level(config, pair.primary)
        source = source_of(config)
        assert (source.epoch, source.address) == (1, f"{HOST}:{pair.primary.port}")
        insert(pair.primary, 2)
        assert capture(config) == 2  # the first server still does not answer
        assert collect(config)["source"]["server"] == source.address
        families = CaptureCollector(config, CaptureMonitor("shop", 60)).collect()
        samples = {sample.name: sample.value for family in families for sample in family.samples}
        assert samples["towpath_source_failovers_total"] == 1
        assert 0 <= time.time() - samples["towpath_source_last_failover_timestamp_seconds"] < 60
    assert_equal_to(config, pair.primary, configure)


@pytest.mark.long
def test_prepared_transactions_are_ended_on_the_new_server(pair: ReplicaPair, configure: Configure) -> None:
    """Their rows were read from the former server, and their XA COMMIT and XA ROLLBACK come from the new one."""
    config = configure(pair.primary.port, pair.primary.kind.name, pair.replica.port)
    capture(config)
    for xid in ("'moved'", "'dropped'", "'late'"):
        prepare(pair.primary, xid, "INSERT INTO shop.t (v) VALUES ('x')")
    insert(pair.primary)
    assert capture(config) == 1 and len(pending(config.store.path)) == 3
    prepare(pair.primary, "'unread'", "INSERT INTO shop.t (v) VALUES ('x')")
    pair.wait_level()
    pair.fail_over()
    end(pair.primary, "'moved'")
    end(pair.primary, "'dropped'", commit=False)
    end(pair.primary, "'unread'")
    assert capture(config) == 2
    assert source_of(config).epoch == 1 and [entry.xid for entry in pending(config.store.path)] == ["x'6c617465',x'',1"]
    end(pair.primary, "'late'")
    assert capture(config) == 1
    assert_equal_to(config, pair.primary, configure)


def test_lost_transactions_are_named_and_accepted(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name)
        capture(config)
        insert(pair.primary, 2)
        pair.wait_level()
        with pytest.raises(UsageError, match="nothing is lost"):
            accept_loss(config)
        pair.pause_replica()
        insert(pair.primary, 3)
        insert(pair.primary, 2, db="other")
        capture(config)
        lost = [gtid for gtid, _ in transactions(config)[-3:]]
        pair.fail_over()
        proxy.move(pair.primary.port)
        insert(pair.primary, 4)
        with pytest.raises(LostTransactionsError, match="former server had transactions") as caught:
            capture(config)
        assert GtidSet(caught.value.lost).count == 5
        assert [state.state for state in examine_servers(config)] == ["lost"]
        loss = accept_loss(config)
        assert (loss.transactions, loss.tables, loss.epoch) == (5, ("shop.t",), 1)
        assert open_meta(config).read().subscription("apply").parked["shop.t"].due == "snapshot"
        assert lost[0].rpartition(":")[2].rpartition("-")[2] in loss.lost
        assert capture(config) == 4
        assert capture(config) == 0
        insert(pair.primary)
        assert capture(config) == 1
        [failover] = collect(config)["source"]["failovers"]
        assert failover["lost"] == source_of(config).began.lost  # type: ignore[union-attr]


@pytest.mark.long
def test_a_replica_that_lags_is_waited_for(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name)
        capture(config)
        pair.pause_replica()
        insert(pair.primary, 3)
        capture(config)
        proxy.move(pair.replica.port)
        with pytest.raises(SourceUnavailableError, match="may still get them"):
            capture(config)
        pair.resume_replica()
        pair.wait_level()
        insert(pair.primary, 2)
        pair.wait_level()
        assert capture(config) == 2
        assert source_of(config).epoch == 1
        proxy.move(pair.primary.port)  # and back, with another epoch
        insert(pair.primary, 1)
        assert capture(config) == 1
        assert source_of(config).epoch == 2
    assert_equal_to(config, pair.primary, configure)


def test_errant_transactions_are_refused(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name, pair.replica.port)
        capture(config)
        insert(pair.primary)
        pair.wait_level()
        insert(pair.replica, db="other")
        insert(pair.primary, 2)
        pair.wait_level()
        capture(config)
        before = source_of(config)
        standby = [finding for finding in examine(config)[0] if finding.subject.endswith(": gtids")]
        assert ["errant" in finding.message for finding in standby] == [True]
        pair.fail_over()
        proxy.move(pair.primary.port)
        with pytest.raises(SourceRefusedError, match="1 errant transactions"):
            capture(config)
        assert source_of(config) == before


def test_purged_transactions_are_refused(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy:
        config = configure(proxy.port, pair.primary.kind.name)
        insert(pair.primary)
        capture(config)
        insert(pair.primary, 2)
        pair.wait_level()
        pair.replica.execute("FLUSH BINARY LOGS")
        if pair.replica.kind.name.startswith("mariadb"):
            pair.replica.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
        purge(pair.replica)
        proxy.move(pair.replica.port)
        with pytest.raises(SourceRefusedError, match="2 transactions that the store lacks"):
            capture(config)
        proxy.move(pair.primary.port)
        assert capture(config) == 2
        pair.replica.kill()


def test_an_unrelated_server_is_refused(pair: ReplicaPair, configure: Configure) -> None:
    with Proxy(pair.primary.port) as proxy, Server(pair.primary.kind.name) as other:
        config = configure(proxy.port, pair.primary.kind.name)
        other.execute(f"SET GLOBAL server_id={4711}")
        insert(pair.primary)
        capture(config)
        other.execute("CREATE DATABASE shop")
        proxy.move(other.port)
        with pytest.raises(IdentityError, match="none of the store's transactions"):
            capture(config)
