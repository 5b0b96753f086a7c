"""Compressed transactions and rows of captured tables on real servers: the same rows as without compression."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest

from cdc.batches import BatchService
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.decode.reader import DecodeOptions, read
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, USER, Server, client_tool
from tests.support.load import TABLES, Load
from tests.support.processes import peak_rss
from tests.support.versions import lacks, needs

Database = Callable[[Server], str]
PACKED = {"mysql9": {40}, "mariadb10": {166, 167}, "mariadb11": {166, 167}}
"""The event types of compressed changes. The workload does not always delete."""


class Compression:
    """Switches compression for the sessions that follow."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self.switch(on=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.switch(on=False)

    def switch(self, *, on: bool) -> None:
        needs(self._server, "compressed transactions")
        word = "ON" if on else "OFF"
        if self._server.kind.name == "mysql9":
            self._server.execute(f"SET GLOBAL binlog_transaction_compression = {word}")
        else:
            least = "10" if on else "DEFAULT"
            self._server.execute(
                f"SET GLOBAL log_bin_compress_min_len = {least}", f"SET GLOBAL log_bin_compress = {word}"
            )


def new_file(server: Server) -> tuple[str, Path]:
    """Begins a new binlog file. Returns its position for ``start``, and its path."""
    server.execute("FLUSH BINARY LOGS")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        name = str(cursor.fetchall()[-1][0])
    return f"{{file: {name}, pos: 4}}", server.data / name


def event_types(path: Path) -> set[int]:
    data, at, types = path.read_bytes(), 4, set()
    while at < len(data):
        types.add(data[at + 4])
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return types


def configure(
    folder: Path, server: Server, start: str, include: str, *, exclude: str = "none", store: str = ""
) -> DestinationConfig:
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    flavor = "mysql" if server.kind.name == "mysql9" else "mariadb"
    file.write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {abs(hash(str(folder))) % 4_000_000_000 + 1}, start: {start}}}\n"
        f"tables: {{include: ['{include}'], exclude: ['{exclude}']}}\n"
        f"store: {{path: data/store{store}}}\nmeta: {{path: data/meta}}\napply: {{target: ./lake}}\n"
    )
    return load(file)


def rows(path: Path, table: str) -> pa.Table:
    """All changes of a table with their old rows, without what differs between two transactions with equal changes."""
    batches = list(read(path, table=table, options=DecodeOptions(images="both")))
    table_of_all = pa.Table.from_batches(batches) if batches else pa.table({})
    return table_of_all.drop_columns([n for n in ("_seq", "_commit_time", "_gtid") if n in table_of_all.column_names])


def test_the_rows_are_those_of_the_uncompressed_workload(
    server: Server, database: Database, tmp_path: Path, seed: int
) -> None:
    plain, packed = database(server), database(server)
    start, file = new_file(server)
    config = configure(tmp_path, server, start, rf"({plain}|{packed})\..*", store=", segment_bytes: 200000")
    first, second = Load(server, plain, seed), Load(server, packed, seed)
    compression = Compression(server)
    for turn in range(3):
        first.run(40)
        with compression:
            second.run(30)
        second.run(10)  # without compression, in the same history
        if turn == 1:
            server.execute("FLUSH BINARY LOGS")
        Capture(config).run(until_current=True)  # each run reads the last stored transaction again
    assert PACKED[server.kind.name] <= event_types(file)
    for table in TABLES:
        expected = rows(config.store.path, f"{plain}.{table}")
        assert rows(config.store.path, f"{packed}.{table}").equals(expected) and len(expected) > 30
    # The server's own file gives the same rows as the store.
    read_again = rows(file, f"{packed}.accounts")
    assert len(read_again) > 30 and read_again.equals(rows(config.store.path, f"{packed}.accounts")[: len(read_again)])


def test_excluded_tables_leave_nothing(server: Server, database: Database, tmp_path: Path, seed: int) -> None:
    """Transactions mix captured and excluded tables; those of excluded ones alone take no room."""
    db = database(server)
    start, _ = new_file(server)
    changes = Load(server, db, seed)
    with Compression(server):
        changes.run(60)
        server.execute(
            *[f"INSERT INTO {db}.`lines` (account, line, note) VALUES ({n}, 'only', 'secret{n}')" for n in (901, 902)],
            f"INSERT INTO {db}.accounts VALUES (901, 'last', 1, NULL, 1)",
        )
    whole = configure(tmp_path / "whole", server, start, rf"{db}\..*")
    part = configure(tmp_path / "part", server, start, rf"{db}\..*", exclude=rf"{db}\.lines")
    for config in (whole, part):
        Capture(config).run(until_current=True)
    for table in ("accounts", "journal"):
        assert rows(part.store.path, f"{db}.{table}").equals(rows(whole.store.path, f"{db}.{table}"))
    assert len(rows(whole.store.path, f"{db}.lines")) > 20 and len(rows(part.store.path, f"{db}.lines")) == 0
    stored = b"".join(segment.read_bytes() for segment in list_segments(part.store.path))
    assert b"secret" not in stored and b"lines\0" not in stored
    sizes = [
        sum(int((read_entries(segment)["length"] > 0).sum()) for segment in list_segments(config.store.path))
        for config in (whole, part)
    ]
    assert sizes[1] <= sizes[0] - 2
    service = BatchService(part)
    lease = service.get("me", wait_s=0)
    assert lease is not None
    assert set(lease.manifest.tables) == {f"{db}.accounts", f"{db}.journal"}


def test_the_servers_own_tool_reads_every_segment(
    server: Server, database: Database, tmp_path: Path, seed: int
) -> None:
    db = database(server)
    start, _ = new_file(server)
    changes = Load(server, db, seed)
    with Compression(server):
        changes.run(40)
    config = configure(tmp_path, server, start, rf"{db}\.(accounts|journal)")
    Capture(config).run(until_current=True)
    name = "mysqlbinlog" if server.kind.name == "mysql9" else "mariadb-binlog"
    tool = [*client_tool(server.kind.name, name), "--no-defaults", "--verify-binlog-checksum", "-vv"]
    shown = ""
    for segment in list_segments(config.store.path):
        done = subprocess.run([*tool, str(segment)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr.strip(), done.stderr
        shown += done.stdout
    assert "arning" not in shown and "ERROR" not in shown
    ops = [
        op for table in ("accounts", "journal") for op in rows(config.store.path, f"{db}.{table}")["_op"].to_pylist()
    ]
    for op, words in ((1, "INSERT INTO"), (2, "UPDATE"), (0, "DELETE FROM")):
        assert shown.count(f"### {words} ") == ops.count(op)


def test_forms_of_compressed_transactions(mysql9: Server, database: Database, tmp_path: Path) -> None:
    """Savepoints, rows after a CREATE TABLE, tagged GTIDs, one phase of XA, and more than capture compares at its next
    start."""
    db = database(mysql9)
    start, _ = new_file(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v LONGTEXT)")
    config = configure(tmp_path, mysql9, start, rf"{db}\..*")
    needs(mysql9, "compressed transactions")
    on = "SET SESSION binlog_transaction_compression = ON"
    tag = "" if lacks(mysql9, "tagged GTIDs") else ":packed"
    steps = (
        ["BEGIN", f"INSERT INTO {db}.t VALUES (1, 'a')", "SAVEPOINT s", f"INSERT INTO {db}.t VALUES (2, 'b')",
         "ROLLBACK TO s", f"INSERT INTO {db}.t VALUES (3, 'c')", "COMMIT"],
        [f"CREATE TABLE {db}.copy AS SELECT id, v FROM {db}.t"],
        [f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO {db}.t VALUES (4, 'd')"],
        ["XA START 'one'", f"INSERT INTO {db}.t VALUES (5, 'e')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE"],
        [f"INSERT INTO {db}.t SELECT id + 10, REPEAT('x', 9000000) FROM {db}.t"],
        [f"DELETE FROM {db}.t WHERE id > 12", f"INSERT INTO {db}.t VALUES (6, 'f')"],
    )  # fmt: skip
    for step in steps:
        mysql9.execute(on, *step)
        Capture(config).run(until_current=True)  # reads the last stored transaction again
    changed_rows = rows(config.store.path, f"{db}.t").select(["_op", "id"]).to_pylist()
    changes = [(row["_op"], row["id"]) for row in changed_rows]
    assert changes == [*[(1, n) for n in (1, 3, 4, 5, 11, 13, 14, 15)], *[(0, n) for n in (13, 14, 15)], (1, 6)]
    assert rows(config.store.path, f"{db}.copy").column("id").to_pylist() == [1, 3]
    entries = [entry for segment in list_segments(config.store.path) for entry in read_entries(segment)]
    assert {bytes(entry["gtid_tag"]).rstrip(b"\0") for entry in entries} == {b"", tag.lstrip(":").encode()}


@pytest.mark.long
def test_a_transaction_of_a_gigabyte_in_little_memory(mysql9: Server, database: Database, tmp_path: Path) -> None:
    """1.2 GB of rows in a payload of a few megabytes: capture and decoding stay below their usual sizes."""
    db = database(mysql9)
    start, file = new_file(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v LONGTEXT)")
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        cursor.execute("BEGIN")
        for n in range(1200):
            cursor.execute(f"INSERT INTO {db}.t VALUES ({n}, REPEAT(CONCAT('text ', {n}, ' '), 100000))")
        cursor.execute("COMMIT")
    assert PACKED["mysql9"] <= event_types(file) and file.stat().st_size < 100 << 20
    config = configure(tmp_path, mysql9, start, rf"{db}\..*")
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", "--until-current", "shop"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = peak_rss(process)
    assert process.returncode == 0 and 0 < peak < 250_000_000
    assert max(segment.stat().st_size for segment in list_segments(config.store.path)) > 1 << 30
    count = 0
    for batch in read(config.store.path, table=f"{db}.t"):
        assert batch.nbytes < 100 << 20
        count += len(batch)
    assert count == 1200
    mysql9.execute(f"INSERT INTO {db}.t VALUES (5000, 'after')")
    assert Capture(config).run(until_current=True).transactions == 1
    mysql9.execute(f"DROP TABLE {db}.t")
