"""The source's history changes: capture and ``cdc check`` refuse it before anything new is stored. Harmless changes are
accepted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.base.errors import IdentityError, SourceRefusedError
from cdc.batches.service import BatchService
from cdc.capture import proof, reread
from cdc.capture.start import prove_start
from cdc.cli.check import examine
from cdc.config import DestinationConfig, load
from cdc.meta import open_meta
from cdc.source.connection import connect
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, USER, Server
from tests.support.binlog_files import purge
from tests.support.failovers import capture
from tests.support.versions import reset_statement

NO_GTIDS = "mysql56 without GTIDs"
Configure = Callable[..., DestinationConfig]


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Server]]:
    """Servers that the tests of this module may reset and restart."""
    running: dict[str, Server] = {}

    def get(name: str) -> Server:
        if name not in running:
            options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF") if name == NO_GTIDS else ()
            running[name] = Server(name.split()[0], options=options).start()
        return running[name]

    yield get
    for server in running.values():
        server.stop()


@pytest.fixture(params=["mysql9", "mariadb11", NO_GTIDS])
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    started = servers(request.param)
    started.execute("DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS other", *reset(started))
    return started


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def make(server: Server, tables: str = r"shop\..*") -> DestinationConfig:
        file = tmp_path / "conf" / "shop.yaml"
        file.parent.mkdir(exist_ok=True)
        flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
        file.write_text(
            f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
            f" server_id: {abs(hash(str(file))) % 4_000_000_000 + 1}, start: now, heartbeat_s: 1}}\n"
            f"tables: {{include: ['{tables}']}}\n"
            f"store: {{path: data/store}}\nmeta: {{path: data/meta}}\napply: {{target: ./lake}}\n"
        )
        return load(file)

    return make


def reset(server: Server) -> list[str]:
    return [reset_statement(server)]


def assert_refused(config: DestinationConfig, *words: str) -> str:
    """Checks that capture and ``cdc check`` refuse the source, and that nothing is stored. Returns the message."""
    before = StoreReader(config.store.path).last_seq()
    with pytest.raises(IdentityError) as caught:
        capture(config)
    assert StoreReader(config.store.path).last_seq() == before
    text = str(caught.value)
    for word in words:
        assert word in text
    assert "disk space" not in text
    conn = connect(config.source)
    with conn, pytest.raises(IdentityError) as caught:
        prove_start(config, conn, open_meta(config), before or 0)
    assert str(caught.value) == text and caught.value.remedy
    return text


def make_tables(server: Server) -> None:
    server.execute(
        *[f"CREATE DATABASE IF NOT EXISTS {db}" for db in ("shop", "other")],
        *[f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(1000))" for db in ("shop", "other")],
    )


def insert(server: Server, *ids: int, table: str = "shop.t", size: int = 100) -> None:
    server.execute(*[f"INSERT INTO {table} VALUES ({i}, REPEAT('x', {size}))" for i in ids])


def test_reset_and_growth_beyond_the_old_position(server: Server, configure: Configure) -> None:
    config = configure(server)
    make_tables(server)
    assert capture(config) == 0
    insert(server, 1, 2, 3)
    assert capture(config) == 3
    server.execute(*reset(server))
    insert(server, *range(10, 60))
    assert_refused(config, "history is not the one", "committed at")


def test_reset_and_the_same_statements_again(server: Server, configure: Configure) -> None:
    """An event begins at the old position again."""
    config = configure(server)
    capture(config)

    def statements() -> None:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(1000))")
        insert(server, 1, 2)

    statements()
    assert capture(config) == 3
    server.execute("DROP DATABASE shop", *reset(server))
    statements()
    insert(server, 3, 4)
    assert_refused(config, "history is not the one")


def test_reset_where_only_positions_are_stored(server: Server, configure: Configure) -> None:
    make_tables(server)
    config = configure(server)
    capture(config)
    insert(server, 1, 2, table="other.t")
    assert capture(config) == 0
    assert StoreReader(config.store.path).totals().transactions == 0
    server.execute(*reset(server))
    insert(server, *range(10, 90), table="other.t", size=57)
    assert_refused(config, "history is not the one", "position")


@pytest.mark.long
@pytest.mark.parametrize("server", ["mariadb11", NO_GTIDS], indirect=True)
def test_a_restored_copy_of_the_data_folder(server: Server, configure: Configure, tmp_path: Path) -> None:
    make_tables(server)
    config = configure(server)
    capture(config)
    insert(server, 1)
    assert capture(config) == 1
    server.halt()
    copy = tmp_path / "copy"
    shutil.copytree(server.data, copy, symlinks=True)
    server.restart()
    insert(server, 2, 3)
    assert capture(config) == 2
    server.halt()
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.restart()
    insert(server, *range(10, 50))
    assert_refused(config, "history is not the one")


@pytest.mark.parametrize("server", ["mysql9", "mariadb11"], indirect=True)
def test_harmless_changes_are_accepted(server: Server, configure: Configure) -> None:
    make_tables(server)
    config = configure(server)
    capture(config)
    insert(server, 1)
    insert(server, 1, 2, table="other.t")
    server.execute("BEGIN", "INSERT INTO other.t VALUES (9, 'a')", "INSERT INTO shop.t VALUES (9, 'a')", "COMMIT")
    server.execute("UPDATE shop.t a JOIN other.t b USING (id) SET a.v = 'both', b.v = 'both' WHERE id = 1")
    assert capture(config) == 3
    for tables in ("other\\..*", r".*\..*", r"shop\.no"):  # the filters change
        assert capture(configure(server, tables)) == 0
    config = configure(server)
    server.halt()
    server.restart()
    server.execute("FLUSH BINARY LOGS")
    assert capture(config) == 0
    insert(server, 5)
    assert capture(config) == 1
    server.execute("FLUSH BINARY LOGS")
    insert(server, 5, table="other.t")
    assert capture(config) == 0
    purge(server)
    insert(server, 6)
    assert capture(config) == 1


def test_the_next_file_was_purged(server: Server, configure: Configure) -> None:
    make_tables(server)
    config = configure(server)
    capture(config)
    insert(server, 1)
    assert capture(config) == 1
    server.execute("FLUSH BINARY LOGS")
    insert(server, 2)
    server.execute("FLUSH BINARY LOGS")
    purge(server)
    with pytest.raises(SourceRefusedError, match="no longer has"):
        capture(config)
    findings, code = examine(config)
    [history] = [f for f in findings if f.subject == "source: history"]
    assert code == 2 and history.level == "error" and "purged" in history.message


@pytest.mark.parametrize("changed", [True, False])
def test_a_lost_store(server: Server, configure: Configure, changed: bool) -> None:
    """A new store counts everything below the cursor as applied, so the acked history is proved first."""
    config = configure(server)
    make_tables(server)
    assert capture(config) == 0
    insert(server, 1, 2, 3)
    assert capture(config) == 3
    service = BatchService(config)
    lease = service.get("test", wait_s=0)
    assert lease is not None
    service.ack(lease.batch, lease.token)
    shutil.rmtree(config.store.path)
    if changed:
        time.sleep(1.1)  # file creation times have a resolution of one second
        server.execute("DROP DATABASE shop", "DROP DATABASE other", *reset(server))
        make_tables(server)
        insert(server, 1, 2, 3, 4, 5)
        with pytest.raises(IdentityError, match=r"no store to compare with, and the server's history is not the one"):
            capture(config)
        assert StoreReader(config.store.path).last_seq() is None
    else:
        insert(server, 4)
        assert capture(config) == 0
        insert(server, 5)
        assert capture(config) == 1


def test_rebuilt_on_the_same_port(configure: Configure) -> None:
    """MariaDB derives server_uid from the machine's address and port, so both servers have the same."""
    with Server("mariadb11") as first:
        make_tables(first)
        config = configure(first)
        capture(config)
        insert(first, 1)
        assert capture(config) == 1
        port = first.port
    with Server("mariadb11", port=port) as second:
        make_tables(second)
        insert(second, *range(1, 40))
        assert_refused(config, "history is not the one")


@pytest.mark.parametrize(("compared", "received"), [(1 << 20, 1 << 26), (1 << 24, 1 << 21), (1 << 24, 1 << 26)])
@pytest.mark.parametrize("server", ["mysql9"], indirect=True)
def test_a_large_transaction(
    server: Server, configure: Configure, monkeypatch: pytest.MonkeyPatch, compared: int, received: int
) -> None:
    """Only its beginning is compared, and rows of other tables lie in between."""
    monkeypatch.setattr(reread, "_COMPARED_BYTES", compared)
    monkeypatch.setattr(reread, "_RECEIVED_BYTES", received)
    make_tables(server)
    config = configure(server)
    capture(config)
    rows = ", ".join(f"({i}, REPEAT('x', 900))" for i in range(2000))
    server.execute(
        "BEGIN",
        f"INSERT INTO shop.t VALUES {rows}",
        f"INSERT INTO other.t VALUES {rows}",
        "UPDATE shop.t a JOIN other.t b USING (id) SET a.v = 'both', b.v = 'both'",
        "COMMIT",
    )
    assert capture(config) == 1
    assert capture(configure(server, r".*\..*")) == 0
    stored = proof.read_store_end(config.store.path)
    assert stored is not None and stored.transaction is not None
    entry, segment = stored.transaction.entry, stored.transaction.segment
    with segment.open("r+b") as file:  # simulates another value at the source
        file.seek(int(entry["offset"]) + 20_000)
        file.write(b"y")
    with connect(config.source) as conn, pytest.raises(IdentityError, match=r"contents|begins otherwise"):
        prove_start(config, conn, open_meta(config), int(entry["seq"]))


def test_purged_behind_a_rotation_without_traffic(server: Server, configure: Configure) -> None:
    """Nothing was committed since the rotation and the file before it is purged, so nothing is missing."""
    config = configure(server)
    make_tables(server)
    assert capture(config) == 0
    insert(server, 1)
    assert capture(config) == 1
    server.execute("FLUSH LOGS" if server.kind.name == "mysql56" else "FLUSH BINARY LOGS")
    assert capture(config) == 0
    purge(server)
    assert capture(config) == 0
    insert(server, 2)
    assert capture(config) == 1
