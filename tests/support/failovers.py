"""Questions that tests of failovers ask the store and the servers."""

from __future__ import annotations

import time
from collections.abc import Callable

from pymysql.cursors import Cursor

from cdc.binlog.entry import format_gtid
from cdc.binlog.gtids import Flavor, GtidSet, parse_state
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.meta import SourceIdentity, open_meta
from cdc.source.history import executed_gtids
from cdc.store.formats.gtids import gtids_until
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.writing import BackgroundWriter


def source_of(config: DestinationConfig) -> SourceIdentity:
    """The server that is captured, by the meta."""
    source = open_meta(config).source()
    assert source is not None
    return source


def transactions(config: DestinationConfig) -> list[tuple[str, int]]:
    """Returns GTID and row events of each transaction in the store."""
    return [
        (str(format_gtid(entry)), int(entry["row_events"]))
        for entries in StoreReader(config.store.path).all_entries()
        for entry in entries[entries["length"] > 0]
    ]


def executed(server: Server) -> GtidSet:
    """The GTIDs that a server has executed."""
    flavor = flavor_of(server)
    with server.connect() as conn:
        return parse_state(executed_gtids(conn, flavor) or "", flavor)


def stored_gtids(config: DestinationConfig, server: Server) -> GtidSet | None:
    """The GTIDs that the store has read."""
    path = config.store.path
    return gtids_until(path, flavor_of(server), StoreReader(path).last_seq() or 0)


def flavor_of(server: Server) -> Flavor:
    """The family of a server."""
    return "mariadb" if server.kind.name.startswith("mariadb") else "mysql"


def wait_for(what: str, is_true: Callable[[], bool]) -> None:
    """Waits until something is true; otherwise the test fails with ``what``."""
    deadline = time.monotonic() + 40
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_until_level(config: DestinationConfig, server: Server) -> None:
    """Waits until the store has read all that the server has executed."""
    server_gtids = executed(server)
    wait_for(
        "capture has not become level",
        lambda: (stored := stored_gtids(config, server)) is not None and server_gtids <= stored,
    )


def capture(config: DestinationConfig) -> int:
    """Captures up to the present and returns the number of new transactions."""
    return Capture(config).run(until_current=True).transactions


def inserting(server: Server) -> BackgroundWriter:
    """Returns a load that inserts rows into both databases."""

    def write(cursor: Cursor, number: int) -> None:
        db = "other" if number % 3 == 2 else "shop"
        cursor.execute(f"INSERT INTO {db}.t (v) VALUES (REPEAT('x', 100))")

    return BackgroundWriter(server, write)
