"""The GTIDs in the manifests of batches, against those that the server has executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdc.batches.manifest import Manifest
from cdc.batches.service import BatchService
from cdc.binlog.gtids import GtidSet, parse_state
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.store.formats.gtids import GTIDS_FILE, read_checkpoints, write_checkpoint
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import Server
from tests.servers.capture.test_rollbacks import begin, name_of, run
from tests.support.failovers import flavor_of

Database = Callable[[Server], str]


def executed(server: Server) -> GtidSet:
    flavor = flavor_of(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_executed" if flavor == "mysql" else "SELECT @@gtid_binlog_state")
        ((text,),) = cursor.fetchall()
    return parse_state(text, flavor)


def next_manifest(config: DestinationConfig, transactions: int = 1) -> Manifest:
    batches = BatchService(config)
    lease = batches.get("test", limits=Limits(1 << 20, transactions), wait_s=0)
    assert lease is not None
    batches.ack(lease.manifest.batch, lease.token)
    return lease.manifest


def gtids_of(server: Server, manifest: Manifest) -> GtidSet:
    assert manifest.gtids is not None
    return parse_state(manifest.gtids, flavor_of(server))


def test_a_manifest_has_all_gtids_up_to_its_end(server: Server, database: Database, tmp_path: Path) -> None:
    other = database(server)
    run(server, other, "CREATE TABLE o (id INT PRIMARY KEY)")
    config = begin(tmp_path, server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    bounds = []
    for number in range(6):
        run(server, name_of(config), f"INSERT INTO t VALUES ({number})")
        least = executed(server)
        run(server, other, f"INSERT INTO o VALUES ({number})")
        bounds.append((least, executed(server)))
        if number == 2:
            Capture(config).run(until_current=True)
    Capture(config).run(until_current=True)
    for number, (least, most) in enumerate(bounds):
        if number == 2:  # the checkpoints up to here are gone: the batch before this one has the GTIDs
            flavor = flavor_of(server)
            newest = read_checkpoints(config.store.path, flavor)[-1]
            (config.store.path / GTIDS_FILE).unlink()
            write_checkpoint(config.store.path, flavor, newest)
        gtids = gtids_of(server, next_manifest(config))
        assert least <= gtids <= most, number


def test_a_batch_does_not_depend_on_the_gtids(server: Server, database: Database, tmp_path: Path) -> None:
    config = begin(tmp_path, server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    run(server, name_of(config), *(f"INSERT INTO t VALUES ({number})" for number in range(3)))
    Capture(config).run(until_current=True)
    before = (config.store.path / GTIDS_FILE).read_bytes()
    (config.store.path / GTIDS_FILE).write_text("{")
    assert next_manifest(config).gtids is None
    (config.store.path / GTIDS_FILE).unlink()
    assert next_manifest(config).gtids is None
    (config.store.path / GTIDS_FILE).write_bytes(before)
    assert gtids_of(server, next_manifest(config)) == executed(server)
