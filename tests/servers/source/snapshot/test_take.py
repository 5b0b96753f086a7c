"""Snapshots are resumed after a kill, begun anew after an ALTER, and refuse another server; policies hold in the files."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.base.errors import ConfigError, IdentityError, SchemaChangedError, UnsupportedError, VersionError
from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.source import snapshot
from cdc.source.driver import close_now
from cdc.source.server import describe, replica_lag_s
from cdc.source.snapshot import positions, taking
from cdc.source.snapshot import reader as reading
from cdc.source.snapshot.files import SnapshotFiles
from cdc.source.snapshot.session import Throttle, definition, open_session
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.snapshot_load import rows_of
from tests.support.snapshots import identity, select, write_config


def _ready(server: Server, folder: Path, db: str, rows: int = 2000, **sections: Any) -> DestinationConfig:
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, name VARCHAR(30), born DATE, secret VARCHAR(30))")
    for first in range(0, rows, 1000):
        values = ", ".join(f"({n}, 'name {n}', '2001-02-03', 's{n}')" for n in range(first, min(first + 1000, rows)))
        server.execute(f"INSERT INTO {db}.t VALUES {values}")
    if rows:
        server.execute(f"ANALYZE TABLE {db}.t")
    sections = {"apply": {"mode": "upsert"}, "snapshot": {"chunk_rows": 100, "parallel": 2}, **sections}
    config = write_config(server, folder, f"{re.escape(db)}\\..*", **sections)
    Capture(config).run(until_current=True)
    return config


def _same(files: SnapshotFiles, config: DestinationConfig) -> bool:
    info = files.info
    return sorted(map(repr, rows_of(files))) == sorted(map(repr, select(config, info.db, info.name).to_pylist()))


_CHILD = """
import sys
from pathlib import Path
from cdc.source import snapshot
from cdc.config import load
from cdc.meta.state import SourceIdentity
snapshot.take(load(Path(sys.argv[1])), sys.argv[2], SourceIdentity.model_validate_json(sys.argv[3]))
"""


@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_a_killed_snapshot_continues(kind: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    config = _ready(server, tmp_path, db, snapshot={"chunk_rows": 100, "parallel": 2, "max_rows_per_s": 500})
    arguments = [sys.executable, "-c", _CHILD, str(config.file), f"{db}.t", identity(server).model_dump_json()]
    seen: dict[str, str] = {}
    for _ in range(3):
        child = subprocess.Popen(arguments)
        before = len(seen)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            loads = SnapshotFiles.find(config, db, "t")
            seen |= {r.name: r.model_dump_json() for snapshot_files in loads for r in snapshot_files.records()}
            if len(seen) >= before + 3 or child.poll() is not None:
                break
            time.sleep(0.01)
        assert child.poll() is None, "it must be killed while it runs"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        (current,) = SnapshotFiles.find(config, db, "t")
        now = {r.name: r.model_dump_json() for r in current.records()}
        assert all(now[name] == text for name, text in seen.items()), "a finished chunk was read again"
        seen = now
    assert len(seen) >= 9
    write_config(server, tmp_path, f"{re.escape(db)}\\..*", apply={"mode": "upsert"}, snapshot={"chunk_rows": 100})
    files = snapshot.take(
        config.model_copy(update={"snapshot": config.snapshot.model_copy(update={"max_rows_per_s": None})}),
        f"{db}.t",
        identity(server),
    )
    assert files.folder.uri == current.folder.uri
    now = {r.name: r.model_dump_json() for r in files.records()}
    assert all(now[name] == text for name, text in seen.items())
    assert files.is_complete() and _same(files, config)


def test_a_damaged_or_missing_chunk_is_read_again(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db)
    files = snapshot.take(config, f"{db}.t", identity(mariadb11))
    records = files.records()
    folder = Path(files.folder.uri)
    with (folder / records[0].file).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    (folder / records[1].file).unlink()
    (folder / records[2].file).write_bytes(b"")
    (folder / f"{records[3].name}.json").unlink()
    retaken = snapshot.take(config, f"{db}.t", identity(mariadb11))
    assert retaken.folder.uri == files.folder.uri
    assert all(retaken.is_sound(record) for record in retaken.records()) and retaken.is_complete()
    assert _same(retaken, config)
    kept = {r.name: r.high for r in retaken.records()}
    untouched = [r for r in records if r.segment > records[3].segment]
    assert untouched and all(kept[r.name] == r.high for r in untouched)


def test_an_altered_table_begins_anew(mysql9: Server, database: Any, tmp_path: Path, monkeypatch: Any) -> None:
    db = database(mysql9)
    config = _ready(mysql9, tmp_path, db)
    real, calls = reading.SegmentReader.read_chunk, []

    def altering(self: Any, conn: Any, chunk: Any) -> Any:
        calls.append(chunk)
        if len(calls) == 4:
            mysql9.execute(f"ALTER TABLE {db}.t ADD extra INT DEFAULT 7")
        return real(self, conn, chunk)

    monkeypatch.setattr(reading.SegmentReader, "read_chunk", altering)
    files = snapshot.take(config, f"{db}.t", identity(mysql9))
    assert files.info.definition.column_names[-1] == "extra"
    assert {row["extra"] for row in rows_of(files)} == {7}
    assert _same(files, config)
    assert len(SnapshotFiles.find(config, db, "t")) == 1, "the first try's files are removed"


def test_a_table_renamed_at_the_beginning_has_to_begin_anew(
    mysql9: Server, database: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    db = database(mysql9)
    config = _ready(mysql9, tmp_path, db)
    real = definition

    def renaming(*given: Any) -> Any:
        result = real(*given)
        mysql9.execute(f"RENAME TABLE {db}.t TO {db}.away")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(taking, "definition", renaming)
        with pytest.raises(SchemaChangedError, match=rf"table {db}.t: the table was altered while it was read"):
            snapshot.take(config, f"{db}.t", identity(mysql9))
    mysql9.execute(f"RENAME TABLE {db}.away TO {db}.t")
    assert _same(snapshot.take(config, f"{db}.t", identity(mysql9)), config)


@pytest.mark.parametrize("kind", ["mysql9", "mysql56", "mariadb11"])
@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE {} ADD extra INT", "ALTER TABLE {} DROP secret", "RENAME TABLE {} TO {}_gone", "DROP TABLE {}"],
)
def test_a_change_inside_a_chunk_is_noticed(
    kind: str, statement: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Between the chunk's read view and its query, where the server itself may or may not complain."""
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    config = _ready(server, tmp_path, db, rows=50)
    monkeypatch.setattr(taking, "ATTEMPTS", 1)
    monkeypatch.setattr(taking, "wait_for_margin", lambda *_: None)
    real = positions.begin

    def begin(conn: Any, method: Any) -> Any:
        marks = real(conn, method)
        server.execute(statement.replace("{}", f"{db}.t"))
        return marks

    monkeypatch.setattr(positions, "begin", begin)
    with pytest.raises(SchemaChangedError):
        snapshot.take(config, f"{db}.t", identity(server))


def test_another_server_is_refused(mariadb11: Server, mariadb10: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db)
    with pytest.raises(IdentityError, match="is not the one that is captured"):
        snapshot.take(config, f"{db}.t", identity(mariadb10))


def test_a_reset_source_begins_anew(tmp_path: Path) -> None:
    with Server("mariadb11") as server:
        server.execute("CREATE DATABASE shop")
        config = _ready(server, tmp_path, "shop")
        first = snapshot.take(config, "shop.t", identity(server))
        server.execute("RESET MASTER")
        second = snapshot.take(config, "shop.t", identity(server))
        assert second.folder.uri != first.folder.uri
        assert SnapshotFiles.find(config, "shop", "t")[0].id == second.id
        assert _same(second, config)


def test_changed_policies_begin_anew(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    first = snapshot.take(_ready(mariadb11, tmp_path, db), f"{db}.t", identity(mariadb11))
    include = f"{re.escape(db)}\\..*"
    config = write_config(mariadb11, tmp_path, include, apply={"mode": "upsert", "columns": {"secret": "drop"}})
    second = snapshot.take(config, f"{db}.t", identity(mariadb11))
    assert second.id != first.id and "secret" not in rows_of(second)[0]
    assert not (Path(first.folder.uri)).exists(), "clear text of a dropped column must not stay"


def test_policies_hold_in_the_files(mariadb11: Server, database: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HASH_KEY", "a key of the test")
    db = database(mariadb11)
    columns = {"secret": "hash", "name": {"mask": 1}, "born": {"rename": "birthday"}}
    apply = {"mode": "upsert", "columns": columns, "hash_key_env": "HASH_KEY"}
    config = _ready(mariadb11, tmp_path, db, apply=apply)
    files = snapshot.take(config, f"{db}.t", identity(mariadb11))
    rows = {row["id"]: row for row in rows_of(files)}
    assert rows[7].keys() == {"id", "name", "birthday", "secret"}
    assert rows[7]["name"] == "*****7" and len(rows[7]["secret"]) == 64
    assert files.info.policies == {
        "name": "mask: 1", "born": "rename: birthday", "secret": files.info.policies["secret"]
    }  # fmt: skip
    assert files.info.policies["secret"].startswith("hash with key ")
    everything = b"".join(path.read_bytes() for path in Path(files.folder.uri).iterdir())
    assert b"s1999" not in everything and b"name 7" not in everything


def test_the_key_of_a_hashed_column_is_not_shown(
    mariadb11: Server, database: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HASH_KEY", "a key of the test")
    db = database(mariadb11)
    mariadb11.execute(
        f"CREATE TABLE {db}.people (mail VARCHAR(40) PRIMARY KEY)",
        f"INSERT INTO {db}.people SELECT CONCAT('person', seq, '@example.org') FROM {db}.seq_1_to_500",
    )
    apply = {"mode": "upsert", "columns": {"mail": "hash"}, "hash_key_env": "HASH_KEY"}
    config = _ready(mariadb11, tmp_path, db, rows=0, apply=apply)
    files = snapshot.take(config, f"{db}.people", identity(mariadb11))
    assert len({row["mail"] for row in rows_of(files)}) == 500 and files.info.index is None
    everything = b"".join(path.read_bytes() for path in Path(files.folder.uri).iterdir())
    assert b"person" not in everything and b"person".hex().encode() not in everything


@pytest.mark.parametrize("kind", ["mysql9", "mysql56", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)])
def test_empty_tables_and_tables_without_a_key(
    kind: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(taking, "wait_for_margin", lambda *_: None)
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    config = _ready(server, tmp_path, db, rows=0, apply={"mode": "append"})
    server.execute(
        f"CREATE TABLE {db}.log (line TEXT, n INT)", f"INSERT INTO {db}.log VALUES ('a', 1), ('a', 1), (NULL, 2)"
    )
    loads = snapshot.take_all(config, [f"{db}.t", f"{db}.log"], identity(server))
    empty, keyless = loads[f"{db}.t"], loads[f"{db}.log"]
    assert isinstance(empty, SnapshotFiles) and isinstance(keyless, SnapshotFiles)
    assert rows_of(empty) == [] and empty.is_complete() and len(empty.paths()) == 1
    assert sorted(map(repr, rows_of(keyless))) == sorted(map(repr, select(config, db, "log").to_pylist()))
    assert keyless.info.key == () and len(rows_of(keyless)) == 3
    server.execute(f"INSERT INTO {db}.t VALUES (1, 'x', NULL, NULL)")
    Capture(config).run(until_current=True)
    reader = StoreReader(config.store.path)
    with server.connect() as connection:
        method = positions.method_of(connection, describe(connection))
    if method != "margin":  # with which the low mark is a minute old
        assert keyless.is_exact(reader)
    else:
        with pytest.raises(Exception, match="less than a minute"):
            keyless.is_exact(reader)


@pytest.mark.long
def test_huge_rows_pass(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db, rows=0)
    mariadb11.execute(
        f"CREATE TABLE {db}.large (id INT PRIMARY KEY, a LONGTEXT, b LONGBLOB)",
        f"INSERT INTO {db}.large VALUES (1, 'x', 'y')",
    )
    sizes = {2: 0xFFFFFF - 20, 3: 0xFFFFFF, 4: 0x1000000, 5: 20 << 20, 6: (2 * 0xFFFFFF) - 11, 7: 60 << 20}
    for key, size in sizes.items():
        mariadb11.execute(f"INSERT INTO {db}.large VALUES ({key}, REPEAT('ä', {size // 2}), NULL)")
        mariadb11.execute(f"INSERT INTO {db}.large VALUES ({key + 100}, NULL, REPEAT('z', {size}))")
    files = snapshot.take(config, f"{db}.large", identity(mariadb11))
    shapes = {}
    for record in files.records():
        for batch in files.batches(record):
            for id_, a, b in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                shapes[id_] = (len(a or ""), len(b or b""), set((a or "")[:9] + (a or "")[-9:]))
    assert shapes.pop(1) == (1, 1, {"x"})
    assert shapes == {
        **{key: (size // 2, 0, {"ä"}) for key, size in sizes.items()},
        **{key + 100: (0, size, set()) for key, size in sizes.items()},
    }


# ---------------------------------------------------------------- throttle and progress


def test_rows_per_second_are_limited(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    limits = {"chunk_rows": 100, "parallel": 2, "max_rows_per_s": 800}
    config = _ready(mariadb11, tmp_path, db, snapshot=limits)
    told: list[snapshot.SnapshotProgress] = []
    began = time.monotonic()
    files = snapshot.take(config, f"{db}.t", identity(mariadb11), progress=told.append)
    assert time.monotonic() - began > 1.5
    assert told[-1].complete and told[-1].rows == 2000 and told[-1].left_s == 0
    assert any(0 < progress.rows < 2000 and progress.left_s is not None for progress in told)
    assert all(a.rows <= b.rows for a, b in itertools.pairwise(told))
    assert snapshot.last_progress(SnapshotFiles.find(config, db, "t")) == told[-1]
    assert told[-1].bytes == sum(record.bytes for record in files.records())


@pytest.mark.long
def test_reading_pauses_while_the_source_is_busy(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db, rows=10, snapshot={"max_threads_running": 1})
    busy = mariadb11.connect()
    busy._execute_command(3, "SELECT SLEEP(3)")  # type: ignore[attr-defined]
    time.sleep(0.2)
    throttle = Throttle(config.source, config.snapshot, 1)
    began = time.monotonic()
    throttle.after(1)
    throttle.close()
    assert time.monotonic() - began > 1.5


def test_a_server_that_is_no_replica_has_no_lag(
    mysql9: Server, mariadb11: Server, database: Any, tmp_path: Path
) -> None:
    for server in (mysql9, mariadb11):
        conn = open_session(_ready(server, tmp_path / server.kind.name, database(server), rows=0).source)
        assert replica_lag_s(conn) is None
        close_now(conn)


# ---------------------------------------------------------------- bad input


def test_tables_that_cannot_be_read_are_named(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db, rows=10)
    mariadb11.execute(f"CREATE TABLE {db}.clash (id INT PRIMARY KEY, _seq INT)")
    names = [f"{db}.t", f"{db}.clash", f"{db}.gone", "other.t", "t"]
    loads = snapshot.take_all(config, names, identity(mariadb11))
    assert isinstance(loads[f"{db}.t"], SnapshotFiles), "the others go on"
    assert isinstance(loads[f"{db}.clash"], UnsupportedError)
    assert isinstance(loads[f"{db}.gone"], SchemaChangedError)
    assert isinstance(loads["other.t"], ConfigError) and isinstance(loads["t"], ConfigError)
    assert "is not among the tables" in str(loads["t"])


def test_a_newer_format_is_refused(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db, rows=10)
    files = snapshot.take(config, f"{db}.t", identity(mariadb11))
    path = Path(files.folder.uri) / "snapshot.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 4}))
    with pytest.raises(VersionError, match="format version 4"):
        SnapshotFiles.open(files.folder)


def test_zero_dates_are_null_or_refused(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    config = _ready(mariadb11, tmp_path, db, rows=10)
    mariadb11.execute(
        f"CREATE TABLE {db}.d (id INT PRIMARY KEY, d DATE)",
        "SET GLOBAL sql_mode = @@GLOBAL.sql_mode",
    )
    with mariadb11.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"INSERT INTO {db}.d VALUES (1, '0000-00-00'), (2, '2024-02-31'), (3, '2024-02-29'), (4, NULL)")
    files = snapshot.take(config, f"{db}.d", identity(mariadb11))
    assert [row["d"] is None for row in sorted(rows_of(files), key=lambda row: row["id"])] == [True, True, False, True]
    assert sum(record.null_dates.get("d", 0) for record in files.records()) == 2
    strict = write_config(mariadb11, tmp_path, f"{re.escape(db)}\\..*", apply={"mode": "upsert", "zero_dates": "fail"})
    with pytest.raises(UnsupportedError, match="zero or impossible date"):
        snapshot.take(strict, f"{db}.d", identity(mariadb11))
    assert pa.types.is_date(select(config, db, "d").schema.field("d").type)
