"""Parts of tables: rows of a range of keys, or of a condition, are loaded or replayed, whatever was done to the lake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs.results import SnapshotResult
from cdc.lake.jobs.table_part import PartRequest
from cdc.source.snapshot import SnapshotFiles, reader
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.compare import ledger_faults

Database = Callable[[Server], str]
MODES = {"mirror": "upsert", "soft": "soft_delete"}
KEPT = {"mirror": "true", "soft": "NOT _deleted"}


class Parts(Loop):
    """A destination with a table for each mode, whose Delta tables somebody damages."""

    def __init__(self, folder: Path, server: Server, db: str, modes: Sequence[str] = tuple(MODES)) -> None:
        self.modes = modes
        overrides = ", ".join(f"DB.{table}: {{mode: {MODES[table]}}}" for table in modes)
        super().__init__(folder, server, db, overrides=overrides, snapshot="{chunk_rows: 7}")

    def each(self, *statements: str) -> None:
        self.sql(*(statement.format(table) for statement in statements for table in self.modes))

    def fill(self) -> None:
        self.each(
            "CREATE TABLE {} (tenant INT NOT NULL, id INT NOT NULL, v VARCHAR(20), kind INT, PRIMARY KEY (tenant, id))"
        )
        values = ", ".join(f"({t}, {i}, 'v{i}', {i % 5})" for t in (1, 2, 3) for i in range(40))
        self.each(f"INSERT INTO {{}} VALUES {values}", "DELETE FROM {} WHERE id = 39")
        self.capture()
        self.apply_all()

    def damage(self, delete: str, change: str, *inserted: tuple[int, int, str, int]) -> None:
        """Deletes, changes and inserts rows of the Delta tables, as a colleague may do."""
        import pyarrow as pa

        for table in self.modes:
            delta = DeltaTable(str(self.path(table)))
            delta.delete(delete)
            delta.update(predicate=change, updates={"v": "'damaged'"})
            schema = pa.schema(delta.schema())
            rows = [dict(zip(("tenant", "id", "v", "kind"), row, strict=True)) for row in inserted]
            if table == "soft":
                rows = [{**row, "_deleted": False, "_seq": 1} for row in rows]
            if rows:
                write_deltalake(delta, pa.Table.from_pylist(rows, schema), mode="append")

    def snapshot(self, *, keys: str | None = None, where: str | None = None) -> dict[str, SnapshotResult]:
        tables = [f"{self.db}.{table}" for table in self.modes]
        results = pipeline.snapshot(self.config, tables, part=PartRequest.of(keys, where))
        return {result.table.partition(".")[2]: result for result in results}

    def present(self, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        import pyarrow as pa

        reader = QueryBuilder().register("t", DeltaTable(str(self.path(table))))
        query = f"SELECT tenant, id, v, kind FROM t WHERE {KEPT[table]} AND {where} ORDER BY 1, 2, 3, 4"
        return [tuple(row.values()) for row in pa.table(reader.execute(query)).to_pylist()]

    def shown(self, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        rows = self.select(f"{table}` WHERE {where} -- ")
        return sorted(tuple(row.values()) for row in rows)

    def require_equal_rows(self, where: str = "true") -> None:
        for table in self.modes:
            assert self.present(table, where) == self.shown(table, where), table

    def require_sound(self) -> None:
        """Nothing is parked or left behind, the ledgers join, and verify proves the tables."""
        assert BatchService(self.config).subscription().parked == {}
        for table in self.modes:
            assert SnapshotFiles.find(self.config, self.db, table) == []
            assert ledger_faults(self.config.apply.target, self.db, table) == []


@contextmanager
def writing(loop: Parts, seed: int) -> Iterator[None]:
    """Changes rows in and around tenant 2 while the block runs; keys move in and out."""
    stop, random = threading.Event(), Random(seed)

    def write() -> None:
        while not stop.is_set():
            n, id_ = random.randrange(1000), random.randrange(50)
            tenant, other = random.randint(1, 3), random.randint(1, 3)
            loop.each(
                f"UPDATE {{}} SET v = 'w{n}' WHERE id = {id_}",
                f"UPDATE IGNORE {{}} SET tenant = {other} WHERE tenant = {tenant} AND id < {id_}",
                f"DELETE FROM {{}} WHERE tenant = {tenant} AND id = {n % 50}",
                f"REPLACE INTO {{}} VALUES (2, {n % 53}, 'new{n}', {n % 5}), ({other}, {id_}, 'x', {n % 5})",
                f"UPDATE {{}} SET kind = {n % 6} WHERE id = {(n * 11) % 50}",
            )

    with ThreadPoolExecutor(1, thread_name_prefix="writer") as pool:
        writer = pool.submit(write)
        try:
            yield
        finally:
            stop.set()
            writer.result()


def test_a_part_is_loaded_again(tmp_path: Path, mariadb11: Server, database: Database, seed: int) -> None:
    """The lake has damaged, missing, foreign and repeated rows in the part, and rows of the part elsewhere, and the
    other way round, while the source is written to."""
    loop = Parts(tmp_path, mariadb11, database(mariadb11), ("mirror",))
    loop.fill()
    loop.damage(
        "kind = 1 AND id < 7",
        "kind = 0 AND id > 20",
        (2, 5, "twice", 0),
        (3, 888, "of nobody", 1),
    )
    for kind, word in ((1, "77"), (3, "0")):
        delta = DeltaTable(str(loop.path("mirror")))
        delta.update(predicate=f"kind = {kind} AND id > 10", updates={"kind": word})
    with capturing(loop.config), writing(loop, seed):
        (result,) = loop.snapshot(where="tenant >= 1 AND kind IN (0, 1, 77)").values()
    assert result.differed and result.reread == 1
    loop.capture()
    loop.apply_all()
    loop.require_equal_rows()
    loop.require_sound()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_a_range_of_keys_is_loaded_again(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database, seed: int
) -> None:
    """Rows of the range become those of the source while they change, and other rows stay as they are."""
    server: Server = request.getfixturevalue(kind)
    loop = Parts(tmp_path, server, database(server))
    loop.fill()
    loop.damage(
        "tenant = 2 AND id < 5",
        "tenant = 2 AND id IN (7, 8)",
        (2, 8, "twice", 0),
        (2, 777, "of nobody", 0),
        (3, 888, "of nobody", 0),
    )
    with capturing(loop.config), writing(loop, seed):
        results = loop.snapshot(keys="tenant=2,id=0..tenant=2,id=900")
    assert all(result.differed and result.chunks > 1 and not result.reread for result in results.values())
    loop.capture()
    loop.apply_all()
    loop.require_equal_rows("tenant = 2")
    assert all((3, 888, "of nobody", 0) in loop.present(table) for table in loop.modes)
    with capturing(loop.config):
        loop.snapshot(keys="tenant=3,id=888")
        report = pipeline.verify(loop.config)
    assert report.exit_code == 0, report
    loop.require_equal_rows()
    loop.require_sound()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_keys_of_other_types(
    tmp_path: Path, mysql9: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is asked for rows by keys of these types, and texts are compared by their bytes."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    loop = Loop(tmp_path, mysql9, database(mysql9))
    names = ("a", "B", "Z", "é", "Ab", "o'x", "x ", "")
    rows = ", ".join(
        f"({quoted(name)}, '2026-03-08 02:30:00.{n}25', {n}.50, x'6{n}', {n}, {n % 2})" for n, name in enumerate(names)
    )
    loop.sql(
        "CREATE TABLE typed (name VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, at TIMESTAMP(3), "
        "price DECIMAL(6,2), b BINARY(2), big BIGINT UNSIGNED, v INT, PRIMARY KEY (name, at, price, b, big))",
        f"INSERT INTO typed VALUES {rows}",
    )
    loop.capture()
    loop.apply_all()

    def load(where: str) -> SnapshotResult:
        with capturing(loop.config):
            (result,) = pipeline.snapshot(loop.config, [f"{loop.db}.typed"], part=PartRequest.of(None, where))
        return result

    def row(values: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(values.values())

    try:
        lake = DeltaTable(str(loop.path("typed")))
        lake.update(predicate="v = 0", updates={"v": "1"})
        result = load("v = 1")
        assert (result.differed, result.reread) == (4, 1)
        assert sorted(map(row, loop.delta("typed"))) == sorted(map(row, loop.select("typed")))
        for where, chosen in (
            ("name >= 'B' AND name <= 'a'", {"B", "Z", "a"}),
            ("name = 'A'", set()),
            ("name IN ('a', 'x ')", {"a", "x "}),
            ("at >= '2026-03-08 02:30:00.3' AND at < '2026-03-08T00:30:00.6-02:00' AND b = 0x6300", {"é"}),
            ("big < 3 AND price = 2.5", {"Z"}),
        ):
            DeltaTable(str(loop.path("typed"))).update(updates={"v": "9"})
            assert load(where).differed == len(chosen)
            assert {values["name"] for values in loop.delta("typed") if values["v"] != 9} == chosen
            load("v = 9")
            assert sorted(map(row, loop.delta("typed"))) == sorted(map(row, loop.select("typed")))
    finally:
        monkeypatch.undo()
        time.tzset()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_foreign_keys_change_rows_while_a_part_is_read(
    tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the part are changed without events. If they may cross its edge, it is read again."""
    loop = Loop(tmp_path, mariadb11, database(mariadb11), snapshot="{chunk_rows: 5, parallel: 1}")
    loop.sql(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE moved (tenant INT, id INT, p INT, PRIMARY KEY (tenant, id), "
        "FOREIGN KEY (tenant) REFERENCES p (id) ON UPDATE CASCADE)",
        "CREATE TABLE gone (tenant INT, id INT, p INT, PRIMARY KEY (tenant, id), "
        "FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        f"INSERT INTO p VALUES (1), (2), (5), {', '.join(f'({i})' for i in range(10, 30))}",
        *[
            f"INSERT INTO {table} VALUES {', '.join(f'({t}, {i}, {i + 10})' for t in (2, 5) for i in range(20))}"
            for table in ("moved", "gone")
        ],
    )
    loop.capture()
    loop.apply_all()
    waiting: list[str] = []
    read_chunk = reader.SegmentReader.read_chunk

    def read(self: reader.SegmentReader, conn: Any, chunk: Any) -> Any:
        record = read_chunk(self, conn, chunk)
        if waiting:
            loop.sql(waiting.pop())
        return record

    monkeypatch.setattr(reader.SegmentReader, "read_chunk", read)
    for table, statement, reread in (
        ("gone", "DELETE FROM p WHERE id = 12", 0),
        ("moved", "UPDATE p SET id = 3 WHERE id = 2", 1),
    ):
        DeltaTable(str(loop.path(table))).update(predicate="id % 2 = 0", updates={"p": "1"})
        waiting.append(statement)
        with capturing(loop.config):
            (result,) = pipeline.snapshot(
                loop.config, [f"{loop.db}.{table}"], part=PartRequest.of(None, "tenant BETWEEN 2 AND 5")
            )
        assert not waiting and result.differed and result.reread == reread
        loop.capture()
        loop.apply_all()
        loop.require_equal(table, "1, 2")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_random_parts(kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database, seed: int) -> None:
    """Random damage in a random part, which is loaded or replayed while the source is written to."""
    server: Server = request.getfixturevalue(kind)
    loop, random = Parts(tmp_path, server, database(server)), Random(seed)
    loop.fill()
    for turn in range(5):
        tenant, low = random.randint(1, 3), random.randrange(30)
        keys, where = random.choice(
            [
                (f"tenant={tenant},id={low}..tenant={tenant},id={low + 20}", None),
                (None, f"tenant = {tenant}"),
                (None, f"kind BETWEEN {low % 4} AND {low % 4 + 1}"),
                (None, f"v >= 'v{low}' AND v <= 'v9'"),
                (None, f"v = 'x' AND tenant IN ({tenant}, {tenant + 1})"),
                (f"tenant={tenant},id={low}", "kind < 9"),
            ]
        )
        condition = where or f"tenant = {tenant} AND id BETWEEN {low} AND {low + 20}"
        if keys is not None and where is not None:
            condition = f"tenant = {tenant} AND id = {low}"
        chosen = condition.replace("v >= ", "CAST(v AS BINARY) >= ").replace("v <= ", "CAST(v AS BINARY) <= ")
        lower = random.randrange(40)
        loop.damage(
            f"({condition}) AND id BETWEEN {lower} AND {lower + 5}",
            f"({condition}) AND id % 4 = {turn % 4}",
            (tenant, low, "twice", low % 4),
        )
        for table in loop.modes:  # rows that the source has elsewhere
            delta = DeltaTable(str(loop.path(table)))
            delta.update(predicate=f"id % 9 = {turn}", updates={"kind": f"{low % 4}", "v": "'x'"})
        with capturing(loop.config), writing(loop, seed + turn):
            if turn == 2:
                names = [f"{loop.db}.{table}" for table in loop.modes]
                pipeline.replay(loop.config, names, part=PartRequest.of(keys, where))
            else:
                loop.snapshot(keys=keys, where=where)
        loop.capture()
        loop.apply_all()
        for table in loop.modes:
            assert loop.present(table, condition) == loop.shown(table, chosen), (table, turn, keys, where)
        loop.require_sound()
    pipeline.replay(
        loop.config, [f"{loop.db}.{table}" for table in loop.modes], part=PartRequest.of(None, "tenant > 0")
    )
    with capturing(loop.config):
        report = pipeline.verify(loop.config, [f"{loop.db}.{table}" for table in loop.modes])
    loop.require_equal_rows()
    assert report.exit_code == 0, report
