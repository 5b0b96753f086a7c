"""The cursor of a subscriber in ZooKeeper, as Canal's tools read it, against what the server says."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.binlog.gtids import GtidSet
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.disk.encryption.read import file_is_encrypted
from cdc.store.formats.layout import list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from cdc.testing.servers.replicas import ReplicaPair
from tests.servers.capture.test_capture import configure
from tests.servers.capture.test_rollbacks import name_of, run

Database = Callable[[Server], str]
KEYS = {"gtid", "included", "journalName", "position", "serverId", "timestamp"}


@contextmanager
def source(
    folder: Path, server: Server, db: str, zookeeper: Server, store: str = ""
) -> Iterator[tuple[DestinationConfig, BatchService, KazooClient]]:
    """Yields a destination whose store has nothing yet and whose meta is in ZooKeeper, with its batches and a client."""
    run(server, db, "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE o (id INT PRIMARY KEY)")
    file = configure(folder, server, db, tables="t", store=store).file
    meta = f"meta: {{path: data/meta, kind: zookeeper, hosts: '{zookeeper.url}', root: /otter/{secrets.token_hex(4)}}}"
    file.write_text(file.read_text().replace("meta: {path: data/meta}", meta))
    config = load(file)
    Capture(config).run(until_current=True)
    client = KazooClient(zookeeper.url)
    client.start()
    batches = BatchService(config)
    try:
        yield config, batches, client
    finally:
        batches.meta.close()
        client.stop()
        client.close()


def write(server: Server, config: DestinationConfig, *ids: int, table: str = "t") -> None:
    """Inserts rows, each in a transaction, and captures them."""
    run(server, name_of(config), *(f"INSERT INTO {table} VALUES ({number})" for number in ids))
    Capture(config).run(until_current=True)


def get(batches: BatchService, transactions: int = 100) -> Lease:
    lease = batches.get("test", limits=Limits(1 << 20, transactions), wait_s=0)
    assert lease is not None
    return lease


def node(client: KazooClient, config: DestinationConfig, path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(client.get(f"{config.meta.root}/destinations/shop/apply/{path}")[0])
    return document


def position(client: KazooClient, config: DestinationConfig) -> dict[str, Any]:
    """Returns the position of the subscriber's cursor."""
    shown: dict[str, Any] = node(client, config, "cursor")["postion"]
    return shown


def answer(server: Server, sql: str) -> Any:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        ((value,),) = cursor.fetchall()
    return value


def now_ms(server: Server) -> int:
    """Returns the time of the server's clock."""
    return int(answer(server, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)"))


def gtids(server: Server) -> str:
    """Returns what Canal's positions have: the set of all GTIDs of MySQL, the last one of each domain of MariaDB."""
    if server.kind.name.startswith("mysql"):
        return str(GtidSet.parse(answer(server, "SELECT @@gtid_executed")))
    return str(answer(server, "SELECT @@gtid_binlog_pos"))


def time_ms(lease: Lease) -> int:
    """Returns the commit time of the last transaction."""
    time = lease.manifest.positions.last.time
    assert time is not None
    return int((datetime.fromisoformat(time) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000) // 1000


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_cursor_has_time_server_id_and_gtids(
    server: Server,
    zookeeper: Server,
    database: Database,
    tmp_path: Path,
    encrypted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_KEY", "00" * 32)
    store = ", encryption: {key_env: TOWPATH_TEST_KEY}" if encrypted else ""
    with source(tmp_path, server, database(server), zookeeper, store) as (config, batches, client):
        began_ms = now_ms(server)
        write(server, config, 1, 2, 3)
        assert file_is_encrypted(list_segments(config.store.path)[-1]) == encrypted
        lease = get(batches)
        end = lease.manifest.positions.last
        shown = {
            "gtid": gtids(server),
            "included": False,
            "journalName": end.file,
            "position": end.pos,
            "serverId": answer(server, "SELECT @@server_id"),
            "timestamp": time_ms(lease),
        }
        # MariaDB's binlog has the second of a commit.
        assert began_ms - 1000 < shown["timestamp"] <= now_ms(server)
        batch = node(client, config, f"mark/{lease.batch:010d}")
        assert batch["end"]["postion"] == batch["ack"]["postion"] == shown
        assert set(batch["start"]["postion"]) == {"included", "journalName", "position"}

        # A batch that was rolled back leaves no trace, and its transactions come again.
        batches.rollback(lease.batch, lease.token)
        assert client.exists(f"{config.meta.root}/destinations/shop/apply/cursor") is None
        again = get(batches)
        batches.ack(again.batch, again.token)
        assert position(client, config) == shown

        # A reader that acks a part of a batch, as a client of Canal does.
        write(server, config, 4)
        least = gtids(server)
        write(server, config, 5)
        lease = get(batches)
        inside = int(next(StoreReader(config.store.path).all_entries(lease.manifest.after_seq))["seq"][0])
        batches.ack_until(lease.batch, lease.token, inside)
        middle = position(client, config)
        assert set(middle) == KEYS and middle["gtid"] == least and middle["serverId"] == shown["serverId"]
        assert shown["timestamp"] <= middle["timestamp"] <= time_ms(lease)
        batches.ack(lease.batch, lease.token)
        assert position(client, config) == shown | {
            "gtid": gtids(server),
            "position": lease.manifest.positions.last.pos,
            "timestamp": time_ms(lease),
        }


def test_a_batch_that_ends_behind_its_last_transaction(
    server: Server, zookeeper: Server, database: Database, tmp_path: Path
) -> None:
    """Transactions of other tables, of which the store has the positions alone."""
    with source(tmp_path, server, database(server), zookeeper) as (config, batches, client):
        run(server, name_of(config), "INSERT INTO t VALUES (1)", "INSERT INTO o VALUES (1)")
        write(server, config, 2, table="o")
        lease = get(batches)
        assert lease.manifest.transactions == 1
        batches.ack(lease.batch, lease.token)
        shown = position(client, config)
        assert (shown["gtid"], shown["timestamp"]) == (gtids(server), time_ms(lease))
        # The header of an event has MySQL's server id; MariaDB's is in the GTID.
        is_mysql = server.kind.name.startswith("mysql")
        assert shown.get("serverId") == (None if is_mysql else answer(server, "SELECT @@server_id"))


def test_a_subscriber_of_other_tables(mariadb11: Server, zookeeper: Server, database: Database, tmp_path: Path) -> None:
    """The last transaction of the batch is not the subscriber's."""
    with source(tmp_path, mariadb11, database(mariadb11), zookeeper) as (config, batches, client):
        file = config.file
        file.write_text(file.read_text().replace(r"\.t']", r"\.[ot]']"))
        config = load(file)
        write(mariadb11, config, 1)
        batches.subscribe("apply", r".*\.t")
        write(mariadb11, config, 2, table="o")
        lease = get(batches)
        assert lease.manifest.tables == (f"{name_of(config)}.t",)
        batches.ack(lease.batch, lease.token)
        shown = position(client, config)
        assert shown["gtid"] == gtids(mariadb11) == lease.manifest.positions.last.gtid
        assert shown["serverId"] == answer(mariadb11, "SELECT @@server_id")


def test_a_transaction_of_another_server(
    mariadb11: Server, zookeeper: Server, database: Database, tmp_path: Path
) -> None:
    with source(tmp_path, mariadb11, database(mariadb11), zookeeper) as (config, batches, client):
        run(mariadb11, name_of(config), "SET SESSION server_id = 4711", "INSERT INTO t VALUES (1)")
        Capture(config).run(until_current=True)
        lease = get(batches)
        batches.ack(lease.batch, lease.token)
        shown = position(client, config)
        assert shown["serverId"] == 4711 and shown["gtid"] == gtids(mariadb11)
        assert "-4711-" in shown["gtid"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_relayed_transaction_has_the_primarys_id(zookeeper: Server, tmp_path: Path) -> None:
    with ReplicaPair("mysql9") as pair:
        db = "shop"
        pair.primary.execute(f"CREATE DATABASE {db}")
        pair.wait_level()
        run(pair.primary, db, "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE o (id INT PRIMARY KEY)")
        pair.wait_level()
        pair.replica.execute(f"DROP TABLE {db}.t, {db}.o")
        with source(tmp_path, pair.replica, db, zookeeper) as (config, batches, client):
            run(pair.primary, db, "INSERT INTO t VALUES (1)")
            pair.wait_level()
            Capture(config).run(until_current=True)
            lease = get(batches)
            batches.ack(lease.batch, lease.token)
            shown = position(client, config)
            ids = [answer(server, "SELECT @@server_id") for server in (pair.primary, pair.replica)]
            assert shown["serverId"] == ids[0] != ids[1]
            assert shown["gtid"] == gtids(pair.replica) and shown["gtid"].count(",") == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_source_without_gtids(zookeeper: Server, tmp_path: Path) -> None:
    options = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]
    with Server("mysql9", options=options) as server:
        server.execute("CREATE DATABASE shop")
        with source(tmp_path, server, "shop", zookeeper) as (config, batches, client):
            write(server, config, 1)
            lease = get(batches)
            batches.ack(lease.batch, lease.token)
            shown = position(client, config)
            assert set(shown) == KEYS - {"gtid"}
            assert (shown["serverId"], shown["timestamp"]) == (answer(server, "SELECT @@server_id"), time_ms(lease))
