"""The table at the source: its rows, single commits, a backlog, traffic, and the comparison with a target."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from benchmarks.workload import TRANSACTION_ROWS, create_table, values
from cdc.testing.servers import Server

OPTIONS = ("--innodb-buffer-pool-size=1G", "--cte-max-recursion-depth=1000000")
NAMES = "id, customer, status, total, items, note, code, created, changed, flag, score"
TYPES = {
    "id": pa.int64(), "customer": pa.int64(), "status": pa.string(), "total": pa.decimal128(12, 2),
    "items": pa.int64(), "note": pa.string(), "code": pa.string(), "created": pa.timestamp("us"),
    "changed": pa.timestamp("us"), "flag": pa.int64(), "score": pa.float64(), "extra": pa.int64(),
}  # fmt: skip
"""The columns and the types in which source and target are compared. ``extra`` is added by :data:`ALTER`."""
ALTER = "ALTER TABLE bench.orders ADD COLUMN extra INT NULL"
MARK = 9
"""The value of ``flag`` in the rows that the backlog has updated."""
TRAFFIC_ROWS = 5_000
"""The first rows of the table, which traffic updates and deletes."""
_STEP_ROWS = 5


def fill(server: Server, rows: int) -> None:
    server.execute("CREATE DATABASE bench", create_table(), *_inserts(rows, 1))


def commit(server: Server, row_id: int) -> float:
    """Commits one new row, and returns the monotonic seconds at which the commit was acknowledged."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_inserts(1, row_id)[0])
        return time.perf_counter()


def backlog(server: Server, changes: int, first: int) -> None:
    """Inserts half of the changes as rows from ``first`` on, then updates as many rows from the table's first on."""
    updates = [
        f"UPDATE bench.orders SET flag = {MARK}, total = total + 1"
        f" WHERE id BETWEEN {at} AND {min(at + TRANSACTION_ROWS, 1 + changes // 2) - 1}"
        for at in range(1, 1 + changes // 2, TRANSACTION_ROWS)
    ]
    server.execute(*_inserts(changes // 2, first), *updates)


def _inserts(rows: int, first: int) -> list[str]:
    """Returns statements that insert rows with ascending ids from ``first``. MySQL has no engine of sequences."""
    return [
        f"INSERT INTO bench.orders ({NAMES}) WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE"
        f" seq < {min(TRANSACTION_ROWS, first + rows - at)}) SELECT {values('seq', key=f'{at - 1} + seq')} FROM s"
        for at in range(first, first + rows, TRANSACTION_ROWS)
    ]


class Traffic(threading.Thread):
    """Small transactions, at most ten a second, until :meth:`stop`: each inserts five rows, updates five and deletes
    one. From :attr:`altered` on they also fill the new column."""

    def __init__(self, server: Server, first: int) -> None:
        super().__init__(name="traffic")
        self._server, self._first, self._ended = server, first, threading.Event()
        self.altered = False
        self.transactions = 0
        self.failure: pymysql.Error | None = None

    def run(self) -> None:
        dice = random.Random(4711)
        try:
            with self._server.connect() as connection:
                while not self._ended.wait(0.1):
                    with connection.cursor() as cursor:
                        cursor.execute("BEGIN")
                        for statement in self._statements(dice):
                            cursor.execute(statement)
                        cursor.execute("COMMIT")
                    self.transactions += 1
        except pymysql.Error as error:
            self.failure = error

    def _statements(self, dice: random.Random) -> list[str]:
        at, number = self._first + self.transactions * _STEP_ROWS, self.transactions
        updated, deleted = dice.randrange(1, TRAFFIC_ROWS), dice.randrange(1, TRAFFIC_ROWS)
        extra = f", extra = {number}" if self.altered else ""
        between = f"BETWEEN {updated} AND {updated + _STEP_ROWS - 1}"
        inserted = f"WHERE id BETWEEN {at} AND {at + _STEP_ROWS - 1}"
        return [
            *_inserts(_STEP_ROWS, at),
            *([f"UPDATE bench.orders SET extra = {number} {inserted}"] if extra else []),
            f"UPDATE bench.orders SET total = total + 1, note = 'traffic {number}'{extra} WHERE id {between}",
            f"DELETE FROM bench.orders WHERE id = {deleted}",
        ]

    def stop(self) -> None:
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure


# --- the comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The rows by which a target differs from the source, over the columns that both have."""

    missing: int
    wrong: int
    extra: int
    """Rows that the source does not have, and second rows of a key."""
    new_column: bool
    columns: tuple[str, ...] = ()
    """The columns in which :attr:`wrong` rows differ."""


def select(server: Server) -> pa.Table:
    """Returns all rows of the table, as text of the server, cast to :data:`TYPES`."""
    columns = [name for name in TYPES if name in _columns(server)]
    batches = []
    with server.connect() as connection, connection.cursor(pymysql.cursors.SSCursor) as cursor:
        connection.decoders = {}  # every value stays text
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {', '.join(columns)} FROM bench.orders ORDER BY id")
        while rows := cursor.fetchmany(50_000):
            texts = (pa.array(values, pa.string()) for values in zip(*rows, strict=True))
            cast = [column.cast(TYPES[name]) for name, column in zip(columns, texts, strict=True)]
            batches.append(pa.record_batch(cast, names=columns))
    return pa.Table.from_batches(batches)


def compare(source: pa.Table, target: pa.Table) -> Difference:
    names = [name for name in source.column_names if name in target.column_names]
    target = pa.table({name: _cast(target[name], TYPES[name]) for name in names}).sort_by("id").combine_chunks()
    ids = target["id"].to_numpy()
    first = pa.array([True, *(ids[1:] != ids[:-1])][: len(ids)], pa.bool_())
    in_source = pc.is_in(target["id"], value_set=source["id"].combine_chunks())
    kept = target.filter(pc.and_(first, in_source))
    ours = source.select(names).filter(pc.is_in(source["id"], value_set=kept["id"].combine_chunks()))
    wrong, columns = pa.chunked_array([pa.array([False] * len(kept), pa.bool_())]), []
    for name in names:
        same = pc.fill_null(pc.equal(ours[name], kept[name]), False)
        both_null = pc.and_(pc.is_null(ours[name]), pc.is_null(kept[name]))
        differs = pc.invert(pc.or_(same, both_null))
        if pc.any(differs).as_py():
            columns.append(name)
        wrong = pc.or_(wrong, differs)
    return Difference(
        missing=len(source) - len(kept),
        wrong=int(pc.sum(wrong).as_py() or 0),
        extra=len(target) - len(kept),
        new_column="extra" in names,
        columns=tuple(columns),
    )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Casts a column; Arrow rounds a decimal on its way to a float, so that one goes through text."""
    exact = column.cast(pa.string()) if pa.types.is_decimal(column.type) and kind == pa.float64() else column
    return exact.cast(kind)


def _columns(server: Server) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_schema = 'bench'")
        return [str(row[0]) for row in cursor.fetchall()]
